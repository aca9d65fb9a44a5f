"""The search processes of a service: started, given searches, and started again when they end.

A search goes to the process that will answer first, of those that have the collection open in its present generation;
the others are told to open it. They catch up with writes one after another. If a process dies, the searches that it
had are asked of another one. The search that it was working on is asked once more only: one that ends two processes
gets an error, and is refused for a while. Without a process that can answer, the service searches itself.

For one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from indexes.base.child import child_environment
from indexes.base.errors import Unavailable
from indexes.collection.collection import Collection
from indexes.parts.memory import memory_bytes
from retrieval.base.settings import Config
from retrieval.embedding.encoder import available_threads
from retrieval.processes.frames import (
    REPLIES,
    Answer,
    Arriving,
    Ask,
    Begun,
    CatchUp,
    Configure,
    Failure,
    Follow,
    Following,
    Forget,
    Forgotten,
    Leave,
    Opened,
    Order,
    Reached,
    Reply,
    encode_frame,
)
from retrieval.wire.errors import SearchCrashed

logger = logging.getLogger(__name__)

# After which a process that has not opened a collection is told again; it doubles each time that it cannot.
TOLD_AGAIN_S, TOLD_AGAIN_S_MAX = 1.0, 60.0
CATCH_UP_S = 0.1  # for a process to catch up with a write, before the next one is told of it
CATCHING_UP, BEHIND = 0.5, 1.0  # searches under way that make a process answer as late as catching up does
# The pause before a process is started again; it doubles while none comes up.
RESTART_S, RESTART_S_MAX = 0.1, 30.0
# Deaths until a search is refused. What may have another cause counts half: a kill from outside, a process that hangs,
# and a crash for the searches beside the suspect.
DEATHS_MAX, KILLED_BLAME, HUNG_BLAME, BESIDE_BLAME = 2, 0.5, 0.5, 0.5
# A process that has not replied for so long gets no searches, loses those that it has, and is killed.
SILENT_S, GIVE_UP_S, HUNG_S = 1.0, 3.0, 30.0
REAPED_S = 0.05  # for a process whose socket closed to leave its exit status
REFUSED_S = 60.0  # that a search which ended two processes is refused
# For another process to come up: after a crash, for which the service must not search itself, or a kill from outside.
ANOTHER_S, ANOTHER_SOON_S, LOOK_EVERY_S = 10.0, 1.0, 0.02
FORGOTTEN_S = 10.0  # for a process to close a collection, before it is killed
STOP_S = 2.0
WATCH_S = 0.5
PROCESSES_MAX = 8  # that one service can feed
# Of the memory ceiling, for each process: it takes a quarter of that, and grows with what is written.
PROCESS_BYTES = 512 << 20


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
            self.send(Follow(wanted))

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

    async def forget(self, name: str) -> None:
        """Have it close a collection. A process that does not is killed."""
        for known in (self.followed, self._told, self._unable, self.reached, self.catching_up):
            known.pop(name, None)
        closed = self._forgotten.setdefault(name, asyncio.get_running_loop().create_future())
        self.send(Forget(name))
        try:
            await asyncio.wait_for(asyncio.shield(closed), FORGOTTEN_S)
        except TimeoutError:
            logger.error("search process %d has not closed %s and is killed", self.child.pid, name)
            self.child.kill()
        finally:
            self._forgotten.pop(name, None)

    async def ask(self, ask: Ask) -> Answer:
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
            case Begun():
                self._begun = reply.id
            case Answer() | Failure():
                self._begun = None
                self._left.discard(reply.id)
                future = self.waiting.pop(reply.id, None)
                if future is None or future.done():
                    return  # its caller has left
                if isinstance(reply, Answer):
                    future.set_result(reply)
                else:
                    future.set_exception(reply.error or LookupError(reply.message))
            case Following():
                self.came_up = True
                if reply.collection is None:
                    self.followed.pop(reply.name, None)
                    self._unable[reply.name] = min(self._unable.get(reply.name, -1) + 1, 10)
                elif reply.name in self._told:
                    self.followed[reply.name] = reply.collection
                    self._unable.pop(reply.name, None)
            case Reached():
                self.reached[reply.name] = reply.seq
                self.catching_up.pop(reply.name, None)
                self._on_reached(reply.name)
            case Forgotten():
                if (closed := self._forgotten.get(reply.name)) is not None and not closed.done():
                    closed.set_result(None)


class SearchProcesses:
    """Starts `count` processes with `command`, which gets two more arguments, the number of its socket's descriptor and
    the id of this process, and keeps them up. Call `start`, then `close`."""

    def __init__(self, command: Sequence[str], count: int, config: Config, data: Path) -> None:
        self.count = count
        self.restarts = self.answers = 0
        self._command, self._config, self._data = command, config, data.absolute()
        self._processes: list[SearchProcess] = []
        self._numbers = itertools.count(1)
        self._refused: dict[bytes, float] = {}
        self._withheld: set[str] = set()
        self._known: dict[str, bytes] = {}  # collections whose writes are listened to, by name; their opening
        self._written: dict[str, int] = {}  # the last operation of each of them
        self._closed = False
        self._pause_s = RESTART_S
        self._tasks: set[asyncio.Task[None]] = set()

    def usage(self) -> list[tuple[int, float]]:
        """Return the bytes of own memory and the seconds of CPU of each process that is up."""
        found: list[tuple[int, float]] = []
        for one in self._processes:
            with contextlib.suppress(OSError):
                found.append((memory_bytes(one.child.pid)["own"], cpu_s(one.child.pid)))
        return found

    async def start(self) -> None:
        for _ in range(self.count):
            if not await self._start_one():
                self._in_background(self._start_until_up())
        self._in_background(self._watch())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        """End processes that hang."""
        while True:
            await asyncio.sleep(WATCH_S)
            for one in self._processes:
                one.give_up_if_hung()

    async def close(self) -> None:
        """End all processes."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        children = [one.child for one in self._processes]
        for one in list(self._processes):
            one.close()
        await asyncio.to_thread(end_all, children)

    def configure(self) -> None:
        """Tell all processes the settings as they are now."""
        for one in self._processes:
            one.send(Configure(self._config, str(self._data)))

    def prepare(self, collection: Collection) -> None:
        """Have all processes open a collection."""
        self._choose(collection)

    def takes(self, collection: Collection) -> bool:
        """Whether a process can answer a search of this collection now. The others are told to open it."""
        return self._choose(collection) is not None

    async def answer(self, collection: Collection, ask: Ask) -> Answer | None:
        """Answer a search of a collection; None if no process can. `ask` gets its number here.

        Raises what the search raises, SearchCrashed for one that ends processes, and Unavailable if one has ended and
        no other comes up.
        """
        asked = msgspec.msgpack.encode((ask.collection, ask.request))
        what, deaths, crashed = blake2b(asked, digest_size=16).digest(), 0.0, False
        self._require_harmless(what)
        while (
            process := await self._choose_again(collection, crashed=crashed)
            if deaths or crashed
            else self._choose(collection)
        ) is not None:
            try:
                answer = await process.ask(replace(ask, id=next(self._numbers)))
            except LookupError:
                process.followed.pop(ask.collection, None)
            except ProcessDied as died:
                deaths, crashed = deaths + died.blamed, crashed or died.crashed
                if deaths >= DEATHS_MAX:
                    self._refuse(what, ask)
                    self._require_harmless(what)
            else:
                self.answers += 1
                return answer
        return None

    async def _choose_again(self, collection: Collection, *, crashed: bool) -> SearchProcess | None:
        """Wait for a process for a search that may have ended one. One that still searches another generation will do.
        If none comes up, raises Unavailable after a crash: the service itself must not try the search."""
        until = time.monotonic() + (ANOTHER_S if crashed else ANOTHER_SOON_S)
        while (process := self._choose(collection, any_generation=True)) is None:
            if time.monotonic() > until:
                if crashed:
                    raise Unavailable("the search process ended, and no other came up in time")
                return None
            await asyncio.sleep(LOOK_EVERY_S)
        return process

    def _refuse(self, what: bytes, ask: Ask) -> None:
        now = time.monotonic()
        self._refused = {one: until for one, until in self._refused.items() if until > now}
        self._refused[what] = now + REFUSED_S
        request = ask.request if self._config.log.queries else b"(log.queries is off)"
        logger.error(
            "a search of %s ended two processes and is refused for %g s: %s",
            ask.collection, REFUSED_S, request,
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def released(self, name: str) -> AsyncIterator[None]:
        """Inside this block no process has a file of this collection open."""
        self._withheld.add(name)
        try:
            await asyncio.gather(*(one.forget(name) for one in self._processes))
            yield
        finally:
            self._withheld.discard(name)

    def _choose(self, collection: Collection, *, any_generation: bool = False) -> SearchProcess | None:
        """Return the process that answers first, of those that have the collection as it is now, or in any
        generation."""
        if not self.count or collection.name in self._withheld or self._closed:
            return None
        self._listen(collection)
        wanted, seq = opened(collection), collection.snapshot.seq
        best: tuple[float, SearchProcess] | None = None
        for one in self._processes:
            if one.is_silent:
                continue
            has = one.followed.get(wanted.name)
            if has != wanted:
                one.follow(wanted)
            if has is None or (has != wanted and not (any_generation and has.opening == wanted.opening)):
                continue
            late = one.lateness(wanted.name, seq)
            if best is None or late < best[0]:
                best = late, one
        return best and best[1]

    def _require_harmless(self, what: bytes) -> None:
        until = self._refused.get(what)
        if until is None:
            return
        if until > time.monotonic():
            raise SearchCrashed("this search ended two search processes; it is refused for a minute")
        del self._refused[what]

    def _listen(self, collection: Collection) -> None:
        """Have the processes told of each write from now on."""
        if self._known.get(collection.name) == collection.opening:
            return
        self._known[collection.name], self._written[collection.name] = collection.opening, 0
        loop, name = asyncio.get_running_loop(), collection.name

        def written(seq: int) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._note_written, name, seq)

        collection.on_commit.append(written)

    def _note_written(self, name: str, seq: int) -> None:
        self._written[name] = seq
        self._tell_written(name)

    def _tell_written(self, name: str) -> None:
        """Have one process catch up with the last write, and the next one when it has: the others answer meanwhile.
        The first one does while the service indexes the write, so that it has it when the write is acknowledged."""
        if name in self._withheld:
            return
        seq = self._written.get(name, 0)
        behind = [one for one in self._processes if name in one.followed and one.reached.get(name, 0) < seq]
        if behind and not any(one.is_catching_up(name) for one in behind):
            min(behind, key=lambda one: one.reached.get(name, 0)).catch_up(name)

    async def _start_one(self) -> bool:
        """Start a process. Returns whether that succeeded."""
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                child = subprocess.Popen(  # noqa: ASYNC220 - starting one takes a millisecond
                    [*self._command, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=child_environment(),
                )
        except OSError as error:
            logger.warning("no search process could be started: %s", error)
            return False
        process = SearchProcess(child, self._ended, self._tell_written)
        await asyncio.get_running_loop().create_unix_connection(lambda: process, sock=ours)
        process.send(Configure(self._config, str(self._data)))
        self._processes.append(process)
        return True

    def _ended(self, process: SearchProcess) -> None:
        if process in self._processes:
            self._processes.remove(process)
        if self._closed:
            return
        self.restarts += 1
        self._pause_s = RESTART_S if process.came_up else min(2 * self._pause_s, RESTART_S_MAX)
        logger.warning("search process %d ended; another one starts", process.child.pid)
        self._in_background(self._start_again(process.child))

    async def _start_again(self, ended: subprocess.Popen[bytes]) -> None:
        await asyncio.to_thread(ended.wait)
        await asyncio.sleep(self._pause_s)
        await self._start_until_up()

    async def _start_until_up(self) -> None:
        while True:
            if await self._start_one():
                return
            await asyncio.sleep(RESTART_S_MAX)


def as_many_as_serve(bytes_max: int) -> int:
    """Return how many search processes serve best with this much memory, where the configuration does not say."""
    return min(available_threads(), bytes_max // PROCESS_BYTES, PROCESSES_MAX)


def opened(collection: Collection) -> Opened:
    """Return how the service has a collection open."""
    tuned = collection.chosen
    return Opened(collection.name, collection.opening, collection.generation, tuned.chosen_ms if tuned else 0)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process. Raises OSError."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")


def end_all(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for processes whose sockets were closed to end, and kill those that do not."""
    until = time.monotonic() + STOP_S
    for child in children:
        try:
            child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
