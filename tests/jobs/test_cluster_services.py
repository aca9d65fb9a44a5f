"""What an agent does on its machine: directories, configurations, processes. No Ray, no model."""

from __future__ import annotations

import os
import signal
import sys
import time
import tomllib
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from indexes.base.errors import Conflict
from indexes.directory.marker import prepare
from indexes.store.directory import Record, write_record
from jobs.cluster.agent import EndService, PutAside, TellService
from jobs.cluster.keeping import Keeping
from jobs.cluster.machine import Machine, read_machine, read_orders, write_machine
from jobs.cluster.plan import MachineReport, OrderedService, Orders, PlannedMachine
from jobs.cluster.services import Services, detach, needs_key, serves, to_toml
from retrieval.base.config import load_config

WRITER = OrderedService(place=1, since=7, writes=True, may_start=True, store="file:///store/x")
REPLICA = replace(WRITER, writes=False)
NODES = {"x": ["http://127.0.0.1:8081"], "y-2": ["http://10.0.0.2:8080", "http://[::1]:8080"]}
MACHINE = PlannedMachine("home", "http://127.0.0.1:8080")


def services_in(folder: Path, base: str = "") -> Services:
    configuration = folder.parent / "base.toml"
    configuration.write_text(base)
    return Services(folder, MACHINE, configuration)


def test_a_configuration_is_that_of_the_machine_with_what_is_ordered(tmp_path: Path) -> None:
    """It loads, and values of all kinds survive."""
    base = """
    [server]
    port = 1
    cors_origins = ["https://a.example"]
    [cluster]
    secret = 'a "quoted" \\ text, \u00e9'
    late_ms = 2.5
    [log]
    queries = true
    """
    services = services_in(tmp_path / "m", base)
    (tmp_path / "m" / "x").mkdir(parents=True)
    services._configure("x", REPLICA, NODES)
    config = load_config(tmp_path / "m/x/service.toml", {})
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8081)
    assert config.server.cors_origins == ["https://a.example"]
    assert (config.cluster.nodes, config.cluster.late_ms, config.log.queries) == (NODES, 2.5, True)
    assert config.cluster.secret == 'a "quoted" \\ text, \u00e9'
    assert (config.store.url, config.store.replica) == ("file:///store/x", True)
    assert (config.store.writer, config.store.forward_writes) == ("http://127.0.0.1:8081", True)
    services._configure("x", WRITER, NODES)
    assert load_config(tmp_path / "m/x/service.toml", {}).store.replica is False


def test_any_configuration_survives() -> None:
    found: dict[str, dict[str, Any]] = {
        "a": {"b": "\n\t\\\"'\u2028", "c": [1, 2.5, True, "x"], "d": {"e f": ["g"]}, "h": -1}
    }
    assert tomllib.loads(to_toml(found)) == found


def fill(folder: Path, *, replica: bool, collection: bool = True) -> Path:
    data = folder / "x" / "data"
    prepare(data)
    write_record(data, Record(url=WRITER.store, replica=replica))
    if collection:
        (data / "docs").mkdir()
        (data / "docs" / "log.db").write_bytes(b"")
    return data


@pytest.mark.parametrize(
    ("replica", "collection", "since", "ordered", "promotes", "kept", "aside"),
    [
        (True, True, None, WRITER, True, True, False),  # takes over
        (True, False, None, WRITER, False, False, False),  # has nothing yet: restores
        (False, True, 7, WRITER, False, True, False),  # goes on
        (False, True, 3, WRITER, False, False, True),  # another machine had the node in between
        (False, True, 7, REPLICA, False, False, True),  # was taken over
        (True, True, None, REPLICA, False, True, False),
    ],
)
def test_a_directory_is_made_fit_for_its_service(
    tmp_path: Path,
    replica: bool,
    collection: bool,
    since: int | None,
    ordered: OrderedService,
    promotes: bool,
    kept: bool,
    aside: bool,
) -> None:
    """What only this machine may have is put aside; a replica's copy is removed."""
    services, data = services_in(tmp_path / "m"), fill(tmp_path / "m", replica=replica, collection=collection)
    if since is not None:
        (tmp_path / "m/x/since").write_text(str(since))
    assert services._prepare("x", ordered) == promotes
    assert data.exists() == kept
    assert bool(list(data.parent.glob("data.aside-*"))) == aside


def test_a_directory_with_keys_alone_is_used(tmp_path: Path) -> None:
    """Keys may be made before the first start."""
    services, data = services_in(tmp_path / "m"), tmp_path / "m/x/data"
    prepare(data)
    assert services._prepare("x", WRITER) is False
    assert data.exists()


def test_a_node_that_went_is_put_aside(tmp_path: Path) -> None:
    services, data = services_in(tmp_path / "m"), fill(tmp_path / "m", replica=False)
    services._configure("x", WRITER, NODES)
    assert set(services.look()) == {"x"}
    services.do(PutAside("x"))
    assert services.look() == {}
    assert (data.exists(), len(list(data.parent.glob("data.aside-*/docs")))) == (False, 1)


def test_only_what_other_machines_reach_needs_a_key(tmp_path: Path) -> None:
    assert needs_key({"host": "10.0.0.1"}, tmp_path)
    assert needs_key({"host": "search.example"}, tmp_path)
    assert not needs_key({"host": "::1"}, tmp_path)
    assert not needs_key({"host": "localhost"}, tmp_path)
    assert not needs_key({"host": "10.0.0.1", "insecure": True}, tmp_path)
    (tmp_path / "keys.json").write_text("{}")
    assert not needs_key({"host": "10.0.0.1"}, tmp_path)


def test_a_service_is_no_child_and_found_again(tmp_path: Path) -> None:
    """Another agent finds a service by the lock of its data directory; a process that gets its id later is not it."""
    services, data = services_in(tmp_path / "m"), fill(tmp_path / "m", replica=False)
    services._configure("x", WRITER, NODES)
    code = "import time; print('up', flush=True); time.sleep(60)"
    pid = detach([sys.executable, "-c", code, str(data)], tmp_path / "log")
    try:
        (data / "LOCK").write_text(f"{pid}\n")
        assert os.getsid(pid) != os.getsid(0)
        assert services.look()["x"].runs
        assert not serves(pid, tmp_path)
        services.do(
            TellService("x", WRITER, {**NODES, "z": ["http://127.0.0.1:1"]})
        )  # SIGHUP, which ends this one
        late = time.monotonic() + 30
        while services.look()["x"].runs:
            assert time.monotonic() < late
            time.sleep(0.05)
        assert "z" in load_config(tmp_path / "m/x/service.toml", {}).cluster.nodes
        services.do(EndService("x", kill=True))  # nothing is left to end
    finally:
        if serves(pid, data):
            os.kill(pid, signal.SIGKILL)


def test_orders_of_another_cluster_are_refused(tmp_path: Path) -> None:
    """A machine remembers its cluster, so a wrong store takes nothing from it."""
    machine = Machine("a", "http://127.0.0.1:8080", "token", head=True)
    write_machine(tmp_path, machine)
    given = Orders("one", 1, {}, {}, 60.0, stop=False, machines=[], waiting={})

    def take(keeping: Keeping, orders: Orders) -> None:
        keeping._asked = Future()
        keeping._asked.set_result(orders)
        keeping._take_orders()

    def ask(_: MachineReport) -> Orders:
        raise AssertionError

    keeping = Keeping(tmp_path, machine, ask)
    take(keeping, given)
    assert keeping.error is None
    known, found = read_machine(tmp_path), read_orders(tmp_path)
    assert known is not None
    assert known.cluster == "one"
    assert found is not None
    assert found[0] == given
    keeping = Keeping(tmp_path, known, ask)
    take(keeping, replace(given, cluster="two"))
    assert isinstance(keeping.error, Conflict)
    assert keeping.orders is None
