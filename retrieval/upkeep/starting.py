"""How far the start is: told by the threads that open things, read by whoever asks whether the service is ready."""

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
    """The next thing is number `done` + 1 of `total`. Where there are access keys, it has no name."""

    stage: Annotated[Literal["collections", "models", "searches"], Doc("What is opened, or tried")] = (
        "collections"
    )
    done: Annotated[int, Doc("How many of them are done")] = 0
    total: Annotated[int, Doc("How many there are")] = 0
    name: Annotated[str, Doc("The one that is being opened")] = ""
    passages: Annotated[int, Doc("Passages read back from the log so far")] = 0


class StartEnded(BaseException):
    """The service is told to stop before it has started. Not an Exception: no collection is quarantined for it."""


class Start:
    """Used from any thread. Its methods raise StartEnded, on the thread that works, once nobody waits for the start."""

    def __init__(self) -> None:
        self.at = StartBody()
        self._ended = threading.Event()

    def collection(self, name: str, done: int, total: int) -> None:
        self._on_step()
        self.at = StartBody("collections", done, total, name)

    def read(self, passages: int) -> None:
        self._on_step()
        self.at = msgspec.structs.replace(self.at, passages=self.at.passages + passages)

    async def on_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns. If the caller is cancelled, it ends at its next report."""
        try:
            return await asyncio.to_thread(functools.partial(work, *args, **kwargs))
        except asyncio.CancelledError:
            self._ended.set()
            raise

    def _on_step(self) -> None:
        if self._ended.is_set():
            raise StartEnded
