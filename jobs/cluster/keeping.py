"""An agent at work: turn after turn it looks, does what follows, reports, and gets its orders."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from indexes.base.errors import Conflict, NearlineError, message_of
from jobs.cluster.agent import Agent
from jobs.cluster.machine import Machine, write_machine, write_orders
from jobs.cluster.plan import MachineReport, Orders
from jobs.cluster.services import Services

logger = logging.getLogger(__name__)

TURN_S = 1.0


class Keeping:
    """`ask` gives a report to the controller and returns its orders; it may wait, and raise anything. What runs is
    looked after also while it waits. Orders of another cluster than that of this machine are refused."""

    def __init__(self, folder: Path, machine: Machine, ask: Callable[[MachineReport], Orders]) -> None:
        self._folder, self._machine, self._ask = folder, machine, ask
        self._services = Services(folder, machine.planned, machine.base)
        self._agent = Agent()
        self._asking = ThreadPoolExecutor(1, "ask-controller")
        self._asked: Future[Orders] | None = None
        self._asked_at = self._answered_at = float("-inf")
        self._began, self._number = time.time(), 0
        self._told_running = self._heard_running = (
            True  # whether a service runs, by the last report and answer
        )
        self.orders: Orders | None = None
        self.error: Exception | None = None  # why there are no newer orders

    def turn(self) -> bool:
        """Returns whether there is more to do: False once all was told to stop, has, and the controller knows."""
        now = time.monotonic()
        self._take_orders()
        fresh = self.orders is not None and now - self._answered_at < self.orders.patience_s / 2
        seen = self._services.look()
        for action in self._agent.step(self.orders, seen, now, fresh=fresh):
            try:
                self._services.do(action)
            except (NearlineError, OSError) as error:
                logger.error("%s: %s", action, message_of(error))
        if self._asked is None:
            self._report(now)
        return self.orders is None or not self.orders.stop or self._heard_running

    def _report(self, now: float) -> None:
        self._number += 1
        told = MachineReport(
            machine=self._machine.name,
            home=self._machine.home,
            address=self._machine.address,
            began=self._began,
            number=self._number,
            plan=self.orders.plan if self.orders else 0,
            services=self._agent.reports(),
        )
        self._told_running = any(one.runs for one in told.services.values())
        self._asked, self._asked_at = self._asking.submit(self._ask, told), now

    def _take_orders(self) -> None:
        if self._asked is None or not self._asked.done():
            return
        asked, self._asked = self._asked, None
        try:
            orders = asked.result()
        except Exception as error:  # noqa: BLE001 - of Ray, of the network, of the controller
            logger.warning("no orders from the controller: %s", message_of(error))
            self.error = error
            return
        if self._machine.cluster not in {"", orders.cluster}:
            self.error = Conflict("this folder is that of a machine of another cluster: take another --data")
            return
        if not self._machine.cluster:
            self._machine = msgspec.structs.replace(self._machine, cluster=orders.cluster)
            write_machine(self._folder, self._machine)
        self.orders, self.error, self._answered_at = orders, None, self._asked_at
        self._heard_running = self._told_running
        write_orders(self._folder, orders)
