"""Which machine has which service: a state machine that is fed with what machines report, and answers with orders.

Each machine reports every second and gets all its orders, so nothing that is late, repeated or lost does harm. A
machine that was silent for `patience_s` is lost: its writers are taken over by a replica, or restored from the store on
another machine. All that must outlive the controller is in the plan, which is saved before a machine is told of it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from indexes.base.errors import Conflict, NotFound, Unavailable
from jobs.cluster.plan import (
    ClusterPlan,
    MachineReport,
    MachineState,
    OrderedService,
    Orders,
    PlannedMachine,
    PlannedNode,
)

# Times the patience for a machine that a new controller has not heard yet: Ray may have to begin everywhere.
UNHEARD = 10
DEAF_S = 5.0  # a controller that heard nothing at all for so long was stuck itself


@dataclass(slots=True)
class Heard:
    report: MachineReport
    at: float


class Controller:
    """`save` keeps a plan and returns it, or raises Unavailable or Superseded. Times are seconds that only grow."""

    def __init__(
        self, plan: ClusterPlan, save: Callable[[ClusterPlan], ClusterPlan], patience_s: float, now: float
    ) -> None:
        self.plan, self._save, self._patience_s = plan, save, patience_s
        self._heard: dict[str, Heard] = {}
        self._began = self._heard_at = now
        self.stopping = False

    # --- events -----------------------------------------------------------------------------------------------------

    def hear(self, report: MachineReport, now: float) -> Orders:
        """Take a report of a machine and answer with its orders. Raises Conflict for a second machine of one name, and
        Superseded."""
        self._forgive_silence(now)
        name, known = report.machine, self._heard.get(report.machine)
        home = known.report.home if known is not None and not self._is_lost(name, now) else report.home
        home = self.plan.machines[name].home if name in self.plan.machines else home
        if report.home != home:
            raise Conflict(f"another machine is named {name}: start this one with another --name")
        if known is None or (known.report.began, known.report.number) < (report.began, report.number):
            self._heard[name] = Heard(report, now)
        self._follow(now)
        return self._orders(name, now)

    def add(self, node: str, machine: str | None, now: float) -> str:
        """Add a node, on a machine or on the one with the fewest services, and return which. A node that exists stays
        where it is. Raises NotFound, and Conflict if there is no machine."""
        if node in self.plan.nodes:
            return self.plan.nodes[node].writer
        self._forgive_silence(now)
        self._follow(now)
        alive = self._alive(now)
        if machine is not None and machine not in alive:
            raise NotFound(f"no machine {machine} answers; there are: {', '.join(sorted(alive)) or 'none'}")
        load = self._load()
        chosen = machine or min(alive, key=lambda one: (one != node, load[one], one), default=None)
        if chosen is None:
            raise Conflict("no machine answers")
        added = PlannedNode(chosen, self.plan.number + 1, {chosen: self._place(chosen, self.plan.nodes)})
        self._keep(replace(self.plan, nodes={**self.plan.nodes, node: added}))
        self._follow(now)
        return chosen

    def remove(self, node: str) -> None:
        """Remove a node, whose services end; their directories are kept. Raises NotFound."""
        if node not in self.plan.nodes:
            raise NotFound(f"no node {node}; there are: {', '.join(self.plan.nodes) or 'none'}")
        self._keep(
            replace(self.plan, nodes={name: one for name, one in self.plan.nodes.items() if name != node})
        )

    # --- decisions --------------------------------------------------------------------------------------------------

    def _follow(self, now: float) -> None:
        """Make the plan fit to the machines that there are. If the store is away, everything stays as it is."""
        if self.stopping:
            return
        load, nodes = self._load(), dict(self.plan.nodes)
        alive = {
            name: PlannedMachine(one.home, one.address)
            for name in self._alive(now)
            for one in [self._heard[name].report]
        }
        for name in nodes:
            nodes[name] = self._repair(name, nodes, load, now)
        used = {machine for node in nodes.values() for machine in node.services}
        known = {
            name: one
            for name, one in self.plan.machines.items()
            if name in used or not self._is_lost(name, now)
        }
        machines = known | alive
        if (nodes, machines) != (self.plan.nodes, self.plan.machines):
            with contextlib.suppress(Unavailable):  # the next report tries again
                self._keep(replace(self.plan, nodes=nodes, machines=machines))

    def _repair(
        self, name: str, nodes: dict[str, PlannedNode], load: Counter[str], now: float
    ) -> PlannedNode:
        writer, services = nodes[name].writer, dict(nodes[name].services)
        lost = {one for one in services if self._is_lost(one, now)}

        def free() -> list[str]:
            """Return the machines that could have a service of this node, the best first."""
            return sorted(self._alive(now) - services.keys(), key=lambda one: (load[one], one))

        def put(machine: str) -> str:
            services[machine] = self._place(machine, nodes)
            load[machine] += 1
            return machine

        def drop(machine: str) -> None:
            del services[machine]
            load[machine] -= 1

        if self.plan.store:
            if writer in lost:
                here = sorted(services.keys() - lost)
                ready = [one for one in here if self._is_ready(name, one)]
                if heirs := ready or free() or here:
                    drop(writer)
                    writer = heirs[0] if heirs[0] in services else put(heirs[0])
            for one in sorted(lost & services.keys() - {writer}):
                if free():
                    drop(one)
            while len(services) <= self.plan.replicas and free():
                put(free()[0])
            while len(services) > self.plan.replicas + 1:
                drop(max(services.keys() - {writer}, key=lambda one: (one in lost, load[one], one)))
        since = nodes[name].since if writer == nodes[name].writer else self.plan.number + 1
        return PlannedNode(writer, since, services)

    def _orders(self, machine: str, now: float) -> Orders:
        plan = self.plan
        return Orders(
            cluster=plan.cluster,
            plan=plan.number,
            services={
                name: OrderedService(
                    place=node.services[machine],
                    since=node.since,
                    writes=node.writer == machine,
                    may_start=node.writer != machine or not self._may_write_elsewhere(name, now),
                    store=f"{plan.store}/{name}" if plan.store else "",
                )
                for name, node in plan.nodes.items()
                if machine in node.services
            },
            nodes=plan.urls(),
            patience_s=self._patience_s,
            stop=self.stopping,
            machines=self.show(now),
            waiting=self._waiting(now),
            store=plan.store,
        )

    # --- what there is ----------------------------------------------------------------------------------------------

    def show(self, now: float) -> list[MachineState]:
        names = sorted(self._heard.keys() | self.plan.machines.keys())
        return [
            MachineState(
                name,
                one.report.address if one else self.plan.machines[name].address,
                round(now - (one.at if one else self._began), 1),
                self._is_lost(name, now),
                one.report.services if one else {},
            )
            for name in names
            for one in [self._heard.get(name)]
        ]

    def _waiting(self, now: float) -> dict[str, str]:
        why = {}
        for name, node in self.plan.nodes.items():
            if self._is_lost(node.writer, now):
                way = (
                    "for another machine"
                    if self.plan.store
                    else "for it: there is no store to restore it from"
                )
                why[name] = f"machine {node.writer} is lost, and the node waits {way}"
            elif self._may_write_elsewhere(name, now):
                why[name] = f"will write on {node.writer} once no other machine may write"
            elif len(node.services) <= self.plan.replicas:
                why[name] = "has fewer replicas than it shall have: there is no machine for another one"
        return why

    def _is_ready(self, node: str, machine: str) -> bool:
        one = self._heard[machine].report.services.get(node) if machine in self._heard else None
        return one is not None and one.state == "ready"

    def _may_write_elsewhere(self, node: str, now: float) -> bool:
        """Whether a machine that is not lost runs another writer of a node, or may start one by older orders."""
        planned = self.plan.nodes[node]
        for name in (self.plan.machines.keys() | self._heard.keys()) - {planned.writer}:
            if self._is_lost(name, now):
                continue
            if name not in self._heard or self._heard[name].report.plan < planned.since:
                return True
            held = self._heard[name].report.services.get(node)
            if held is not None and held.runs and held.writes:
                return True
        return False

    def _alive(self, now: float) -> set[str]:
        return {name for name in self._heard if not self._is_lost(name, now)}

    def _is_lost(self, machine: str, now: float) -> bool:
        if machine in self._heard:
            return now - self._heard[machine].at > self._patience_s
        return now - self._began > self._patience_s * UNHEARD

    def _forgive_silence(self, now: float) -> None:
        """Do not count against machines what this controller has slept, or waited for the store."""
        if (slept := now - self._heard_at) > DEAF_S:
            self._began += slept
            for one in self._heard.values():
                one.at += slept
        self._heard_at = now

    def _load(self) -> Counter[str]:
        return Counter(machine for node in self.plan.nodes.values() for machine in node.services)

    def _place(self, machine: str, nodes: dict[str, PlannedNode]) -> int:
        taken = {node.services[machine] for node in nodes.values() if machine in node.services}
        return next(place for place in itertools.count() if place not in taken)

    def _keep(self, plan: ClusterPlan) -> None:
        self.plan = self._save(replace(plan, number=self.plan.number + 1))
