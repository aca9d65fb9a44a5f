"""Languages of documents, collections and queries, through the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.serving.process import serving
from tests.support.http import Http

TEXTS = {
    "de": "Die Bibliotheken der Universitäten öffnen ihre Lesesäle am frühen Morgen.",
    "ru": "Библиотеки университетов открывают читальные залы рано утром.",
    "en": "The libraries of the universities open their reading rooms early in the morning.",
}


@pytest.fixture(scope="module")
def http(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with serving(tmp_path_factory.mktemp("languages") / "data", environ) as server:
        yield Http(server.url)


@pytest.mark.slow
def test_documents_in_three_languages_are_found_by_other_forms(http: Http) -> None:
    """Each in its own language, found out when it is written; the collection counts them, hits and documents say it."""
    http.ok("POST", "/v1/collections", {"name": "mixed"})
    http.write("mixed", *({"id": code, "text": text} for code, text in TEXTS.items()))
    for reindexed in (False, True):
        if reindexed:
            assert http.reindex("mixed")["status"] == "succeeded"
        shown = http.ok("GET", "/v1/collections/mixed")
        assert (shown["language"], shown["languages"]) == ("auto", {"de": 1, "en": 1, "ru": 1})
        for query, code in [("universität lesesaal", "de"), ("библиотека", "ru"), ("library opening", "en")]:
            assert http.found("mixed", query=query, mode="lexical", cache=False) == [code]
    [hit] = http.search("mixed", query="библиотека", mode="lexical")["hits"]
    assert hit["language"] == http.ok("GET", "/v1/collections/mixed/documents/ru")["language"] == "ru"
    http.ok("DELETE", "/v1/collections/mixed/documents/de")
    assert http.ok("GET", "/v1/collections/mixed")["languages"] == {"en": 1, "ru": 1}


def test_what_is_given_is_kept(http: Http) -> None:
    """A document's own code before the collection's, and no other when its metadata change; `auto` finds out."""
    http.ok("POST", "/v1/collections", {"name": "given", "language": "tr"})
    http.write(
        "given",
        {"id": "own", "text": "E 4711", "language": "pt-BR"},
        {"id": "default", "text": "E 4711"},
        {"id": "auto", "text": TEXTS["de"], "language": "auto"},
    )
    http.ok("PATCH", "/v1/collections/given/documents/own", {"metadata": {"year": 2026}})
    stored = {
        one["id"]: one["language"] for one in http.ok("GET", "/v1/collections/given/documents")["documents"]
    }
    assert stored == {"own": "pt-BR", "default": "tr", "auto": "de"}
    assert http.ok("GET", "/v1/collections/given")["languages"] == {"de": 1, "pt": 1, "tr": 1}
    rewritten = http.write("given", {"id": "default", "text": "E 4711", "language": "de"})
    assert (rewritten["documents"], rewritten["unchanged"]) == (1, 0)


def test_a_query_may_name_its_language(http: Http) -> None:
    """Its function words go, and its words are found as that language has them; a wrong one loses no exact word."""
    http.ok("POST", "/v1/collections", {"name": "named"})
    http.write("named", {"id": "en", "text": "die hard"}, {"id": "de", "text": TEXTS["de"]})
    assert set(http.found("named", query="die morgens", mode="lexical", language="en")) == {"en", "de"}
    assert http.found("named", query="die Morgen", mode="lexical", language="de-AT") == ["de"]
    assert http.found("named", query="Universitäten", mode="lexical", language="fi") == ["de"]


SEARCHING: dict[str, dict[str, object]] = {
    "search": {"query": "a", "facets": [{"key": "x"}]},
    "context": {"query": "a", "token_budget": 100},
    "explain": {"query": "a", "document_id": "a"},
    "assess": {"action": "a"},
}


@pytest.mark.parametrize("code", ["english", "en_US", "e", "en-", "jp", "xx-invalid-zz"])
def test_a_bad_code_is_refused_by_name(http: Http, code: str) -> None:
    """In a collection, a document and everything that searches; nothing is written."""
    name = http.new_collection()
    body = {"documents": [{"id": "a", "text": "a", "language": code}]}
    for path, sent, param in [
        ("", {"name": "bad", "language": code}, "language"),
        (f"/{name}/documents", body, "documents[0].language"),
        *((f"/{name}/{verb}", {**asked, "language": code}, "language") for verb, asked in SEARCHING.items()),
    ]:
        refused = http.call("POST", f"/v1/collections{path}", sent)
        assert (refused.status, refused.body["error"]["param"]) == (422, param)
        assert "BCP 47" in refused.body["error"]["message"]
    assert http.ok("GET", f"/v1/collections/{name}")["documents"] == 0


def test_a_word_that_only_another_language_has_counts_as_one_of_the_querys(http: Http) -> None:
    """A single word is often taken for one of another language. Where that has no such word, the passage that has it is
    first, as it is if the language is given, and it is evidence."""
    english = [
        {"id": f"e{number}", "text": f"Parcel {number} was sent to the customer on a rainy day of autumn."}
        for number in range(100)
    ]
    other = {
        "es": "Le devolveremos el dinero en un plazo de catorce días tras recibir el paquete.",
        "de": "Die Gäste legen ihre Mäntel auf den Stuhl neben dem Eingang.",
        "ru": "Возврат возможен в течение четырнадцати дней после покупки.",
    }
    name = http.new_collection()
    http.write(
        name, *english, *({"id": code, "text": text, "language": code} for code, text in other.items())
    )
    for code, word in (("es", "plazo"), ("de", "legen"), ("ru", "четырнадцати"), ("de", "mäntel")):
        for mode in ("lexical", "hybrid"):
            found = http.search(name, query=word, mode=mode, min_relevance=0.1)
            assert found["hits"][0]["document_id"] == code, word
            assert found["receipt"]["evidence"] != "none", word
            told = http.search(name, query=word, mode=mode, language=code)
            assert found["hits"][0]["scores"]["lexical"] == pytest.approx(
                told["hits"][0]["scores"]["lexical"], rel=0.2
            )
