"""Callers that wait until the store has what they have written, set or named, each for a limited time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import TypeVar

from indexes.base.errors import NearlineError, Unavailable
from indexes.base.model import WriteResult
from indexes.store.directory import NAMES

T = TypeVar("T")

CONFIRM_S = 15.0  # how long a caller waits for the store


@dataclass(frozen=True, slots=True)
class WaitingWrite:
    """A write that is on this disk; its caller waits until a time of the monotonic clock."""

    uid: str
    result: WriteResult
    future: Future[WriteResult]
    until: float


@dataclass(frozen=True, slots=True)
class WaitingFiles:
    """Settings of a collection, or the names, are on this disk; their caller waits for a slot that has them."""

    uid: str
    future: Future[int]
    until: float


class Confirmations:
    """Thread-safe. `stored` tells the last operation of a collection, by uid, that the store has; `wake` is called when
    something should be uploaded at once."""

    def __init__(self, stored: Callable[[str], float], wake: Callable[[], None]) -> None:
        self._stored, self._wake, self._lock = stored, wake, threading.Lock()
        self._writes: list[WaitingWrite] = []
        self._files: list[WaitingFiles] = []
        self._refusal: NearlineError | None = None

    @property
    def waiting(self) -> bool:
        return bool(self._writes or self._files)

    def of_write(self, uid: str, written: Future[WriteResult]) -> Future[WriteResult]:
        """A future that resolves when a write is on the disk and in the store."""
        confirmed: Future[WriteResult] = Future()

        def on_written(done: Future[WriteResult]) -> None:
            if done.cancelled():
                confirmed.cancel()
            elif error := done.exception():
                resolve(confirmed, error)
            else:
                self._await(WaitingWrite(uid, done.result(), confirmed, time.monotonic() + CONFIRM_S))

        def on_confirmed(done: Future[WriteResult]) -> None:
            if done.cancelled():
                written.cancel()

        confirmed.add_done_callback(on_confirmed)
        written.add_done_callback(on_written)
        return confirmed

    def _await(self, write: WaitingWrite) -> None:
        with self._lock:
            if self._stored(write.uid) < write.result.seq and self._refusal is None:
                self._writes.append(write)
                self._wake()
                return
        resolve(write.future, self._refusal or write.result)

    def of_files(self, uid: str = NAMES) -> Future[int]:
        """A future for the slot of the store that has the settings beside the log of a collection, or else the names,
        aliases and keys, as they are now."""
        future: Future[int] = Future()
        with self._lock:
            if self._refusal is None:
                self._files.append(WaitingFiles(uid, future, time.monotonic() + CONFIRM_S))
        if self._refusal is not None:
            resolve(future, self._refusal)
        return future

    def files(self, uid: str = NAMES) -> list[WaitingFiles]:
        """Who waits for the settings of a collection, or the names, as they are now."""
        with self._lock:
            return [one for one in self._files if one.uid == uid]

    def confirmed(self, files: list[WaitingFiles], slot: int) -> None:
        with self._lock:
            self._files = [one for one in self._files if one not in files]
        for one in files:
            resolve(one.future, slot)

    def reached(self, uid: str, seq: int) -> None:
        """The store has the operations of a collection up to `seq`."""
        self._settle(lambda one: one.uid == uid and one.result.seq <= seq)

    def give_up_late(self) -> None:
        """Tell those who have waited too long."""
        if not self.waiting:
            return
        now, error = time.monotonic(), Unavailable("done here, but not yet in the store; the log says why")
        self._settle(lambda one: one.until < now, error)
        with self._lock:
            late = [one for one in self._files if one.until < now]
            self._files = [one for one in self._files if one.until >= now]
        for one in late:
            resolve(one.future, error)

    def refuse(self, error: NearlineError) -> None:
        """Confirm nothing more: those who wait get the error, and those who come later."""
        with self._lock:
            self._refusal = error
            files, self._files = self._files, []
        self._settle(lambda one: True, error)
        for one in files:
            resolve(one.future, error)

    def _settle(self, over: Callable[[WaitingWrite], bool], error: NearlineError | None = None) -> None:
        if not self._writes:
            return
        with self._lock:
            settled = [one for one in self._writes if over(one)]
            self._writes = [one for one in self._writes if not over(one)]
        for one in settled:
            resolve(one.future, error or one.result)


def resolve(future: Future[T], outcome: T | BaseException) -> None:
    with contextlib.suppress(InvalidStateError):  # its caller has left
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
