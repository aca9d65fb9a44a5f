"""Startup progress: reported by the threads that open things, read by readiness checks."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Annotated, Literal, ParamSpec, TypeVar

import msgspec

from retrieval.wire.decoding import Doc

P = ParamSpec("P")
T = TypeVar("T")


class StartBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Startup progress. Item number `done` + 1 of `total` is in progress. With access keys, its name is withheld."""

    stage: Annotated[
        Literal["store", "collections", "models", "searches"], Doc("What is being opened or tried")
    ] = "collections"
    done: Annotated[int, Doc("Items that are done")] = 0
    total: Annotated[int, Doc("Items in this stage")] = 0
    name: Annotated[str, Doc("The item in progress")] = ""
    passages: Annotated[int, Doc("Passages read back from the log so far")] = 0


class StartEnded(BaseException):
    """The service was stopped before it started. Not an Exception, so that no collection is quarantined for it."""


class Start:
    """Progress of a start, usable from any thread. Its methods raise StartEnded on the working thread after a
    cancellation."""

    def __init__(self) -> None:
        self.at = StartBody()
        self._ended = threading.Event()

    def collection(self, name: str, done: int, total: int) -> None:
        self._on_step()
        self.at = StartBody("collections", done, total, name)

    def restoring(self, name: str, done: int, total: int) -> None:
        """Documents of a collection that are restored from the store."""
        self._on_step()
        self.at = StartBody("store", done, total, name)

    def read(self, passages: int) -> None:
        self._on_step()
        self.at = msgspec.structs.replace(self.at, passages=self.at.passages + passages)

    async def on_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on a thread and return its result. If the caller is cancelled, it ends at its next report."""
        try:
            return await asyncio.to_thread(functools.partial(work, *args, **kwargs))
        except asyncio.CancelledError:
            self._ended.set()
            raise

    def _on_step(self) -> None:
        if self._ended.is_set():
            raise StartEnded
