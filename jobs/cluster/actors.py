"""The controller and the agents as actors of Ray, and how to call them. Needs the extra `cluster`.

One controller on the first machine, and an agent on each, all of them detached: they end with Ray, and Ray starts them
again when they die. What passes here is orders and reports, as msgpack.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec
import ray
from msgspec.structs import replace
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from indexes.base.durable import FolderLock
from indexes.base.errors import Conflict, NearlineError, NotFound, Unavailable
from indexes.store.objects import Bucket, first_line
from jobs.cluster.controller import Controller
from jobs.cluster.keeping import TURN_S, Keeping
from jobs.cluster.machine import AGENT, Machine, read_machine
from jobs.cluster.plan import ClusterPlan, MachineReport, Orders, PlanLog

logger = logging.getLogger(__name__)

NAMESPACE = CONTROLLER = "nearline"
LABEL = "nearline-machine"
AGENT_LOG, LOG_BYTES_MAX = "agent.log", 10_000_000
LOOK_S = 0.2
CALL_S = 20.0
CONNECT_S = 60.0


class ControllerActor:
    """Holds nothing that is not in the plan or told by machines, so it may be started again at any time."""

    def __init__(self, machine: bytes, url: str) -> None:
        """`url` is where plans are kept."""
        self._machine = msgspec.msgpack.decode(machine, type=Machine)
        self._url = url
        self._opened: Controller | None = None

    def _open(self) -> Controller:
        """Begin as soon as the store can be reached. Raises Unavailable."""
        if self._opened is None:
            plans, wanted = PlanLog(Bucket(self._url, makes_folder=True)), self._machine
            by = os.urandom(8).hex()
            newest = plans.newest() or ClusterPlan(cluster=by, by=by)
            replicas = newest.replicas if wanted.replicas is None else wanted.replicas
            plan = replace(newest, by=by, store=wanted.store, replicas=replicas, number=newest.number + 1)
            plan = plans.append(plan)
            self._opened = Controller(plan, plans.append, wanted.patience_s, time.monotonic())
        return self._opened

    def report(self, report: bytes) -> bytes:
        told = msgspec.msgpack.decode(report, type=MachineReport)
        return msgspec.msgpack.encode(self._open().hear(told, time.monotonic()))

    def add(self, node: str, machine: str | None) -> str:
        return self._open().add(node, machine, time.monotonic())

    def remove(self, node: str) -> None:
        self._open().remove(node)

    def stop(self) -> None:
        self._open().stopping = True


class AgentActor:
    """Looks after the services of a machine until all shall stop; then it ends Ray there, but on the first machine,
    where `nearline cluster stop` does it last."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._keeping: Keeping | None = None
        log = RotatingFileHandler(self._folder / AGENT_LOG, maxBytes=LOG_BYTES_MAX, backupCount=1)
        logging.basicConfig(
            level=logging.INFO, handlers=[log], format="%(asctime)s %(levelname)s %(message)s"
        )
        threading.Thread(target=self._run, name="agent", daemon=True).start()

    def has_orders(self) -> bool:
        """Raises Conflict if the controller refuses this machine."""
        if self._keeping is not None and isinstance(self._keeping.error, Conflict):
            raise self._keeping.error
        return self._keeping is not None and self._keeping.orders is not None

    def _run(self) -> None:
        while True:
            try:
                lock = FolderLock(self._folder / AGENT)
                break
            except NearlineError as error:  # the agent before this one has not ended yet
                logger.warning("%s", error)
        machine = read_machine(self._folder)
        assert machine is not None
        self._keeping = keeping = Keeping(self._folder, machine, report)
        while self._turn(keeping) or machine.head:
            time.sleep(TURN_S)
        lock.close()
        os.kill(machine.ray_pid, signal.SIGTERM)

    def _turn(self, keeping: Keeping) -> bool:
        try:
            return keeping.turn()
        except Exception:
            logger.exception("a turn failed, and the next one tries again")
            return True


def report(told: MachineReport) -> Orders:
    answer = call("report", msgspec.msgpack.encode(told))
    return msgspec.msgpack.decode(answer, type=Orders)


def call(method: str, *arguments: Any) -> Any:
    """Call the controller. Raises what it raises, and Unavailable if it does not answer."""
    try:
        actor = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
    except (RayError, ValueError) as error:
        raise Unavailable(f"the controller of the cluster does not run: {first_line(error)}") from None
    return answer_of(getattr(actor, method).remote(*arguments))


def answer_of(asked: Any) -> Any:
    """Wait for the answer of an actor, and raise what it raised, or Unavailable."""
    try:
        return ray.get(asked, timeout=CALL_S)
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        raise Unavailable(f"an actor does not answer: {first_line(error)}") from None


def connect(machine: Machine) -> None:
    """Connect this process, which has the variables that Ray needs. Raises Unavailable."""
    try:
        ray.init(address=machine.ray, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RayError, RuntimeError, ValueError) as error:
        raise Unavailable(f"Ray does not answer at {machine.ray}: {first_line(error)}") from None


def start_actors(folder: Path, machine: Machine, plans: str) -> None:
    """Start the agent of this machine, and on the first one the controller. Raises Unavailable."""
    if machine.head:
        _start(ControllerActor, CONTROLLER, machine, msgspec.msgpack.encode(machine), plans)
    actor = _start(AgentActor, f"agent-{machine.home}-{machine.ray_pid}", machine, str(folder))
    late = time.monotonic() + CONNECT_S
    while not answer_of(actor.has_orders.remote()):
        if time.monotonic() > late:
            raise Unavailable(f"the agent of this machine gets no orders; {folder / AGENT_LOG} may say why")
        time.sleep(LOOK_S)


def _start(kind: type, name: str, machine: Machine, *arguments: object) -> Any:
    strategy = NodeAffinitySchedulingStrategy(ray_node_of(machine), soft=False)
    return (
        ray.remote(kind)
        .options(
            name=name,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=0,
            get_if_exists=True,
            scheduling_strategy=strategy,
        )
        .remote(*arguments)
    )


def ray_node_of(machine: Machine) -> str:
    """Return the id of the part of Ray on this machine. Raises NotFound."""
    for one in ray.nodes():
        if one["Alive"] and one["Labels"].get(LABEL) == machine.home:
            return str(one["NodeID"])
    raise NotFound(f"Ray has no machine {machine.name}")
