"""Synonyms of a collection: what a search by words takes for each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexes.lexical.synonyms import TERMS_MAX, Synonyms, expand
from jobs.serving.process import ServerProcess
from tests.support.http import Http

TEXTS = {
    "long": "Kubernetes upgrades are announced a week ahead.",
    "short": "How k8s upgrades are rolled back.",
    "service level agreement": "The service level agreement promises three nines.",
    "sla": "Our SLA is reviewed every spring.",
    "car": "The car is washed on Friday.",
    "automobiles": "Old automobiles need leaded fuel.",
    "other": "Roses are cut in spring.",
}
LISTS = [["k8s", "Kubernetes"], ["SLA", "service level agreement"], ["car", "automobile", "motor vehicle"]]


@pytest.fixture(scope="module")
def meant(service: ServerProcess) -> tuple[Http, str]:
    """A collection with synonyms, set once."""
    http = Http(service.url)
    name = http.new_collection(language="en")
    http.write(name, *({"id": one, "text": text} for one, text in TEXTS.items()))
    http.ok("PUT", f"/v1/collections/{name}/synonyms", {"synonyms": LISTS})
    return http, name


def found(http: Http, name: str, query: str, **search: Any) -> list[str]:
    return http.found(name, query=query, mode="lexical", typos=False, **search)


@pytest.mark.parametrize(
    ("query", "hits"),
    [
        ("k8s", {"short", "long"}),
        ("kubernetes", {"short", "long"}),
        ("SLA", {"sla", "service level agreement"}),
        ("service level agreement", {"sla", "service level agreement"}),
        ("cars", {"car", "automobiles"}),
        ("motor vehicle", {"car", "automobiles"}),
        ("service", {"service level agreement"}),
        ("roses", {"other"}),
    ],
)
def test_words_of_a_list_find_each_other(meant: tuple[Http, str], query: str, hits: set[str]) -> None:
    """In any form of the word, and an expression only by all of its words."""
    assert set(found(*meant, query)) == hits


def test_synonyms_count_as_one_word(meant: tuple[Http, str]) -> None:
    """A passage with either scores as if both were one word: the other words of the query decide."""
    http, name = meant
    assert found(http, name, "k8s announced a week ahead")[0] == "long"
    assert found(http, name, "kubernetes rolled back")[0] == "short"
    hits = http.search(name, query="k8s", mode="lexical", highlight=True)["hits"]
    assert all(len(hit["highlights"]) == 1 for hit in hits)
    assert hits[0]["relevance"] > 0


def test_what_is_meant_is_not_corrected(http: Http) -> None:
    """A word that no passage has, but its synonyms."""
    name = http.new_collection(language="en")
    http.write(
        name, {"id": "a", "text": "Containers are scheduled by kubernetes."}, {"id": "b", "text": "kubectx"}
    )
    assert http.search(name, query="kubectl", mode="lexical")["receipt"]["corrected"] == {
        "kubectl": "kubectx"
    }
    http.ok("PUT", f"/v1/collections/{name}/synonyms", {"synonyms": [["kubectl", "kubernetes"]]})
    answer = http.search(name, query="kubectl", mode="lexical")
    assert [hit["document_id"] for hit in answer["hits"]] == ["a"]
    assert "corrected" not in answer["receipt"]


def test_they_are_used_at_once_and_kept(http: Http, service: ServerProcess) -> None:
    """No cached answer of before, and none of after, once they are removed. A second list replaces the first."""
    name = http.new_collection(language="en")
    path = f"/v1/collections/{name}/synonyms"
    http.write(name, {"id": "a", "text": "The lift is out of order."}, {"id": "b", "text": "A hoist."})
    assert found(http, name, "elevator") == []
    assert http.ok("GET", path) == {"synonyms": [], "set_ms": None}
    assert http.ok("PUT", path, {"synonyms": [["elevator", "lift"]]})["synonyms"] == [["elevator", "lift"]]
    assert found(http, name, "elevator") == ["a"]
    http.reindex(name)
    assert found(http, name, "elevator") == ["a"]
    http.ok("PUT", path, {"synonyms": [["elevator", "hoist"]]})
    assert found(http, name, "elevator") == ["b"]
    for _ in range(2):
        http.ok("DELETE", path)
    assert found(http, name, "elevator") == []


@pytest.mark.parametrize(
    ("synonyms", "param"),
    [
        ([["alone"]], "synonyms[0]"),
        ([["a", "b"], ["good", "?!"]], "synonyms[1][1]"),
        ([["a", "one two three four five six seven eight nine"]], "synonyms[0][1]"),
        ([["a", ""]], "synonyms[0][1]"),
        ([["a", "x" * 101]], "synonyms[0][1]"),
        ([["a", "b"]] * 1001, "synonyms"),
        ([["a" * 100, "b" * 100]] * 501, "synonyms"),
        ("a, b", "synonyms"),
    ],
)
def test_an_error_names_the_place(meant: tuple[Http, str], synonyms: object, param: str) -> None:
    http, name = meant
    reply = http.call("PUT", f"/v1/collections/{name}/synonyms", {"synonyms": synonyms})
    assert (reply.status, reply.body["error"]["param"]) == (422, param)
    assert http.ok("GET", f"/v1/collections/{name}/synonyms")["synonyms"] == LISTS


WORDS = ["alpha", "beta", "gamma", "delta", "epsilon"]


@settings(deadline=None)
@given(
    own=st.sets(st.sampled_from(WORDS), min_size=1),
    lists=st.lists(
        st.lists(
            st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join),
            min_size=2,
            max_size=4,
        ).map(tuple),
        max_size=4,
    ).map(tuple),
)
def test_an_expansion_is_sound(own: set[str], lists: tuple[tuple[str, ...], ...]) -> None:
    """What is replaced is in exactly one group, and no term counts for more than a word."""
    found = expand(own, Synonyms(lists), "en")
    grouped = [term for group in found.groups.values() for term in group.terms & own]
    assert sorted(grouped) == sorted(found.replaced)
    assert found.replaced <= own
    assert all(0 < count <= 1 for count in found.counts.values())
    assert set(found.groups) <= set(found.counts)
    assert not (set(found.counts) & own)


def test_a_word_of_two_lists_is_one_word() -> None:
    """Both lists become one group that has all of their words."""
    found = expand({"beta"}, Synonyms((("alpha", "beta"), ("beta", "gamma"))), "en")
    assert [group.terms for group in found.groups.values()] == [{"alpha", "beta", "gamma"}]


def test_a_query_is_expanded_by_few_terms(http: Http) -> None:
    """And says so where lists were left out."""
    lists = tuple((f"beta gamma{at}", f"delta{at} zeta{at}", "alpha") for at in range(100))
    found = expand({"alpha"}, Synonyms(lists), "en")
    assert not found.whole
    assert len(found.counts) <= TERMS_MAX
    name = http.new_collection(language="en")
    http.write(name, {"id": "a", "text": "alpha"})
    http.ok("PUT", f"/v1/collections/{name}/synonyms", {"synonyms": lists})
    assert http.search(name, query="alpha")["receipt"]["over_budget"] == ["synonyms"]
    assert "over_budget" not in http.search(name, query="beta")["receipt"]


def test_an_explanation_knows_them(meant: tuple[Http, str]) -> None:
    """A document that has a synonym does not lack the query's word; one that has none does."""
    http, name = meant
    asked = {"query": "cars wash", "mode": "lexical", "k": 1}
    second, other = (
        http.ok("POST", f"/v1/collections/{name}/explain", {**asked, "document_id": one})["cause"]
        for one in ("automobiles", "other")
    )
    assert "it does not hold 'wash'" in second["reason"]
    assert other["evidence"]["words"] == ["cars", "wash"]


@pytest.mark.parametrize("query", ["k8s upgrades", "upgr*", "kube* SLA", "car spring"])
def test_scores_forget_what_was_replaced(http: Http, query: str) -> None:
    """Words that count as one are as rare as in a fresh collection, whatever was replaced and deleted before."""
    documents = [{"id": one, "text": text} for one, text in TEXTS.items()]
    old, fresh = (http.new_collection(language="en") for _ in range(2))
    http.write(old, *documents, *({"id": f"gone{at}", "text": " ".join(TEXTS.values())} for at in range(40)))
    http.reindex(old)
    for number in range(5):
        http.write(old, *({**one, "metadata": {"number": number}} for one in documents))
    http.ok("POST", f"/v1/collections/{old}/documents/delete", {"ids": [f"gone{at}" for at in range(40)]})
    http.write(fresh, *documents)
    asked = {"query": query, "mode": "lexical", "operators": True, "typos": False}
    searches = [(f"/v1/collections/{name}/search", asked) for name in (old, fresh)]
    for name in (old, fresh):
        http.ok("PUT", f"/v1/collections/{name}/synonyms", {"synonyms": LISTS})
    searches += [("/v1/search", {**asked, "collections": [name]}) for name in (old, fresh)]
    answers = [http.ok("POST", *search)["hits"] for search in searches]
    scores = [{hit["document_id"]: hit["score"] for hit in hits} for hits in answers]
    assert scores[0] == scores[1]
    assert scores[2] == scores[3]
    assert scores[0]


SEGMENTED = ["ประเทศไทย", "กรุงเทพมหานคร", "コミュニケーション", "中华人民共和国国务院", "မြန်မာနိုင်ငံ"]


@pytest.mark.parametrize("word", SEGMENTED)
def test_words_of_scripts_without_spaces_are_no_letters(http: Http, word: str) -> None:
    name = http.new_collection(model=None, dimensions=2)
    http.write(name, {"id": "a", "text": f"{word}.", "vector": [1, 0]})
    http.ok("PUT", f"/v1/collections/{name}/synonyms", {"synonyms": [[word, "meant"]]})
    hits = http.search(name, query="meant", mode="lexical", language="en", cache=False)["hits"]
    assert [hit["document_id"] for hit in hits] == ["a"]
