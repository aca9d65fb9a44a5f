"""Copies of a collection that share a cache and are written to apart: each gets the answers of its own documents."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from indexes.base.model import Delete, Floats, IndexOptions
from indexes.collection.collection import Collection
from indexes.directory.catalog import Catalog
from indexes.log.applying import Applied
from retrieval.admission.gates import Gates
from retrieval.base.settings import Config
from retrieval.cache import MemoryStore, ResultCache
from retrieval.documents.writing import write_documents
from retrieval.embedding.embedders import Embedders
from retrieval.embedding.results import Observer
from retrieval.search.pipeline import Pipeline
from retrieval.wire.documents import SentDocument
from retrieval.wire.search import SearchAnswer, SearchRequest
from tests.support.vectors import WORDS, World, settings

WORLD = World(dimensions=8)
TUNING = IndexOptions(delta_passages_max=256, segments_max=0)
EMBEDDERS = Embedders(
    Config(), lambda name: Observer()
)  # opens none: every document and query brings its vector
QUERY = " ".join(WORDS[:40])


def sent_vector(number: int, version: int = 0) -> msgspec.Raw:
    """As it stands in a request."""
    return msgspec.Raw(msgspec.json.encode(WORLD.vector(number, version).tolist()))


class Service:
    """A pipeline over the collection "docs", with a near cache of its own and a far one of all."""

    def __init__(self, data: Path, far: MemoryStore) -> None:
        self.catalog = Catalog(data, TUNING)
        self.results = ResultCache(MemoryStore(1 << 24, lambda: 0.0), far, ttl_s=60, now=lambda: 0.0)
        self.pipeline = Pipeline(EMBEDDERS, self.results, Config())

    @property
    def docs(self) -> Collection:
        return self.catalog.get("docs")

    async def write(self, number: int, version: int) -> None:
        document = SentDocument(
            id=f"d{number}",
            text=WORLD.text(number, version),
            vector=sent_vector(number, version),
        )
        entry = Gates(Config().admission).enter("write", None, 0)
        await write_documents(self.docs, EMBEDDERS, [document], Config(), entry)

    async def delete(self, number: int) -> None:
        await asyncio.wrap_future(self.docs.write([Delete(f"d{number}")]))

    async def search(self, **request: Any) -> SearchAnswer:
        return await self.pipeline.search("docs", self.docs, SearchRequest(**request))

    def close(self) -> None:
        self.pipeline.close()
        self.catalog.close()


@contextlib.contextmanager
def services(folder: Path, count: int = 2) -> Iterator[list[Service]]:
    """Copies of one data directory: equal in everything, uid and generation included."""
    catalog = Catalog(folder / "0", TUNING)
    catalog.create("docs", settings(dimensions=8))
    catalog.close()
    for at in range(1, count):
        shutil.copytree(folder / "0", folder / str(at))
    far = MemoryStore(1 << 24, lambda: 0.0)
    made = [Service(folder / str(at), far) for at in range(count)]
    try:
        yield made
    finally:
        for service in made:
            service.close()


def shown(answer: SearchAnswer) -> list[tuple[str, str, float]]:
    """Hits in an order of their own: equal scores may stand in another one elsewhere."""
    return sorted((hit.document_id, hit.text, round(hit.score, 4)) for hit in answer.hits)


SEARCHES: list[dict[str, Any]] = [
    {"vector": sent_vector(99), "mode": "dense", "k": 5},
    {"vector": sent_vector(99), "mode": "dense", "k": 5, "exact": True},
    {"query": QUERY, "mode": "lexical", "k": 50},
]
steps = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=8)


@pytest.mark.slow
@bounded(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=steps)
def test_every_answer_is_of_the_own_documents(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]]
) -> None:
    """Whatever is written and deleted where (version 0 deletes), cached and uncached searches agree in each copy."""

    async def story(pair: list[Service]) -> None:
        for which, number, version in steps:
            await (pair[which].write(number, version) if version else pair[which].delete(number))
            for service in pair:
                for search in SEARCHES:
                    expected = shown(await service.search(**search, cache=False))
                    assert shown(await service.search(**search)) == expected
                    assert shown(await service.search(**search)) == expected

    with services(tmp_path_factory.mktemp("copies")) as pair:
        asyncio.run(story(pair))


def test_equal_documents_are_answered_once(tmp_path: Path) -> None:
    """Copies that were led to the same documents by other ways find each other's answers again."""

    async def story(pair: list[Service]) -> None:
        one, two = pair
        for number in range(4):
            await one.write(number, 1)
            await two.write(3 - number, 2)
        for number in range(4):
            await two.write(number, 1)
        for search in SEARCHES:
            first, second = await one.search(**search), await two.search(**search)
            assert (first.receipt.cache, second.receipt.cache) == ("miss", "hit")
            assert (first.receipt.seq, second.receipt.seq) == (4, 8)
        assert two.results.counts.far == len(SEARCHES)

    with services(tmp_path) as pair:
        asyncio.run(story(pair))


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES, ids=["dense", "exact", "lexical"])
def test_what_saw_a_later_commit_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: dict[str, Any]
) -> None:
    """An answer whose hits were replaced meanwhile does not come back with the content it was asked of."""

    async def story(service: Service) -> None:
        for number in range(3):
            await service.write(number, 1)
        docs, before = service.docs, service.docs.snapshot
        expected = shown(await service.search(**search, cache=False))
        show, searched = docs._show, threading.Event()

        def show_late(applied: list[Applied]) -> None:
            searched.wait()
            show(applied)

        monkeypatch.setattr(docs, "_show", show_late)
        writing = asyncio.create_task(service.write(1, 2))
        while docs.log.position().seq == before.seq:  # noqa: ASYNC110 - nobody tells of a commit under way
            await asyncio.sleep(0.001)
        try:
            assert shown(await service.search(**search)) != expected
        finally:
            searched.set()
        await writing

        await service.write(1, 1)
        assert docs.snapshot.content == before.content
        again = await service.search(**search)
        assert again.receipt.cache == "miss"
        assert shown(again) == expected

    with services(tmp_path, count=1) as [service]:
        asyncio.run(story(service))


class Exported:
    """A model as one export left it: the same vectors, the same fingerprint, and the floor that was measured."""

    def __init__(self, floor: float) -> None:
        self.manifest = SimpleNamespace(similarity_floor=floor)

    async def of(self, collection: Collection) -> Exported:
        return self

    async def query(self, text: str, deadline: float | None, *, cached: bool) -> Floats:
        return WORLD.vector(99)

    def share_read(self, text: str, language: str | None, held: object) -> float:
        return 1.0

    def is_cut(self, text: str) -> bool:
        return False

    def similarity_floor(self, name: str) -> float:
        return float(self.manifest.similarity_floor)


def test_an_answer_goes_with_the_floor_it_was_fused_by(tmp_path: Path) -> None:
    """After another export of the same model, with another floor, a shared answer is not served again."""

    async def story(pair: list[Service]) -> None:
        for service in pair:
            for number in range(3):
                await service.write(number, 1)
        found = []
        for service, floor in zip(pair, (0.1, 0.6), strict=True):
            service.pipeline.close()
            service.pipeline = Pipeline(cast(Embedders, Exported(floor)), service.results, Config())
            found.append([await service.search(query=QUERY, mode="hybrid") for _ in range(2)])
        assert [one.receipt.cache for both in found for one in both] == ["miss", "hit", "miss", "hit"]
        assert found[0][0].hits[0].relevance != found[1][0].hits[0].relevance
        lexical = [await one.search(query=QUERY, mode="lexical") for one in pair]
        assert [one.receipt.cache for one in lexical] == ["miss", "hit"]

    with services(tmp_path) as pair:
        asyncio.run(story(pair))
