"""One search process, as the service sees it: what it was asked and told, what it said, and whether it still works."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import time
from collections.abc import Callable

import msgspec

from retrieval.processes.frames import (
    REPLIES,
    Alive,
    Answer,
    AnyAsk,
    Arriving,
    Begun,
    CatchUp,
    FollowCollection,
    Following,
    Forget,
    Forgotten,
    Leave,
    Opened,
    Order,
    Reached,
    Reply,
    SearchFailure,
    SearchReply,
    ShardReply,
    encode_frame,
)

logger = logging.getLogger(__name__)

# After which a process that has not opened a collection is told again; it doubles each time that it cannot.
TOLD_AGAIN_S, TOLD_AGAIN_S_MAX = 1.0, 60.0
CATCH_UP_S = 0.1  # for a process to catch up with a write, before the next one is told of it
CATCHING_UP, BEHIND = 0.5, 1.0  # searches under way that make a process answer as late as catching up does
# A process that has not replied for so long gets no searches, loses those that it has, and is killed.
SILENT_S, GIVE_UP_S, HUNG_S = 1.0, 3.0, 30.0
REAPED_S = 0.05  # for a process whose socket closed to leave its exit status
FORGOTTEN_S = 3.0  # for a process to close a collection, before it is killed
# Of a death. What may have another cause counts half: a kill from outside, a process that hangs, and a crash for the
# searches beside the suspect.
KILLED_BLAME, HUNG_BLAME, BESIDE_BLAME = 0.5, 0.5, 0.5


class ProcessDied(Exception):
    """The process that had a search has ended. `blamed`: how likely this search is the cause, 0 to 1. `crashed`: the
    process was not killed from outside."""

    def __init__(self, blamed: float, *, crashed: bool) -> None:
        self.blamed, self.crashed = blamed, crashed


class SearchProcess(asyncio.Protocol):
    """One search process, from its start to its end."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        on_end: Callable[[SearchProcess], None],
        on_reached: Callable[[str], None],
    ) -> None:
        """`on_reached` is called with the name of a collection that it has caught up with."""
        self.child = child
        self.came_up = False
        self.followed: dict[str, Opened] = {}  # collections as it searches them
        self.reached: dict[str, int] = {}  # the last operation that it searches, by collection
        self.catching_up: dict[str, float] = {}  # when it was told to, by collection
        self.waiting: dict[int, asyncio.Future[Answer]] = {}  # by the number of the search, oldest first
        self._heard = 0.0  # when it last replied, or was asked while it had nothing to do
        self._hung = False
        self._begun: int | None = None  # the search that it works on, if that is not the oldest
        self._left: set[int] = set()  # searches whose callers have left, until it says that it ended them
        self._told: dict[str, tuple[Opened, float]] = {}
        self._unable: dict[str, int] = {}  # how often it could not open a collection
        self._forgotten: dict[str, asyncio.Future[None]] = {}
        self._arriving = Arriving(REPLIES)
        self._on_end, self._on_reached = on_end, on_reached

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        try:
            for reply in self._arriving.feed(data):
                self._take(reply)
        except msgspec.DecodeError:
            logger.exception("search process %d sent something else than a reply", self.child.pid)
            self.child.kill()

    def connection_lost(self, exc: Exception | None) -> None:
        self.followed.clear()
        self.child.kill()
        suspect = self._suspect
        waiting, self.waiting = self.waiting, {}
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(REAPED_S)
        # A crash has a signal of its own. SIGKILL is an operator's, or that of a system without memory.
        crashed = self._hung or self.child.returncode != -signal.SIGKILL
        for number, future in waiting.items():
            if not future.done():
                # Those beside the suspect may have been in the same run of the model.
                blame = (1.0 if crashed else KILLED_BLAME) if number == suspect else crashed * BESIDE_BLAME
                future.set_exception(ProcessDied(blame, crashed=crashed))
        for closed in self._forgotten.values():
            if not closed.done():
                closed.set_result(None)
        self._on_end(self)

    def send(self, order: Order) -> None:
        self._transport.write(encode_frame(order))

    def close(self) -> None:
        self._transport.close()

    def follow(self, wanted: Opened) -> None:
        """Tell it how the service has a collection open, unless it was told a moment ago."""
        before, now = self._told.get(wanted.name), time.monotonic()
        pause_s = min(TOLD_AGAIN_S * 2 ** self._unable.get(wanted.name, 0), TOLD_AGAIN_S_MAX)
        if before is None or before[0] != wanted or now - before[1] > pause_s:
            self._told[wanted.name] = wanted, now
            self.send(FollowCollection(wanted))

    def catch_up(self, name: str) -> None:
        self.catching_up[name] = time.monotonic()
        self.send(CatchUp(name))

    def is_catching_up(self, name: str) -> bool:
        return time.monotonic() - self.catching_up.get(name, float("-inf")) < CATCH_UP_S

    def lateness(self, name: str, seq: int) -> float:
        """Return what a search that needs operation `seq` waits for, in searches."""
        late = float(len(self.waiting) + len(self._left))
        if self.is_catching_up(name):
            return late + CATCHING_UP
        return late + (BEHIND if self.reached.get(name, 0) < seq else 0)

    @property
    def silent_s(self) -> float:
        """The seconds since it last replied, 0 if it has nothing to do."""
        return time.monotonic() - self._heard if self.waiting or self._left else 0.0

    @property
    def is_silent(self) -> bool:
        return self.silent_s > SILENT_S

    def give_up_if_hung(self) -> None:
        """Where it has not replied for long, have its searches asked elsewhere; then kill it."""
        if self.silent_s > GIVE_UP_S:
            suspect = self._suspect
            for number, future in self.waiting.items():
                if not future.done():
                    is_suspect = number == suspect
                    future.set_exception(ProcessDied(is_suspect * HUNG_BLAME, crashed=is_suspect))
        if self.silent_s > HUNG_S and not self._hung:
            self._hung = True
            logger.error("search process %d has not replied for %g s and is killed", self.child.pid, HUNG_S)
            self.child.kill()

    @property
    def _suspect(self) -> int:
        """The number of the search that it works on."""
        return self._begun or min([*self.waiting, *self._left], default=0)

    def rest(self, name: str) -> None:
        """Have it close a collection until it is told to follow it again. What it is about to open is closed then."""
        if name in self._told:
            self._drop(name)
            self.send(Forget(name, withheld=False))

    def _drop(self, name: str) -> None:
        for known in (self.followed, self._told, self._unable, self.reached, self.catching_up):
            known.pop(name, None)

    async def forget(self, name: str) -> None:
        """Have it close a collection. A process that does not is killed."""
        self._drop(name)
        closed = self._forgotten.setdefault(name, asyncio.get_running_loop().create_future())
        self.send(Forget(name))
        try:
            await asyncio.wait_for(asyncio.shield(closed), FORGOTTEN_S)
        except TimeoutError:
            logger.error("search process %d has not closed %s and is killed", self.child.pid, name)
            self.child.kill()
        finally:
            self._forgotten.pop(name, None)

    async def ask(self, ask: AnyAsk) -> Answer:
        """Return the answer. Raises ProcessDied, what the search raises, and LookupError if the process cannot."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if not (self.waiting or self._left):
            self._heard = time.monotonic()
        self.waiting[ask.id] = future
        self.send(ask)
        try:
            return await future
        finally:
            if self.waiting.pop(ask.id, None) is not None:
                self._left.add(ask.id)
                self.send(Leave(ask.id))

    def _take(self, reply: Reply) -> None:
        match reply:
            case Alive():
                pass
            case Begun():
                self._begun = reply.id
            case SearchReply() | ShardReply() | SearchFailure():
                self._begun = None
                self._left.discard(reply.id)
                future = self.waiting.pop(reply.id, None)
                if future is None or future.done():
                    return  # its caller has left
                if isinstance(reply, SearchFailure):
                    refusal = reply.refusal
                    future.set_exception(refusal.error if refusal else LookupError(reply.message))
                else:
                    future.set_result(reply)
            case Following():
                self.came_up = True
                if reply.collection is None:
                    self.followed.pop(reply.name, None)
                    self._unable[reply.name] = min(self._unable.get(reply.name, -1) + 1, 10)
                elif reply.name in self._told:
                    self.followed[reply.name] = reply.collection
                    self._unable.pop(reply.name, None)
                else:  # it was to be closed while it was opened
                    self.send(Forget(reply.name, withheld=False))
            case Reached():
                self.reached[reply.name] = reply.seq
                self.catching_up.pop(reply.name, None)
                self._on_reached(reply.name)
            case Forgotten():
                if (closed := self._forgotten.get(reply.name)) is not None and not closed.done():
                    closed.set_result(None)
