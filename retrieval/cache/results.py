"""Answers already given, by everything an answer depends on.

Nothing is ever invalidated here. A write moves `seq`, a swap moves `generation`, a new model moves
`fingerprint`, a tuning moves `tuned_ms`, and a collection made anew has another uid, so an old answer is simply
never asked for again and ages out. This is why a deleted document cannot come back from the cache.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from retrieval.cache.store import Store

KEY_BYTES: Final = 32
"""256 bits: two requests under one key would give one user another's answer, so nobody may find such two."""


class ResultCache:
    """Encoded answers in a store, kept for at most `ttl_s` seconds. Never raises, as its store never does.

    Values are opaque: the caller encodes and decodes them. `hits` and `misses` count the gets.
    """

    def __init__(self, store: Store, *, ttl_s: int) -> None:
        self.hits = 0
        self.misses = 0
        self._store = store
        self._ttl_s = ttl_s

    @staticmethod
    def key(
        collection_uid: str,
        generation: int,
        seq: int,
        fingerprint: str,
        request: bytes,
        *,
        tuned_ms: int = 0,
    ) -> bytes:
        """32 bytes that differ when any argument differs. `tuned_ms`: when search settings were last chosen.

        `request` is everything else that can change the answer, in one canonical encoding: query, k, mode,
        filter, fusion, and also the tenant or scope on whose behalf it is asked.
        """
        digest = blake2b(digest_size=KEY_BYTES, person=b"nearline-result1")
        numbers = b"%d %d %d" % (generation, seq, tuned_ms)
        for part in (_text(collection_uid), numbers, _text(fingerprint), request):
            # The length in front keeps ("ab", "c") apart from ("a", "bc").
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()

    async def get(self, key: bytes) -> bytes | None:
        """The encoded answer put under this key, or None."""
        encoded = await self._store.get(key)
        if encoded is None:
            self.misses += 1
        else:
            self.hits += 1
        return encoded

    async def put(self, key: bytes, encoded: bytes) -> None:
        """Keep an encoded answer. May return before it can be found."""
        await self._store.put(key, encoded, self._ttl_s)


def _text(text: str) -> bytes:
    # surrogatepass: one encoding for each string, also for those that are not well-formed, so that a key
    # never raises.
    return text.encode("utf-8", "surrogatepass")
