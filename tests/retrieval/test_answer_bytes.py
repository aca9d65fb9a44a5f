"""No answer is larger than the configured bytes: searches say what to ask less of, pages end earlier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.serving.process import serving
from tests.support.http import Http

BYTES_MAX = 100_000
DOCUMENTS = 20
IDS = [f"d{number}" for number in range(DOCUMENTS)]


def vector(number: int) -> list[float]:
    return [1.0 if at in (0, number + 1) else 0.0 for at in range(384)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[tuple[Http, str]]:
    """Twenty documents, half of them with 12 KB of text, the others with as much metadata; 100 KB an answer."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_LIMITS_ANSWER_BYTES_MAX": str(BYTES_MAX),
    }
    with serving(tmp_path_factory.mktemp("large") / "data", environ) as server:
        http = Http(server.url)
        name = http.new_collection()
        documents = [
            {"id": one, "text": f"{number:02}" + "t" * 11_998, "vector": vector(number)}
            if number % 2
            else {"id": one, "text": f"t {number}", "metadata": {"m": "m" * 12_000}, "vector": vector(number)}
            for number, one in enumerate(IDS)
        ]
        http.write(name, *documents)
        yield http, name


@pytest.mark.slow
def test_a_search_says_that_its_hits_are_too_many(large: tuple[Http, str]) -> None:
    """413 naming k; a smaller one is answered, from the cache too."""
    http, name = large
    path = f"/v1/collections/{name}/search"
    reply = http.call("POST", path, {"vector": vector(0), "k": DOCUMENTS})
    assert (reply.status, reply.body["error"]["param"]) == (413, "k")
    assert str(BYTES_MAX) in reply.body["error"]["message"]
    for _ in range(2):
        assert len(http.ok("POST", path, {"vector": vector(0), "k": 7})["hits"]) == 7


def test_a_context_says_that_its_passages_are_too_long(large: tuple[Http, str]) -> None:
    """413 naming the limit and the size of a passage, and `k` only if the request has it."""
    http, name = large
    path = f"/v1/collections/{name}/context"
    for k in ({}, {"k": DOCUMENTS}):
        reply = http.call("POST", path, {"query": "t", "token_budget": 1000, "mode": "dense", **k})
        assert (reply.status, reply.body["error"].get("param")) == (413, "k" if k else None)
        assert "limits.answer_bytes_max" in reply.body["error"]["message"]
        assert "the longest of them 122" in reply.body["error"]["message"]


@pytest.mark.parametrize("cache", [True, False])
def test_the_searches_of_a_batch_share_the_bytes(large: tuple[Http, str], cache: bool) -> None:
    """Those that still had room are answered, the others have the error in their place."""
    http, name = large
    searches = [{"vector": vector(number), "k": 5, "cache": cache} for number in range(6)]
    for _ in range(2):
        results = http.ok("POST", f"/v1/collections/{name}/search/batch", {"searches": searches})["results"]
        answered = [result for result in results if "hits" in result]
        assert len(answered) == 1
        refused = [result["error"] for result in results if "error" in result]
        assert {(error["type"], error["param"]) for error in refused} == {("too_large", "searches")}


def test_pages_end_earlier(large: tuple[Http, str]) -> None:
    """Text and metadata count; every document is on one page."""
    http, name = large
    seen: list[str] = []
    cursor: str | None = None
    pages = 0
    while pages == 0 or cursor is not None:
        wanted = {"limit": 1000, **({"cursor": cursor} if cursor else {})}
        page = http.ok("POST", f"/v1/collections/{name}/documents/scroll", wanted)
        seen += [document["id"] for document in page["documents"]]
        cursor, pages = page["cursor"], pages + 1
    assert seen == IDS
    assert pages > 2
    listed = http.ok("GET", f"/v1/collections/{name}/documents?limit=1000")
    assert 1 < len(listed["documents"]) < DOCUMENTS
    assert listed["next_cursor"] is not None


def test_a_large_answer_is_as_any_other(http: Http) -> None:
    """Hits that are encoded one by one, on a thread, are what a client of small answers knows."""
    name = http.new_collection()
    http.write(
        name,
        *({"id": one, "text": f"{at:02}" + "t" * 49_998, "vector": vector(at)} for at, one in enumerate(IDS)),
    )
    few, many = (http.search(name, vector=vector(0), k=k) for k in (1, DOCUMENTS))
    assert many["hits"][0] == few["hits"][0]
    assert len(many["hits"]) == DOCUMENTS
    assert many.keys() == few.keys()
