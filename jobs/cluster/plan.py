"""What a cluster shall be, kept in its store, and what its controller and machines tell each other.

    cluster/0000000001      the first plan, and so on without gaps; each created once, never replaced

A controller begins by creating a plan of its own, and decides by creating the next one. One that finds the next number
taken has been replaced by another controller, and gives no more orders.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from indexes.store.objects import Objects
from indexes.store.slots import FORMAT, Superseded, seal, unseal

FOLDER = "cluster"
PLANS_KEPT = 100
State = Literal["ready", "starting", "ending", "down"]


class PlannedNode(msgspec.Struct, frozen=True):
    """`writer` is the machine whose service writes, `since` that plan; `services` are the machines that have one, each
    with its place among the ports of the machine."""

    writer: str
    since: int
    services: dict[str, int]


class PlannedMachine(msgspec.Struct, frozen=True):
    """`home` tells two machines of one name apart. `address` is the URL of its first service."""

    home: str
    address: str

    def url(self, place: int) -> str:
        origin, _, port = self.address.rpartition(":")
        return f"{origin}:{int(port) + place}"


class ClusterPlan(msgspec.Struct, frozen=True):
    """`cluster` is made once; `by` is the controller that wrote this. `store` is the URL below which each node has its
    own; "" if there is none. `replicas` are those that each node shall have beside its writer."""

    cluster: str
    by: str
    store: str = ""
    replicas: int = 0
    nodes: dict[str, PlannedNode] = {}
    machines: dict[str, PlannedMachine] = {}
    number: int = 0
    format: int = FORMAT

    def urls(self) -> dict[str, list[str]]:
        """Return the URLs of each node's services, that of the writer first."""
        return {
            name: [
                self.machines[machine].url(place)
                for machine, place in sorted(
                    node.services.items(), key=lambda one: (one[0] != node.writer, one[0])
                )
            ]
            for name, node in self.nodes.items()
        }


class PlanLog:
    """The plans in a store."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def newest(self) -> ClusterPlan | None:
        """Raises Unavailable, Damaged."""
        names = self._objects.names(FOLDER)
        if not names:
            return None
        name = f"{FOLDER}/{names[-1]}"
        return unseal(name, self._objects.read(name), ClusterPlan)

    def append(self, plan: ClusterPlan) -> ClusterPlan:
        """Keep the next plan, durably, and return it; its number is a later one if an earlier try, whose answer was
        lost, has taken that. Raises Superseded if another controller has; Unavailable."""
        while not self._objects.create(name := f"{FOLDER}/{plan.number:010}", seal(plan)):
            found = unseal(name, self._objects.read(name), ClusterPlan)
            if found == plan:
                break
            if found.by != plan.by:
                raise Superseded("another controller has taken over the cluster")
            plan = replace(plan, number=plan.number + 1)
        if old := self._objects.names(FOLDER)[:-PLANS_KEPT]:
            self._objects.remove(f"{FOLDER}/{one}" for one in old)
        return plan


# --- what is told ---------------------------------------------------------------------------------------------------


class ServiceReport(msgspec.Struct, frozen=True):
    """`writes` says what runs; `why` what keeps it from running."""

    state: State
    writes: bool
    why: str = ""

    @property
    def runs(self) -> bool:
        return self.state != "down"


class MachineReport(msgspec.Struct, frozen=True):
    """What a machine tells every second. `began` and `number` only grow: a report with less came late. `plan` is the
    number of that whose orders it follows; 0 before it has any."""

    machine: str
    home: str
    address: str
    began: float
    number: int
    plan: int
    services: dict[str, ServiceReport]


class OrderedService(msgspec.Struct, frozen=True):
    """A service that a machine shall have. `since` is that of the node. Without `may_start` what runs goes on, and
    nothing is started: another service of the node may still write."""

    place: int
    since: int
    writes: bool
    may_start: bool
    store: str


class MachineState(msgspec.Struct, frozen=True):
    """A machine, for operators. `silent_s` is how long ago it was heard."""

    name: str
    address: str
    silent_s: float
    lost: bool
    services: dict[str, ServiceReport]


class Orders(msgspec.Struct, frozen=True):
    """All that a machine shall have: what is not named here is ended. With `stop` everything ends and stays where it
    is. `nodes` are the URLs that each service must know, `store` that below which each node has its own; `machines` and
    `waiting`, what is wrong by node, are for people."""

    cluster: str
    plan: int
    services: dict[str, OrderedService]
    nodes: dict[str, list[str]]
    patience_s: float
    stop: bool
    machines: list[MachineState]
    waiting: dict[str, str]
    store: str = ""
