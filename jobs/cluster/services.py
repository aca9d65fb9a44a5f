"""The processes of an agent: `nearline serve` for each node that a machine has, each with a folder of its own.

    DIR/<node>/service.toml         the configuration of its service: that of the machine, and what is ordered
    DIR/<node>/service.log          what the service says
    DIR/<node>/data/                its data directory
    DIR/<node>/since                which plan gave this machine the node, if it writes
    DIR/<node>/data.aside-<time>/   of a service that wrote, before the node was given to another machine

Services are in sessions of their own and no children of the agent: they outlive it and Ray. The next agent finds them
by the lock of their data directory.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from indexes.base.durable import publish
from indexes.directory.marker import LOCK, collection_folders, has_keys
from indexes.store.directory import read_record
from jobs.cluster.agent import Action, EndService, PutAside, Seen, StartService, TellService
from jobs.cluster.plan import OrderedService, PlannedMachine

logger = logging.getLogger(__name__)

ANSWER_S = 2.0
LOG_BYTES_MAX = 50_000_000
# Leaves the process behind, as a child of no process of ours, and says its id.
DETACHED = '"$@" >> "$LOG" 2>&1 < /dev/null & echo $!'
OF_RAY = ("RAY_", "OMP_NUM_THREADS")  # what Ray sets for its own processes


class Services:
    """Those of one machine. `base` is a configuration that all of them begin with. Not thread-safe."""

    def __init__(self, folder: Path, machine: PlannedMachine, base: Path | None) -> None:
        self._folder, self._machine, self._base = folder, machine, base
        self._started: dict[str, int] = {}
        self._asking = ThreadPoolExecutor(8, "ask-service")

    def look(self) -> dict[str, Seen]:
        """Return what there is on this machine, by node. Takes ANSWER_S if a service hangs."""
        names = sorted(path.parent.name for path in self._folder.glob("*/service.toml"))
        return dict(zip(names, self._asking.map(self._look_at, names), strict=True))

    def do(self, action: Action) -> None:
        """Raises OSError, and errors of reading a data directory."""
        name = action.node
        logger.info("%s", action)
        match action:
            case StartService():
                self._start(name, action.service, action.nodes)
            case TellService():
                self._configure(name, action.service, action.nodes)
                self._signal(name, signal.SIGHUP)
            case EndService():
                self._signal(name, signal.SIGKILL if action.kill else signal.SIGTERM)
            case PutAside():
                self._put_aside(name)
                self._config(name).unlink()

    def _config(self, name: str) -> Path:
        return self._folder / name / "service.toml"

    def _data(self, name: str) -> Path:
        return self._folder / name / "data"

    def _look_at(self, name: str) -> Seen:
        written = tomllib.loads(self._config(name).read_text())
        writes = not written.get("store", {}).get("replica", False)
        if self._pid(name) is None:
            said = last_line(self._log(name))
            why = said if said.startswith("nearline: ") else f"it died; {self._log(name)} may say why"
            return Seen(runs=False, writes=writes, why=why)
        return Seen(runs=True, writes=writes, answer=ask(written["server"]))

    def _pid(self, name: str) -> int | None:
        """Return the process that serves a node here, which another agent may have started; None if none does."""
        lock = self._data(name) / LOCK
        held = lock.read_text().strip() if lock.is_file() else ""
        for pid in (self._started.get(name), int(held) if held.isdecimal() else None):
            if pid is not None and serves(pid, self._data(name)):
                return pid
        return None

    def _signal(self, name: str, number: signal.Signals) -> None:
        if (pid := self._pid(name)) is not None:
            os.kill(pid, number)

    def _start(self, name: str, service: OrderedService, nodes: dict[str, list[str]]) -> None:
        data, log, config = self._data(name), self._log(name), self._config(name)
        config.parent.mkdir(parents=True, exist_ok=True)
        run = [sys.executable, "-m", "jobs.cli"]
        command = "exec " + shlex.join([*run, "serve", "--data", str(data), "--config", str(config)])
        if self._prepare(name, service):
            promote = shlex.join([*run, "promote", "--data", str(data), "--store", service.store])
            command = f"{promote} && {command}"
        settings = self._configure(name, service, nodes)
        if needs_key(settings["server"], data):
            # One that is not known to anyone and ends at once, until the store's or real ones are there.
            key = ["--scope", "metrics", "--name", "first-start", "--expires-days", "0.0001"]
            command = (
                f"{shlex.join([*run, 'keys', 'create', '--data', str(data), *key])} > /dev/null && {command}"
            )
        if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
            log.replace(log.with_suffix(".log.1"))
        self._started[name] = detach(["/bin/sh", "-c", command, str(data)], log)

    def _prepare(self, name: str, service: OrderedService) -> bool:
        """Make the directory fit for what is to be served from it. Returns whether it is a replica's to promote."""
        data, since = self._data(name), self._folder / name / "since"
        record, filled = read_record(data), data.is_dir() and bool(collection_folders(data))
        is_replica = record is not None and record.replica
        known = since.read_text() if since.exists() else ""
        if not service.writes:
            if record is not None and not is_replica:
                self._put_aside(name)
            since.unlink(missing_ok=True)
            return False
        # What another machine has taken over in between, and a replica that has nothing yet, begin from the store.
        if (is_replica and not filled) or (known not in {"", str(service.since)} and not is_replica):
            self._put_aside(name)
            is_replica = False
        publish(since, str(service.since).encode())
        return is_replica

    def _put_aside(self, name: str) -> None:
        data = self._data(name)
        if not data.exists():
            return
        record = read_record(data)
        if record is not None and record.replica:
            shutil.rmtree(data)  # the store has all of it
        else:
            data.rename(data.with_name(f"data.aside-{time.time_ns()}"))

    def _configure(
        self, name: str, service: OrderedService, nodes: dict[str, list[str]]
    ) -> dict[str, dict[str, Any]]:
        """Write the configuration of a service, and return it."""
        settings: dict[str, dict[str, Any]] = tomllib.loads(self._base.read_text()) if self._base else {}
        url = urlsplit(self._machine.url(service.place))
        settings.setdefault("server", {}).update(host=url.hostname, port=url.port)
        settings.setdefault("cluster", {})["nodes"] = nodes
        if service.store:
            writer = nodes[name][0]
            replica = {} if service.writes else {"replica": True, "writer": writer, "forward_writes": True}
            settings.setdefault("store", {}).update({"url": service.store, **replica})
        publish(self._config(name), to_toml(settings).encode(), mode=0o600)
        return settings

    def _log(self, name: str) -> Path:
        return self._folder / name / "service.log"


def detach(command: list[str], log: Path, more: Mapping[str, str] | None = None) -> int:
    """Start a process that outlives this one and its session, with `more` variables, and return its id."""
    ended = subprocess.run(
        ["/bin/sh", "-c", DETACHED, "sh", *command],
        env={**without_ray(os.environ), **(more or {}), "LOG": str(log)},
        start_new_session=True,
        capture_output=True,
        check=True,
    )
    return int(ended.stdout)


def without_ray(environ: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environ.items() if not key.startswith(OF_RAY)}


def needs_key(server: dict[str, Any], data: Path) -> bool:
    """Whether a service that other machines reach would not start, since its directory has no access keys yet."""
    try:
        private = ip_address(server["host"]).is_loopback
    except ValueError:
        private = server["host"] == "localhost"
    return not private and not server.get("insecure") and not has_keys(data)


def serves(pid: int, data: Path) -> bool:
    """Whether a process is one of ours that serves this data directory: ids are used again, and a dead process that
    is not waited for has no command line."""
    try:
        return str(data).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def ask(server: dict[str, Any]) -> Literal["ready", "starting"] | None:
    """Ask a service whether it is ready; None if it does not answer."""
    if server.get("tls_certificate"):  # it is on this machine: its name is not what the certificate says
        unverified = ssl._create_unverified_context()  # noqa: S323 # nosec B323
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            server["host"], server["port"], timeout=ANSWER_S, context=unverified
        )
    else:
        connection = http.client.HTTPConnection(server["host"], server["port"], timeout=ANSWER_S)
    try:
        connection.request("GET", "/readyz")
        return "ready" if connection.getresponse().status == http.HTTPStatus.OK else "starting"
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def last_line(log: Path) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - 2000, 0))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1][-300:] if lines else ""


def to_toml(settings: dict[str, dict[str, Any]]) -> str:
    """Write a configuration. Its values are texts, numbers, lists, and tables of these."""

    def write(value: Any) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{write(key)} = {write(one)}" for key, one in value.items()) + " }"
        if isinstance(value, list):
            return "[" + ", ".join(map(write, value)) + "]"
        return json.dumps(value, ensure_ascii=False)

    return "".join(
        f"[{name}]\n" + "".join(f"{key} = {write(value)}\n" for key, value in table.items()) + "\n"
        for name, table in settings.items()
    )
