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
