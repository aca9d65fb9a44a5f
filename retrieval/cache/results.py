"""Answers already computed, stored with what tells whether they still hold.

An answer is looked up by its request: the collection's name, its settings, and everything else that can change the
answer, including the principal. Whether it is right is decided when it is found:

    same content         of documents as when it was computed: it is right, no matter who computed it
    other content        the caller judges by the passages written and deleted since (`search/survival.py`). Only for
                         answers computed since this collection was opened, because passage ids are only valid there
    otherwise            it is a miss, and the new answer replaces it

So nothing is ever invalidated, and a deleted document cannot come back from the cache.

    near, in this process   also keyed by generation and tuning: a rebuild, rollback or tuning shows at once
    far, shared             found by any service with the same documents. Which passages are in which tier, and what
                            approximate search misses, are then those of the service that answered first, for up to
                            `ttl_s`
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from retrieval.cache.memory import MemoryStore
from retrieval.cache.store import Store, key_of


class StoredAnswer(msgspec.Struct, frozen=True, array_like=True):
    """One answer. `content` identifies the documents for which it was last found right, `opening` the opened collection
    whose passage ids are in `grounds`. `cost_ms` is what computing it took."""

    content: bytes
    opening: bytes
    grounds: bytes  # for the judge; empty if it holds only for its content
    answer: bytes
    cost_ms: float
    made_s: float  # since 1970


Judge = Callable[[bytes], Awaitable[bytes | None]]
"""Maps the grounds of an answer to its current ones, or to None if it no longer holds."""


class ResultKey(msgspec.Struct, frozen=True):
    """Where one answer is stored: `near` in this process, `far` in the shared store. A stored answer must be for this
    `content`, or have been computed by this `opening` of the collection and be judged."""

    near: bytes
    far: bytes
    content: bytes
    opening: bytes


@dataclass(slots=True)
class ResultCounts:
    """Totals. Every get ends as one hit or one miss.

    Of the hits, `far` were found in the shared store, and `survived` had been computed before a write. Of the misses,
    `outdated` were found but did not hold. `joined` waited for the same search of another caller; `bypassed` asked for
    no cache. `saved_ms` is what computing the hits had taken.
    """

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

    `now` is the time of day in seconds; services that share a store should agree on it.
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

        `content` identifies the documents, `settings` what is fixed about their collection. `request` is everything
        else that can change the answer, in one canonical encoding: query, k, mode, filter, fusion, and the tenant or
        scope on whose behalf it is asked. `opening` identifies one opening of the collection.
        """
        far = key_of(b"nearline-result3", name, settings, request)
        near = key_of(b"nearline-near", far, opening, b"%d %d" % (generation, tuned_ms))
        return ResultKey(near, far, content, opening)

    async def get(self, key: ResultKey, judge: Judge | None = None, *, counted: bool = True) -> bytes | None:
        """Return the encoded answer put under this key, if it is right. Without `judge`, none outlives a write.
        `counted`: count it as a hit or a miss."""
        met = near = await self._get_near(key)
        found, far = near and await self._renew(near, key, judge), False
        if found is None and self._far:
            shared = await self._get_far(key, self._far)
            if shared is not None and (near is None or near.made_s != shared.made_s):  # else it is the same
                met, far = shared, True
                found = await self._renew(shared, key, judge)
        if found is not None and found is not near:
            left_s = int(found.made_s + self.ttl_s - self._now())
            await self._near.put(key.near, msgspec.msgpack.encode(found), left_s)
        if counted:
            self._count(found, met, far=far, now=key.content)
        return None if found is None else found.answer

    async def put(self, key: ResultKey, answer: bytes, grounds: bytes = b"", cost_ms: float = 0.0) -> None:
        """Store an encoded answer and the grounds on which it may outlive writes. May return before it can be found."""
        kept = StoredAnswer(key.content, key.opening, grounds, answer, cost_ms, self._now())
        encoded = msgspec.msgpack.encode(kept)
        await self._near.put(key.near, encoded, self.ttl_s)
        if self._far is not None:
            await self._far.put(key.far, encoded, self.ttl_s)

    def _count(self, found: StoredAnswer | None, kept: StoredAnswer | None, *, far: bool, now: bytes) -> None:
        """Count a get that found `kept` stored, and `found` to hold."""
        if found is None:
            self.counts.misses += 1
            self.counts.outdated += kept is not None
            return
        self.counts.hits += 1
        self.counts.far += far
        self.counts.survived += kept is not None and kept.content != now
        self.counts.saved_ms += found.cost_ms

    def clear(self) -> None:
        """Forget the near answers. Far ones are no longer found once documents changed, and expire."""
        self._near.clear()

    async def _renew(self, found: StoredAnswer, key: ResultKey, judge: Judge | None) -> StoredAnswer | None:
        """Return the answer, with its current grounds, if it is right for the key's content."""
        if found.content == key.content:
            return found
        if judge is None or found.opening != key.opening or not found.grounds:
            return None
        grounds = await judge(found.grounds)
        if grounds is None:
            return None
        return msgspec.structs.replace(found, content=key.content, grounds=grounds)

    async def _get_near(self, key: ResultKey) -> StoredAnswer | None:
        encoded = await self._near.get(key.near)
        return None if encoded is None else msgspec.msgpack.decode(encoded, type=StoredAnswer)

    async def _get_far(self, key: ResultKey, far: Store) -> StoredAnswer | None:
        """Read from the far store, unless expired."""
        encoded = await far.get(key.far)
        if encoded is None:
            return None
        try:
            found = msgspec.msgpack.decode(encoded, type=StoredAnswer)
        except msgspec.DecodeError:
            return None  # stored by another version of this service
        # A clock that is behind here, or was ahead there, must not keep it longer.
        age_s = self._now() - found.made_s
        if age_s >= self.ttl_s:
            return None
        return found if age_s >= 0 else msgspec.structs.replace(found, made_s=self._now())
