"""Work done one after the other on a thread of its own, which ends when there is nothing to do.

A directory may hold thousands of collections, and each has several such threads; a container allows some hundred.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from indexes.base.errors import Unavailable
from indexes.base.work import do_nothing

T = TypeVar("T")


def start_thread(thread: threading.Thread) -> None:
    """Raises Unavailable if the system allows no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        raise Unavailable(
            "no more threads can be started: the service needs a higher limit of processes and threads (TasksMax, "
            "pids_limit, ulimit -u)"
        ) from error


class SerialWork:
    """`begin` is called at the start of each thread."""

    def __init__(self, name: str, begin: Callable[[], None] = do_nothing) -> None:
        self._name, self._begin = name, begin
        self._changing = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do this after what was submitted before. Raises RuntimeError once closed, and Unavailable."""
        future: Future[T] = Future()
        with self._changing:
            if self._closed:
                raise RuntimeError("closed")
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start_thread(thread)
                self._thread = thread
            self._waiting.append((future, work))
        return future

    def close(self) -> None:
        """Drop what waits, and wait for what runs. Idempotent."""
        self.stop()
        if (thread := self._thread) is not None:
            thread.join()

    def stop(self) -> None:
        """Drop what waits, and take nothing more."""
        with self._changing:
            self._closed = True
            for future, _ in self._waiting:
                future.cancel()
            self._waiting.clear()

    def _run(self) -> None:
        self._begin()
        while True:
            with self._changing:
                if not self._waiting:
                    self._thread = None
                    return
                future, work = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                    future.set_exception(error)
            del future, work  # and with them what they hold
