"""Answers already given, by everything an answer depends on.

Nothing is ever invalidated here. An answer belongs to the content of a collection, to its settings and to a request;
a write leads to other content, so an old answer is simply not asked for any more and ages out. This is why a deleted
document cannot come back from the cache. Where a collection holds again what it held before, by a deletion or in a
copy, the old answers are right again.

    near, in this process   content + collection, generation, tuning: a rebuild, a rollback or a tuning shows at once
    far, shared             content alone: whoever holds the same documents finds it. Which passages lie in which tier,
                            and what approximate search misses, are then those of the service that answered first, for
                            `ttl_s` at most
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from retrieval.cache.memory import MemoryStore
from retrieval.cache.store import Store, key_of

MADE_BYTES = 8  # in front of a far value: when it was made, in seconds since 1970


@dataclass(frozen=True, slots=True)
class ResultKey:
    """Where one answer is kept: `near` in this process, `far` in what services share."""

    near: bytes
    far: bytes


class ResultCache:
    """Encoded answers, kept for at most `ttl_s` seconds. Never raises, as its stores never do.

    Values are opaque: the caller encodes and decodes them. `hits` and `misses` count the gets, `shared_hits` those hits
    that were found in `far`. `now` is the time of day in seconds; services that share should agree about it.
    """

    def __init__(self, near: MemoryStore, far: Store | None, *, ttl_s: int, now: Callable[[], float]) -> None:
        self.hits = 0
        self.misses = 0
        self.shared_hits = 0
        self._near = near
        self._far = far
        self.ttl_s = ttl_s
        self._now = now

    @staticmethod
    def key(
        content: bytes, settings: bytes, request: bytes, *, uid: str, generation: int, tuned_ms: int
    ) -> ResultKey:
        """Both keys differ when `content`, `settings` or `request` do, and the near one when anything does.

        `content` stands for the documents, `settings` for what is fixed about their collection. `request` is everything
        else that can change the answer, in one canonical encoding: query, k, mode, filter, fusion, and also the tenant
        or scope on whose behalf it is asked.
        """
        far = key_of(b"nearline-result2", content, settings, request)
        return ResultKey(key_of(b"nearline-near", far, uid, b"%d %d" % (generation, tuned_ms)), far)

    async def get(self, key: ResultKey) -> bytes | None:
        """The encoded answer put under this key, or None."""
        encoded = await self._near.get(key.near)
        if encoded is None and self._far is not None:
            encoded = await self._shared(key, self._far)
        if encoded is None:
            self.misses += 1
        else:
            self.hits += 1
        return encoded

    async def put(self, key: ResultKey, encoded: bytes) -> None:
        """Keep an encoded answer. May return before it can be found."""
        await self._near.put(key.near, encoded, self.ttl_s)
        if self._far is not None:
            made = int(self._now()).to_bytes(MADE_BYTES, "big")
            await self._far.put(key.far, made + encoded, self.ttl_s)

    def clear(self) -> None:
        """Forget what is kept near. What lies far is not found any more either once documents went, and ages out."""
        self._near.clear()

    async def _shared(self, key: ResultKey, far: Store) -> bytes | None:
        """From the far store; also kept near for the rest of its time."""
        found = await far.get(key.far)
        if found is None:
            return None
        made, encoded = int.from_bytes(found[:MADE_BYTES], "big"), found[MADE_BYTES:]
        left_s = min(self.ttl_s, made + self.ttl_s - int(self._now()))
        if left_s < 1:
            return None
        self.shared_hits += 1
        await self._near.put(key.near, encoded, left_s)
        return encoded
