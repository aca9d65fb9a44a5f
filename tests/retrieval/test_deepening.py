"""A search goes as deep as it must for k hits: one page of a document, a floor, a deletion do not starve it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from indexes.base.errors import TooLarge
from indexes.base.model import Delete, Floats, NewPassage, Rows, Scalar, Upsert
from indexes.collection.collection import Collection
from indexes.filters.filter_part import Column
from indexes.log.applying import Applied
from indexes.parts.snapshot import Snapshot
from retrieval.admission.ceiling import AnswerBudget, BudgetShare
from retrieval.base.settings import Config, RerankSection
from retrieval.cache import MemoryStore, ResultCache
from retrieval.embedding.embedders import Embedders
from retrieval.embedding.models import SIMILARITY_FLOOR
from retrieval.embedding.results import Observer
from retrieval.search.pipeline import Pipeline
from retrieval.search.plan import EmbeddedQuery, make_plan
from retrieval.search.reranking import PairsRead, Reranker
from retrieval.search.shard import Ask, Fetched, LocalShard, Searched, What
from retrieval.search.stopwatch import Stopwatch
from retrieval.wire.options import Boost
from retrieval.wire.search import Fusion, SearchAnswer, SearchRequest
from tests.support.vectors import DIMENSIONS, make_collection, rebuild

LONG_PASSAGES, OTHERS = 260, 40
AXIS = msgspec.Raw(msgspec.json.encode([1.0] + [0.0] * (DIMENSIONS - 1)))


def near(rng: np.random.Generator, distance: float) -> Floats:
    """A unit vector at about this distance from the axis."""
    values = rng.normal(size=DIMENSIONS) * distance / np.sqrt(DIMENSIONS)
    values[0] = 1
    unit: Floats = (values / np.linalg.norm(values)).astype(np.float32)
    return unit


def documents() -> Iterator[Upsert]:
    """A long one, whose passages are the best for the axis and for the word; then others, each further away."""
    rng = np.random.default_rng(1)
    pages = [NewPassage(7 * at, 7 * at + 6, 1, near(rng, 0.1)) for at in range(LONG_PASSAGES)]
    yield Upsert("long", "needle " * LONG_PASSAGES, "", {}, tuple(pages))
    for number in range(OTHERS):
        text = "needle in hay" + " and straw" * number
        yield Upsert(f"d{number}", text, "", {}, (NewPassage(0, len(text), 3, near(rng, 1 + number)),))


@pytest.fixture(scope="module", params=["delta", "generation"])
def collection(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Collection]:
    """Nobody changes it."""
    with closing(written(tmp_path_factory.mktemp("deep"))) as made:
        if request.param == "generation":
            rebuild(made)
        yield made


def written(folder: Path) -> Collection:
    made = make_collection(folder / "c", hot_capacity=60)
    made.write(list(documents())).result()
    return made


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    config = Config()
    results = ResultCache(MemoryStore(0, time.monotonic), None, ttl_s=60, now=time.time)
    made = Pipeline(Embedders(config, lambda name: Observer()), results, config)
    with closing(made):
        yield made


def search(pipeline: Pipeline, collection: Collection, budget: int = 1 << 24, **options: Any) -> SearchAnswer:
    vector = {} if options.get("mode") == "lexical" else {"vector": AXIS}
    request = SearchRequest(**{"query": "needle", "cache": False, **vector, **options})
    return asyncio.run(pipeline.search("c", collection, request, budget=AnswerBudget(budget)))


WEIGHTED = Fusion(method="weighted")
MODES: list[dict[str, Any]] = [
    {"mode": "hybrid", "fusion": Fusion(method="rrf")},
    {"mode": "hybrid", "fusion": WEIGHTED},
    {"mode": "dense"},
    {"mode": "dense", "exact": True},
    {"mode": "lexical"},
]


@pytest.mark.parametrize("options", MODES, ids=str)
def test_one_long_document_leaves_room(
    pipeline: Pipeline, collection: Collection, options: dict[str, Any]
) -> None:
    """Grouped, an answer has k documents, or all that there are, each once, the best first."""
    for k in (1, 2, 10, OTHERS, 100):
        hits = search(pipeline, collection, k=k, group_by_document=True, **options).hits
        found = [hit.document_id for hit in hits]
        assert len(found) == len(set(found)) == min(k, OTHERS + 1)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert found[0] == "long"


def test_pages_that_need_the_same_depth_agree(pipeline: Pipeline, collection: Collection) -> None:
    """A smaller page is the beginning of a larger one. With weighted fusion this holds wherever the lists are exact."""
    for options in MODES[:2]:
        ten, five = (
            search(pipeline, collection, k=k, group_by_document=True, **options).hits for k in (10, 5)
        )
        assert ten[:5] == five


def test_a_deeper_search_pays_once_for_its_hits(pipeline: Pipeline, collection: Collection) -> None:
    """The bytes of an answer are those of its hits, however often it was begun again."""
    options: dict[str, Any] = {"mode": "dense", "group_by_document": True, "k": 10}
    budget = AnswerBudget(1 << 24)
    request = SearchRequest(vector=AXIS, cache=False, **options)
    hits = asyncio.run(pipeline.search("c", collection, request, budget=budget)).hits
    assert len(hits) == 10
    search(pipeline, collection, budget=budget.taken, **options)
    with pytest.raises(TooLarge):
        search(pipeline, collection, budget=budget.taken - 1, **options)


def test_a_deeper_search_reads_values_once(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is begun again, the values that boosts need of a passage are read once."""
    read: list[int] = []
    real = Column.deciding

    def deciding(column: Column, rows: Rows) -> Iterator[tuple[int, Scalar]]:
        read.append(len(rows))
        return real(column, rows)

    monkeypatch.setattr(Column, "deciding", deciding)
    with closing(make_collection(tmp_path / "c", hot_capacity=60)) as made:
        made.write([replace(one, metadata={"n": at}) for at, one in enumerate(documents())]).result()
        boosted: dict[str, Any] = {"group_by_document": True, "boosts": [Boost(key="n", weight=0.1)]}
        assert len(search(pipeline, made, k=OTHERS, **boosted).hits) == OTHERS
    assert OTHERS < sum(read) <= LONG_PASSAGES + OTHERS


def test_a_deeper_search_is_one_search(pipeline: Pipeline, collection: Collection) -> None:
    """Each hit is counted once."""
    collection.hits.fade()
    before = collection.hits.most()[1].sum()
    search(pipeline, collection, mode="dense", group_by_document=True, k=10, cache=True)
    assert collection.hits.most()[1].sum() == before + 10


def test_passages_deleted_meanwhile_are_made_up_for(pipeline: Pipeline, tmp_path: Path) -> None:
    """More of the nearest are gone from the log than an answer has to spare, and the next ones take their places."""
    collection = written(tmp_path)
    before = collection.snapshot
    collection.write([Delete("long"), Delete("d0")]).result()
    plan = make_plan(SearchRequest(vector=AXIS, mode="dense", k=10), DIMENSIONS, Config())
    share, watch, embedded = BudgetShare(AnswerBudget(1 << 24)), Stopwatch(), EmbeddedQuery(plan, plan.query)
    found = asyncio.run(pipeline._search(LocalShard(collection, before, watch), embedded, watch, None, share))
    assert found.vanished
    assert found.answer.hits == search(pipeline, collection, mode="dense", k=10).hits
    collection.close()


@pytest.mark.parametrize("shown_after_s", [0.0, 0.3])
def test_what_is_replaced_during_a_search_is_found(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown_after_s: float
) -> None:
    """It is replaced each time before it is read, and what was committed may take a while to be searchable. The second
    search reads the log as it was when it began."""
    fetch, show, searched = LocalShard.fetch, Collection._show, set[int]()
    nearest = list(documents())[1]

    def replace_after(snapshot: Snapshot) -> None:
        written = made.write([nearest])
        if not shown_after_s:
            written.result()
        while others.submit(made.log.position).result().seq == snapshot.seq:
            time.sleep(0.001)

    async def fetch_late(self: LocalShard, ids: Sequence[int], what: What) -> Fetched:
        if self.seq not in searched:
            searched.add(self.seq)
            replace_after(self.snapshot)
        return await fetch(self, ids, what)

    def show_late(self: Collection, applied: list[Applied]) -> None:
        time.sleep(shown_after_s)
        show(self, applied)

    with closing(make_collection(tmp_path / "c")) as made, ThreadPoolExecutor(1) as others:
        made.write(list(documents())[1:]).result()
        monkeypatch.setattr(LocalShard, "fetch", fetch_late)
        monkeypatch.setattr(Collection, "_show", show_late)
        hits = search(pipeline, made, mode="dense", k=OTHERS).hits
    assert {hit.document_id for hit in hits} == {f"d{number}" for number in range(OTHERS)}
    assert len(searched) == 2


@pytest.fixture
def depths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every search, round by round."""
    found: list[int] = []
    search = LocalShard.search

    async def noted(self: LocalShard, ask: Ask) -> Searched:
        found.append(ask.query.depth)
        return await search(self, ask)

    monkeypatch.setattr(LocalShard, "search", noted)
    return found


def test_a_search_that_has_every_document_ends(pipeline: Pipeline, tmp_path: Path, depths: list[int]) -> None:
    """Grouped, it does not look through the passages of the documents that it has already."""
    rng = np.random.default_rng(2)
    with closing(make_collection(tmp_path / "c")) as made:
        for name in "ab":
            pages = [NewPassage(7 * at, 7 * at + 6, 1, near(rng, 0.5)) for at in range(300)]
            made.write([Upsert(name, "needle " * 300, "", {}, tuple(pages))]).result()
        hits = search(pipeline, made, k=10, group_by_document=True, collapse=False, mode="dense").hits
    assert {hit.document_id for hit in hits} == {"a", "b"}
    assert len(depths) == 1


@pytest.mark.parametrize("floor", [{"min_score": 0.99}, {"min_relevance": 1.0}], ids=str)
@pytest.mark.parametrize("options", MODES[:2], ids=str)
def test_a_floor_that_nothing_reaches_ends_a_search(
    pipeline: Pipeline,
    collection: Collection,
    depths: list[int],
    options: dict[str, Any],
    floor: dict[str, Any],
) -> None:
    """Also where both rankings list different passages, so that none of either is in both."""
    assert not search(pipeline, collection, query="straw", k=10, **options, **floor).hits
    assert len(depths) == 1


def test_an_own_vector_is_scaled_by_the_floor_of_the_model(
    pipeline: Pipeline, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores added for a vector of the client's start where unrelated texts of the collection's model do."""
    (usual,) = search(pipeline, collection, k=1, fusion=WEIGHTED).hits
    monkeypatch.setattr(pipeline._embedders, "similarity_floor", {collection.settings.model: 0.8}.__getitem__)
    (hit,) = search(pipeline, collection, k=1, fusion=WEIGHTED).hits
    cosine = hit.scores.dense
    assert cosine is not None
    lower = 0.45 * ((cosine - SIMILARITY_FLOOR) / (1 - SIMILARITY_FLOOR) - (cosine - 0.8) / 0.2)
    assert lower > 0.001
    assert hit.score == pytest.approx(usual.score - lower, abs=1e-5)


class Reading:
    """A reranker that notes what it reads, and reads nothing before it may."""

    def __init__(self) -> None:
        self.manifest = SimpleNamespace(name="noted", fingerprint="f")
        self.texts: list[str] = []
        self.may, self.begun = threading.Event(), threading.Event()

    @property
    def encoder(self) -> Reading:
        return self

    def read_query(self, query: str) -> str:
        return query

    def read(self, query: str, texts: list[str], until: float, **_: object) -> PairsRead:
        self.begun.set()
        assert self.may.wait(30)
        self.texts += texts
        return PairsRead(np.zeros(len(texts), np.float32), 0)


@pytest.fixture
def reading() -> Iterator[tuple[Reading, Pipeline]]:
    config = Config(rerank=RerankSection(model="noted"))
    results = ResultCache(MemoryStore(0, time.monotonic), None, ttl_s=60, now=time.time)
    reader = Reading()
    made = Pipeline(Embedders(config, lambda name: Observer()), results, config, cast(Reranker, reader))
    with closing(made):
        yield reader, made


def test_what_was_read_is_not_read_again(
    reading: tuple[Reading, Pipeline], collection: Collection, depths: list[int]
) -> None:
    """A grouped search that goes deeper reranks its first candidates once, not once a round."""
    reader, pipeline = reading
    reader.may.set()
    hits = search(pipeline, collection, k=10, group_by_document=True, rerank=True).hits
    assert len({hit.document_id for hit in hits}) == 10
    assert len(depths) > 1
    wanted = Config().rerank.candidates  # and what only a deeper search found is read then
    assert wanted <= len(reader.texts) < 2 * wanted


def test_one_thread_stays_free_of_reranking(
    reading: tuple[Reading, Pipeline], collection: Collection
) -> None:
    """However many searches rerank, one that does not is answered meanwhile."""
    reader, pipeline = reading

    async def story() -> None:
        def ask(**options: Any) -> Awaitable[SearchAnswer]:
            request = SearchRequest(query="needle", vector=AXIS, cache=False, **options)
            return asyncio.ensure_future(pipeline.search("c", collection, request))

        slow = [ask(rerank=True) for _ in range(4)]
        await asyncio.to_thread(reader.begun.wait, 30)
        assert (await asyncio.wait_for(ask(), 30)).hits
        assert not reader.texts
        reader.may.set()
        assert all([(await one).hits for one in slow])

    asyncio.run(story())


@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_floor_ends_a_search(
    pipeline: Pipeline, collection: Collection, options: dict[str, Any], depths: list[int]
) -> None:
    """Where `min_score` cuts off the end of what was found, nothing deeper can pass, and nothing deeper is searched."""
    best = search(pipeline, collection, k=1, **options).hits[0].score
    depths.clear()
    hits = search(pipeline, collection, k=280, min_score=best, **options).hits
    assert 1 <= len(hits) < 280
    assert len(depths) == 1


def test_a_floor_does_not_starve_a_grouped_search(pipeline: Pipeline, collection: Collection) -> None:
    """Documents beyond the first depth that score enough are found."""
    options: dict[str, Any] = {"mode": "dense", "group_by_document": True}
    scores = [hit.score for hit in search(pipeline, collection, k=20, **options).hits]
    hits = search(pipeline, collection, k=20, min_score=scores[9], **options).hits
    assert [hit.score for hit in hits] == scores[:10]
