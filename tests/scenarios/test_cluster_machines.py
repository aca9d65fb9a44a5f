"""A cluster on three machines, which are three parts of Ray on this one, with real services and a store."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from jobs.cluster.machine import read_machine, read_orders
from jobs.cluster.services import serves
from tests.support.commands import ENVIRON, nearline
from tests.support.http import Http
from tests.support.redis_server import free_port

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason='Ray is not installed: pip install -e ".[cluster]"'
)
PORTS = 4  # of a machine
UP_S = 90.0
PATIENCE_S = 6.0
DOCUMENTS = 24


def free_ports(count: int) -> int:
    """Return the first of several free ports in a row."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as held, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


@dataclass
class Machines:
    folder: Path
    environ: dict[str, str]

    def run(self, *lines: str) -> None:
        """Run commands of `nearline cluster` at the same time."""
        command = [sys.executable, "-m", "jobs.cli", "cluster"]
        children = [
            subprocess.Popen(
                [*command, *line.split()], cwd=self.folder, env=self.environ, stderr=subprocess.PIPE
            )
            for line in lines
        ]
        for line, child in zip(lines, children, strict=True):
            _, said = child.communicate(timeout=120)
            assert child.returncode == 0, (line, said.decode())

    def said(self, line: str) -> str:
        """Run a command of `nearline cluster`, and return what it prints."""
        command = [sys.executable, "-m", "jobs.cli", "cluster", *line.split()]
        ended = subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, timeout=300, check=False
        )
        assert ended.returncode == 0, (line, ended.stderr.decode())
        return ended.stdout.decode()

    def http(self, node: str, asked: str = "a") -> Http:
        """Return the service that writes for a node, as a machine knows it."""
        found = read_orders(self.folder / asked)
        assert found is not None
        return Http(found[0].nodes[node][0])

    def kill(self, machine: str, *, services: bool) -> None:
        """Kill Ray on a machine, and its services."""
        known = read_machine(self.folder / machine)
        assert known is not None
        sessions = {os.getsid(known.ray_pid)}
        if services:
            sessions |= {
                os.getsid(int(one.read_text())) for one in (self.folder / machine).glob("*/data/LOCK")
            }
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                pid, session = int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[3])
                if session in sessions:
                    os.kill(pid, signal.SIGKILL)

    def find_all(self, node: str, asked: str = "a") -> bool:
        """Whether a search at a node finds every document."""
        try:
            reply = self.http(node, asked).call(
                "POST",
                "/v1/collections/docs/search",
                {"query": "what is in the box?", "k": DOCUMENTS, "cache": False, "collapse": False},
            )
        except OSError:
            return False
        return reply.status == 200 and len({hit["document_id"] for hit in reply.body["hits"]}) == DOCUMENTS


def until(holds: Callable[[], bool], what: str, within_s: float = UP_S) -> None:
    late = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < late, f"not within {within_s} s: {what}"
        time.sleep(0.2)


@pytest.fixture
def machines(tmp_path: Path, model_folder: Path) -> Iterator[Machines]:
    environ = {
        **os.environ,
        **ENVIRON,
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent.resolve()),
        "NEARLINE_SERVER_SEARCH_PROCESSES": "0",
        "NEARLINE_STORE_ACKNOWLEDGE": "bucket",
    }
    made = Machines(tmp_path, environ)
    try:
        yield made
    finally:
        made.run(*(f"stop --data {one.parent.name}" for one in tmp_path.glob("*/machine.json")))


@needs_ray
@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(600)  # on a busy machine; Ray alone starts four times
def test_services_and_machines_are_lost_and_nothing_else_is(machines: Machines) -> None:
    """A service that is killed is started again; a node whose machine is lost is restored from the store on another
    machine; searches go on when Ray is gone."""
    ray_port, folder = free_port(), machines.folder
    machines.run(
        f"start --data a --name a --port {free_ports(PORTS)} --ray-port {ray_port} --patience-s {PATIENCE_S} "
        f"--store {(folder / 'store').as_uri()}"
    )
    start_b, start_c = (
        f"start --data {name} --name {name} --port {free_ports(PORTS)} --join 127.0.0.1:{ray_port} --token a/ray.token"
        for name in "bc"
    )
    machines.run(start_b)
    machines.run(start_c, "add b --data a")
    machines.run("add c --data a")
    http = machines.http("a")

    def sees_three() -> bool:
        return sum(one["writes"] for one in http.ok("GET", "/v1/cluster")["services"]) == 3

    until(sees_three, "a knows the nodes that were added")
    http.ok("POST", "/v1/collections", {"name": "docs", "shards": 6})
    http.write("docs", *({"id": f"d{n}", "text": f"Box {n} holds {n} nails."} for n in range(DOCUMENTS)))
    for node in "abc":
        assert machines.find_all(node)

    # Rebuilds run where there is room, and a second one finds nothing to do.
    built = json.loads(machines.said("reindex docs --data b --json"))["builds"]
    assert sorted(one["collection"] for one in built) == [f"docs~{shard}of6" for shard in range(6)]
    assert all(one["result"]["adopted"] and not one["error"] for one in built)
    assert len({one["machine"] for one in built}) > 1
    again = machines.said("reindex docs --data a")
    assert again.count("has everything already") == 6
    for node in "abc":
        assert machines.find_all(node)

    # A service dies.
    pid = int((folder / "c/c/data/LOCK").read_text())
    os.kill(pid, signal.SIGKILL)
    until(lambda: machines.find_all("c") and machines.find_all("a"), "the service is started again")
    assert int((folder / "c/c/data/LOCK").read_text()) != pid

    # A machine is lost with its services.
    before = machines.http("b").url
    machines.kill("b", services=True)
    until(lambda: machines.http("b").url != before, "another machine has the node")
    until(lambda: machines.find_all("b") and machines.find_all("a"), "it has what the store had")
    http.write("docs", {"id": "d0", "text": "Box 0 is empty."})
    shown = nearline("cluster", "--data", folder / "a")
    assert "lost, silent for" in shown.stdout, shown

    # The node goes for good, and what it had moves to the others.
    machines.run("drain b --data c")
    assert machines.find_all("c")
    assert {one["node"] for one in http.ok("GET", "/v1/cluster")["services"]} == {"a", "c"}

    # Ray is lost on the first machine, and with it the controller.
    machines.kill("a", services=False)
    for node in "ac":
        assert machines.find_all(node)

    # It is started again: services and the plan are found again. Then all is stopped.
    pids = {one: one.read_text() for one in folder.glob("[ac]/*/data/LOCK")}
    machines.kill("c", services=False)
    machines.run("start --data a")
    assert (len(pids), {one: one.read_text() for one in pids}) == (2, pids)
    assert machines.find_all("a")
    assert machines.find_all("c")
    machines.run("stop --all --data a")
    for lock in (folder / "a").glob("*/data/LOCK"):
        assert not serves(int(lock.read_text()), lock.parent)


def test_without_ray_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if find_spec("ray") is not None:
        pytest.skip("Ray is installed")
    said = nearline("cluster", "start", "--data", tmp_path / "a")
    assert (said.returncode, 'pip install ".[cluster]"' in said.stderr) == (1, True)
