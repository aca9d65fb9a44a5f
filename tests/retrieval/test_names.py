"""A query that is, or holds, the id, the title or another name of a document puts that document first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http import Http

ABOUT = "Counting words: collections, counter and json data, dumps of data, counting how to use a counter. "
# Documents about the words of a name: none has the name, and all score better for it than the document that has it.
OTHERS = [{"id": f"about-{n}", "title": "Words", "text": ABOUT * (1 + n % 3)} for n in range(60)]
NAMED = [
    {"id": "collections.Counter", "title": "class Counter", "text": "A dict subclass.", "metadata": {"n": 1}},
    {
        "id": "m1",
        "title": "json.dumps",
        "text": "Serialize.\n\n# Escapes\n\nAscii only.",
        "metadata": {"n": 2},
    },
    {"id": "CMP0077", "title": "", "text": "Policy about options.", "metadata": {"n": 3}},
    {"id": "m2", "title": "data", "text": "A title of one plain word.", "metadata": {"n": 4}},
]


@pytest.fixture(scope="module")
def name(module_http: Http) -> str:
    made = module_http.new_collection()
    module_http.write(made, *OTHERS, *NAMED)
    return made


@pytest.fixture(scope="module")
def module_http(service: Any) -> Http:
    return Http(service.url)


@pytest.mark.parametrize("mode", ["hybrid", "lexical"])
@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("collections.Counter", "collections.Counter"),
        ("how do I use collections.Counter to count words", "collections.Counter"),
        ("what does json.dumps() do with data", "m1"),
        ("words about `JSON.dumps`", "m1"),
        ("cmp0077", "CMP0077"),
        ("data", "m2"),
    ],
)
def test_a_named_document_comes_first(http: Http, name: str, mode: str, query: str, document: str) -> None:
    """In both modes that read words: its first passage, with a score above all others."""
    hits = http.search(name, query=query, mode=mode, cache=False)["hits"]
    assert (hits[0]["document_id"], hits[0]["passage"], hits[0]["scores"]["name"]) == (document, 0, 1)
    assert all(hit["score"] < hits[0]["score"] and "name" not in hit["scores"] for hit in hits[1:])
    assert hits[0]["relevance"] >= 0.95


def test_what_is_no_name_changes_nothing(http: Http, name: str) -> None:
    """A plain word of a question that is some title, and dense search, which reads no words."""
    asked = "how are words and data counted"
    assert all("name" not in hit["scores"] for hit in http.search(name, query=asked, k=60)["hits"])
    dense = http.search(name, query="collections.Counter", mode="dense", k=64)["hits"]
    assert all("name" not in hit["scores"] for hit in dense)


def test_a_part_of_a_name_counts_half(http: Http, name: str) -> None:
    """The last dotted part lifts a document half way up, and an exact name hides it."""
    hits = http.search(name, query="Counter")["hits"]
    assert (hits[0]["document_id"], hits[0]["scores"]["name"]) == ("collections.Counter", 0.5)
    assert hits[1]["score"] < hits[0]["score"] <= 1
    own = http.new_collection()
    http.write(own, {"id": "a.queue", "text": "queue queue"}, {"id": "b", "title": "queue", "text": "One."})
    first, second = http.search(own, query="queue")["hits"]
    assert (first["document_id"], first["scores"]["name"]) == ("b", 1)
    assert "name" not in second["scores"]


def test_the_case_decides_between_names(http: Http) -> None:
    """A name that is written as in the query hides one that differs in capitals; else both count."""
    own = http.new_collection()
    http.write(
        own, {"id": "x.timeout", "text": "a timeout"}, {"id": "x.Timeout", "text": "a timeout, timeout"}
    )
    for query, found in {"x.timeout": ["x.timeout"], "x.Timeout": ["x.Timeout"]}.items():
        hits = http.search(own, query=query)["hits"]
        assert [hit["document_id"] for hit in hits if hit["scores"].get("name")] == found
    assert (
        len([hit for hit in http.search(own, query="X.TIMEOUT")["hits"] if hit["scores"]["name"] == 1]) == 2
    )


def test_a_heading_is_a_name_in_part(http: Http) -> None:
    """The passage below it is lifted."""
    own = http.new_collection()
    text = "\n\n".join(f"# Part {n}\n\n{ABOUT * 12}" for n in range(6)) + f"\n\n# Escapes\n\n{ABOUT * 12}"
    http.write(own, {"id": "book", "text": text})
    hit = http.search(own, query="escapes", typos=False)["hits"][0]
    assert (hit["heading"], hit["scores"]["name"]) == ("Escapes", 0.5)


def test_several_names_go_by_their_scores(http: Http, name: str) -> None:
    """All that the query names come before the rest, in the order of their fused scores."""
    hits = http.search(name, query="is json.dumps of a collections.Counter stable", k=5)["hits"]
    assert {hit["document_id"] for hit in hits[:2]} == {"m1", "collections.Counter"}
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


def test_a_name_that_many_share_is_none(http: Http) -> None:
    """A title of forty documents tells none of them from the others, except behind a filter."""
    own = http.new_collection()
    http.write(
        own,
        *({"id": f"i{n}", "title": "Introduction", "text": ABOUT, "metadata": {"n": n}} for n in range(40)),
    )
    assert all("name" not in hit["scores"] for hit in http.search(own, query="introduction")["hits"])
    few = {"type": "lt", "key": "n", "value": 3}
    assert all(
        hit["scores"]["name"] == 1 for hit in http.search(own, query="introduction", filter=few)["hits"]
    )


@pytest.mark.parametrize("of", [10, 20])
def test_a_name_that_many_of_several_collections_share(http: Http, of: int) -> None:
    """It names none of them, as in one collection. Where one collection has it as a title, parts of names in others
    do not count."""
    names = [http.new_collection(), http.new_collection()]
    for name in names:
        http.write(name, *({"id": f"i{n}", "title": "Introduction", "text": ABOUT} for n in range(of)))
    http.write(names[1], {"id": "part.introduction", "text": ABOUT})
    search = {"collections": names, "query": "introduction", "k": 50, "collapse": False}
    found = http.ok("POST", "/v1/search", search)["hits"]
    named = [hit["document_id"] for hit in found if "name" in hit["scores"]]
    assert sorted(set(named)) == ([] if of == 20 else sorted(f"i{n}" for n in range(of)))


OPTIONS: dict[str, dict[str, Any]] = {
    "rrf": {"fusion": {"method": "rrf"}},
    "boosts": {"boosts": [{"key": "n", "weight": -1}]},
    "mmr": {"mmr": 0.1},
    "min_score": {"min_score": 0.9},
    "min_relevance": {"min_relevance": 0.9},
    "grouped": {"group_by_document": True},
    "explained": {"explain": True},
    "operators": {"operators": True},
    "highlighted": {"highlight": True},
    "filtered": {"filter": {"type": "gte", "key": "n", "value": 0}},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_name_comes_first_with_every_option(http: Http, name: str, option: str) -> None:
    """It passes floors, boosts against it, and diversity."""
    assert http.found(name, query="CMP0077 about words", k=3, **OPTIONS[option])[0] == "CMP0077"


@pytest.mark.parametrize("weight", [-1, 0.5, 100])
def test_boosts_leave_a_name_the_highest_score(http: Http, name: str, weight: float) -> None:
    """However far they raise others: what stands first has the score that `min_score` keeps."""
    asked = {"query": "CMP0077 about words", "boosts": [{"key": "n", "weight": weight}]}
    hits = http.search(name, k=5, **asked)["hits"]
    assert hits[0]["document_id"] == "CMP0077"
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert http.found(name, k=5, min_score=hits[0]["score"], **asked)[0] == "CMP0077"


def test_a_given_order_wins(http: Http, name: str) -> None:
    """Sort puts the candidates in its own order, a named one among them."""
    found = http.found(name, query="CMP0077", k=4, sort=[{"key": "n", "order": "desc"}])
    assert found[0] == "m2"
    assert "CMP0077" in found


def test_a_filter_keeps_a_name_out(http: Http, name: str) -> None:
    """A named document that does not match is no hit."""
    condition = {"type": "lt", "key": "n", "value": 3}
    assert "CMP0077" not in http.found(name, query="CMP0077", filter=condition)


@pytest.mark.parametrize("options", [{}, {"mode": "lexical"}, {"fusion": {"method": "rrf"}}])
def test_pages_repeat_nothing(http: Http, name: str, options: dict[str, Any]) -> None:
    """The pages of a search for a name are one long page in pieces, the name first."""
    asked = {"query": "words and data of CMP0077", "cache": False, **options}
    whole = http.found(name, k=60, **asked)
    assert whole[0] == "CMP0077"
    assert [one for at in range(0, 60, 20) for one in http.found(name, k=20, offset=at, **asked)] == whole


def test_a_write_brings_and_takes_a_name(http: Http) -> None:
    """A cached answer ends with the document that its query names, and a deleted one is gone; also after a rebuild."""
    own = http.new_collection()
    http.write(own, *OTHERS)
    asked = {"query": "what about words of SKU-4711", "k": 3}
    first = http.found(own, **asked)
    assert http.search(own, **asked)["receipt"]["cache"] == "hit"
    http.write(own, {"id": "SKU-4711", "text": "A kettle."})
    assert http.found(own, **asked)[0] == "SKU-4711"
    assert http.reindex(own)["status"] == "succeeded"
    assert http.found(own, **asked)[0] == "SKU-4711"
    http.ok("DELETE", f"/v1/collections/{own}/documents/SKU-4711")
    assert http.found(own, **asked) == first


def test_an_explanation_says_the_name(http: Http, name: str) -> None:
    """Its cause names it, and the passage has it among its scores."""
    body = {"query": "CMP0077 about words", "document_id": "CMP0077"}
    found = http.ok("POST", f"/v1/collections/{name}/explain", body)
    assert found["found"] == 1
    assert "the query names it" in found["cause"]["reason"]
    assert found["passages"][0]["scores"]["name"] == 1


def test_a_context_begins_with_the_name(http: Http, name: str) -> None:
    """Whatever its cosine is."""
    body = {"query": "words about CMP0077", "token_budget": 400, "min_similarity": 1}
    found = http.ok("POST", f"/v1/collections/{name}/context", body)
    assert found["citations"][0]["document_id"] == "CMP0077"
