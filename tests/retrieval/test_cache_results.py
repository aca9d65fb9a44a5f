"""The cache of answers: what its keys tell apart, and how a near and a far store work together."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from retrieval.cache.memory import MemoryStore
from retrieval.cache.results import ResultCache, ResultKey
from retrieval.cache.store import KEY_BYTES, key_of

TTL_S = 60

parts = st.fixed_dictionaries(
    {
        "name": st.text(max_size=6),
        "settings": st.binary(max_size=6),
        "request": st.binary(max_size=12),
        "opening": st.binary(max_size=6),
        "generation": st.integers(0, 2**63),
        "tuned_ms": st.integers(0, 2**63),
    }
)
HERE = ("opening", "generation", "tuned_ms")  # what services need not have in common


def key(**changes: Any) -> ResultKey:
    values: dict[str, Any] = {
        "name": "n",
        "settings": b"s",
        "request": b"r",
        "content": b"c",
        "opening": b"o",
    }
    return ResultCache.key(**{**values, "generation": 1, "tuned_ms": 0, **changes})


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Pair:
    """Two services with a near store each, and the far one that they share."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.far = MemoryStore(100_000, self.clock)
        self.one, self.other = (
            ResultCache(MemoryStore(100_000, self.clock), self.far, ttl_s=TTL_S, now=self.clock)
            for _ in range(2)
        )


def test_hits_and_misses_are_counted() -> None:
    """A get before the put is a miss, after it a hit with exactly the bytes that were put."""

    async def story() -> None:
        cache = ResultCache(MemoryStore(100_000, lambda: 0.0), None, ttl_s=TTL_S, now=Clock())
        assert await cache.get(key()) is None
        await cache.put(key(), b"\x00answer")
        assert await cache.get(key()) == b"\x00answer"
        assert (cache.counts.hits, cache.counts.misses, cache.counts.far) == (1, 1, 0)

    asyncio.run(story())


@given(one=parts, other=parts)
def test_any_difference_changes_the_near_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two near keys are equal exactly when all their parts are; far ones when what services have in common is."""

    def common(values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in HERE}

    assert (key(**one).near == key(**other).near) == (one == other)
    assert (key(**one).far == key(**other).far) == (common(one) == common(other))


@given(parts=parts, name=st.sampled_from(["name", "settings", "request", *HERE]))
def test_every_part_changes_the_near_key(parts: dict[str, Any], name: str) -> None:
    """Changing one part alone, whichever, changes the near key; the far key does not know this service's own."""
    changed = {**parts, name: parts[name] + {int: 1, str: "x", bytes: b"x"}[type(parts[name])]}
    assert key(**changed).near != key(**parts).near
    assert (key(**changed).far != key(**parts).far) == (name not in HERE)


def test_parts_do_not_run_into_each_other() -> None:
    """Parts whose concatenation is the same give different keys, and so do text and number of parts."""
    assert len(key_of(b"kind", b"ab", b"c")) == KEY_BYTES
    assert key_of(b"kind", b"ab", b"c") != key_of(b"kind", b"a", b"bc")
    assert key_of(b"kind", b"ab") != key_of(b"kind", b"ab", b"") != key_of(b"other", b"ab", b"")
    assert key(generation=1, tuned_ms=11) != key(generation=11, tuned_ms=1)


def test_a_lone_surrogate_is_text_like_any_other() -> None:
    """Text that is not well-formed Unicode has a key too."""
    assert key_of(b"kind", "\ud800") != key_of(b"kind", "\ud801")


def test_entries_age_out() -> None:
    """An answer is kept for `ttl_s` seconds and no longer."""

    async def story() -> None:
        pair = Pair()
        await pair.one.put(key(), b"answer")
        pair.clock.now_s += TTL_S
        assert await pair.one.get(key()) is None

    asyncio.run(story())


def test_what_one_service_answered_another_finds() -> None:
    """Whatever collection, generation and tuning of its own it asks from; the second get is answered near."""

    async def story() -> None:
        pair = Pair()
        await pair.one.put(key(), b"answer")
        for _ in range(2):
            assert await pair.other.get(key(opening=b"v", generation=7, tuned_ms=3)) == b"answer"
        assert (pair.other.counts.hits, pair.other.counts.far, pair.far.counts.hits) == (2, 1, 1)
        assert await pair.other.get(key(content=b"other")) is None

    asyncio.run(story())


def test_taking_it_over_makes_no_answer_older_than_its_time() -> None:
    """A far answer that is found late is kept near for what is left of its time."""

    async def story() -> None:
        pair = Pair()
        await pair.one.put(key(), b"answer")
        pair.clock.now_s += TTL_S - 1
        assert await pair.other.get(key()) == b"answer"
        pair.clock.now_s += 1
        assert await pair.other.get(key()) is None

    asyncio.run(story())


def test_clocks_that_disagree_keep_nothing_for_longer() -> None:
    """An answer from the future is kept for `ttl_s`, one that is too old by the own clock is not taken."""

    async def story() -> None:
        for ahead_s, found in ((1000, b"answer"), (-1000, None)):
            pair = Pair()
            other_clock = Clock()
            other_clock.now_s += ahead_s
            sender = ResultCache(MemoryStore(0, pair.clock), pair.far, ttl_s=TTL_S, now=other_clock)
            await sender.put(key(), b"answer")
            assert await pair.one.get(key()) == found
            pair.clock.now_s += TTL_S
            assert await pair.one.get(key()) is None

    asyncio.run(story())


def test_what_another_service_knows_replaces_what_is_outdated_here() -> None:
    """An own answer to what the collection held before is no reason not to ask the others, who answered since; the same
    answer is not judged twice."""

    async def story() -> None:
        pair, judged = Pair(), 0

        async def judge(grounds: bytes) -> bytes | None:
            nonlocal judged
            judged += 1
            return None

        await pair.one.put(key(content=b"old"), b"before", b"grounds")
        assert await pair.one.get(key(content=b"new"), judge) is None
        assert judged == 1
        pair.clock.now_s += 1
        await pair.other.put(key(content=b"new", opening=b"v"), b"after")
        assert await pair.one.get(key(content=b"new"), judge) == b"after"
        counts = pair.one.counts
        assert (counts.hits, counts.far, counts.survived, counts.misses, counts.outdated) == (1, 1, 0, 1, 1)

    asyncio.run(story())
