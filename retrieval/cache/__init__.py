"""Was this already computed, and does it still hold?

    results.py      answers of searches, keyed by everything that an answer depends on
    embeddings.py   vectors of query texts
    store.py        the protocol of a byte store, and the hashes used as keys
    memory.py       a store in this process, bounded by bytes
    redis_store.py  a store that several services share; it may fail at any time without being noticed
    redis_client.py redis-py's client for one server, a Sentinel's or a cluster
    (import RedisStore from there: only a service with `redis.url` pays for loading redis-py)

A cache here may forget anything at any time. It never returns a wrong value, never makes a request fail, and never
holds more than its configured bound. Not here: whether an answer survives a write, which `search` decides.
"""

from __future__ import annotations

from retrieval.cache.embeddings import EmbeddingCache, SharedVectors
from retrieval.cache.memory import MemoryStore
from retrieval.cache.results import Judge, ResultCache, ResultCounts, ResultKey
from retrieval.cache.store import REDIS_WAIT, RedisWait, SharedStore, Store, StoreCounts

__all__ = [
    "REDIS_WAIT",
    "EmbeddingCache",
    "Judge",
    "MemoryStore",
    "RedisWait",
    "ResultCache",
    "ResultCounts",
    "ResultKey",
    "SharedStore",
    "SharedVectors",
    "Store",
    "StoreCounts",
]
