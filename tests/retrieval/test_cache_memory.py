from __future__ import annotations

import asyncio
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.cache.memory import ENTRY_OVERHEAD_BYTES, ENTRY_SHARE_MAX, MemoryStore, entry_bytes

KEYS = [b"%d" % number for number in range(12)]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.integers(0, 600)),
        st.tuples(st.just("get"), st.sampled_from(KEYS), st.just(0)),
    ),
    max_size=80,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_round_trip() -> None:
    """What was put is got; what was not is None; both are counted."""

    async def story() -> None:
        store = MemoryStore(100_000, Clock())
        await store.put(b"key", b"value", 60)
        assert await store.get(b"key") == b"value"
        assert await store.get(b"other") is None
        assert (store.counts.hits, store.counts.misses) == (1, 1)
        assert store.health.startswith("ok")

    asyncio.run(story())


def test_an_entry_lives_for_its_ttl() -> None:
    """An entry is there until its ttl has passed by the injected clock, and then gives its bytes back."""

    async def story() -> None:
        clock = Clock()
        store = MemoryStore(100_000, clock)
        await store.put(b"key", b"value", 60)
        clock.now_s += 59.9
        assert await store.get(b"key") == b"value"
        clock.now_s += 0.1
        assert await store.get(b"key") is None
        assert store.bytes_used == 0

    asyncio.run(story())


def test_no_ttl_keeps_nothing() -> None:
    """A ttl below one second keeps nothing."""

    async def story() -> None:
        store = MemoryStore(100_000, Clock())
        await store.put(b"key", b"value", 0)
        assert await store.get(b"key") is None

    asyncio.run(story())


def test_a_big_entry_is_not_kept() -> None:
    """An entry above an eighth of the bound is not kept, and what it would have replaced is gone too."""

    async def story() -> None:
        store = MemoryStore(16_000, Clock())
        fitting = 16_000 // ENTRY_SHARE_MAX - ENTRY_OVERHEAD_BYTES - len(b"key")
        await store.put(b"key", b"x" * fitting, 60)
        assert await store.get(b"key") is not None
        await store.put(b"key", b"x" * (fitting + 1), 60)
        assert await store.get(b"key") is None
        assert store.counts.dropped == 1

    asyncio.run(story())


def test_a_closed_store_keeps_nothing() -> None:
    """After close every get is a miss and a late put changes nothing; closing twice is fine."""

    async def story() -> None:
        store = MemoryStore(100_000, Clock())
        await store.put(b"key", b"value", 60)
        await store.close()
        await store.close()
        await store.put(b"key", b"value", 60)
        assert await store.get(b"key") is None
        assert store.bytes_used == 0

    asyncio.run(story())


def test_a_bound_of_zero_keeps_nothing() -> None:
    """A store of zero bytes is a valid way of having none; a negative bound is a mistake."""

    async def story() -> None:
        store = MemoryStore(0, Clock())
        await store.put(b"", b"", 60)
        assert len(store) == 0

    asyncio.run(story())
    with pytest.raises(ValueError):
        MemoryStore(-1, Clock())


@given(steps=steps, bytes_max=st.integers(0, 8_000))
def test_bound_and_order_against_a_model(steps: list[tuple[str, bytes, int]], bytes_max: int) -> None:
    """Never above the bound, and it is the least recently used that goes, as in a plainer model."""

    async def story() -> None:
        store = MemoryStore(bytes_max, Clock())
        model: OrderedDict[bytes, bytes] = OrderedDict()
        for action, key, value_bytes in steps:
            if action == "get":
                assert await store.get(key) == model.get(key)
                if key in model:
                    model.move_to_end(key)
                continue
            value = b"v" * value_bytes
            await store.put(key, value, 60)
            model.pop(key, None)
            if entry_bytes(key, value) * ENTRY_SHARE_MAX <= bytes_max:
                model[key] = value
            while sum(entry_bytes(k, v) for k, v in model.items()) > bytes_max:
                model.popitem(last=False)
            assert store.bytes_used == sum(entry_bytes(k, v) for k, v in model.items())
            assert store.bytes_used <= bytes_max
            assert len(store) == len(model)

    asyncio.run(story())
