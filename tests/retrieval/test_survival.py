"""Answers that outlive writes: whatever was written, deleted or expired, a kept answer is what a fresh search gives."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from indexes.base.errors import InvalidInput
from indexes.base.expiry import EXPIRES
from indexes.base.model import Delete, IndexOptions, NewPassage, Upsert
from indexes.collection.collection import Collection
from retrieval.base.settings import Config, SearchSection
from retrieval.cache import MemoryStore, ResultCache
from retrieval.embedding.embedders import Embedders
from retrieval.embedding.results import Observer
from retrieval.search import pipeline
from retrieval.search.pipeline import Pipeline
from retrieval.search.survival import NEWER_MAX
from retrieval.wire.search import SearchAnswer, SearchRequest
from tests.support.vectors import WORDS, World, make_collection

DIMENSIONS = 8
WORLD = World(dimensions=DIMENSIONS)
EMBEDDERS = Embedders(Config(), lambda name: Observer())  # opens none: every query brings its vector
CONFIG = Config(search=SearchSection(candidates=24))  # not all documents are candidates
START_MS = 1_000_000


def vector(number: int) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(WORLD.vector(number).tolist()))


QUERY = " ".join(WORDS[:40:3])
EVEN = msgspec.Raw(b'{"type":"eq","key":"even","value":true}')
BY_NUMBER: Any = [{"key": "number", "weight": 0.02}]
SEARCHES: dict[str, dict[str, Any]] = {
    "dense": {"vector": vector(99), "mode": "dense", "k": 3},
    "dense-filtered": {"vector": vector(99), "mode": "dense", "k": 3, "filter": EVEN},
    "exact": {"vector": vector(99), "mode": "dense", "k": 3, "exact": True},
    "deep": {"vector": vector(98), "mode": "dense", "k": 30},
    "lexical": {"query": QUERY, "mode": "lexical", "k": 3},
    "lexical-filtered": {"query": QUERY, "mode": "lexical", "k": 3, "filter": EVEN},
    "rare": {"query": WORDS[300], "mode": "lexical", "k": 3},
    "named": {"query": f"{QUERY} d7", "vector": vector(97), "k": 3},
    "named lexical": {"query": f"d8 or {WORDS[9]}", "mode": "lexical", "k": 3},
    "misspelled": {"query": f"{WORDS[70]}x {WORDS[3]}", "mode": "lexical", "k": 3, "typos": True},
    "hybrid": {"query": QUERY, "vector": vector(97), "k": 3},
    "hybrid-filtered": {"query": QUERY, "vector": vector(97), "k": 3, "filter": EVEN},
    "two words": {"query": f"{WORDS[2]} {WORDS[90]}", "vector": vector(96), "k": 3},
    "grouped": {"query": QUERY, "vector": vector(97), "k": 3, "group_by_document": True},
    "ranks": {"query": QUERY, "vector": vector(97), "k": 3, "fusion": {"method": "rrf"}},
    "floor": {"query": QUERY, "vector": vector(97), "k": 10, "min_score": 0.4},
    "relevance": {"query": QUERY, "mode": "lexical", "k": 5, "min_relevance": 0.05},
    "boosted": {"query": QUERY, "vector": vector(97), "k": 3, "boosts": BY_NUMBER},
    "diverse": {"query": QUERY, "vector": vector(97), "k": 3, "mmr": 0.5},
    "later page": {"query": QUERY, "vector": vector(97), "k": 3, "offset": 3},
    "wide": {"query": QUERY, "vector": vector(97), "k": 3, "expand": {"before": 1, "after": 1}},
    "marked": {"query": QUERY, "mode": "lexical", "k": 3, "highlight": True},
    "operators": {"query": f"{WORDS[1]} -{WORDS[4]} wor*", "mode": "lexical", "k": 3, "operators": True},
    "counted": {"query": QUERY, "mode": "lexical", "k": 3, "facets": [{"key": "topic"}]},
    "explained": {"query": QUERY, "vector": vector(97), "k": 20, "explain": True},
    "similar": {"query": QUERY, "vector": vector(97), "k": 3, "collapse": {"similarity": 0.5}},
    "by value": {"query": QUERY, "vector": vector(97), "k": 3, "collapse": {"key": "topic", "hits": 2}},
    "by list": {"vector": vector(99), "mode": "dense", "k": 2, "collapse": {"key": "tags"}},
    "nothing": {"query": "elsewhere", "mode": "lexical", "k": 3},
}


class Clock:
    ms = START_MS

    def __call__(self) -> int:
        return self.ms


class Cached:
    """A collection, searched with a cache and without."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        options = IndexOptions(delta_passages_max=16, segments_max=2, now_ms=self.clock)
        self.collection: Collection = make_collection(folder, options=options, dimensions=DIMENSIONS)
        self.results = ResultCache(MemoryStore(1 << 24, lambda: 0.0), None, ttl_s=60, now=lambda: 0.0)
        self.pipeline = Pipeline(EMBEDDERS, self.results, CONFIG)

    def write(
        self, number: int, version: int = 0, *, expires_ms: int | None = None, name: str | None = None
    ) -> None:
        text = WORLD.text(number, version)
        passages = tuple(
            NewPassage(at, len(text), 15, WORLD.vector(number, version, at)) for at in range(1 + number % 2)
        )
        expiry = {} if expires_ms is None else {EXPIRES: expires_ms}
        metadata = {**WORLD.metadata(number), **expiry}
        self.collection.write([Upsert(name or f"d{number}", text, "", metadata, passages)]).result()

    def delete(self, number: int) -> None:
        self.collection.write([Delete(f"d{number}")]).result()

    async def search(self, **request: Any) -> SearchAnswer:
        asked = msgspec.json.decode(msgspec.json.encode(request), type=SearchRequest)
        return await self.pipeline.search("docs", self.collection, asked)

    def close(self) -> None:
        self.pipeline.close()
        self.collection.close()


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[Cached]:
    with closing(Cached(tmp_path / "c")) as made:
        yield made


def shown(answer: SearchAnswer) -> object:
    """All that an answer says but where its passages lay, where it came from and how long it took."""
    hits = [msgspec.structs.replace(hit, tier="hot") for hit in answer.hits]
    receipt = answer.receipt
    return hits, receipt.evidence, receipt.corrected, receipt.weight_dense, answer.facets


async def check(cached: Cached, names: tuple[str, ...] = tuple(SEARCHES)) -> None:
    for name in names:
        try:
            fresh = shown(await cached.search(**SEARCHES[name], cache=False))
        except InvalidInput:  # a filter on a key that no passage has yet
            continue
        assert shown(await cached.search(**SEARCHES[name])) == fresh, name


HISTORIES = int(os.environ.get("NEARLINE_TEST_HISTORIES", "8"))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 60), st.integers(0, 2)),
        st.tuples(st.just("copy"), st.integers(0, 60), st.integers(0, 2)),
        st.tuples(st.just("expiring"), st.integers(0, 60), st.integers(1, 50)),
        st.tuples(st.just("delete"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("clock"), st.integers(-30, 60), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize(
    "histories",
    [
        pytest.param(HISTORIES, id="short"),
        pytest.param(150, id="long", marks=[pytest.mark.torture, pytest.mark.timeout(1800)]),
    ],
)
def test_a_kept_answer_is_what_a_fresh_search_gives(
    tmp_path_factory: pytest.TempPathFactory, histories: int
) -> None:
    """After each write, deletion and tick of the clock, in every kind of search: hits, order, scores, relevance."""

    @bounded(max_examples=histories, deadline=None, suppress_health_check=list(HealthCheck))
    @given(begun=st.integers(0, 60), steps=steps)
    def holds(begun: int, steps: list[tuple[str, int, int]]) -> None:
        with closing(Cached(tmp_path_factory.mktemp("survival") / "c")) as cached:
            asyncio.run(live(cached, begun, steps))

    holds()


async def live(cached: Cached, begun: int, steps: list[tuple[str, int, int]]) -> None:
    for number in range(begun):
        cached.write(number)
    await check(cached)
    for kind, number, value in steps:
        if kind == "write":
            cached.write(number, value)
        elif kind == "copy":
            cached.write(number, value, name=f"copy{number}")
        elif kind == "expiring":
            cached.write(number, 3, expires_ms=cached.clock.ms + value)
        elif kind == "delete":
            cached.delete(number)
        else:
            cached.clock.ms += number
        await check(cached)


@pytest.mark.parametrize(
    "name", sorted(SEARCHES.keys() - {"exact", "counted", "explained", "deep", "later page"})
)
def test_answers_outlive_writes_elsewhere(cached: Cached, name: str) -> None:
    """Twenty documents that have nothing to do with a query leave its answer in the cache, and count as survivals."""

    async def story() -> None:
        for number in range(64):
            cached.write(number)
        await cached.search(**SEARCHES[name])
        far = -WORLD.vector({"two words": 96}.get(name, 97 if "vector" in SEARCHES[name] else 0))
        if name.startswith("dense"):
            far = -WORLD.vector(99)
        for number in range(20):  # more than a delta holds
            text = " ".join(["unrelated"] * 14 + [str(number)])  # as long as the others are
            passage = NewPassage(0, len(text), 2, far)
            far_away = f"far{number}"
            for change in (Upsert(far_away, text, "", {}, (passage,)), Delete(far_away)):
                cached.collection.write([change]).result()
                answer = await cached.search(**SEARCHES[name])
                assert answer.receipt.cache == "hit"
                assert answer.receipt.seq == cached.collection.snapshot.seq
        assert cached.results.counts.survived == 40
        assert shown(answer) == shown(await cached.search(**SEARCHES[name], cache=False))

    asyncio.run(story())


def test_a_kept_answer_waits_for_no_other_search(cached: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    """Explanations and searches of several collections may hold all search threads for seconds."""
    monkeypatch.setattr(pipeline, "is_light", lambda kept: False)
    ended = threading.Event()

    async def story() -> None:
        for number in range(64):
            cached.write(number)
        await cached.search(**SEARCHES["hybrid"])
        text = " ".join(["unrelated"] * 15)  # as long as the others are
        passage = NewPassage(0, len(text), 2, -WORLD.vector(0))
        cached.collection.write([Upsert("far", text, "", {}, (passage,))]).result()
        threads = range(CONFIG.search.threads)
        busy = [asyncio.ensure_future(cached.pipeline.on_thread(ended.wait)) for _ in threads]
        try:
            kept = await asyncio.wait_for(cached.search(**SEARCHES["hybrid"]), 30)
        finally:
            ended.set()
            await asyncio.gather(*busy)
        assert kept.receipt.cache == "hit"

    asyncio.run(story())


def test_explained_ranks_are_those_of_now(cached: Cached) -> None:
    """A document that changes no hit and no score, but precedes a hit in one ranking, shows in the ranks."""
    asked = {"query": QUERY, "vector": vector(97), "k": 20, "explain": True}

    async def ranks(**options: Any) -> list[tuple[str, object]]:
        return [(hit.document_id, hit.ranks) for hit in (await cached.search(**asked, **options)).hits]

    async def story() -> None:
        for number in range(64):
            cached.write(number)
        before = await ranks()
        text = " ".join(["unrelated"] * 15)
        for number in range(100, 140):  # without the query's words, before some hits by the vector
            passage = NewPassage(0, len(text), 15, WORLD.vector(number))
            cached.collection.write([Upsert(f"d{number}", text, "", {}, (passage,))]).result()
            assert await ranks() == await ranks(cache=False)
        assert [rank for _, rank in before] != [rank for _, rank in await ranks()]

    asyncio.run(story())


def test_an_answer_ends_with_a_passage_that_enters_it_or_leaves_it(cached: Cached) -> None:
    """The copy of a hit takes its place beside it at once; a deleted hit is gone at once."""

    async def story() -> None:
        for number in range(40):
            cached.write(number)
        for name in ("dense", "lexical", "hybrid"):
            first = (await cached.search(**SEARCHES[name], collapse=False)).hits[0]
            number = int(first.document_id[1:])
            vector = WORLD.vector(number, 0, first.passage)
            passage = NewPassage(0, len(first.text), 15, vector)
            for document_id in (f"{name}-copy", f"{name}-other"):
                cached.collection.write([Upsert(document_id, first.text, "", {}, (passage,))]).result()
                answer = await cached.search(**SEARCHES[name], collapse=False)
                assert document_id in [hit.document_id for hit in answer.hits]
            cached.collection.write([Delete(first.document_id)]).result()
            answer = await cached.search(**SEARCHES[name], collapse=False)
            assert first.document_id not in [hit.document_id for hit in answer.hits]

    asyncio.run(story())


@pytest.mark.parametrize("name", ["dense", "lexical", "hybrid", "ranks"])
def test_a_copy_of_any_hit_is_counted_at_once(cached: Cached, name: str) -> None:
    """Whatever copies are written or deleted, no kept answer has a stale count; what is elsewhere keeps the answer."""

    async def story() -> None:
        for number in range(40):
            cached.write(number)
        hits = (await cached.search(**SEARCHES[name])).hits
        for place, hit in enumerate(hits):
            vector = WORLD.vector(int(hit.document_id[1:]), 0, hit.passage)
            passage = NewPassage(0, len(hit.text), 15, vector)
            for document_id in ("copy", "other"):
                change = Upsert(f"{document_id}{place}", hit.text, "", {}, (passage,))
                cached.collection.write([change]).result()
                await check(cached, (name,))
            cached.collection.write([Delete(f"copy{place}")]).result()
            await check(cached, (name,))
        counts = [hit.collapsed for hit in (await cached.search(**SEARCHES[name])).hits]
        assert any(counts)

    asyncio.run(story())


def test_an_answer_ends_with_more_writes_than_are_looked_at(cached: Cached) -> None:
    """After a flood of new passages the search is made again, which takes no longer than to judge by them."""

    async def story() -> None:
        for number in range(30):
            cached.write(number)
        await cached.search(**SEARCHES["dense"])
        passages = tuple(NewPassage(0, 1, 1, -WORLD.vector(99)) for _ in range(NEWER_MAX + 1))
        cached.collection.write([Upsert("flood", "a", "", {}, passages)]).result()
        assert (await cached.search(**SEARCHES["dense"])).receipt.cache == "miss"
        assert cached.results.counts.outdated == 1

    asyncio.run(story())


def test_searches_for_the_same_at_one_time_are_one(cached: Cached) -> None:
    """Of a hundred equal searches one computes; the others wait for it. Who leaves takes nobody along."""

    async def story() -> None:
        for number in range(20):
            cached.write(number)
        asked = [asyncio.create_task(cached.search(**SEARCHES["hybrid"])) for _ in range(100)]
        await asyncio.sleep(0)
        asked[0].cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        found = [answer for answer in answers if isinstance(answer, SearchAnswer)]
        assert len(found) == 99
        assert all(one.hits == other.hits for one, other in itertools.pairwise(found))
        counts = cached.results.counts
        assert [answer.receipt.cache for answer in found].count("miss") == 1
        assert counts.joined + counts.hits == 98

    asyncio.run(story())
