"""Starting and ending the part of a cluster that is on this machine. Needs the extra `cluster`."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path

import msgspec
import ray

from indexes.base.durable import FolderLock, publish
from indexes.base.errors import Conflict, Locked, NotFound, Unavailable
from indexes.directory.marker import is_data_directory
from jobs.cluster.actors import LABEL, connect, ray_node_of, start_actors
from jobs.cluster.agent import EndService
from jobs.cluster.machine import AGENT, BUILDS, FOLDER, ORDERS, Machine, environ_of, write_machine
from jobs.cluster.services import Services, detach, last_line

RAY_START_S, RAY_STOP_S, SERVICES_STOP_S = 90.0, 20.0, 45.0
LOOK_S = 0.2
RAY_LOG, STARTED = "ray.log", "Ray runtime started."
OBJECT_STORE_BYTES = 80_000_000  # the least that Ray takes; nothing is kept there


def start_machine(folder: Path, machine: Machine) -> Machine:
    """Start Ray and the agent on this machine, and return what it is now. Raises Conflict if it runs already, and
    Unavailable if Ray does not start."""
    if is_data_directory(folder):
        raise Conflict(
            f"{folder} is a data directory: a machine of a cluster needs a folder for several of them"
        )
    if ray_runs(folder, machine):
        raise Conflict(f"this machine runs already, as {machine.name}")
    folder.mkdir(parents=True, exist_ok=True)
    if machine.head and not Path(machine.token).exists():
        publish(Path(machine.token), secrets.token_hex(32).encode(), mode=0o600)
    if not Path(machine.token).is_file():
        raise NotFound(
            f"{machine.token}: the first machine made a token there; copy it and name it with --token"
        )
    host = machine.address.rpartition("/")[2].rpartition(":")[0].strip("[]")
    place = (
        ["--head", f"--port={machine.ray_port}", "--include-dashboard=false"]
        if machine.head
        else [f"--address={machine.ray}"]
    )
    options = [
        "--block",
        f"--node-ip-address={host}",
        "--num-cpus=0",
        "--num-gpus=0",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--include-log-monitor=false",
        "--disable-usage-stats",
        f"--labels={LABEL}={machine.home}",
        f"--resources={json.dumps({BUILDS: 1})}",
    ]
    if machine.head:
        machine = msgspec.structs.replace(machine, ray=f"{host}:{machine.ray_port}")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *place, *options]
    (folder / RAY_LOG).unlink(missing_ok=True)
    pid = detach(command, folder / RAY_LOG, {**environ_of(machine), FOLDER: str(folder)})
    machine = msgspec.structs.replace(machine, ray_pid=pid)
    write_machine(folder, machine)
    (folder / ORDERS).unlink(missing_ok=True)
    try:
        wait_for_ray(folder, machine)
        start_actors(folder, machine, machine.store or (folder / "plans").absolute().as_uri())
    except BaseException:
        end(pid)
        raise
    return machine


def wait_for_ray(folder: Path, machine: Machine) -> None:
    """Wait until Ray knows this machine, and stay connected. Raises Unavailable."""
    late = time.monotonic() + RAY_START_S
    while True:
        if not ray_runs(folder, machine):
            raise Unavailable(f"Ray did not start: {last_line(folder / RAY_LOG)}; more in {folder / RAY_LOG}")
        try:
            if STARTED not in (folder / RAY_LOG).read_text(errors="replace"):
                raise Unavailable("Ray does not start")  # and a connection would wait for long
            if not ray.is_initialized():
                connect(machine)
            ray_node_of(machine)
            return
        except (NotFound, Unavailable):
            if time.monotonic() > late:
                raise
            time.sleep(LOOK_S)


def ray_runs(folder: Path, machine: Machine) -> bool:
    """Whether the process that holds Ray on this machine lives."""
    with contextlib.suppress(OSError):
        return f"{LABEL}={machine.home}".encode() in Path(f"/proc/{machine.ray_pid}/cmdline").read_bytes()
    return False


def stop_machine(folder: Path, machine: Machine) -> None:
    """End Ray on this machine, so that nothing starts its services again, and then these."""
    if ray_runs(folder, machine):
        end(machine.ray_pid)
    with contextlib.closing(outlast_agent(folder)):
        services = Services(folder, machine.planned, machine.base)
        began = time.monotonic()
        told = set[str]()
        while left := {name for name, seen in services.look().items() if seen.runs}:
            late = time.monotonic() - began > SERVICES_STOP_S
            for name in left if late else left - told:
                services.do(EndService(name, kill=late))
            told |= left
            time.sleep(LOOK_S)


def outlast_agent(folder: Path) -> FolderLock:
    """Wait until the agent has ended, which notices the end of Ray a moment later, and take its lock."""
    late = time.monotonic() + RAY_STOP_S
    while True:
        try:
            return FolderLock(folder / AGENT)
        except Locked:
            if time.monotonic() > late:
                os.kill(int((folder / AGENT).read_text()), signal.SIGKILL)


def end(pid: int) -> None:
    """End the process that holds Ray, and with it Ray on this machine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        late = time.monotonic() + RAY_STOP_S
        while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
            if time.monotonic() > late:
                os.killpg(os.getpgid(pid), signal.SIGKILL)
            time.sleep(LOOK_S)
