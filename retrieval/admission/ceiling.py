"""A ceiling for the memory of this process: what it holds, and what the requests under way are foretold to add to it.

Under pressure one class after the other is refused (`admission` has the classes):

    heavy, answer, watch  beyond 80 percent of the ceiling
    write, change, embed   beyond 90
    search         at the ceiling

Held is the process's own memory, without the pages of files it has mapped: those go when the system needs the room.
What is in no class (health, metrics, deleting a collection) is never refused.
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
MACHINE_SHARE = 0.75  # a rebuild's process and the pages of mapped files need the rest
RELIEF_SHARE = 0.7  # from here on caches are dropped and free memory goes back to the system
RELIEF_EVERY_S = 2.0  # it holds up whoever asks for memory meanwhile

BODY_FACTOR = 4  # of a body's bytes: as it arrives, in one piece, decoded, and what is made of it
ANSWER_FACTOR = 4  # of the bytes in an answer's hits: as read, as objects, as JSON, in the socket's buffer
PAGE_BYTES_MIN = SMALL_BYTES = 1 << 20
READ_EVERY_S = 0.02
TOKEN_ID_BYTES = 120  # of one id of an input, while it is made text again and read as tokens
HIT_BYTES = 256  # of a hit's numbers and names
OBJECT_BYTES, ITEM_BYTES = 250, 64  # of one object, and of one list or one of the values in it, decoded
DECODED_BYTES_MAX = 64_000_000  # of a body, without its texts: `wire.value_budget` lets no more be decoded


class Ceiling:
    """Counts for all requests. `relief` has what to call when memory gets short. Use `hold` from any thread."""

    def __init__(self, bytes_max: int, own: Callable[[], int] | None = None) -> None:
        """`bytes_max` 0: three quarters of what the machine, or the container, has."""
        self.bytes_max = bytes_max or int(MACHINE_SHARE * available_bytes())
        self.foretold = 0
        self.refused: Counter[Load] = Counter()
        self.relief: list[Callable[[], None]] = []
        self.decoding = asyncio.Lock()
        self._own = own or own_bytes
        self._lock = threading.Lock()
        self._relieved = 0.0
        self._read, self._held = float("-inf"), 0

    @property
    def own(self) -> int:
        """Bytes that the process holds now."""
        return self._own()

    def _own_lately(self) -> int:
        """As it was a moment ago: each reading is three system calls, and yields the interpreter at each."""
        now = time.monotonic()
        if now - self._read > READ_EVERY_S:
            self._read, self._held = now, self.own
        return self._held

    @contextlib.contextmanager
    def hold(self, load: Load) -> Iterator[Held]:
        """For one request: what it is foretold to take, until the block ends. By then it is there, and measured."""
        held = Held(self, load)
        try:
            yield held
        finally:
            self.give(held.bytes)

    def refusing(self) -> list[Load]:
        """The classes that have no room left."""
        taken = self.own + self.foretold
        return [load for load, share in SHARES.items() if taken > share * self.bytes_max]

    def take(self, load: Load, size: int) -> None:
        """Foretell so much more. Raises Overloaded where a request of this class has no room for it."""
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
        """How much more a request of this class may take; negative where it is refused."""
        return int(SHARES[load] * self.bytes_max) - self.own - self.foretold

    def left(self, wanted: int) -> int:
        """Bytes that may still be loaded. Before it says fewer than `wanted`, what is free inside the process is given
        back, which holds up whoever asks for memory meanwhile."""
        if self.room("search") < wanted:
            give_back()
        return self.room("search")

    def give(self, size: int) -> None:
        with self._lock:
            self.foretold -= size

    @property
    def is_near(self) -> bool:
        """Time for `relieve`, which takes a while: not more often than every two seconds."""
        return self.own > RELIEF_SHARE * self.bytes_max and time.monotonic() - self._relieved > RELIEF_EVERY_S

    def relieve(self) -> None:
        """Give memory that is free inside the process back to the system."""
        give_back()
        self._relieved = time.monotonic()


class Held:
    """What one request is foretold to take."""

    def __init__(self, ceiling: Ceiling, load: Load) -> None:
        self._ceiling = ceiling
        self._load = load
        self.bytes = 0

    def body(self, size: int) -> None:
        """Raises Overloaded for a body that has no room."""
        self._take(BODY_FACTOR * size)

    @contextlib.asynccontextmanager
    async def decoding(self, body: bytes) -> AsyncIterator[None]:
        """While a large body is decoded: one at a time, as each may grow to many times its bytes. Raises Overloaded."""
        async with self._ceiling.decoding:
            grown = min(await asyncio.to_thread(decoded_bytes, body), DECODED_BYTES_MAX)
            self._ceiling.take(self._load, grown)
            try:
                yield
            finally:
                self._ceiling.give(grown)

    def token_ids(self, count: int) -> None:
        """Raises Overloaded for so many ids to embed that they have no room."""
        self._take(TOKEN_ID_BYTES * count)

    def answer(self, size: int) -> None:
        """Raises Overloaded where so many bytes more in its answer have no room."""
        self._take(ANSWER_FACTOR * size)

    def page(self, bytes_max: int) -> int:
        """How many bytes the page of this request may have: fewer where memory is short. Raises Overloaded."""
        room = self._ceiling.room(self._load) // ANSWER_FACTOR
        bytes_max = min(bytes_max, max(room, PAGE_BYTES_MIN))
        self.answer(bytes_max)
        return bytes_max

    def _take(self, size: int) -> None:
        self._ceiling.take(self._load, size)
        self.bytes += size


class AnswerBudget:
    """Bytes for the hits of one answer: those of a search, or of all searches of a batch; and the `work` that they may
    take together. Use from any thread."""

    def __init__(
        self, bytes_max: int, *, param: str = "k", hold: Callable[[int], None] = lambda size: None
    ) -> None:
        """`hold` is told what is taken, and may refuse it for want of memory."""
        self._bytes_max = bytes_max
        self._param = param
        self._hold = hold
        self._lock = threading.Lock()
        self.taken = 0
        self.work = WorkBudget()

    def take(self, size: int) -> None:
        """Raises TooLarge, naming what to ask less of, or what `hold` raises, and takes nothing then."""
        with self._lock:
            if self.taken + size <= self._bytes_max:
                self._hold(size)
                self.taken += size
                return
        raise TooLarge(
            f"the hits would hold more than {self._bytes_max} bytes together; ask for fewer with a smaller k"
            + (", or in several requests" if self._param != "k" else ""),
            param=self._param,
        )


class BudgetShare:
    """What one search takes of a budget. Repeated, it takes only what it has more of."""

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self._taken = 0
        self.work = budget.work

    def reach(self, size: int) -> None:
        """Hold this much in all. Raises as `AnswerBudget.take` does."""
        if size > self._taken:
            self._budget.take(size - self._taken)
            self._taken = size


def size_of(passage: StoredPassage) -> int:
    """About how many bytes a hit of this passage takes as JSON."""
    metadata = len(msgspec.json.encode(passage.metadata)) if passage.metadata else 0
    return HIT_BYTES + len(passage.text) + len(passage.title) + len(passage.heading) + metadata


def decoded_bytes(body: bytes) -> int:
    """At most so many bytes are what a JSON body holds, without its texts; commas in texts count too."""
    characters = np.frombuffer(body, np.uint8)  # numpy counts them without holding up other threads
    objects, lists, more = (int(np.count_nonzero(characters == ord(one))) for one in "{[,")
    return OBJECT_BYTES * objects + ITEM_BYTES * (lists + more)


def own_bytes() -> int:
    """Anonymous memory of this process; 0 where the system does not tell."""
    try:
        return memory_bytes()["own"]
    except OSError:
        return 0


def available_bytes() -> int:
    """Memory of the machine, or what our control group may have of it."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    granted = cgroup_bytes()
    return machine if granted is None else min(machine, int(granted))


def megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
