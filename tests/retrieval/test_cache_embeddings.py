"""Query vectors: those kept in the process, and those that services share."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.cache.embeddings import TEXT_CHARS_MAX, EmbeddingCache, SharedVectors, entry_bytes
from retrieval.cache.memory import MemoryStore

VECTOR = np.array([0.6, 0.8], dtype=np.float32)


def test_a_vector_is_found_by_model_and_text() -> None:
    """The same text under another model's fingerprint is a miss."""
    cache = EmbeddingCache(1 << 20)
    cache.put("model", "text", VECTOR)
    found = cache.get("model", "text")
    assert found is not None
    assert found.dtype == np.float32
    assert np.array_equal(found, VECTOR)
    assert cache.get("other", "text") is None
    assert cache.get("model", "Text") is None
    assert (cache.hits, cache.misses) == (1, 2)


def test_nobody_can_change_a_cached_vector() -> None:
    """Neither the array that was put nor those handed out lead to the cached numbers."""
    cache = EmbeddingCache(1 << 20)
    mine = VECTOR.copy()
    kept = cache.put("model", "text", mine)
    mine[:] = 0
    found = cache.get("model", "text")
    assert found is not None
    assert np.array_equal(found, VECTOR)
    for array in (kept, found):
        with pytest.raises(ValueError):
            array[0] = 1
        with pytest.raises(ValueError):
            array.setflags(write=True)


def test_a_strided_or_double_vector_becomes_plain() -> None:
    """Whatever floats are put, contiguous float32 comes out."""
    cache = EmbeddingCache(1 << 20)
    strided = np.arange(8, dtype=np.float64)[::2]
    kept = cache.put("model", "text", strided)  # type: ignore[arg-type]
    assert kept.dtype == np.float32
    assert kept.flags["C_CONTIGUOUS"]
    assert kept.tolist() == [0, 2, 4, 6]


def test_a_long_text_is_not_kept() -> None:
    """A text above the limit gets its vector back and leaves no entry."""
    cache = EmbeddingCache(1 << 20)
    cache.put("model", "x" * TEXT_CHARS_MAX, VECTOR)
    assert np.array_equal(cache.put("model", "x" * (TEXT_CHARS_MAX + 1), VECTOR), VECTOR)
    assert len(cache) == 1
    cache.clear()
    assert len(cache) == 0


def test_zero_bytes_keep_nothing() -> None:
    """A cache of no bytes is valid; a negative number is a mistake."""
    cache = EmbeddingCache(0)
    cache.put("model", "text", VECTOR)
    assert cache.get("model", "text") is None
    with pytest.raises(ValueError):
        EmbeddingCache(-1)


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=60))
def test_the_least_recently_used_goes_first(entries_max: int, steps: list[tuple[bool, int]]) -> None:
    """Which texts are cached after any sequence of gets and puts is as in a model."""
    size = entry_bytes("0", np.zeros(1, np.float32))  # of each here
    cache = EmbeddingCache(entries_max * size + size // 2)
    model: OrderedDict[str, float] = OrderedDict()
    for step, (is_put, number) in enumerate(steps):
        text = str(number)
        if is_put:
            cache.put("model", text, np.array([step], dtype=np.float32))
            model[text] = step
            model.move_to_end(text)
            if len(model) > entries_max:
                model.popitem(last=False)
        else:
            found = cache.get("model", text)
            assert (None if found is None else found[0]) == model.get(text)
            if text in model:
                model.move_to_end(text)
        assert (len(cache), cache.bytes) == (len(model), len(model) * size)


# --- shared by services ---------------------------------------------------------------------------------------


def test_a_shared_vector_is_found_by_model_graph_and_text() -> None:
    """Bit by bit; another fingerprint, another graph of the model or another text is a miss."""

    async def story() -> None:
        store = MemoryStore(100_000, lambda: 0.0)
        one, other = SharedVectors(store, ttl_s=60), SharedVectors(store, ttl_s=60)
        await one.put("model", "int8", "text", VECTOR)
        found = await other.get("model", "int8", "text", dimensions=2)
        assert found is not None
        assert found.dtype == np.float32
        assert np.array_equal(found, VECTOR)
        for asked in (("other", "int8", "text"), ("model", "fp32", "text"), ("model", "int8", "Text")):
            assert await other.get(*asked, dimensions=2) is None
        assert (other.hits, other.misses) == (1, 3)

    asyncio.run(story())


def test_a_shared_vector_of_another_length_is_none() -> None:
    """Whatever put it there: it would not fit the collection."""

    async def story() -> None:
        shared = SharedVectors(MemoryStore(100_000, lambda: 0.0), ttl_s=60)
        await shared.put("model", "int8", "text", VECTOR)
        assert await shared.get("model", "int8", "text", dimensions=3) is None
        assert (shared.hits, shared.misses) == (0, 1)

    asyncio.run(story())
