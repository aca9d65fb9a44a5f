"""The one thread that writes a collection: groups waiting writes into commits, runs other steps between them.

Every caller gets a Future. Writes that wait together share one synced transaction, so the rate of commits does not
bound the rate of writes. If a commit fails, every write in it fails with the same error and none is kept. After an
error that may be a failed sync, what the disk holds is unknown until the log is opened again: the thread acknowledges
nothing more, and reports it (`failures`).

The thread runs while there is something to write, and for a moment after.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from indexes import failpoints, failures
from indexes.errors import NotReady, Overloaded, StorageError
from indexes.model import Operation, WriteResult

logger = logging.getLogger(__name__)

WAITING_WRITES_MAX = 10_000
# Without work, after which the thread ends. Short: the sooner a log can rest, the more collections one burst of writes
# may go over, and a thread is started in less time than a commit takes.
IDLE_S = 0.2
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
        """Whether it may join a group that has so many operations."""
        return not callable(self.operations) and operations + len(self.operations) <= most


@dataclass(frozen=True, slots=True)
class _Step:
    function: Callable[[], Any]
    future: Future[Any]


class Writer:
    """Runs `commit` on groups of writes of at most `operations_max` operations (one larger write goes alone)."""

    def __init__(
        self, name: str, commit: Commit, *, operations_max: int, on_idle: Callable[[], object]
    ) -> None:
        """`on_idle` is called on the thread before it ends for lack of work."""
        self._name = name
        self._on_idle = on_idle
        self._commit = commit
        self._operations_max = operations_max
        self._queue: queue.Queue[_Write | _Step | None] = queue.Queue()
        self._closing = False
        self._entering = threading.Lock()  # nothing may slip in behind the end of the queue
        self._thread: threading.Thread | None = None  # none means that nothing is queued

    def write(self, operations: Operations) -> Future[WriteResult]:
        """The future resolves when the operations are on disk and searchable. Raises Overloaded or NotReady at once.

        `operations` may be a function: it is called when all writes before it are visible, and no other comes between.
        """
        future: Future[WriteResult] = Future()
        self._put(_Write(operations, future))
        return future

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function on the writer's thread, between two commits."""
        future: Future[T] = Future()
        self._put(_Step(function, future))
        return future

    def close(self) -> None:
        """Finish what is queued, then stop. Idempotent."""
        with self._entering:
            first, self._closing = not self._closing, True
            thread = self._thread
            if first:
                self._queue.put(None)
        if thread is not None:
            thread.join()

    def _put(self, item: _Write | _Step) -> None:
        with self._entering:
            if self._closing:
                raise NotReady("the collection is closing")
            # Steps are few and must not be turned away: they put in place what took seconds to make.
            if isinstance(item, _Write) and self._queue.qsize() >= WAITING_WRITES_MAX:
                raise Overloaded(f"{WAITING_WRITES_MAX} writes are waiting already")
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"writer-{self._name}", daemon=True)
                thread.start()
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
        """What to do next; None ends the thread."""
        try:
            return self._queue.get(timeout=IDLE_S)
        except queue.Empty:
            pass
        try:
            self._on_idle()
        except Exception:
            logger.exception("writer-%s could not rest", self._name)
        with self._entering:
            if self._queue.empty():
                self._thread = None
                return None
        return self._queue.get()

    def _group(self, first: _Write) -> _Write | _Step | None:
        """Commit `first` with the writes that wait behind it; returns the next item, which did not fit."""
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
        # A caller that has gone leaves the group here; from here on its future can no longer be cancelled.
        group = [write for write in waiting if write.future.set_running_or_notify_cancel()]
        if not group:
            return
        try:
            failures.require_none()
            # In the caller's context, so that log lines have its request's id; a shared commit is nobody's own.
            context = group[0].context if len(group) == 1 else Context()
            results = context.run(lambda: self._commit([write.chosen() for write in group]))
            failpoints.reach("commit.acknowledge")
        except Exception as error:  # noqa: BLE001 - it belongs to the callers, who wait for it
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
    """Before the caller learns of it: whoever is told of a failure finds it in force."""
    if isinstance(error, StorageError) and failures.may_be_a_failed_sync(error):
        failures.report(error)
