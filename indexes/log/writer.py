"""A collection's single writer thread: group commit of queued writes, with other steps run between commits.

Every caller gets a Future. Queued writes share one synced transaction, so the commit rate does not bound the write
rate. If a commit fails, every write in it fails with the same error and none is kept. After an error that may be a
failed sync, the state on disk is unknown until the log is reopened: the thread acknowledges nothing more, and reports
it (`failures`).

The thread starts on demand and ends shortly after the queue empties.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from indexes.base import failpoints, failures
from indexes.base.errors import NearlineError, NotReady, Overloaded, StorageError, WritesHeld
from indexes.base.model import Operation, WriteResult
from indexes.base.serial import start_thread
from indexes.base.work import BEGAN

logger = logging.getLogger(__name__)

WAITING_WRITES_MAX = 10_000
# Idle time after which the thread ends. Short: the sooner logs can rest, the more collections a burst of writes can
# cover, and starting a thread takes less time than a commit.
IDLE_S = 0.2
HELD_RETRY_S = 1.0
T = TypeVar("T")

Operations = Sequence[Operation] | Callable[[], Sequence[Operation]]
Commit = Callable[[list[Sequence[Operation]]], list[WriteResult]]


@dataclass(frozen=True, slots=True)
class _Write:
    operations: Operations
    future: Future[WriteResult]
    context: Context = field(default_factory=copy_context)

    def chosen(self) -> Sequence[Operation]:
        return self.operations() if callable(self.operations) else self.operations

    def fits(self, operations: int, most: int) -> bool:
        """Whether it may join a group that already has this many operations."""
        return not callable(self.operations) and operations + len(self.operations) <= most


@dataclass(frozen=True, slots=True)
class _Step:
    function: Callable[[], Any]
    future: Future[Any]


class Writer:
    """Runs `commit` on groups of at most `operations_max` operations (a larger write is committed alone)."""

    def __init__(
        self, name: str, commit: Commit, *, operations_max: int, on_idle: Callable[[], object]
    ) -> None:
        """`on_idle` is called on the thread before it ends."""
        self._name = name
        self._on_idle = on_idle
        self._commit = commit
        self._operations_max = operations_max
        self._queue: queue.Queue[_Write | _Step | None] = queue.Queue()
        self._closing = False
        self._held_until = 0.0
        self._entering = threading.Lock()  # no item may follow the closing sentinel
        self._thread: threading.Thread | None = None  # None: nothing is queued

    def write(self, operations: Operations) -> Future[WriteResult]:
        """Queue a write. The future resolves when the operations are durable and searchable.

        `operations` may be a function: it is called once all earlier writes are visible, with no other write in
        between. Raises Overloaded or NotReady immediately.
        """
        future: Future[WriteResult] = Future()
        self._put(_Write(operations, future), may_be_held=True)
        return future

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function on the writer thread, between commits."""
        future: Future[T] = Future()
        self._put(_Step(function, future))
        return future

    def change(self, function: Callable[[], T]) -> Future[T]:
        """Run a function as `call` does, but refuse it as a write while writes are held."""
        future: Future[T] = Future()
        self._put(_Step(function, future), may_be_held=True)
        return future

    def hold(self, seconds: float) -> None:
        """Refuse writes for so many seconds from now on, also later those of requests that began before the end; 0 ends
        it. What was queued before is written."""
        with self._entering:
            self._held_until = time.monotonic() + seconds

    def close(self) -> None:
        """Finish queued items, then stop. Idempotent."""
        with self._entering:
            first, self._closing = not self._closing, True
            thread = self._thread
            if first:
                self._queue.put(None)
        if thread is not None:
            thread.join()

    def _put(self, item: _Write | _Step, *, may_be_held: bool = False) -> None:
        with self._entering:
            if self._closing:
                raise NotReady("the collection is closing")
            if may_be_held and (BEGAN.get() or time.monotonic()) < self._held_until:
                raise WritesHeld(
                    "the collection is being copied and takes no writes for a moment, also of requests that began "
                    "before; nothing was written: send it again",
                    retry_after_s=HELD_RETRY_S,
                )
            # Steps are few and never refused: they install results that took seconds to build.
            if isinstance(item, _Write) and self._queue.qsize() >= WAITING_WRITES_MAX:
                raise Overloaded(f"{WAITING_WRITES_MAX} writes are waiting already")
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"writer-{self._name}", daemon=True)
                start_thread(thread)
                self._thread = thread
            self._queue.put_nowait(item)

    def _run(self) -> None:
        item = self._next()
        while item is not None:
            if isinstance(item, _Step):
                self._step(item)
                item = self._next()
            else:
                item = self._group(item)

    def _next(self) -> _Write | _Step | None:
        """The next item; None ends the thread."""
        try:
            return self._queue.get(timeout=IDLE_S)
        except queue.Empty:
            pass
        try:
            self._on_idle()
        except NearlineError as error:  # such as too many open files
            logger.warning("writer-%s could not rest: %s", self._name, error.message)
        except Exception:
            logger.exception("writer-%s could not rest", self._name)
        with self._entering:
            if self._queue.empty():
                self._thread = None
                return None
        return self._queue.get()

    def _group(self, first: _Write) -> _Write | _Step | None:
        """Commit `first` together with queued writes that fit; returns the next item."""
        group = [first]
        operations = self._operations_max if callable(first.operations) else len(first.operations)
        following: _Write | _Step | None
        while True:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                self._commit_group(group)
                return self._next()
            if not isinstance(following, _Write) or not following.fits(operations, self._operations_max):
                self._commit_group(group)
                return following
            group.append(following)
            operations += len(following.chosen())

    def _commit_group(self, waiting: list[_Write]) -> None:
        # Drop writes whose callers cancelled; from here on the futures can no longer be cancelled.
        group = [write for write in waiting if write.future.set_running_or_notify_cancel()]
        if not group:
            return
        try:
            failures.require_none()
            # In the caller's context, so log lines carry its request id; a shared commit belongs to no single request.
            context = group[0].context if len(group) == 1 else Context()
            results = context.run(lambda: self._commit([write.chosen() for write in group]))
            failpoints.reach("commit.acknowledge")
        except Exception as error:  # noqa: BLE001 - raised to the callers through their futures
            report_failed_sync(error)
            for write in group:
                write.future.set_exception(error)
        else:
            for write, result in zip(group, results, strict=True):
                write.future.set_result(result)

    def _step(self, step: _Step) -> None:
        if not step.future.set_running_or_notify_cancel():
            return
        try:
            result = step.function()
        except Exception as error:  # noqa: BLE001 - as above
            report_failed_sync(error)
            step.future.set_exception(error)
        else:
            step.future.set_result(result)


def report_failed_sync(error: Exception) -> None:
    """Call before the future is resolved, so that callers who see the error find it already reported."""
    if isinstance(error, StorageError) and failures.may_be_a_failed_sync(error):
        failures.report(error)
