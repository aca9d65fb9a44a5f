"""What a machine of a cluster knows, in its folder.

DIR/machine.json    of itself: its name, where it listens, how Ray is reached
DIR/AGENT           held by the agent that runs
DIR/orders.json     the last orders of the controller, which also say what there is on other machines
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import msgspec

from indexes.base.durable import decode_checked, disk_errors, publish, replace_unsynced, with_checksum
from jobs.cluster.plan import Orders, PlannedMachine

FORMAT = 1
TOKEN = "ray.token"  # noqa: S105 - the name of a file, made on the first machine
MACHINE, ORDERS, AGENT = "machine.json", "orders.json", "AGENT"
FOLDER = "MACHINE_FOLDER"  # a variable of what Ray runs
BUILDS = "nearline-build"  # a resource of Ray: how many builds a machine takes at a time
ENVIRON = {
    "RAY_AUTH_MODE": "token",
    "RAY_memory_monitor_refresh_ms": "0",  # which would kill agents when services use much memory
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # half a minute, for work that does not exist here
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Machine(msgspec.Struct, frozen=True):
    """`home` tells two machines of one name apart. `cluster` is the one that it belongs to; "" until it is known. Ray
    is reached at `ray`, with the token in the file `token`; `head` is the first machine, where the controller is.
    `configuration` is the file that each of its services begins with."""

    name: str
    address: str
    token: str
    head: bool
    ray: str = ""
    ray_port: int = 6379
    ray_pid: int = 0
    configuration: str = ""
    store: str = ""
    replicas: int | None = None
    patience_s: float = 60.0
    cluster: str = ""
    home: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))
    format: int = FORMAT
    sha256: str = ""

    @property
    def planned(self) -> PlannedMachine:
        return PlannedMachine(self.home, self.address)

    @property
    def base(self) -> Path | None:
        return Path(self.configuration) if self.configuration else None


def read_machine(folder: Path) -> Machine | None:
    """Raises Damaged."""
    path = folder / MACHINE
    if not path.exists():
        return None
    with disk_errors(path):
        return decode_checked(path, path.read_bytes(), Machine, FORMAT)


def environ_of(machine: Machine) -> dict[str, str]:
    """Return the variables that every process of Ray needs, before it imports Ray."""
    return {**ENVIRON, "RAY_AUTH_TOKEN_PATH": machine.token}


def write_machine(folder: Path, machine: Machine) -> None:
    publish(folder / MACHINE, with_checksum(machine))


def write_orders(folder: Path, orders: Orders) -> None:
    replace_unsynced(folder / ORDERS, msgspec.json.encode(orders), mode=0o600)


def read_orders(folder: Path) -> tuple[Orders, float] | None:
    """Return the last orders of a machine, and how many seconds ago it got them; None if it never had any."""
    path = folder / ORDERS
    try:
        return msgspec.json.decode(path.read_bytes(), type=Orders), time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
