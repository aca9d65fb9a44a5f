"""Typing errors: a word that no document has is looked up as the nearest one that some document has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import OSA

from indexes.lexical.bm25 import LexicalPart
from indexes.lexical.postings import GrowingLexical
from indexes.lexical.typos import Corrections
from jobs.serving.process import ServerProcess
from tests.support.http import Http

DOCUMENTS: list[dict[str, Any]] = [
    {"id": "k8s", "title": "Kubernetes", "text": "Restarting a pod in the cluster."},
    {"id": "cats", "text": "Cats sleep for most of the day."},
    {"id": "mail", "text": "Undeliverable messages return to their sender. Error E4012 is temporary."},
    {"id": "haus", "text": "Die Wohnungsbaugenossenschaft vermietet Häuser am Fluss.", "language": "de"},
]


@pytest.fixture(scope="module", params=["delta", "generation"])
def notes(service: ServerProcess, request: pytest.FixtureRequest) -> str:
    http = Http(service.url)
    name = http.new_collection()
    http.write(name, *DOCUMENTS)
    if request.param == "generation":
        http.reindex(name)
    return name


@pytest.mark.parametrize(
    ("query", "found", "corrected"),
    [
        ("kubrenetes", "k8s", {"kubrenetes": "Kubernetes"}),
        ("restarrting pods", "k8s", {"restarrting": "Restarting"}),
        ("slepe", "cats", {"slepe": "sleep"}),
        ("undelievrable mesages?", "mail", {"undelievrable": "Undeliverable", "mesages": "messages"}),
        ("Wohnungsbaugenosenschaft", "haus", {"Wohnungsbaugenosenschaft": "Wohnungsbaugenossenschaft"}),
    ],
)
def test_the_nearest_word_is_looked_up(
    http: Http, notes: str, query: str, found: str, corrected: dict[str, str]
) -> None:
    """Lexical search finds it, the receipt says what was taken for what, and highlights show it; cached or not."""
    for _ in range(2):
        answer = http.search(notes, query=query, mode="lexical", highlight=True)
        assert answer["hits"][0]["document_id"] == found
        assert answer["receipt"]["corrected"] == corrected
        hit = answer["hits"][0]
        shown = {hit["text"][start:end] for start, end in hit["highlights"]}
        assert set(corrected.values()) - {"Kubernetes"} <= shown
    hybrid = http.search(notes, query=query)
    assert hybrid["receipt"]["corrected"] == corrected
    assert hybrid["hits"][0]["document_id"] == found


@pytest.mark.parametrize(
    "query", ["cats sleep", "cat", "E4013", "xyzzyplugh", "nday", "the", "Fluß", "restartPod"], ids=str
)
def test_other_words_stay(http: Http, notes: str, query: str) -> None:
    """A word that some document has, a code, a short word, and one that is near nothing."""
    assert "corrected" not in http.search(notes, query=query)["receipt"]


def test_it_can_be_left_out(http: Http, notes: str) -> None:
    """With `typos` false, or in dense mode, nothing is looked up instead; such an answer is not shared by the cache."""
    http.search(notes, query="kubrenetes", mode="lexical")
    for options in ({"mode": "lexical", "typos": False}, {"mode": "dense"}):
        answer = http.search(notes, query="kubrenetes", **options)
        assert "corrected" not in answer["receipt"]
    assert http.found(notes, query="kubrenetes", mode="lexical", typos=False) == []


@pytest.mark.parametrize("rebuilt", [False, True])
def test_deleted_documents_vouch_for_no_word(http: Http, rebuilt: bool) -> None:
    """A word that only they have is corrected, also before the rebuild that leaves them out."""
    name = http.new_collection()
    http.write(name, *DOCUMENTS, {"id": "typo", "text": "Kubernetse and the slepe of a pod."})
    if rebuilt:
        http.reindex(name)
    http.ok("DELETE", f"/v1/collections/{name}/documents/typo")
    answer = http.search(name, query="kubernetse", mode="lexical")
    assert answer["receipt"]["corrected"] == {"kubernetse": "Kubernetes"}
    assert [hit["document_id"] for hit in answer["hits"]] == ["k8s"]


def test_a_context_forgives_too(http: Http, notes: str) -> None:
    """A context is found by the same search."""
    body = {"query": "kubrenetes restarting", "token_budget": 200}
    answer = http.ok("POST", f"/v1/collections/{notes}/context", body)
    assert answer["receipt"]["corrected"] == {"kubrenetes": "Kubernetes"}


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("aples", "appl"),
        ("aplications", "applic"),
        ("runing", "run"),
        ("boxs", None),
        ("aps", None),
        ("darkness", None),
    ],
)
def test_a_word_is_as_long_as_it_is_written(word: str, meant: str | None) -> None:
    """A stem of three letters is completed, never swapped for another short one; much of a short stem stays."""
    texts = ["apples", "applications", "run", "api api api", "box", "ape", "dock", "barks"]
    growing = GrowingLexical()
    for text in texts:
        growing.add(text, "en")
    for part in (growing.view(len(texts)), growing.seal(len(texts))):
        corrections = Corrections([part])
        corrections.look_up(word, "en", {})
        assert [term for _, term in corrections.found.values()] == ([] if meant is None else [meant])


def corrections(texts: list[tuple[str, str]], word: str, language: str, *others: str) -> list[str]:
    """The terms that a word is corrected to among texts, each with its language; the same growing and sealed."""
    growing = GrowingLexical()
    for text, spoken in texts:
        growing.add(text, spoken)
    found = []
    for part in (growing.view(len(texts)), growing.seal(len(texts))):
        tried = Corrections([part])
        tried.look_up(word, language, dict.fromkeys(others, 0.5))
        found.append([term for _, term in tried.found.values()])
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("spoken", ["en", "tr", "et", "lt", "ca"])
@pytest.mark.parametrize("word", ["username", "Username", "filename", "database"])
def test_a_name_is_not_corrected_to_a_part_of_it(word: str, spoken: str) -> None:
    """A word is not corrected to a part of an identifier, whatever languages text and query are taken to be in."""
    code = [("getUserName and setUserName", spoken), ("FileName of a DataBase", spoken), ("data", spoken)]
    for asked in (spoken, "tr", "lt", "en"):
        assert corrections(code, word, asked, *({spoken, "en", "tr", "lt", "ca"} - {asked})) == []


def test_a_stem_means_words_of_its_language() -> None:
    """What stemming in one language leaves of a word is not near the words of another."""
    texts = [("the users of a host", "en"), ("kullanıcılar evlerde", "tr")]
    assert corrections(texts, "usernda", "en", "tr") == []
    assert corrections(texts, "userrs", "en", "tr") == ["user"]
    assert corrections(texts, "kulanıcılar", "en", "tr") == corrections(texts, "kulanıcılar", "tr") != []


WORDS = st.text("abcdr", min_size=3, max_size=10)


@given(st.lists(WORDS, min_size=1, max_size=12), WORDS)
def test_it_is_the_nearest_of_all(texts: list[str], word: str) -> None:
    """None but a term with its first letter and within the edits forgiven; of those, none is nearer."""
    growing = GrowingLexical()
    for text in texts:
        growing.add(text, "xx")
    parts: list[LexicalPart] = [growing.view(len(texts)), growing.seal(len(texts))]
    edits = 2 if len(word) >= 8 else 1
    near = {OSA.distance(word, text) for text in texts if text[0] == word[0]}
    forgiven = len(word) >= 4 and word not in texts and bool(near) and min(near) <= edits
    for part in parts:
        corrections = Corrections([part])
        corrections.look_up(word, "xx", {})
        assert corrections.whole
        assert bool(corrections.found) == forgiven
        if forgiven:
            _, term = corrections.found[word]
            assert term in texts
            assert OSA.distance(word, term) == min(near)
