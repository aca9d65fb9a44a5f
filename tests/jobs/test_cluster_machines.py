"""Controller and agents of a cluster as state machines: machines, processes, network and store are simulated."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from msgspec.structs import replace

from indexes.base.errors import Conflict, NotFound, Unavailable
from indexes.store.objects import Bucket
from indexes.store.slots import Superseded
from jobs.cluster.agent import (
    BEGINNING_S,
    ENDING_S,
    HUNG_S,
    Action,
    Agent,
    EndService,
    PutAside,
    Seen,
    StartService,
    TellService,
)
from jobs.cluster.controller import Controller
from jobs.cluster.plan import ClusterPlan, MachineReport, OrderedService, Orders, PlanLog, ServiceReport

PATIENCE_S = 60.0
EMPTY = ClusterPlan(cluster="c", by="x", store="s3://bucket")


# --- a world --------------------------------------------------------------------------------------------------------


@dataclass
class Process:
    writes: bool
    epoch: int
    began: float
    hangs: bool = False
    ends_at: float = float("inf")


@dataclass
class Disk:
    """A data directory: what was acknowledged and is on it, and the epoch of the store that it holds."""

    replica: bool
    epoch: int = 0
    since: int = 0
    held: set[int] = field(default_factory=set)


@dataclass
class Store:
    epoch: int = 0
    held: set[int] = field(default_factory=set)


@dataclass
class SimulatedMachine:
    name: str
    connected: bool = True
    agent: Agent | None = field(default_factory=Agent)
    began: float = 0.0
    number: int = 0
    orders: Orders | None = None
    answered_at: float = float("-inf")
    disks: dict[str, Disk] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)

    def lose_power(self) -> None:
        self.processes.clear()
        self.die()

    def die(self) -> None:
        """The agent ends; its services do not."""
        self.agent = self.orders = None
        self.answered_at = float("-inf")

    def come_back(self, now: float) -> None:
        self.connected = True
        if self.agent is None:
            self.agent, self.began, self.number = Agent(), now, 0


class World:
    """`step` is a second. Every write that a service acknowledges is in the store, if there is one, as with
    `store.acknowledge = "bucket"`."""

    def __init__(self, seed: int, *, has_store: bool, replicas: int = 1) -> None:
        self.rng, self.now = random.Random(seed), 1000.0
        self.saved: list[ClusterPlan] = []
        self.store_is_away = False
        self.has_store = has_store
        store: dict[str, Any] = {"store": "s3://bucket", "replicas": replicas} if has_store else {"store": ""}
        plan = replace(EMPTY, **store)
        self.controller: Controller | None = self.make_controller(plan)
        self.machines = {name: SimulatedMachine(name, began=self.now) for name in ("a", "b", "c", "d")}
        self.stores: dict[str, Store] = {}
        self.acknowledged: dict[str, set[int]] = {}
        self.late: list[MachineReport] = []
        self.writes = 0

    def make_controller(self, plan: ClusterPlan) -> Controller:
        self.last = Controller(plan, self.save, PATIENCE_S, self.now)
        return self.last

    def save(self, plan: ClusterPlan) -> ClusterPlan:
        if self.store_is_away:
            raise Unavailable("the store is away")
        self.saved.append(plan)
        return plan

    def plan(self) -> ClusterPlan:
        return self.saved[-1]

    def step(self, disturb: float = 0.0) -> None:
        self.now += 1
        self.serve()
        for machine in self.machines.values():
            if machine.agent is not None:
                self.turn(machine, machine.agent, disturb)
        if disturb and self.late and self.controller is not None and self.rng.random() < 0.3:
            self.controller.hear(self.rng.choice(self.late[-50:]), self.now)  # late, or once more

    def serve(self) -> None:
        """Processes end, write, upload and follow."""
        for machine in self.machines.values():
            for name, one in list(machine.processes.items()):
                store, disk = self.stores.setdefault(name, Store()), machine.disks[name]
                if self.now >= one.ends_at:
                    del machine.processes[name]
                elif one.writes and not one.hangs and self.is_up(one):
                    if self.has_store and one.epoch != store.epoch:
                        del machine.processes[name]  # fenced: it acknowledges nothing more
                        continue
                    self.writes += 1
                    disk.held.add(self.writes)
                    store.held.add(self.writes)
                    self.acknowledged.setdefault(name, set()).add(self.writes)
                elif not one.writes:
                    disk.held = set(store.held)

    def is_up(self, process: Process) -> bool:
        return self.now - process.began > 3

    def turn(self, machine: SimulatedMachine, agent: Agent, disturb: float) -> None:
        seen = {
            name: Seen(
                runs=name in machine.processes,
                writes=not disk.replica,
                answer=self.answer(machine.processes.get(name)),
            )
            for name, disk in machine.disks.items()
        }
        fresh = self.now - machine.answered_at < PATIENCE_S / 2
        for action in agent.step(machine.orders, seen, self.now, fresh=fresh):
            self.do(machine, action)
        machine.number += 1
        plan = machine.orders.plan if machine.orders else 0
        report = MachineReport(
            machine.name,
            f"home-{machine.name}",
            f"http://{machine.name}:8080",
            machine.began,
            machine.number,
            plan,
            agent.reports(),
        )
        if not machine.connected or self.controller is None or self.rng.random() < disturb:
            return
        self.late.append(report)
        orders = self.controller.hear(report, self.now)
        if self.rng.random() >= disturb:  # else the answer is lost
            machine.orders, machine.answered_at = orders, self.now

    def answer(self, process: Process | None) -> Literal["ready", "starting"] | None:
        if process is None or process.hangs or self.now - process.began <= 1:
            return None
        return "ready" if self.is_up(process) else "starting"

    def do(self, machine: SimulatedMachine, action: Action) -> None:
        name = action.node
        match action:
            case StartService():
                self.start(machine, name, action.service)
            case EndService():
                process = machine.processes[name]
                process.ends_at = self.now if action.kill else float("inf") if process.hangs else self.now + 2
            case PutAside():
                assert name not in machine.processes
                del machine.disks[name]
            case TellService():
                assert name in machine.processes

    def start(self, machine: SimulatedMachine, name: str, service: OrderedService) -> None:
        store, disk = self.stores.setdefault(name, Store()), machine.disks.get(name)
        assert name not in machine.processes
        if not service.writes:
            if disk is None or not disk.replica:
                machine.disks[name] = Disk(replica=True)
            machine.processes[name] = Process(writes=False, epoch=0, began=self.now)
            return
        self.assert_only_writer(machine, name)
        if disk is None or disk.replica or disk.since != service.since:
            disk = machine.disks[name] = Disk(replica=False, epoch=store.epoch, since=service.since)
            disk.held = set(store.held) if self.has_store else set()
        if disk.epoch != store.epoch and self.has_store:
            return  # the store refuses it
        if self.has_store:
            store.epoch += 1
        disk.epoch = store.epoch
        disk.held |= store.held if self.has_store else set()
        machine.processes[name] = Process(writes=True, epoch=store.epoch, began=self.now)

    def assert_only_writer(self, machine: SimulatedMachine, name: str) -> None:
        """The controller has lost every machine on which another writer of the node runs."""
        others = {
            one.name
            for one in self.machines.values()
            if one is not machine and name in one.processes and one.processes[name].writes
        }
        heard = {one.name for one in self.last.show(self.now) if not one.lost}
        assert not others & heard, f"{name} on {machine.name} beside {others}"

    # --- what happens -----------------------------------------------------------------------------------------------

    def disturb(self) -> None:
        machine = self.rng.choice(list(self.machines.values()))
        match self.rng.randrange(11):
            case 0:
                machine.lose_power()
            case 1:
                machine.die()
            case 2:
                machine.connected = False
            case 3 | 4:
                machine.come_back(self.now)
            case 5 if machine.processes:
                del machine.processes[self.rng.choice(list(machine.processes))]
            case 6 if machine.processes:
                self.rng.choice(list(machine.processes.values())).hangs = True
            case 7 if self.controller is not None:
                self.add(self.rng.choice("xyz"))
            case 8 if self.controller is not None and self.has_store and not self.store_is_away:
                if len(self.plan().nodes) > 1:
                    self.remove(self.rng.choice(sorted(self.plan().nodes)))
            case 9:
                self.controller = None if self.controller is not None else self.make_controller(self.plan())
            case 10:
                self.store_is_away = not self.store_is_away

    def add(self, node: str) -> None:
        assert self.controller is not None
        try:
            self.controller.add(node, None, self.now)
        except (Conflict, Unavailable):
            return

    def remove(self, node: str) -> None:
        """As after a drain: nothing is left there, and what was acknowledged is elsewhere."""
        assert self.controller is not None
        self.controller.remove(node)
        self.acknowledged.pop(node, None)

    def calm_down(self) -> None:
        self.store_is_away = False
        if self.controller is None:
            self.controller = self.make_controller(self.plan())
        for machine in self.machines.values():
            machine.come_back(self.now)
        for _ in range(1000):
            self.step()

    def assert_whole(self) -> None:
        """Every node has its writer with all that was acknowledged, and its replicas; nothing else runs."""
        plan = self.plan()
        for name, node in plan.nodes.items():
            assert len(node.services) == 1 + plan.replicas, name
            for machine in node.services:
                process = self.machines[machine].processes[name]
                assert self.is_up(process)
                assert process.writes == (machine == node.writer)
            held = self.machines[node.writer].disks[name].held
            assert self.acknowledged.get(name, set()) <= held, name
        running = {(machine, name) for machine, one in self.machines.items() for name in one.processes}
        assert running == {(machine, name) for name, node in plan.nodes.items() for machine in node.services}
        assert self.controller is not None
        assert self.controller._waiting(self.now) == {}


def with_nodes(seed: int, *, has_store: bool, replicas: int = 1) -> World:
    world = World(seed, has_store=has_store, replicas=replicas)
    for _ in range(3):
        world.step()
    for node in "xyz":
        world.add(node)
    for _ in range(20):
        world.step()
    world.assert_whole()
    return world


# --- everything together --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("has_store", [True, False], ids=["store", "no store"])
@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_one_service_writes_and_nothing_is_lost(seed: int, has_store: bool) -> None:
    """Machines, agents, the controller, the store and the network fail in any order: no writer is started beside
    another one that the controller can know of, and once that ends everything runs with all that was acknowledged."""
    world = with_nodes(seed, has_store=has_store, replicas=seed % 3)
    for _ in range(500):
        if world.rng.random() < 0.08:
            world.disturb()
        world.step(disturb=0.1)
    world.calm_down()
    world.assert_whole()
    for before, after in pairwise(world.saved):
        assert after.number > before.number or after == before


def test_a_replica_takes_over_from_a_lost_machine() -> None:
    """After the patience and not before; the machine becomes a replica, from an empty directory, when it is back."""
    world = with_nodes(1, has_store=True)
    lost = world.machines[world.plan().nodes["x"].writer]
    (heir,) = world.plan().nodes["x"].services.keys() - {lost.name}
    lost.lose_power()
    for _ in range(int(PATIENCE_S) - 2):
        world.step()
    assert world.plan().nodes["x"].writer == lost.name
    for _ in range(20):
        world.step()
    assert world.plan().nodes["x"].writer == heir
    assert world.machines[heir].processes["x"].writes
    world.calm_down()
    world.assert_whole()


def test_without_a_replica_a_node_is_restored_elsewhere() -> None:
    world = with_nodes(2, has_store=True, replicas=0)
    lost = world.plan().nodes["x"].writer
    world.machines[lost].lose_power()
    for _ in range(int(PATIENCE_S) + 15):
        world.step()
    now = world.plan().nodes["x"].writer
    assert now != lost
    assert world.acknowledged["x"] <= world.machines[now].disks["x"].held


def test_without_a_store_a_node_waits_for_its_machine() -> None:
    """And it is said which one."""
    world = with_nodes(3, has_store=False)
    lost = world.plan().nodes["x"].writer
    world.machines[lost].lose_power()
    for _ in range(300):
        world.step()
    assert world.plan().nodes["x"].writer == lost
    assert world.controller is not None
    assert f"machine {lost} is lost" in world.controller._waiting(world.now)["x"]
    world.calm_down()
    world.assert_whole()


def test_services_go_on_without_a_controller() -> None:
    """One that dies soon is started again; later a writer is not, since its node may be elsewhere by then."""
    world = with_nodes(4, has_store=True)
    world.controller = None
    writer = world.machines[world.plan().nodes["x"].writer]
    del writer.processes["x"]
    for _ in range(10):
        world.step()
    assert "x" in writer.processes
    for _ in range(int(PATIENCE_S)):
        world.step()
    assert sum(len(one.processes) for one in world.machines.values()) == 6
    del writer.processes["x"]
    for _ in range(100):
        world.step()
    assert "x" not in writer.processes
    world.calm_down()
    world.assert_whole()


def test_a_controller_that_slept_counts_nothing_lost() -> None:
    world = with_nodes(5, has_store=True)
    before = world.plan().nodes
    world.now += 10 * PATIENCE_S
    for _ in range(5):
        world.step()
    assert world.plan().nodes == before


def test_all_stops_where_it_is() -> None:
    """And nothing is given to another machine; directories stay."""
    world = with_nodes(6, has_store=True)
    assert world.controller is not None
    world.controller.stopping, before = True, world.plan()
    disks = {name: set(one.disks) for name, one in world.machines.items()}
    for _ in range(200):
        world.step()
    assert not any(one.processes for one in world.machines.values())
    assert (world.plan(), {name: set(one.disks) for name, one in world.machines.items()}) == (before, disks)


# --- the controller alone -------------------------------------------------------------------------------------------


def report(machine: str = "a", home: str = "h", number: int = 1, **services: ServiceReport) -> MachineReport:
    return MachineReport(machine, home, f"http://{machine}:8080", 0.0, number, 0, services)


def test_two_machines_of_one_name_are_told_apart() -> None:
    controller = Controller(EMPTY, lambda plan: plan, PATIENCE_S, 0.0)
    controller.hear(report(), 1.0)
    for number in (1, 2):
        with pytest.raises(Conflict, match="another machine is named a"):
            controller.hear(report(home="other", number=number), 2.0)
    controller.hear(report(number=3), PATIENCE_S * 9)
    assert controller.plan.machines["a"].home == "h"


def test_what_is_added_after_a_sleep_loses_no_machine() -> None:
    """The controller may hear a command before any machine."""
    controller = Controller(EMPTY, lambda plan: plan, PATIENCE_S, 0.0)
    for name in "ab":
        controller.hear(report(name, home=name), 1.0)
    controller.add("x", "a", 2.0)
    controller.add("y", "b", 10 * PATIENCE_S)
    assert {name: node.writer for name, node in controller.plan.nodes.items()} == {"x": "a", "y": "b"}


def test_ports_of_a_machine_are_given_once() -> None:
    """And the URLs of all nodes are told to each service, that of the writer first."""
    controller = Controller(replace(EMPTY, replicas=1), lambda plan: plan, PATIENCE_S, 0.0)
    for name in "ab":
        controller.hear(report(name, home=name), 1.0)
    for node in "xy":
        controller.add(node, "a", 1.0)
    assert controller.add("y", "b", 1.0) == "a"  # it is there already
    nodes = controller.hear(report("a", home="a", number=2), 2.0).nodes
    assert nodes == {
        "x": ["http://a:8080", "http://b:8080"],
        "y": ["http://a:8081", "http://b:8081"],
    }
    with pytest.raises(NotFound, match="there are: a, b"):
        controller.add("z", "c", 2.0)
    with pytest.raises(NotFound, match="no node z"):
        controller.remove("z")


def test_a_machine_may_get_another_address() -> None:
    controller = Controller(EMPTY, lambda plan: plan, PATIENCE_S, 0.0)
    controller.hear(report(), 1.0)
    controller.add("x", None, 1.0)
    moved = replace(report(number=2), address="https://[::1]:9000")
    assert controller.hear(moved, 2.0).nodes == {"x": ["https://[::1]:9000"]}


# --- an agent alone -------------------------------------------------------------------------------------------------


def orders(services: Mapping[str, OrderedService], *urls: str) -> Orders:
    nodes = {"x": list(urls or ["http://a:8080"])}
    return Orders("c", 1, dict(services), nodes, PATIENCE_S, stop=False, machines=[], waiting={})


WRITER = OrderedService(0, 1, writes=True, may_start=True, store="s")
UP = Seen(runs=True, writes=True, answer="ready")
SILENT = Seen(runs=True, writes=True)
DEAD = Seen(runs=False, writes=True)


def test_pauses_before_starts_grow_and_are_short_again_after_a_while() -> None:
    agent, now = Agent(), 0.0
    starts: list[float] = []
    while len(starts) < 9:
        if any(
            isinstance(one, StartService)
            for one in agent.step(orders({"x": WRITER}), {"x": DEAD}, now, fresh=True)
        ):
            starts.append(now)
        now += 0.5
    pauses = [late - early for early, late in pairwise(starts)]
    assert pauses == sorted(pauses)
    assert (pauses[0] < 3, pauses[-1] >= 60, pauses[-1] < 62) == (True, True, True)
    for _ in range(200):
        agent.step(orders({"x": WRITER}), {"x": UP}, now, fresh=True)
        now += 0.5
    agent.step(orders({"x": WRITER}), {"x": DEAD}, now, fresh=True)
    assert agent.step(orders({"x": WRITER}), {"x": DEAD}, now + 1.5, fresh=True) != []


def test_what_hangs_is_killed_and_a_start_has_time() -> None:
    agent = Agent()
    agent.step(orders({"x": WRITER}), {"x": UP}, 0.0, fresh=True)
    assert agent.step(orders({"x": WRITER}), {"x": SILENT}, HUNG_S - 1, fresh=True) == []
    assert agent.step(orders({"x": WRITER}), {"x": SILENT}, HUNG_S + 1, fresh=True) == [
        EndService("x", kill=True)
    ]
    agent = Agent()
    agent.step(orders({"x": WRITER}), {}, 0.0, fresh=True)
    for now in range(1, int(BEGINNING_S)):
        assert agent.step(orders({"x": WRITER}), {"x": SILENT}, float(now), fresh=True) == []
    assert agent.step(orders({"x": WRITER}), {"x": SILENT}, BEGINNING_S + 1, fresh=True) == [
        EndService("x", kill=True)
    ]


def test_what_does_not_end_is_killed() -> None:
    agent, none = Agent(), orders({})
    assert agent.step(none, {"x": UP}, 0.0, fresh=True) == [EndService("x", kill=False)]
    assert agent.step(none, {"x": SILENT}, ENDING_S - 1, fresh=True) == []
    assert agent.step(none, {"x": SILENT}, ENDING_S + 1, fresh=True) == [EndService("x", kill=True)]
    assert agent.step(none, {"x": DEAD}, ENDING_S + 2, fresh=True) == [PutAside("x")]
    assert agent.step(none, {}, ENDING_S + 3, fresh=True) == []
    assert agent.reports() == {}


def test_new_urls_are_told_once_to_a_service_that_has_answered() -> None:
    agent, wanted = Agent(), orders({"x": WRITER})
    agent.step(wanted, {}, 0.0, fresh=True)
    assert agent.step(wanted, {"x": UP}, 1.0, fresh=True) == []
    wanted = orders({"x": WRITER}, "http://a:8080", "http://b:8080")
    assert agent.step(wanted, {"x": SILENT}, 2.0, fresh=True) == []
    (told,) = agent.step(wanted, {"x": UP}, 3.0, fresh=True)
    assert isinstance(told, TellService)
    assert agent.step(wanted, {"x": UP}, 4.0, fresh=True) == []


def test_nothing_is_started_without_fresh_orders_and_nothing_ended_without_any() -> None:
    agent = Agent()
    assert agent.step(None, {"x": UP}, 0.0, fresh=False) == []
    assert agent.step(None, {"x": DEAD}, 1.0, fresh=False) == []
    assert agent.step(orders({"x": WRITER}), {"x": DEAD}, 100.0, fresh=False) == []
    waits = replace(WRITER, may_start=False)
    assert agent.step(orders({"x": waits}), {"x": DEAD}, 101.0, fresh=True) == []


# --- plans in a store -----------------------------------------------------------------------------------------------


def test_plans_are_kept_and_an_older_controller_is_fenced_off(tmp_path: Path) -> None:
    """The newest is found again; of two controllers the later one counts."""
    pytest.importorskip("obstore")
    log = PlanLog(Bucket(tmp_path.as_uri()))
    assert log.newest() is None
    first = log.append(ClusterPlan("c", "one", number=1))
    assert log.newest() == first
    assert log.append(first) == first  # its answer was lost
    second = log.append(replace(first, replicas=2))  # the one before was kept, though that was not known
    assert (second.number, log.newest()) == (2, second)
    log.append(ClusterPlan("c", "two", number=3))
    with pytest.raises(Superseded):
        log.append(replace(second, number=3))
    for number in range(4, 120):
        log.append(ClusterPlan("c", "two", number=number))
    assert len(list((tmp_path / "cluster").iterdir())) == 100


def test_plans_and_orders_survive_the_wire() -> None:
    world = with_nodes(7, has_store=True)
    assert world.controller is not None
    for one in (world.plan(), world.controller._orders("a", world.now)):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=type(one)) == one
