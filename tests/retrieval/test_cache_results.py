from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from retrieval.cache.memory import MemoryStore
from retrieval.cache.results import KEY_BYTES, ResultCache
from retrieval.cache.store import TieredStore

parts = st.tuples(
    st.text(max_size=6),
    st.integers(0, 2**63),
    st.integers(0, 2**63),
    st.text(max_size=6),
    st.binary(max_size=12),
)


def test_hits_and_misses_are_counted() -> None:
    """A get before the put is a miss, after it a hit with exactly the bytes that were put."""

    async def story() -> None:
        cache = ResultCache(MemoryStore(100_000, lambda: 0.0), ttl_s=60)
        key = cache.key("c1", 7, 42, "model", b"request")
        assert await cache.get(key) is None
        await cache.put(key, b"\x00answer")
        assert await cache.get(key) == b"\x00answer"
        assert (cache.hits, cache.misses) == (1, 1)

    asyncio.run(story())


def test_entries_age_out() -> None:
    """An answer is kept for `ttl_s` seconds and no longer."""

    async def story() -> None:
        now_s = [0.0]
        cache = ResultCache(MemoryStore(100_000, lambda: now_s[0]), ttl_s=60)
        key = cache.key("c1", 7, 42, "model", b"request")
        await cache.put(key, b"answer")
        now_s[0] = 60.0
        assert await cache.get(key) is None

    asyncio.run(story())


@given(one=parts, other=parts)
def test_any_difference_changes_the_key(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """Two keys are equal exactly when all their parts are."""
    assert (ResultCache.key(*one) == ResultCache.key(*other)) == (one == other)
    assert len(ResultCache.key(*one)) == KEY_BYTES


@given(parts=parts, part=st.integers(0, 4))
def test_every_part_changes_the_key(parts: tuple[Any, ...], part: int) -> None:
    """Changing one part alone, whichever, changes the key."""
    changed = list(parts)
    changed[part] += {int: 1, str: "x", bytes: b"x"}[type(parts[part])]
    assert ResultCache.key(*changed) != ResultCache.key(*parts)


def test_parts_do_not_run_into_each_other() -> None:
    """Parts whose concatenation is the same give different keys."""
    assert len({ResultCache.key(*parts) for parts in [("c1", 1, 1, "m", b""), ("c", 11, 1, "m", b"")]}) == 2
    assert ResultCache.key("c", 1, 11, "m", b"") != ResultCache.key("c", 11, 1, "m", b"")
    assert ResultCache.key("c", 1, 1, "m", b"ab") != ResultCache.key("c", 1, 1, "ma", b"b")


def test_a_lone_surrogate_is_a_name_like_any_other() -> None:
    """Text that is not well-formed Unicode has a key too."""
    assert ResultCache.key("\ud800", 1, 1, "m", b"") != ResultCache.key("\ud801", 1, 1, "m", b"")


def test_a_far_hit_is_copied_near() -> None:
    """The second get of a value that only the far store had is answered by the near one."""

    async def story() -> None:
        near, far = MemoryStore(100_000, lambda: 0.0), MemoryStore(100_000, lambda: 0.0)
        store = TieredStore(near, far, copy_ttl_s=60)
        await far.put(b"key", b"value", 60)
        assert await store.get(b"key") == b"value"
        assert await store.get(b"key") == b"value"
        assert await store.get(b"other") is None
        assert (far.counts.hits, near.counts.hits) == (1, 1)
        assert (store.counts.hits, store.counts.misses) == (2, 1)

    asyncio.run(story())


def test_a_put_reaches_both_tiers_and_close_closes_both() -> None:
    """Both tiers hold what was put, until the pair is closed."""

    async def story() -> None:
        near, far = MemoryStore(100_000, lambda: 0.0), MemoryStore(100_000, lambda: 0.0)
        store = TieredStore(near, far, copy_ttl_s=60)
        await store.put(b"key", b"value", 60)
        assert len(near) == len(far) == 1
        await store.close()
        assert len(near) == len(far) == 0

    asyncio.run(story())
