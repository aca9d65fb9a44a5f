"""A search without company looks for its words while its text is embedded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from indexes.base.model import Floats
from indexes.parts.query import Query
from jobs.serving.process import serving
from retrieval.base.settings import Config
from retrieval.cache import MemoryStore, ResultCache
from retrieval.embedding.embedders import Embedders
from retrieval.search.pipeline import Pipeline
from retrieval.search.shard import Ask, LocalShard, run_at_once
from retrieval.search.stopwatch import Stopwatch
from retrieval.wire.search import SearchRequest
from tests.support.http import Http
from tests.support.vectors import World, fill, make_collection

DOCUMENTS = [
    {
        "id": f"d{at}",
        "text": f"Lighthouse {at} guides {'ships' if at % 2 else 'boats'} past rock {at}.",
        "metadata": {"rock": at % 4},
    }
    for at in range(40)
]
SEARCHES: list[dict[str, Any]] = [
    {"query": "which lighthouse guides ships"},
    {"query": "lihgthouse on a rokc"},
    {"query": "nothing of this"},
    {"query": "boats past rock 7", "filter": {"type": "eq", "key": "rock", "value": 3}},
    {"query": "ships", "filter": {"type": "eq", "key": "tower", "value": 3}},
    {"query": "boats", "group_by_document": True, "min_score": 0.5, "k": 20},
    {"query": "lighthouse", "fusion": {"method": "rrf"}, "offset": 5},
]


@pytest.fixture(scope="module", params=["1", "2"], ids="{} threads".format)
def http(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    data = tmp_path_factory.mktemp("lone") / "data"
    with serving(data, {"NEARLINE_SEARCH_THREADS": request.param}) as server:
        client = Http(server.url)
        client.ok("POST", "/v1/collections", {"name": "c"})
        client.ok("POST", "/v1/collections/c/documents", {"documents": DOCUMENTS})
        yield client


def test_alone_or_in_company_the_answer_is_the_same(http: Http) -> None:
    """Hits, scores, corrections and errors, however many search threads there are."""
    bodies = [{**search, "cache": False} for search in SEARCHES]
    alone = [http.call("POST", "/v1/collections/c/search", body) for body in bodies]
    assert [reply.status for reply in alone] == [200, 200, 200, 200, 422, 200, 200]
    with ThreadPoolExecutor(len(bodies)) as pool:
        for _ in range(5):
            in_company = pool.map(lambda body: http.call("POST", "/v1/collections/c/search", body), bodies)
            for one, other in zip(alone, in_company, strict=True):
                assert told(other.body) == told(one.body)


@pytest.mark.parametrize(
    ("options", "others", "begins"),
    [
        ({}, 0, True),
        ({"cache": False}, 0, True),
        ({}, 1, False),
        ({"mode": "dense"}, 0, False),
        ({"like": ["d1"]}, 0, False),
    ],
    ids=str,
)
def test_words_are_begun_beside_the_model_by_lone_searches_alone(
    tmp_path: Path, options: dict[str, Any], others: int, begins: bool
) -> None:
    """Where there are words, and no examples that change what is searched."""
    config, embedder = Config(), Recorder(World().vector(99))
    results = ResultCache(MemoryStore(0, time.monotonic), None, ttl_s=60, now=time.time)
    collection = make_collection(tmp_path / "c")
    fill(collection, World(), range(20))
    with closing(collection), closing(Pipeline(cast(Embedders, embedder), results, config)) as pipeline:
        pipeline.under_way = others
        asyncio.run(pipeline.search("c", collection, SearchRequest(query=World().text(3), **options)))
    assert [one is not None for one in embedder.on_start] == [begins]


class Recorder:
    """In place of a model: the same vector for every text. Begins what may begin."""

    def __init__(self, vector: Floats) -> None:
        self.vector, self.on_start = vector, list[Any]()
        self.manifest = SimpleNamespace(similarity_floor=0.1)

    async def of(self, collection: object) -> Recorder:
        return self

    async def query(self, text: str, deadline: float | None, *, cached: bool, on_start: Any) -> Floats:
        self.on_start.append(on_start)
        if on_start:
            on_start()
        return self.vector

    def share_read(self, text: str, language: str | None, held: object) -> float:
        return 1.0

    def is_cut(self, text: str) -> bool:
        return False

    def similarity_floor(self, name: str) -> float:
        return 0.1


def told(body: Any) -> Any:
    return [body.get("hits"), body.get("error"), body.get("receipt", {}).get("corrected")]


def test_only_what_was_begun_is_taken_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same query with its vector goes on with the words that were found; a deeper one searches them again."""
    world, words = World(seed=5), World(seed=5).text(3)
    collection = make_collection(tmp_path_factory.mktemp("begun") / "c")
    fill(collection, world, range(300))
    vector, watch = world.queries(1)[0], Stopwatch()
    plain = LocalShard(collection, collection.snapshot, Stopwatch())
    with ThreadPoolExecutor(1) as pool:
        begun = LocalShard(collection, collection.snapshot, watch)
        begun.begin(Query(10, 20, words), pool.submit)
        for depth, taken_up in (20, True), (80, False):
            query = Query(10, depth, words, vector)
            assert (begun.prepare(query)[1] is not None) is taken_up
            assert found(begun, query) == found(plain, query)
    assert [stage for _, _, stage in watch.spans].count("lexical") == 3  # weighed once, searched twice
    collection.close()


def found(shard: LocalShard, query: Query) -> list[list[float]]:
    candidates = run_at_once(partial(shard.search, Ask(query))).candidates
    return [candidates.ids.tolist(), candidates.dense_ranks.tolist(), candidates.lexical_ranks.tolist()]
