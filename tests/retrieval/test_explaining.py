"""Why a document is not among the hits: misses that were planted are told apart, and what is proposed finds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes.base.errors import InvalidInput, Unavailable
from indexes.base.model import Delete
from retrieval.access.auth import Principal
from retrieval.base.merge_patch import apply_patch, merge_patch
from retrieval.insight import explaining
from retrieval.search import pipeline
from retrieval.upkeep.expiring import delete_expired
from tests.support.http import Http
from tests.support.misses import Planter, Service, judge, serving, shares

pytestmark = pytest.mark.model


REFUNDS = {
    "id": "refunds",
    "title": "Refunds",
    "text": "Refunds are paid within 14 days.",
    "metadata": {"lang": "en"},
}


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an explanation try all changes, even on a busy machine."""
    monkeypatch.setattr(explaining, "SEARCHED_S_MAX", 10.0)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("explain") / "c", model_folder) as made:
        yield made


@pytest.fixture(scope="module")
def planter(local: Service) -> Planter:
    local.write(REFUNDS)
    return Planter(local, 400)


@pytest.mark.slow
def test_a_hit_says_why_it_is_there(local: Service, planter: Planter) -> None:
    """Its rank, its place in both exact rankings, and each word's share of its BM25 score."""
    got = local.explain("refunds", query="When are refunds paid?", k=3)
    assert got.found == 1
    assert got.cause.kind == "found"
    assert got.change is None
    assert got.searches == 1
    (passage,) = got.passages
    assert (passage.place, passage.exact.dense, passage.exact.lexical) == (1, 1, 1)
    assert {row.word for row in passage.words if row.score} == {"refunds", "paid"}
    assert sum(row.share for row in passage.words) == pytest.approx(1, abs=1e-3)
    assert passage.scores.lexical == pytest.approx(sum(row.score for row in passage.words), abs=1e-3)


def test_nothing_is_counted(local: Service, planter: Planter) -> None:
    """Explanations move no passage to the hot tier."""
    before = local.collection.hits.most()[1].sum()
    local.explain("refunds", query="When are refunds paid?", k=1)
    local.explain("refunds", query="how to sort a list", k=1)
    assert local.collection.hits.most()[1].sum() == before


def test_what_the_search_refuses_is_refused(local: Service, planter: Planter) -> None:
    """With the search's own words, also for a document that does not exist."""
    unknown = {"type": "eq", "key": "language", "value": "en"}
    for name in ("refunds", "none"):
        with pytest.raises(InvalidInput, match="no document has the metadata key 'language'"):
            local.explain(name, query="x", filter=unknown)
    with pytest.raises(InvalidInput, match="and no passage 1"):
        local.explain("refunds", query="x", passage=1)


def test_a_write_that_is_not_visible_yet(
    local: Service, planter: Planter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that waits for a later write fails; one on an older snapshot does not see the document."""
    monkeypatch.setattr(pipeline, "MIN_SEQ_WAIT_S", 0.01)
    seq = local.collection.snapshot.seq
    got = local.explain("refunds", query="When are refunds paid?", min_seq=seq + 5)
    assert got.found is None
    assert got.cause.kind == "not_visible"
    assert got.change is not None
    assert (got.change.patch, got.change.verified_rank) == ({"min_seq": None}, 1)
    before = local.collection.snapshot
    local.write({**REFUNDS, "id": "again"})
    after = local.collection.snapshot
    monkeypatch.setattr(local.collection, "_snapshot", before)
    got = local.explain("again", query="When are refunds paid?")
    assert (got.cause.kind, got.also, got.change) == ("not_visible", [], None)
    assert got.cause.evidence == {"written_seq": after.seq, "seq": before.seq}
    assert got.passages == []


def test_a_document_that_changes_meanwhile_is_not_said_to_be_invisible(
    local: Service, planter: Planter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its passages are gone, though it was written before what the search saw: the caller asks again."""
    locate = explaining.target_of

    def locate_and_change(*asked: Any) -> Any:
        target = locate(*asked)
        local.collection.change("moving", lambda one: replace(one, metadata={"changed": True})).result()
        return target

    local.write({"id": "moving", "text": "Trains leave at noon."})

    monkeypatch.setattr(explaining, "target_of", locate_and_change)
    with pytest.raises(Unavailable, match="while it was explained"):
        local.explain("moving", query="When do trains leave?")
    local.collection.write([Delete("moving")]).result()


def test_an_expired_document_is_told_from_one_that_never_was(local: Service, planter: Planter) -> None:
    """The explanation says when the document expired, until it is deleted, and only to callers who could see it."""
    local.write(
        {**REFUNDS, "id": "ended", "metadata": {"acl": ["board"]}, "expires_at": "2024-02-29T12:00:00Z"}
    )
    got = local.explain("ended", query="When are refunds paid?")
    assert (got.cause.kind, got.cause.evidence["expires_at"]) == ("expired", "2024-02-29T12:00:00Z")
    assert (got.found, got.change) == (None, None)
    others = local.explain("ended", Principal(groups=("all",)), query="When are refunds paid?")
    assert (others.cause.kind, others.cause.evidence) == ("no_document", {"similar_ids": []})
    local.run(delete_expired(local.collection))
    assert local.explain("ended", query="When are refunds paid?").cause.kind == "no_document"


def test_a_question_that_the_model_does_not_read(local: Service, planter: Planter) -> None:
    """In the middle of a long query, and without a question mark: that sentence alone finds the document."""
    story = "The children like the garden behind the house by the sea. " * 20
    query = f"{story}When refunds are paid. {story}"
    got = local.explain("refunds", query=query, mode="dense", k=1)
    assert got.cause.kind == "cut_query"
    assert got.cause.evidence["query_cut"] is True
    assert got.change is not None
    assert (got.change.patch, got.change.verified_rank) == ({"query": "When refunds are paid."}, 1)
    assert got.within_k is True
    unrelated = local.explain(planter.documents[0]["id"], query=query, mode="dense", k=1)
    assert unrelated.cause.kind != "cut_query"


@pytest.mark.parametrize(
    ("query", "language"),
    [
        ("Wie viel kostet ein Zimmer mit Frühstück?", "de"),
        ("как отсортировать список", "ru"),
        ("如何对列表进行排序", "zh"),
        ("xqzt", None),
    ],
)
def test_the_language_of_a_query_is_its_own(
    local: Service, planter: Planter, query: str, language: str | None
) -> None:
    """Also one that no document has; where the detector is unsure, nothing is said."""
    got = local.explain("refunds", query=query, mode="lexical", typos=False)
    assert got.cause.kind == "missing_terms"
    assert got.cause.evidence.get("query_language") == language


def test_two_causes_are_both_named(local: Service, planter: Planter) -> None:
    """What stands in the way after the first thing is changed comes next, and one change covers both."""
    asked: dict[str, Any] = {
        "query": "how to sort a list",
        "filter": {"type": "eq", "key": "lang", "value": "de"},
    }
    local.write({**REFUNDS, "id": "german", "metadata": {"lang": "de"}})
    got = local.explain("refunds", **asked)
    assert [got.cause.kind, *(one.kind for one in got.also)][:2] in (
        ["filtered", "beyond_depth"],
        ["filtered", "outscored"],
    )
    assert got.change is not None
    assert got.change.patch.keys() == {"filter", "offset"}
    assert got.others[-1].patch.keys() == {"filter", "k"}
    assert got.within_k is False
    local.delete("german")


def test_changes_of_a_later_page(local: Service, planter: Planter) -> None:
    """Applied to the request as it was sent, with its offset, they find the document where they say; also one that
    then comes before that page."""
    german = {"filter": {"type": "eq", "key": "lang", "value": "de"}}
    local.write({**REFUNDS, "id": "german", "metadata": {"lang": "de"}})
    behind, query, rank = next(planter.questions(lambda rank: rank >= 2))
    asked: list[tuple[str, dict[str, Any]]] = [
        (behind["id"], {**query, "k": 1, "offset": rank - 2}),
        ("refunds", {"query": "When are refunds paid?", **german, "offset": 5}),
        ("refunds", {"query": "When are refunds paid?", "min_relevance": 0.999, "offset": 5}),
    ]
    for document, search in asked:
        got = local.explain(document, **search)
        assert got.change is not None
        for change in (got.change, *got.others):
            changed = apply_patch(search, change.patch)
            assert local.found(**changed).index(document) + 1 == change.verified_rank, change
    refusals: list[tuple[int, int, dict[str, Any], str]] = [
        (10, 995, {}, "offset"),
        (-5, 20, {}, "k"),
        (100, 7, {"sort": [{"key": "lang"}]}, "offset"),
    ]
    for k, offset, more, field in refusals:
        with pytest.raises(InvalidInput) as refused:
            local.explain("refunds", query="When are refunds paid?", k=k, offset=offset, **more)
        assert refused.value.param == field
    local.delete("german")


@pytest.mark.parametrize(
    "options", [{}, {"mode": "dense"}, {"mode": "lexical"}, {"fusion": {"method": "rrf"}}], ids=str
)
def test_floors_beyond_the_depth(local: Service, planter: Planter, options: dict[str, Any]) -> None:
    """A floor is named as the cause for a document beyond the searched depth exactly if a search that reaches the
    document would drop it, by the same numbers."""
    compared = 0
    for document, asked in planter.pairs(**options, collapse=False):
        hits = local.search(**asked, k=1000).hits
        hit = next((one for one in hits if one.document_id == document["id"]), None)
        if hit is None or local.explain(document["id"], **asked).passages[0].place is not None:
            continue
        assert hit.relevance is not None
        for name, value, step in ("min_score", hit.score, 0.0005), ("min_relevance", hit.relevance, 0.0001):
            got = local.explain(document["id"], **{**asked, name: value + step})
            assert (got.cause.kind, got.cause.evidence["has"]) == (
                "below_floor",
                {name: pytest.approx(value)},
            )
            kept = local.explain(document["id"], **{**asked, name: value if name == "min_score" else 0.0})
            assert kept.cause.kind != "below_floor"
        compared += 1
        if compared == 3:
            break


def test_an_option_that_keeps_a_document_out_is_left_out(local: Service, planter: Planter) -> None:
    """Also one that no cause is about: a hit that the search's own weights put behind is found without them."""
    weights = {"fusion": {"weights": {"dense": 1.0}}}
    for document, asked, _ in planter.questions(lambda rank: rank == 1):
        if document["id"] not in local.found(**{**asked, **weights, "k": 1}):
            got = local.explain(document["id"], **{**asked, **weights, "k": 1})
            assert got.change is not None
            patches = [one.patch for one in (got.change, *got.others)]
            assert {"fusion": None} in patches
            assert {"mode": "lexical", "fusion": None} in patches  # that mode refuses fusion
            break
    else:
        pytest.fail("no such document")


def test_other_weights_bring_it_among_the_first(local: Service, planter: Planter) -> None:
    """A hit of the search's usual weights that others put behind comes back by weights nearest to those."""
    alone = {"fusion": {"weights": {"dense": 1.0, "lexical": 0.0}}}
    for document, asked, _ in planter.questions(lambda rank: rank == 1, mode="hybrid"):
        search = {**asked, **alone, "k": 1}
        if local.found(**search) != [document["id"]]:
            got = local.explain(document["id"], **search)
            assert got.change is not None
            assert got.within_k is True
            dense = got.change.patch["fusion"]["weights"]["dense"]
            assert 0 < dense < 1
            between = {
                "fusion": {"weights": {"dense": (1 + dense) / 2 + 0.05, "lexical": (1 - dense) / 2 - 0.05}}
            }
            assert dense == 0.9 or document["id"] not in local.found(**{**search, **between})
            break
    else:
        pytest.fail("no such document")


def test_what_a_caller_may_not_see_does_not_exist(local: Service, planter: Planter) -> None:
    """For a caller with groups a document of others is like one that was never written, its id is not suggested, and it
    counts in no rank."""
    local.write({**REFUNDS, "id": "secret-1", "metadata": {"acl": ["board"]}})
    local.write(
        {**REFUNDS, "id": "open-1", "text": "Refunds are paid in cash.", "metadata": {"acl": ["all"]}}
    )
    caller, query = Principal(groups=("all",)), "Refunds are paid within 14 days."
    hidden = local.explain("secret-1", caller, query=query)
    absent = local.explain("secret-2", caller, query=query)
    assert hidden.cause.reason.replace("secret-1", "secret-2") == absent.cause.reason
    assert hidden.cause.evidence == absent.cause.evidence == {"similar_ids": []}
    assert (hidden.passages, hidden.change) == ([], None)
    before = local.explain("open-1", caller, query=query).passages[0].exact
    local.write(*({**REFUNDS, "id": f"secret-{at}", "metadata": {"acl": ["board"]}} for at in range(2, 8)))
    assert local.explain("open-1", caller, query=query).passages[0].exact == before
    unknown = {"type": "eq", "key": "salary", "value": 1}
    refused = local.explain("open-1", caller, query=query, filter=unknown)
    assert refused.cause.kind == "filtered"
    assert refused.change is not None
    assert refused.change.patch["filter"] is None
    local.delete("open-1", *(f"secret-{at}" for at in range(1, 8)))


@pytest.mark.slow
def test_planted_misses_are_explained(local: Service, planter: Planter) -> None:
    """Over 100 misses of twelve kinds: at least 97 percent are explained right, and every change does what it says."""
    misses = chain(planter.plant(8), islice(planter.missed(), 8))
    verdicts = [judge(local, miss) for miss in misses]
    wrong = [one for one in verdicts if one.faults]
    assert len(verdicts) > 100
    assert len(shares(verdicts)) == 12
    assert len(wrong) <= 0.03 * len(verdicts), (shares(verdicts), [(one.miss, one.faults) for one in wrong])
    assert not [fault for one in wrong for fault in one.faults if "gives" in fault]


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_a_thousand_planted_misses_are_explained(tmp_path: Path, model_folder: Path) -> None:
    """1,000 misses in the whole library: at least 99 percent are explained right."""
    with serving(tmp_path / "c", model_folder) as local:
        planter = Planter(local, 5000, seed=7)
        misses = chain(planter.plant(70), islice(planter.missed(), 70))
        verdicts = [judge(local, miss) for miss in misses]
    print(shares(verdicts))  # noqa: T201 - for whoever quotes it
    wrong = [(one.miss, one.faults) for one in verdicts if one.faults]
    assert len(verdicts) >= 1000
    assert len(wrong) <= 0.01 * len(verdicts), wrong


# --- over HTTP ----------------------------------------------------------------------------------------------------


def test_a_cross_encoder_that_puts_it_behind(http: Http) -> None:
    """What is a hit without the reranker, and none with it, was reranked; the change leaves the reranker out."""
    name = http.new_collection()
    texts = [f"Refunds of order {number} are paid within {number} days." for number in range(20)]
    http.write(name, *({"id": f"d{at}", "text": text} for at, text in enumerate(texts)))
    asked: dict[str, Any] = {"query": "when are refunds of order 7 paid", "k": 3, "cache": False}
    without = http.found(name, **asked)
    behind = [one for one in without if one not in http.found(name, **asked, rerank={"weight": 1.0})]
    assert behind
    body = {**asked, "rerank": {"weight": 1.0}, "document_id": behind[0]}
    got = http.ok("POST", f"/v1/collections/{name}/explain", body)
    assert got["cause"]["kind"] == "reranked"
    assert got["change"] == {"patch": {"rerank": False}, "verified_rank": without.index(behind[0]) + 1}


def test_a_cross_encoder_that_would_bring_it(http: Http) -> None:
    """Where no change of the scoring or of the words brings a document among the first hits, the reranker is tried."""
    name = http.new_collection()
    texts = [f"Refunds of order {number} are paid within {number} days." for number in range(20)]
    http.write(name, *({"id": f"d{at}", "text": text} for at, text in enumerate(texts)))
    for k in range(1, len(texts)):
        asked: dict[str, Any] = {"query": "when are refunds of order 7 paid", "k": k, "cache": False}
        without = http.found(name, **asked)
        for gained in [one for one in http.found(name, **asked, rerank=True) if one not in without]:
            got = http.ok("POST", f"/v1/collections/{name}/explain", {**asked, "document_id": gained})
            if got["change"]["patch"] == {"rerank": True}:
                assert got["within_k"] is True
                assert got["change"]["verified_rank"] <= k
                return
    pytest.fail("the reranker was never the change")


# --- merge patches ------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


def test_as_many_hits_are_needed_as_find_it(http: Http) -> None:
    """Copies that collapse are none of them."""
    name = http.new_collection()
    texts = [
        "river bank",
        "river bank",
        "river bank path",
        "a river and its long bank path",
        "the bank by a river, and trees",
    ]
    http.write(name, *({"id": f"d{at}", "text": text} for at, text in enumerate(texts)))
    asked = {"query": "river bank", "k": 1}
    last = http.found(name, **{**asked, "k": 5})[-1]
    found = http.ok("POST", f"/v1/collections/{name}/explain", {**asked, "document_id": last})
    change = next(one for one in (found["change"], *found["others"]) if "k" in one["patch"])
    assert (found["cause"]["kind"], found["cause"]["evidence"]["k_needed"]) == ("outscored", 4)
    assert change["patch"] == {"k": 4}


def test_options_that_leave_a_document_out_are_named(http: Http) -> None:
    """A phrase that it lacks, being an example itself, and an order that is not by score."""
    name = http.new_collection()
    http.write(
        name,
        {"id": "near", "text": "The plan of the party was secret.", "metadata": {"price": 2}},
        {"id": "phrase", "text": "A party plan for the garden.", "metadata": {"price": 1}},
    )
    path = f"/v1/collections/{name}/explain"

    def explained(**options: object) -> Any:
        return http.ok("POST", path, {"document_id": "near", **options})

    def cause(**options: object) -> Any:
        return explained(**options)["cause"]

    missed = explained(query='"party plan"', operators=True)
    assert (missed["cause"]["kind"], missed["change"]["patch"]) == ("left_out", {"operators": None})
    assert "phrase" in missed["cause"]["reason"]
    example = cause(like=["near"])
    assert (example["kind"], "example" in example["reason"]) == ("left_out", True)
    behind = cause(query="party plan", k=1, sort=[{"key": "price"}])
    assert "stands before it as `sort` has it" in behind["reason"]


def test_words_of_the_query_bring_it_among_the_first(http: Http) -> None:
    """A phrase that the document has and others lack, before a later page; a word as it is written; or nothing."""
    name = http.new_collection()
    http.write(
        name,
        {"id": "near", "text": "The plan of the party."},
        {
            "id": "phrase",
            "text": "Nobody had a party plan for the garden behind the house with the red roof.",
        },
        {"id": "keeper", "text": "Zookeeper, zookeeper."},
        {"id": "other", "text": "Orchids in the garden behind the house with the red roof."},
        {"id": "twin1", "text": "Lighthouses are white."},
        {"id": "twin2", "text": "Lighthouses are white!"},
    )
    asked: dict[str, Any] = {"k": 1, "mode": "lexical"}

    def changes(document_id: str, query: str) -> tuple[bool, list[Any]]:
        body = {"document_id": document_id, "query": query, **asked}
        got = http.ok("POST", f"/v1/collections/{name}/explain", body)
        return got["within_k"], [one["patch"] for one in (got["change"], *got["others"])]

    within, patches = changes("phrase", "party plan")
    assert within
    assert patches[0] == {"query": '"party plan"', "operators": True}
    assert patches[-2:] == [{"offset": 1}, {"k": 2}]
    within, patches = changes("other", "zookeper orchids")
    assert within
    assert {"typos": False} in patches
    assert changes("twin2", "white lighthouses") == (False, [{"offset": 1}, {"k": 2}])


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_leads_from_one_to_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    """As RFC 7396 applies it."""
    patch = merge_patch(before, after)
    assert patch is not None
    assert apply_patch(before, patch) == after
