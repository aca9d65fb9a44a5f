"""A ceiling for the memory of this process: what it holds now, plus what requests in progress are expected to add.

Under pressure, classes are refused one after another (`gates` defines them):

    heavy, answer, watch  beyond 80 percent of the ceiling
    write, change, embed  beyond 90
    search                at the ceiling

What it holds is the process's own memory without mapped file pages, which the system reclaims when it needs room.
Requests in no class (health, metrics, deleting a collection) are never refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec
import numpy as np

from indexes.base.errors import Overloaded, TooLarge
from indexes.base.model import StoredPassage
from indexes.base.normalizing import utf8_bytes
from indexes.base.work import WorkBudget
from indexes.parts.memory import give_back, memory_bytes
from retrieval.admission.gates import Load
from retrieval.base.cgroups import cgroup_bytes

SHARES: dict[Load, float] = {
    "heavy": 0.8,
    "answer": 0.8,
    "watch": 0.8,
    "write": 0.9,
    "change": 0.9,
    "embed": 0.9,
    "search": 1.0,
}
MACHINE_SHARE = 0.75  # the rest is for a rebuild's process and for pages of mapped files
RELIEF_SHARE = 0.7  # above this, caches are dropped and free memory goes back to the system
RELIEF_EVERY_S = 2.0  # returning memory blocks other threads that allocate

BODY_FACTOR = 4  # copies of a body's bytes: as it arrives, in one piece, decoded, and what is made from it
ANSWER_FACTOR = 4  # copies of the bytes in an answer's hits: as read, as objects, as JSON, in the socket
PAGE_BYTES_MIN = SMALL_BYTES = 1 << 20
READ_EVERY_S = 0.02
TOKEN_ID_BYTES = 120  # for one token id of an input, while it is decoded to text and tokenized again
HIT_BYTES = 256  # for a hit's numbers and field names
OBJECT_BYTES, ITEM_BYTES = 250, 64  # decoded: one object; one list, or one value in it
DECODED_BYTES_MAX = 64_000_000  # of a body, without its texts: `wire.value_budget` lets no more be decoded


class Ceiling:
    """Accounts for the memory of all requests. `relief` holds callbacks for when memory gets short; `others` is what
    the other processes of this service hold. `hold` may be used from any thread."""

    def __init__(self, bytes_max: int, own: Callable[[], int] | None = None) -> None:
        """`bytes_max` 0 means three quarters of the memory of the machine or container."""
        self.bytes_max = bytes_max or int(MACHINE_SHARE * available_bytes())
        self.foretold = 0
        self.refused: Counter[Load] = Counter()
        self.relief: list[Callable[[], None]] = []
        self.others = 0
        self.decoding = asyncio.Lock()
        self._own = own or own_bytes
        self._lock = threading.Lock()
        self._relieved = 0.0
        self._read, self._held = float("-inf"), 0

    @property
    def own(self) -> int:
        return self._own() + self.others

    def _own_lately(self) -> int:
        """Return a recent reading: each one makes three system calls and releases the GIL at each."""
        now = time.monotonic()
        if now - self._read > READ_EVERY_S:
            self._read, self._held = now, self.own
        return self._held

    @contextlib.contextmanager
    def hold(self, load: Load) -> Iterator[Held]:
        """Reserve memory for one request until the block ends. By then it is allocated, and so measured."""
        held = Held(self, load)
        try:
            yield held
        finally:
            self.give(held.bytes)

    def refusing(self) -> list[Load]:
        """List the classes that have no room left."""
        taken = self.own + self.foretold
        return [load for load, share in SHARES.items() if taken > share * self.bytes_max]

    def take(self, load: Load, size: int) -> None:
        """Reserve `size` more bytes. Raises Overloaded if a request of this class has no room for them."""
        own = self.own if size > SMALL_BYTES else self._own_lately()
        with self._lock:
            if own + self.foretold + size <= SHARES[load] * self.bytes_max:
                self.foretold += size
                return
            self.refused[load] += 1
        raise Overloaded(
            f"the process holds {megabytes(own)}, requests under way may add {megabytes(self.foretold)} and this one "
            f"{megabytes(size)}; {load} requests have room up to {SHARES[load]:.0%} of the {megabytes(self.bytes_max)} "
            "that it may hold (server.memory_bytes_max)"
        )

    def room(self, load: Load) -> int:
        """Return how many more bytes a request of this class may take; negative if it is refused."""
        return int(SHARES[load] * self.bytes_max) - self.own - self.foretold

    def left(self, wanted: int) -> int:
        """Return the bytes that may still be loaded. If these are fewer than `wanted`, free memory is first returned to
        the system, which blocks other threads that allocate."""
        if self.room("search") < wanted:
            give_back()
        return self.room("search")

    def give(self, size: int) -> None:
        with self._lock:
            self.foretold -= size

    @property
    def is_near(self) -> bool:
        """Whether it is time for `relieve`, which takes a while: at most every two seconds."""
        return self.own > RELIEF_SHARE * self.bytes_max and time.monotonic() - self._relieved > RELIEF_EVERY_S

    def relieve(self) -> None:
        """Return memory that is free inside the process to the system."""
        give_back()
        self._relieved = time.monotonic()


class Held:
    """The memory reserved for one request."""

    def __init__(self, ceiling: Ceiling, load: Load) -> None:
        self._ceiling = ceiling
        self._load = load
        self.bytes = 0

    def body(self, size: int) -> None:
        """Reserve memory for a body. Raises Overloaded if there is no room."""
        self._take(BODY_FACTOR * size)

    @contextlib.asynccontextmanager
    async def decoding(self, body: bytes) -> AsyncIterator[None]:
        """Reserve memory while a large body is decoded, one at a time: each may grow to many times its size. Raises
        Overloaded."""
        async with self._ceiling.decoding:
            grown = min(await asyncio.to_thread(decoded_bytes, body), DECODED_BYTES_MAX)
            self._ceiling.take(self._load, grown)
            try:
                yield
            finally:
                self._ceiling.give(grown)

    def token_ids(self, count: int) -> None:
        """Reserve memory for token ids to embed. Raises Overloaded if there is no room."""
        self._take(TOKEN_ID_BYTES * count)

    def answer(self, size: int) -> None:
        """Reserve memory for more bytes of the answer. Raises Overloaded if there is no room."""
        self._take(ANSWER_FACTOR * size)

    def page(self, bytes_max: int) -> int:
        """Return how many bytes the page of this request may have, fewer where memory is short. Raises Overloaded."""
        room = self._ceiling.room(self._load) // ANSWER_FACTOR
        bytes_max = min(bytes_max, max(room, PAGE_BYTES_MIN))
        self.answer(bytes_max)
        return bytes_max

    def _take(self, size: int) -> None:
        self._ceiling.take(self._load, size)
        self.bytes += size


class AnswerBudget:
    """Limits what one search, or all searches of a batch, may use: the bytes of their hits, and the `work` they do. Use
    from any thread."""

    def __init__(
        self, bytes_max: int, *, param: str | None = "k", hold: Callable[[int], None] = lambda size: None
    ) -> None:
        """`param` is what the caller asked too much of, None if it is nothing that the request names. `hold` is called
        with each amount taken, and may refuse it for lack of memory."""
        self.bytes_max = bytes_max
        self.param = param
        self._hold = hold
        self._lock = threading.Lock()
        self.taken = 0
        self.work = WorkBudget()
        self.working = asyncio.Lock()  # held for the one search in another process that may do this work

    def take(self, size: int, longest: int = 0) -> None:
        """Take `size` bytes; a hit has `longest`. Raises TooLarge, naming what to ask less of, or what `hold` raises;
        then nothing is taken."""
        with self._lock:
            if self.taken + size <= self.bytes_max:
                self._hold(size)
                self.taken += size
                return
        held = f", the longest of them {longest} bytes" if longest else ""
        fewer = "k" if self.param in (None, "searches") else self.param
        raise TooLarge(
            f"the hits would hold more than {self.bytes_max} bytes together (limits.answer_bytes_max){held}; "
            f"ask for fewer with a smaller {fewer}"
            + (", or in several requests" if self.param == "searches" else "")
            + (", or write shorter passages" if self.param is None else ""),
            param=self.param,
        )


class BudgetShare:
    """One search's share of a budget. A repeated search takes only what it needs in addition."""

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self._taken = 0
        self.work = budget.work

    def reach(self, size: int, longest: int = 0) -> None:
        """Raise the total to `size`. Raises what `AnswerBudget.take` raises."""
        if size > self._taken:
            self._budget.take(size - self._taken, longest)
            self._taken = size


def size_of(passage: StoredPassage) -> int:
    """Estimate the size of a hit of this passage as JSON, in bytes."""
    metadata = len(msgspec.json.encode(passage.metadata)) if passage.metadata else 0
    texts = sum(map(utf8_bytes, (passage.text, passage.title, passage.heading)))
    return HIT_BYTES + texts + metadata


def decoded_bytes(body: bytes) -> int:
    """Return an upper bound for the bytes of a decoded JSON body, apart from its texts. Commas in texts count too."""
    characters = np.frombuffer(body, np.uint8)  # numpy counts them without the GIL
    objects, lists, more = (int(np.count_nonzero(characters == ord(one))) for one in "{[,")
    return OBJECT_BYTES * objects + ITEM_BYTES * (lists + more)


def own_bytes() -> int:
    """Return the anonymous memory of this process; 0 if the system does not report it."""
    try:
        return memory_bytes()["own"]
    except OSError:
        return 0


def available_bytes() -> int:
    """Return the memory of the machine, or the limit of our control group if that is lower."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    granted = cgroup_bytes()
    return machine if granted is None else min(machine, int(granted))


def megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
