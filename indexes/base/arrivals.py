"""Waits, without polling, until a collection reaches a sequence number."""

from __future__ import annotations

import threading
from concurrent.futures import Future


class Arrivals:
    """Futures that resolve when `arrived` reports their seq or a later one. Thread-safe."""

    def __init__(self, seq: float) -> None:
        self._seq = seq
        self._waiting: dict[Future[None], int] = {}
        self._change = threading.Lock()

    def at(self, seq: int) -> Future[None]:
        """A future that resolves at this seq. Cancel it to stop waiting."""
        future: Future[None] = Future()
        with self._change:
            if seq > self._seq:
                self._waiting[future] = seq
                future.add_done_callback(self._forget)
                return future
        future.set_result(None)
        return future

    def arrived(self, seq: float) -> None:
        """Report a seq; infinity if no later one ever comes, so that all waits end."""
        with self._change:
            self._seq = seq
            due = [future for future, wanted in self._waiting.items() if wanted <= seq]
        for future in due:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _forget(self, future: Future[None]) -> None:
        with self._change:
            self._waiting.pop(future, None)
