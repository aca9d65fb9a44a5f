"""Answers already given, kept with what tells whether they still hold.

An answer is found by its request: the collection's name, its settings, and everything else that can change the answer,
the principal included. Whether it is right is decided when it is found:

    the same content     of documents as when it was computed: it is right, whoever computed it
    other content        the caller judges: by the passages written since, and those deleted (`survival.py`). Only for
                         answers computed since this collection was opened, because ids of passages mean something only
                         there
    otherwise            it is a miss, and the new answer takes its place

So nothing is ever invalidated, and a deleted document cannot come back from the cache.

    near, in this process   also by generation and tuning: a rebuild, a rollback or a tuning shows at once
    far, shared             whoever holds the same documents finds it. Which passages lie in which tier, and what
                            approximate search misses, are then those of the service that answered first, for `ttl_s` at
                            most
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from retrieval.cache.memory import MemoryStore
from retrieval.cache.store import Store, key_of


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """One answer. `content` is that of the documents for which it was last found right, `opening` names the opened
    collection whose passage ids are in `grounds`, `cost_ms` is what computing it took."""

    content: bytes
    opening: bytes
    grounds: bytes  # for the judge; empty: it holds for its content alone
    answer: bytes
    cost_ms: float
    made_s: float  # since 1970


Judge = Callable[[bytes], Awaitable[bytes | None]]
"""From the grounds of an answer those that it has now, None if it does not hold any more."""


class ResultKey(msgspec.Struct, frozen=True):
    """Where one answer is kept: `near` in this process, `far` in what services share. It must be for this `content`, or
    be judged, if this `opening` of the collection computed it."""

    near: bytes
    far: bytes
    content: bytes
    opening: bytes


@dataclass(slots=True)
class ResultCounts:
    """Totals. Every get ends as one hit or one miss. Of the hits, `far` were found in what services share, and
    `survived` had been computed before a write; of the misses, `outdated` were found and did not hold. `joined` waited
    for the same search of another; `bypassed` wanted no cache. `saved_ms` is what computing the hits had taken."""

    hits: int = 0
    misses: int = 0
    far: int = 0
    survived: int = 0
    outdated: int = 0
    joined: int = 0
    bypassed: int = 0
    saved_ms: float = 0.0


class ResultCache:
    """Encoded answers, kept for at most `ttl_s` seconds. Never raises, as its stores never do.

    `now` is the time of day in seconds; services that share should agree about it.
    """

    def __init__(self, near: MemoryStore, far: Store | None, *, ttl_s: int, now: Callable[[], float]) -> None:
        self.counts = ResultCounts()
        self._near = near
        self._far = far
        self.ttl_s = ttl_s
        self._now = now

    @staticmethod
    def key(
        name: str,
        settings: bytes,
        request: bytes,
        *,
        content: bytes,
        opening: bytes,
        generation: int,
        tuned_ms: int,
    ) -> ResultKey:
        """Both keys differ when `name`, `settings` or `request` do, and the near one when anything but `content` does.

        `content` stands for the documents, `settings` for what is fixed about their collection. `request` is everything
        else that can change the answer, in one canonical encoding: query, k, mode, filter, fusion, and also the tenant
        or scope on whose behalf it is asked. `opening` is of the collection as it was opened, and of no other.
        """
        far = key_of(b"nearline-result3", name, settings, request)
        near = key_of(b"nearline-near", far, opening, b"%d %d" % (generation, tuned_ms))
        return ResultKey(near, far, content, opening)

    async def get(self, key: ResultKey, judge: Judge | None = None, *, counted: bool = True) -> bytes | None:
        """The encoded answer put under this key, if it is right. Without `judge` none outlives a write. `counted` as a
        hit or a miss."""
        met = near = await self._near_get(key)
        found, far = near and await self._holding(near, key, judge), False
        if found is None and self._far:
            shared = await self._shared(key, self._far)
            if shared is not None and (near is None or near.made_s != shared.made_s):  # else it is the same
                met, far = shared, True
                found = await self._holding(shared, key, judge)
        if found is not None and found is not near:
            left_s = int(found.made_s + self.ttl_s - self._now())
            await self._near.put(key.near, msgspec.msgpack.encode(found), left_s)
        if counted:
            self._count(found, met, far=far, now=key.content)
        return None if found is None else found.answer

    async def put(self, key: ResultKey, answer: bytes, grounds: bytes = b"", cost_ms: float = 0.0) -> None:
        """Keep an encoded answer, and on which grounds it may outlive writes. May return before it can be found."""
        kept = Kept(key.content, key.opening, grounds, answer, cost_ms, self._now())
        encoded = msgspec.msgpack.encode(kept)
        await self._near.put(key.near, encoded, self.ttl_s)
        if self._far is not None:
            await self._far.put(key.far, encoded, self.ttl_s)

    def _count(self, found: Kept | None, kept: Kept | None, *, far: bool, now: bytes) -> None:
        """A get that came upon `kept`, and gave what it had `found` to hold."""
        if found is None:
            self.counts.misses += 1
            self.counts.outdated += kept is not None
            return
        self.counts.hits += 1
        self.counts.far += far
        self.counts.survived += kept is not None and kept.content != now
        self.counts.saved_ms += found.cost_ms

    def clear(self) -> None:
        """Forget what is kept near. What lies far is not found any more either once documents went, and ages out."""
        self._near.clear()

    async def _holding(self, found: Kept, key: ResultKey, judge: Judge | None) -> Kept | None:
        """The same if it is right for the key's content, with what it holds by now."""
        if found.content == key.content:
            return found
        if judge is None or found.opening != key.opening or not found.grounds:
            return None
        grounds = await judge(found.grounds)
        if grounds is None:
            return None
        return msgspec.structs.replace(found, content=key.content, grounds=grounds)

    async def _near_get(self, key: ResultKey) -> Kept | None:
        encoded = await self._near.get(key.near)
        return None if encoded is None else msgspec.msgpack.decode(encoded, type=Kept)

    async def _shared(self, key: ResultKey, far: Store) -> Kept | None:
        """From the far store, unless its time is over."""
        encoded = await far.get(key.far)
        if encoded is None:
            return None
        try:
            found = msgspec.msgpack.decode(encoded, type=Kept)
        except msgspec.DecodeError:
            return None  # of another version of this service
        # A clock that is ahead here, or was behind there, must not keep it longer.
        age_s = self._now() - found.made_s
        if age_s >= self.ttl_s:
            return None
        return found if age_s >= 0 else msgspec.structs.replace(found, made_s=self._now())
