"""Pages of hits: joined they are the long answer, each hit once, whatever the mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.serving.process import ServerProcess
from retrieval.search.fusion import clip_to_levels, levels_of, order_by_score, reciprocal_rank
from tests.support.http import Http

DOCUMENTS = 150
TIED = 600
WORDS = "river bridge market winter letter garden engine window paper silver"


@pytest.fixture(scope="module")
def _documents() -> list[dict[str, Any]]:
    """Texts of common words, vectors near each other: both rankings are long, and differ."""
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(DOCUMENTS, 384)) + 2
    words = WORDS.split()
    return [
        {"id": f"d{at}", "text": " ".join(rng.choice(words, 12)), "vector": vectors[at].tolist()}
        for at in range(DOCUMENTS)
    ]


@pytest.fixture
def crowd(http: Http, _documents: list[dict[str, Any]]) -> str:
    name = http.new_collection()
    http.write(name, *_documents)
    return name


MODES: list[dict[str, Any]] = [
    {"mode": "hybrid"},
    {"mode": "hybrid", "fusion": {"method": "rrf"}},
    {"mode": "hybrid", "group_by_document": True},
    {"mode": "dense"},
    {"mode": "lexical"},
]


@pytest.mark.parametrize("options", MODES, ids=str)
def test_pages_joined_are_one_long_answer(http: Http, crowd: str, options: dict[str, Any]) -> None:
    """Within the candidates of one page, hits are those of one large answer, in its order, scores and all."""
    search = {"query": "a river and a silver bridge", "cache": False, **options}
    whole = http.search(crowd, k=100, **search)["hits"]
    paged = [hit for at in range(0, 100, 25) for hit in http.search(crowd, k=25, offset=at, **search)["hits"]]
    assert paged == whole


@pytest.mark.parametrize("mode", ["dense", "hybrid", "lexical"])
@pytest.mark.parametrize(
    "options",
    [{"sort": [{"key": "at"}]}, {"boosts": [{"key": "at"}]}, {"mmr": 0.5}, {"mmr": 0}],
    ids=str,
)
def test_pages_of_arranged_hits_hold_each_once(http: Http, mode: str, options: dict[str, Any]) -> None:
    """All of the candidates that are arranged, however small the pages."""
    name = http.new_collection()
    texts = [f"{' '.join(WORDS.split()[at % 7 :])} {at}" for at in range(200)]
    http.write(
        name, *({"id": f"d{at}", "text": texts[at], "metadata": {"at": at * 7 % 200}} for at in range(200))
    )
    search = {"query": "a river and a silver bridge", "mode": mode, "cache": False, **options}
    whole = http.found(name, k=100, **search)
    paged = [one for at in range(0, 100, 10) for one in http.found(name, k=10, offset=at, **search)]
    assert len(set(paged)) == len(paged) == 100
    assert paged == whole


@pytest.mark.parametrize("options", MODES, ids=str)
def test_pages_go_on_to_the_end(http: Http, crowd: str, options: dict[str, Any]) -> None:
    """Beyond the candidates of the first page no hit comes twice and none is missing; after the last one, none."""
    search = {"query": WORDS, "k": 40, **options}
    found = [
        hit["document_id"]
        for at in range(0, 200, 40)
        for hit in http.search(crowd, offset=at, **search)["hits"]
    ]
    assert len(found) == DOCUMENTS
    assert set(found) == {f"d{at}" for at in range(DOCUMENTS)}


@pytest.fixture(scope="module")
def rebuilt(service: ServerProcess) -> tuple[Http, str]:
    """A collection of two tiers, whose rows a rebuild has put in another order: its texts are equal in thirds."""
    http = Http(service.url)
    name = http.new_collection(hot_capacity=100, language="en")
    vectors = np.random.default_rng(1).normal(size=(TIED, 384)).round(4)
    http.write(
        name,
        *(
            {
                "id": f"d{at}",
                "text": f"disk full on host {at % 3}",
                "metadata": {"host": at % 3},
                "vector": one,
            }
            for at, one in enumerate(vectors.tolist())
        ),
    )
    assert http.reindex(name)["status"] == "succeeded"
    assert http.ok("GET", f"/v1/collections/{name}")["passages"]["cold"]
    return http, name


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("filtered", [False, True], ids=["all", "filtered"])
def test_pages_of_ties_hold_each_hit_once(
    rebuilt: tuple[Http, str], options: dict[str, Any], filtered: bool
) -> None:
    """However many hits tie at a cut, and approximate as dense rankings are: pages of any size repeat none
    and leave none out, and lexical ones are the pieces of one long answer."""
    http, name = rebuilt
    search: dict[str, Any] = {"query": "disk full", "cache": False, "collapse": False, **options}
    if filtered:
        search["filter"] = {"type": "in", "key": "host", "value": [0, 2]}
    held = TIED * 2 // 3 if filtered else TIED
    pages = [http.found(name, k=100, offset=at, **search) for at in range(0, TIED, 100)]
    found = [each for page in pages for each in page]
    assert len(found) == len(set(found)) == held
    small = [each for at in range(0, 200, 20) for each in http.found(name, k=20, offset=at, **search)]
    assert len(small) == len(set(small)) == 200
    if options["mode"] == "lexical":
        assert small == [*pages[0], *pages[1]]


def test_a_page_is_not_the_cached_first_one(http: Http, crowd: str) -> None:
    """The offset is part of what the cache knows an answer by; a batch pages too."""
    first = http.found(crowd, query="winter letter", k=3)
    second = http.found(crowd, query="winter letter", k=3, offset=3)
    assert not set(first) & set(second)
    searches = [{"query": "winter letter", "k": 3, "offset": at} for at in (0, 3)]
    results = http.ok("POST", f"/v1/collections/{crowd}/search/batch", {"searches": searches})["results"]
    assert [[hit["document_id"] for hit in one["hits"]] for one in results] == [first, second]


@pytest.mark.parametrize(
    ("options", "param"), [({"k": 10, "offset": 991}, "offset"), ({"offset": -1}, "offset")]
)
def test_an_offset_has_bounds(http: Http, crowd: str, options: dict[str, int], param: str) -> None:
    """Together with k at most `limits.k_max`; beyond, the error names the field."""
    reply = http.call("POST", f"/v1/collections/{crowd}/search", {"query": "river", **options})
    assert (reply.status, reply.body["error"]["param"]) == (422, param)


@given(st.randoms(use_true_random=False), st.integers(1, 40), st.integers(1, 12), st.booleans())
def test_the_order_by_level_does_not_depend_on_the_depth(
    rnd: Any, size: int, depth: int, by_rank: bool
) -> None:
    """Candidates of deeper rankings follow those of shallower ones, which keep their order."""
    one, other = (rnd.sample(range(size), size) for _ in range(2))
    score = {passage: rnd.random() for passage in range(size)}
    before: list[int] = []
    for deep in (depth, 4 * depth, 16 * depth):
        ids = np.array(sorted({*one[:deep], *other[:deep]}))
        ranks = [
            np.array([own.index(at) if own.index(at) < deep else -1 for at in ids.tolist()], np.int32)
            for own in (one, other)
        ]
        levels = levels_of(ranks, depth)
        fused = np.array([score[at] for at in ids.tolist()])
        if by_rank:
            fused = reciprocal_rank(clip_to_levels(levels, ranks, depth), 10)
        found = ids[order_by_score(ids, fused, levels)].tolist()
        assert found[: len(before)] == before
        before = found


ARRANGED: list[dict[str, Any]] = [
    {"sort": [{"key": "n", "order": "desc"}]},
    {"sort": [{"key": "n"}]},
    {"boosts": [{"key": "n", "weight": 0.05}]},
    {"mmr": 0.5},
]


@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
@pytest.mark.parametrize("options", ARRANGED, ids=str)
def test_pages_of_arranged_groups_hold_each_document_once(
    http: Http, mode: str, options: dict[str, Any], long_documents: str
) -> None:
    """Pages that need more candidates than the first one continue its order: what they add comes after it."""
    search = {"query": "a river and a silver bridge", "cache": False, "group_by_document": True, "mode": mode}
    whole = http.search(long_documents, k=50, **search, **options)["hits"]
    paged = [
        hit
        for at in range(0, 50, 10)
        for hit in http.search(long_documents, k=10, offset=at, **search, **options)["hits"]
    ]
    assert [hit["document_id"] for hit in paged] == [hit["document_id"] for hit in whole]
    assert len({hit["document_id"] for hit in paged}) == 50


@pytest.fixture(scope="module")
def long_documents(service: ServerProcess) -> str:
    """60 documents: every third one is many passages, so that 100 candidates are fewer than 50 documents."""
    http, rng, words = Http(service.url), np.random.default_rng(7), WORDS.split()
    name = http.new_collection()

    def sentence() -> str:
        return " ".join(rng.choice(words, 25)) + "."

    documents = [
        {
            "id": f"p{at}",
            "text": " ".join(sentence() for _ in range(40 if at % 3 == 0 else 3)),
            "metadata": {"n": at},
        }
        for at in range(60)
    ]
    http.write(name, *documents)
    return name
