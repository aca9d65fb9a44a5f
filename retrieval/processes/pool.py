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
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from indexes.base.child import child_environment
from indexes.base.errors import Unavailable
from indexes.collection.collection import Collection
from indexes.parts.memory import cpu_s, memory_bytes
from retrieval.base.settings import Config
from retrieval.embedding.encoder import available_threads
from retrieval.processes.frames import (
    Answer,
    AnyAsk,
    AskSearch,
    Configure,
    FollowCollection,
    Opened,
)
from retrieval.processes.process import ProcessDied, SearchProcess
from retrieval.wire.errors import SearchCrashed

logger = logging.getLogger(__name__)

# The pause before a process is started again; it doubles while none comes up.
RESTART_S, RESTART_S_MAX = 0.1, 30.0
DEATHS_MAX = 2  # until a search is refused
REFUSED_S = 60.0  # that a search which ended two processes is refused
# For another process to come up: after a crash, for which the service must not search itself, or a kill from outside.
ANOTHER_S, ANOTHER_SOON_S, LOOK_EVERY_S = 10.0, 1.0, 0.02
STOP_S = 2.0
WATCH_S = 0.5
PROCESSES_MAX = 8  # that one service can feed
# Of the memory ceiling, for each process: it takes a quarter of that, and grows with what is written.
PROCESS_BYTES = 512 << 20


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
        self._asked_at: dict[str, float] = {}  # when a collection was last searched, by name
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
        """Have all processes open a collection, and tell whether one of them can search it now."""
        return self._choose(collection) is not None

    async def answer(self, collection: Collection, ask: AnyAsk) -> Answer | None:
        """Answer a search of a collection, or calls of a shard; None if no process can. `ask` gets its number here.

        Raises what the search raises, SearchCrashed for one that ends processes, and Unavailable if one has ended and
        no other comes up.
        """
        asked = msgspec.msgpack.encode(
            (ask.collection, ask.request if isinstance(ask, AskSearch) else ask.calls)
        )
        what, deaths, crashed = blake2b(asked, digest_size=16).digest(), 0.0, False
        self._require_harmless(what)
        while True:
            again = self._choose_again(collection, crashed=crashed) if deaths else None
            process = self._choose(collection) if again is None else await again
            if process is None:
                return None
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

    def _refuse(self, what: bytes, ask: AnyAsk) -> None:
        now = time.monotonic()
        self._refused = {one: until for one, until in self._refused.items() if until > now}
        self._refused[what] = now + REFUSED_S
        request: object = "(log.queries is off)"
        if self._config.log.queries:
            request = ask.request if isinstance(ask, AskSearch) else ask.calls
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
        self._asked_at[collection.name] = time.monotonic()
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

    def rest(self, idle_s: float) -> None:
        """Have the processes close the collections that were not searched for so long. The next search has them opened
        again, and the service answers until they are."""
        before = time.monotonic() - idle_s
        idle = [name for name, asked_at in self._asked_at.items() if asked_at < before]
        for name in idle:
            del self._asked_at[name]
            for one in self._processes:
                one.rest(name)

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

        def changed() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._tell_changed, collection)

        collection.on_commit.append(written)
        collection.on_segments.append(changed)

    def _note_written(self, name: str, seq: int) -> None:
        self._written[name] = seq
        self._tell_written(name)

    def _tell_written(self, name: str) -> None:
        """Have one process catch up with the last write, and the next one when it has, while the others keep answering.
        The first one does while the service indexes the write, so that it has it when the write is acknowledged."""
        if name in self._withheld:
            return
        seq = self._written.get(name, 0)
        behind = [one for one in self._processes if name in one.followed and one.reached.get(name, 0) < seq]
        if behind and not any(one.is_catching_up(name) for one in behind):
            min(behind, key=lambda one: one.reached.get(name, 0)).catch_up(name)

    def _tell_changed(self, collection: Collection) -> None:
        """Have the processes load the generation and the segments that are on disk now."""
        for one in self._processes:
            if collection.name in one.followed and collection.name not in self._withheld:
                one.send(FollowCollection(opened(collection)))

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


def end_all(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for processes whose sockets were closed to end, and kill those that do not."""
    until = time.monotonic() + STOP_S
    for child in children:
        try:
            child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
