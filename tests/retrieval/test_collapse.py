"""Collapsing: no text, no near copy and no value fills a page, whatever the other options, over all pages."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from indexes.base.errors import InvalidInput
from indexes.base.model import Delete, NewPassage, Upsert
from indexes.base.work import WorkBudget
from indexes.collection.collection import Collection
from retrieval.admission.ceiling import AnswerBudget
from retrieval.base.settings import Config, SearchSection
from retrieval.cache import MemoryStore, ResultCache
from retrieval.embedding.embedders import Embedders
from retrieval.embedding.results import Observer
from retrieval.search.pipeline import Pipeline
from retrieval.search.plan import make_plan
from retrieval.search.shard import LocalShard, What
from retrieval.wire.decoding import decode
from retrieval.wire.search import Hit, SearchAnswer, SearchRequest
from tests.support.vectors import DIMENSIONS, make_collection, rebuild

DOCUMENTS, TEXTS, CLUSTERS = 90, 30, 20
NEAR = 0.95
AXIS = [1.0] + [0.0] * (DIMENSIONS - 1)
MODES: list[dict[str, Any]] = [
    {"mode": "hybrid"},
    {"mode": "hybrid", "fusion": {"method": "rrf"}},
    {"mode": "dense"},
    {"mode": "dense", "exact": True},
    {"mode": "lexical"},
]
COLLAPSES: list[dict[str, Any]] = [
    {},
    {"collapse": {"similarity": NEAR}},
    {"collapse": {"key": "at.path"}},
    {"group_by_document": True},
    {"group_by_document": True, "collapse": False},
    {"group_by_document": True, "collapse": {"key": "at.path"}},
]
# Nothing collapses; in mode dense, a search that gathers groups goes as deep as with ALONE.
NOTHING: dict[str, Any] = {"collapse": False}
ALONE: dict[str, Any] = {"collapse": {"key": "elsewhere"}}
ARRANGED: list[dict[str, Any]] = [
    {"sort": [{"key": "n", "order": "desc"}]},
    {"boosts": [{"key": "n", "weight": 0.01}]},
    {"mmr": 0.7},
    {"min_score": 0.3},
]


def unit(rng: np.random.Generator, center: np.ndarray[Any, Any], distance: float) -> Any:
    vector = center + rng.normal(size=DIMENSIONS) * distance / np.sqrt(DIMENSIONS)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def documents(seed: int) -> Iterator[Upsert]:
    """Each of one passage or two, with few texts, few kinds of vectors and few values, some without one."""
    rng, rnd = np.random.default_rng(seed), random.Random(seed)
    centers = [unit(rng, np.array(AXIS), 1.5) for _ in range(CLUSTERS)]
    values = ["a", "b", 1, 1.5, True, None]
    for number in range(DOCUMENTS):
        parts = [f"needle {'straw ' * rnd.randrange(TEXTS)}" for _ in range(1 + number % 2)]
        begins = [sum(map(len, parts[:at])) for at in range(len(parts))]
        passages = tuple(
            NewPassage(begin, begin + len(part), 3, unit(rng, centers[rnd.randrange(CLUSTERS)], 0.2))
            for begin, part in zip(begins, parts, strict=True)
        )
        metadata: dict[str, Any] = {"n": number} if number else {"n": 0, "elsewhere": "here"}
        if number % 3:
            metadata["at"] = {"path": [rnd.choice(values), f"v{rnd.randrange(20)}"][rnd.randrange(2)]}
        yield Upsert(f"d{number}", "".join(parts), "", metadata, passages)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Nobody changes it. All of it is new, so that rankings are exact at any depth."""
    with closing(make_collection(tmp_path_factory.mktemp("copies") / "c")) as made:
        made.write(list(documents(1))).result()
        yield made


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """The same in which passages are hot, cold and new."""
    with closing(make_collection(tmp_path_factory.mktemp("copies") / "c", hot_capacity=60)) as made:
        every = list(documents(1))
        made.write(every[30:]).result()
        rebuild(made)
        made.write(every[:30]).result()
        yield made


def pipeline_of(config: Config) -> Pipeline:
    results = ResultCache(MemoryStore(1 << 24, time.monotonic), None, ttl_s=60, now=time.time)
    return Pipeline(Embedders(config, lambda name: Observer()), results, config)


@pytest.fixture(scope="module")
def pipelines() -> Iterator[dict[int, Pipeline]]:
    """Configurations differ in the depth of the first page: it holds every passage, or later pages go deeper."""
    made = {depth: pipeline_of(Config(search=SearchSection(candidates=depth))) for depth in (24, 400)}
    yield made
    for one in made.values():
        one.close()


def answer(pipeline: Pipeline, collection: Collection, **options: Any) -> SearchAnswer:
    vector = {} if options.get("mode") == "lexical" else {"vector": AXIS}
    text = {} if options.get("exact") else {"query": "needle straw"}
    asked = {"cache": False, **text, **vector, **options}
    request = msgspec.json.decode(msgspec.json.encode(asked), type=SearchRequest)
    return asyncio.run(pipeline.search("c", collection, request))


def pages(pipeline: Pipeline, collection: Collection, k: int, **options: Any) -> list[Hit]:
    """All pages of this size, one after the other."""
    found: list[Hit] = []
    for offset in range(0, 400, k):
        hits = answer(pipeline, collection, k=k, offset=offset, **options).hits
        found += hits
        if not hits:
            break
    return found


@pytest.fixture(scope="module")
def all_pages() -> Callable[..., list[Hit]]:
    """`pages` that nothing has collapsed on, which are the same for each way of collapsing."""
    known: dict[str, list[Hit]] = {}

    def kept(pipeline: Pipeline, collection: Collection, k: int, **options: Any) -> list[Hit]:
        name = f"{id(pipeline)} {collection.folder} {k} {options}"
        if name not in known:
            known[name] = pages(pipeline, collection, k, **options)
        return known[name]

    return kept


def value_of(hit: Hit) -> tuple[type, Any] | None:
    value = hit.metadata.get("at", {}).get("path")
    return None if value is None else (bool if isinstance(value, bool) else object, value)


def groups_of(collection: Collection, hits: list[Hit], asked: dict[str, Any]) -> list[list[Hit]]:
    """The oracle: the groups of these hits, by comparing each with the first of every group before it."""
    collapse = asked.get("collapse", "text")
    similarity = collapse.get("similarity") if isinstance(collapse, dict) else None
    by_key = isinstance(collapse, dict) and "key" in collapse
    numbers = [collection.log.passages_of(hit.document_id)[hit.passage] for hit in hits]
    vectors = collection.snapshot.vectors(np.array(numbers, np.int64))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    groups: list[list[int]] = []
    stands_for: dict[str, list[int]] = {}

    def alike(one: int, other: int) -> bool:
        if by_key:
            return value_of(hits[one]) is not None and value_of(hits[one]) == value_of(hits[other])
        return collapse is not False and hits[one].text.strip() == hits[other].text.strip()

    def near(one: int, other: int) -> bool:
        return similarity is not None and bool(vectors[one] @ vectors[other] >= similarity - 1e-6)

    for at, hit in enumerate(hits):
        group = stands_for.get(hit.document_id) if asked.get("group_by_document") else None
        if group is None:
            group = next((one for fits in (alike, near) for one in groups if fits(one[0], at)), None)
        if group is None:
            groups.append(group := [])
        group.append(at)
        stands_for.setdefault(hit.document_id, group)
    return [[hits[at] for at in group] for group in groups]


def names(hits: list[Hit]) -> list[tuple[str, int]]:
    return [(hit.document_id, hit.passage) for hit in hits]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("collapse", COLLAPSES, ids=str)
@pytest.mark.parametrize("depth", [24, 400])
def test_all_pages_hold_each_group_once(
    pipelines: dict[int, Pipeline],
    collection: Collection,
    all_pages: Callable[..., list[Hit]],
    mode: dict[str, Any],
    collapse: dict[str, Any],
    depth: int,
) -> None:
    """In the order of the best of each, however deep a page has to search."""
    for k in (7, 20):
        every = all_pages(pipelines[depth], collection, k, **mode, **(ALONE if collapse else NOTHING))
        found = pages(pipelines[depth], collection, k, **mode, **collapse)
        assert names(found) == names([group[0] for group in groups_of(collection, every, collapse)])


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("collapse", COLLAPSES, ids=str)
def test_pages_of_approximate_rankings_hold_each_group_once(
    pipelines: dict[int, Pipeline],
    tiers: Collection,
    all_pages: Callable[..., list[Hit]],
    mode: dict[str, Any],
    collapse: dict[str, Any],
) -> None:
    """No hit on a later page belongs to a group of an earlier one, and none is missing."""
    hits = pages(pipelines[24], tiers, 10, **mode, **collapse)
    assert [len(group) for group in groups_of(tiers, hits, collapse)] == [1] * len(hits)
    every = all_pages(pipelines[24], tiers, 10, **mode, **NOTHING)
    if collapse == {}:
        assert {hit.text.strip() for hit in hits} == {hit.text.strip() for hit in every}
    elif "group_by_document" not in collapse and "key" in collapse["collapse"]:
        assert {value_of(hit) for hit in hits} == {value_of(hit) for hit in every}


@pytest.mark.parametrize("mode", MODES[:1] + MODES[2:], ids=str)
@pytest.mark.parametrize("collapse", COLLAPSES, ids=str)
@pytest.mark.parametrize("arranged", ARRANGED, ids=str)
def test_arranged_pages_hold_each_group_once(
    pipelines: dict[int, Pipeline],
    collection: Collection,
    mode: dict[str, Any],
    collapse: dict[str, Any],
    arranged: dict[str, Any],
) -> None:
    """Whatever orders the candidates or drops them, their first is a group's."""
    options = {**mode, **arranged}
    wanted = 120 if "mmr" in arranged else 240
    every = answer(pipelines[400], collection, k=wanted, **options, collapse=False).hits
    found = [
        hit
        for offset in range(0, wanted, 40)
        for hit in answer(pipelines[400], collection, k=40, offset=offset, **options, **collapse).hits
    ]
    of_every = names([group[0] for group in groups_of(collection, every, collapse)])
    assert names(found)[: len(of_every)] == of_every
    if "mmr" not in arranged:
        assert len(found) == len(of_every)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.sampled_from(MODES), st.booleans())
def test_groups_hold_their_first_hits(
    pipelines: dict[int, Pipeline],
    collection: Collection,
    k: int,
    hits: int,
    mode: dict[str, Any],
    single: bool,
) -> None:
    """Each page holds k groups with up to n hits each, side by side; the first says how many more were met."""
    every = answer(pipelines[400], collection, k=240, **mode, collapse=False).hits
    asked = {"collapse": {"key": "at.path", "hits": hits}}
    wanted = groups_of(collection, every, asked)
    for offset in (0, k, 2 * k):
        found = answer(pipelines[400], collection, k=k, offset=offset, **mode, **asked).hits
        page = wanted[offset : offset + k]
        assert names(found) == names(
            [hit for group in page for hit in group[: hits if value_of(group[0]) else 1]]
        )
        left = iter(found)
        for group in page:
            shown = [next(left) for _ in group[:hits]]
            assert [hit.group for hit in shown] == [hit.metadata.get("at", {}).get("path") for hit in shown]
            assert shown[0].collapsed <= len(group) - len(shown)
            assert not any(hit.collapsed for hit in shown[1:])


@pytest.mark.parametrize("collapse", COLLAPSES, ids=str)
def test_a_hit_says_how_many_stand_behind_it(
    pipelines: dict[int, Pipeline], collection: Collection, collapse: dict[str, Any]
) -> None:
    """Where a page is not full, everything was read, and so everything is counted."""
    every = answer(pipelines[400], collection, k=240, mode="dense", collapse=False).hits
    hits = answer(pipelines[400], collection, k=240, mode="dense", **collapse).hits
    assert [hit.collapsed for hit in hits] == [
        len(group) - 1 for group in groups_of(collection, every, collapse)
    ]


def copies(count: int, others: int, title: str = "") -> list[Upsert]:
    """Copies of the best text, then others, each further away."""
    rng, made = np.random.default_rng(2), []
    for number in range(count + others):
        text = "needle" if number < count else f"needle {'straw ' * (number - count + 1)}"
        vector = unit(rng, np.array(AXIS), 0.0 if number < count else 0.1 + number / 10)
        passage = NewPassage(0, len(text), 1, vector)
        made.append(Upsert(f"d{number:04}", text, f"{title} {number}" if title else "", {}, (passage,)))
    return made


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Collection]:
    with closing(make_collection(tmp_path / "c")) as made:
        made.write(copies(10, 12)).result()
        yield made


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_ten_copies_are_one_hit(
    pipelines: dict[int, Pipeline], small: Collection, mode: dict[str, Any]
) -> None:
    """Unless all are asked for; the page is filled with others, and even a page of one hit counts the copies."""
    for options in ({}, {"collapse": True}, {"collapse": "text"}):
        hits = answer(pipelines[400], small, query="needle", k=10, **mode, **options).hits
        assert [hit.collapsed for hit in hits] == [9] + [0] * 9
        assert len({hit.text for hit in hits}) == 10
    (hit,) = answer(pipelines[400], small, query="needle", k=1, **mode).hits
    assert hit.collapsed == 9
    assert {
        hit.text for hit in answer(pipelines[400], small, query="needle", k=10, **mode, collapse=False).hits
    } == {"needle"}


def test_texts_are_compared_and_titles_where_there_is_none(
    pipelines: dict[int, Pipeline], tmp_path: Path
) -> None:
    """Documents with neither stand alone, and so does nothing but its own vector."""
    axis = np.array(AXIS, np.float32)

    def written(number: int, text: str, title: str) -> Upsert:
        return Upsert(f"d{number}", text, title, {}, (NewPassage(0, len(text), 1, axis),))

    texts = [("one text", "a"), (" one text\n", "b"), ("", "title"), ("", "title"), ("", ""), ("", "")]
    with closing(make_collection(tmp_path / "c")) as made:
        made.write([written(at, *both) for at, both in enumerate(texts)]).result()
        hits = answer(pipelines[400], made, mode="dense").hits
    assert sorted((hit.document_id, hit.collapsed) for hit in hits) == [
        ("d0", 1),
        ("d2", 1),
        ("d4", 0),
        ("d5", 0),
    ]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many passages each read of the log was for."""
    found: list[int] = []
    fetch = LocalShard.fetch

    async def noted(self: LocalShard, ids: Any, what: What) -> Any:
        if what.passages:
            found.append(len(ids))
        return await fetch(self, ids, what)

    monkeypatch.setattr(LocalShard, "fetch", noted)
    return found


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_only_the_page_is_read(
    pipelines: dict[int, Pipeline], small: Collection, fetched: list[int], mode: dict[str, Any]
) -> None:
    """No more than the k hits where no text comes twice, and for each copy not much more."""
    ids = [f"d{number:04}" for number in range(1, 10)]
    small.write([Delete(one) for one in ids]).result()
    assert len(answer(pipelines[400], small, query="needle", k=10, **mode).hits) == 10
    assert fetched == [10]
    fetched.clear()
    small.write(copies(3, 0)[1:]).result()
    assert len(answer(pipelines[400], small, query="needle", k=10, **mode).hits) == 10
    assert sum(fetched) <= 20


def test_what_was_read_of_copies_is_not_read_again(
    pipelines: dict[int, Pipeline], tmp_path: Path, fetched: list[int]
) -> None:
    """A search that goes deeper reads each copy once."""
    with closing(make_collection(tmp_path / "c")) as made:
        made.write(copies(300, 12)).result()
        hits = answer(pipelines[24], made, k=10, mode="dense").hits
    assert [hit.collapsed for hit in hits] == [299] + [0] * 9
    assert sum(fetched) < 312 + 3 * 10


def test_reading_copies_has_a_budget(pipelines: dict[int, Pipeline], tmp_path: Path) -> None:
    """The answer then has the hits found before it was used up, and the receipt says so. Other searches of the request
    are whole if they have few copies."""
    with closing(make_collection(tmp_path / "c")) as made:
        made.write(copies(300, 12)).result()
        budget = AnswerBudget(1 << 24)
        budget.work = WorkBudget(copies=100)

        def ask(**options: Any) -> SearchAnswer:
            request = SearchRequest(
                vector=msgspec.Raw(msgspec.json.encode(AXIS)), mode="dense", cache=False, **options
            )
            return asyncio.run(pipelines[24].search("c", made, request, budget=budget))

        short = ask(k=5)
        assert short.receipt.over_budget == ["collapse"]
        assert len(short.hits) == 1
        assert short.hits[0].collapsed >= 100
        others = ask(k=5, min_score=-1.0, collapse=False)
        assert others.receipt.over_budget is UNSET
        assert len(others.hits) == 5
        made.write([Delete(f"d{number:04}") for number in range(1, 300)]).result()
        assert len(ask(k=5).hits) == 5


REFUSED: list[tuple[Any, str]] = [
    ({}, "collapse"),
    ({"similarity": 0.9, "key": "a"}, "collapse"),
    ({"similarity": 0.9, "hits": 2}, "collapse.hits"),
    ({"key": "a", "hits": 100}, "collapse.hits"),
]


@pytest.mark.parametrize(("collapse", "param"), REFUSED, ids=str)
def test_what_cannot_be_collapsed_is_refused(collapse: Any, param: str) -> None:
    asked = msgspec.json.encode({"query": "a", "collapse": collapse, "k": 11})
    request = msgspec.json.decode(asked, type=SearchRequest)
    with pytest.raises(InvalidInput) as refused:
        make_plan(request, DIMENSIONS, Config())
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("collapse", "where"),
    [
        ('"texts"', "collapse"),
        ('{"similarity": 1.5}', "collapse.similarity"),
        ('{"similarity": 0}', "collapse.similarity"),
        ('{"key": ""}', "collapse.key"),
        ('{"key": "a", "hits": 0}', "collapse.hits"),
        ('{"field": "a"}', "collapse.field"),
    ],
)
def test_an_error_names_the_field(collapse: str, where: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        decode(f'{{"query": "a", "collapse": {collapse}}}'.encode(), SearchRequest)
    assert refused.value.param == where


def test_one_option_has_one_identity() -> None:
    """Equal requests share cached answers."""
    plans = [
        make_plan(SearchRequest(query="a", **options), DIMENSIONS, Config())
        for options in ({}, {"collapse": "text"}, {"collapse": True}, {"collapse": False})
    ]
    assert len({plan.identity for plan in plans[:3]}) == 1
    assert plans[3].identity != plans[0].identity
