"""Documents with a title and no text, as half of a library's catalogue has them: they are written, found and kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from indexes.directory.backup.verifying import verify_data
from jobs.serving.process import serving
from tests.support.http import Http

BOOKS = [
    {"id": "moby", "title": "Moby Dick; or, The Whale", "metadata": {"year": 1851}},
    {"id": "sea", "title": "Twenty Thousand Leagues under the Seas", "text": "", "metadata": {"year": 1870}},
    {"id": "war", "title": "War and Peace", "text": " \n", "metadata": {"year": 1867}},
    {"id": "essay", "title": "On Liberty", "text": "A philosophical essay.", "metadata": {"year": 1859}},
]


def test_a_title_is_enough(tmp_path: Path, model_folder: Path) -> None:
    """It is found by its words and by its meaning, before and after a rebuild, and everything that reads documents
    reads it; written again it is unchanged, and verifying finds nothing wrong."""
    data = tmp_path / "data"
    with serving(data, {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}) as server:
        http = Http(server.url)
        name = http.new_collection()
        written = http.write(name, *BOOKS)
        assert (written["documents"], written["passages"]) == (4, 4)
        assert http.write(name, *BOOKS)["unchanged"] == 4
        for rebuilt in (False, True):
            if rebuilt:
                assert http.reindex(name)["status"] == "succeeded"
            assert http.found(name, query="whale", mode="lexical") == ["moby"]
            assert http.found(name, query="a novel about a submarine", mode="dense", k=1) == ["sea"]
            [hit] = http.search(name, query="war and peace", k=1)["hits"]
            assert (hit["document_id"], hit["text"].strip(), hit["title"]) == ("war", "", "War and Peace")
            assert (hit["start"], hit["end"]) == (0, 0)
            query = {"query": "novels of the sea", "token_budget": 500, "min_similarity": -1}
            context = http.ok("POST", f"/v1/collections/{name}/context", query)
            assert {one["document_id"] for one in context["citations"]} == {"moby", "sea", "war", "essay"}
            assert 'title="Moby Dick; or, The Whale"' in context["context"]
        found = http.ok("GET", f"/v1/collections/{name}/documents/moby?vectors=true")
        assert (found["text"], found["title"]) == ("", "Moby Dick; or, The Whale")
        assert len(found["passages"]) == 1
        assert np.linalg.norm(found["passages"][0]["vector"]) == pytest.approx(1, abs=1e-3)
        page = http.ok("POST", f"/v1/collections/{name}/documents/scroll", {"vectors": True})
        assert [one["id"] for one in page["documents"]] == [book["id"] for book in BOOKS]
        http.write(name, {"id": "moby", "text": "Call me Ishmael."})
        assert http.found(name, query="whale", mode="lexical") == []
    checks = list(verify_data(data, [], lambda *_: None))
    assert all(check.ok for check in checks), checks


def test_neither_title_nor_text_is_an_error(http: Http) -> None:
    """It names the field, and nothing of the request is written."""
    name = http.new_collection()
    for nothing in ({}, {"text": " "}, {"title": "\t", "text": ""}):
        body = {"documents": [BOOKS[0], {"id": "x", **nothing}]}
        reply = http.call("POST", f"/v1/collections/{name}/documents", body)
        assert (reply.status, reply.body["error"]["param"]) == (422, "documents[1].text")
        assert "expected text or a title" in reply.body["error"]["message"]
    assert http.ok("GET", f"/v1/collections/{name}")["documents"] == 0


def test_words_of_titles_and_headings_count_as_chosen(http: Http) -> None:
    """Titles and headings count as often as the collection was created with, in every part of it, and
    no other weights are accepted."""
    filler = "Some words about nothing in particular. " * 40
    text = f"# Renewal\n\n{filler}\n\n# Payment\n\n{filler}"
    scores: dict[tuple[str, int], list[float]] = {}
    for weights in ({}, {"title": 3, "heading": 2}, {"title": 0}):
        name = http.new_collection(**({"field_weights": weights} if weights else {}))
        shown = http.ok("GET", f"/v1/collections/{name}")["field_weights"]
        assert shown == {"title": 1, "heading": 0, **weights}
        http.write(name, {"id": "a", "title": "Certificates", "text": text}, {"id": "b", "text": filler})
        for _ in range(2):
            found = [
                http.search(name, query=query, mode="lexical", typos=False)["hits"]
                for query in ("certificates somewhere", "payment somewhere")  # which name no document
            ]
            scores[str(weights), len(scores) % 2] = [hits[0]["score"] if hits else 0.0 for hits in found]
            http.reindex(name)
    usual, rebuilt, more, more_rebuilt, none, none_rebuilt = scores.values()
    assert (rebuilt, more_rebuilt, none_rebuilt) == (usual, more, none)
    assert more[0] > usual[0] > none[0] == 0.0
    assert more[1] > usual[1] > 0.0  # the passage has its own heading in its text
    for weights, place in (({"title": 6}, "title"), ({"text": 1}, "text"), ({"heading": -1}, "heading")):
        wanted = {"name": "refused", "field_weights": weights}
        error = http.call("POST", "/v1/collections", wanted).body["error"]
        assert (error["type"], place in str(error)) == ("invalid_input", True)
