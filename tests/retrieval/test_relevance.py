"""Relevance: what the weights may do, what fitting and the conformal bound promise, and what a service says."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes.base.errors import InvalidInput
from indexes.base.model import DenseResult, Ranking
from indexes.parts.query import Candidates
from jobs.evaluation.relevance import JudgedHits, fit_calibration, reliability
from jobs.sources.judgments import read_judgments
from retrieval.base.settings import Config
from retrieval.embedding.models import read_manifest
from retrieval.search.plan import make_plan
from retrieval.search.relevance import (
    BUILT_IN,
    Calibration,
    Columns,
    calibration_for,
    calibrations_of,
    evidence_of,
    features_of,
    fit,
    highest_bound,
    lowest_bound,
    relevance_of,
)
from retrieval.wire.search import EvidenceFrom, SearchRequest
from tests.support.http import Http

CALIBRATIONS = list(BUILT_IN.values())
WORDS = BUILT_IN["lexical"]
FLOOR = 0.2
PRIOR = (-5.0, 3.0, 3.0, 6.0, 6.0)
SHOES = [
    "Waterproof hiking boots with a sturdy sole.",
    "Light running shoes for long distances.",
    "Leather sandals for the summer.",
    "Wool socks that keep your feet warm.",
]


def candidates_of(dense: list[float], lexical: list[float], best: float) -> Candidates:
    """Passages 0, 1, ... as both searchers rank them, given their scores, best first."""
    both = [
        Ranking(np.arange(len(one)), np.array(one, np.float32), np.zeros(len(one), np.int8))
        for one in (dense, lexical)
    ]
    return Candidates.join(DenseResult(both[0], (), None), both[1], lexical_bound=best)


def test_features_by_hand() -> None:
    """Cosine from the floor to 1, BM25 over what was asked, and their lead over the tenth; absent ones have 0."""
    found = candidates_of([0.9 - at / 20 for at in range(12)], [6.0, 4.0], 8.0)
    features = features_of(found, found.dense[:2], found.lexical[:2], 0.5)
    assert features[0].tolist() == pytest.approx([1, 0.8, 0.75, 0.9, 0.75])
    assert features[1].tolist() == pytest.approx([1, 0.7, 0.5, 0.8, 0.5])
    unasked = np.full(2, np.nan, np.float32)
    assert features_of(found, unasked, found.lexical[:2], FLOOR)[:, 1].tolist() == [0, 0]
    empty = candidates_of([], [], 0.0)
    assert features_of(empty, empty.dense, empty.lexical, FLOOR).shape == (0, 5)


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@given(st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=30), st.data())
def test_a_higher_score_is_never_less_relevant(
    calibration: Calibration, cosines: list[float], data: Any
) -> None:
    """Neither by meaning nor by words, whatever the other candidates are."""
    cosines = sorted(cosines, reverse=True)
    words = sorted((abs(one) for one in cosines), reverse=True)
    found = candidates_of(cosines, words, 1.0)
    at = data.draw(st.integers(0, len(cosines) - 2))
    first, second = (
        relevance_of(
            features_of(found, found.dense[[at, at + 1]][::step], found.lexical[[at, at]], FLOOR), calibration
        )
        for step in (1, -1)
    )
    assert first[0] >= first[1]
    assert second[1] >= second[0]
    lexical = relevance_of(
        features_of(found, found.dense[[at, at]], found.lexical[[at, at + 1]], FLOOR), calibration
    )
    assert lexical[0] >= lexical[1]


# --- fitting ----------------------------------------------------------------------------------------------------


def drawn(weights: tuple[float, ...], rows: int, seed: int = 0) -> tuple[Columns, Columns]:
    """Hits with features between 0 and 1, relevant as often as the weights say."""
    rng = np.random.default_rng(seed)
    features = np.column_stack([np.ones(rows), rng.random((rows, 4))])
    return features, (rng.random(rows) < relevance_of(features, Calibration(weights, 0, 1))).astype(float)


def test_fitting_finds_the_weights() -> None:
    """Those by which the labels were drawn, when there are many."""
    true = (-4.0, 5.0, 1.0, 2.0, 0.5)
    features, labels = drawn(true, 50_000)
    assert fit(features, labels, PRIOR) == pytest.approx(true, abs=0.3)


def test_few_labels_change_little() -> None:
    """Without any nothing changes; with ten, no weight by more than one."""
    features, labels = drawn((-1.0, 0.0, 0.0, 0.0, 0.0), 10)
    assert fit(features[:0], labels[:0], PRIOR) == PRIOR
    assert fit(features, labels, PRIOR, strength=10.0) == pytest.approx(PRIOR, abs=1)


def test_no_weight_is_negative() -> None:
    """Labels that fall with a score make it count nothing, and what counted nothing before stays so."""
    features, labels = drawn((2.0, 4.0, 0.0, -6.0, 1.0), 5000)
    weights = fit(features, labels, PRIOR)
    assert weights[3] == 0
    assert min(weights[1:]) == 0
    assert relevance_of(features, Calibration(weights, 0, 1)).mean() == pytest.approx(labels.mean(), abs=0.02)
    assert fit(features, labels, WORDS.weights)[1] == 0


def test_the_bound_holds_for_new_questions() -> None:
    """Over many draws, new questions stay below the lowest, or reach the highest, at most as often as asked; too few to
    choose by choose 0, or 1."""
    rng = np.random.default_rng(0)

    def draw(n: int) -> Columns:
        return rng.beta(2, 3, n).round(4)

    draws = [n for n in (12, 45) for _ in range(500)]
    below = [np.mean(draw(1000) < lowest_bound(draw(n), 0.1)) for n in draws]
    reach = [np.mean(draw(1000) >= highest_bound(draw(n), 0.1)) for n in draws]
    assert 0.08 < np.mean(below) <= 0.1
    assert 0.08 < np.mean(reach) <= 0.1
    assert (lowest_bound([0.5] * 8, 0.1), highest_bound([0.5] * 8, 0.1)) == (0.0, 1.0)
    assert highest_bound([0.5] * 9, 0.1) > 0.5


def test_a_collection_refits_what_does_not_fit_it() -> None:
    """Its own calibration is closer to its judgments than the built-in one, loses a tenth of its answers, and is
    wrong about a tenth of those without one."""
    true = Calibration((-6.0, 2.0, 2.0, 8.0, 1.0), 0.0, 1.0)
    questions = []
    for seed in range(300):
        features, labels = drawn(true.weights, 20, seed)
        questions.append(JudgedHits(features, relevance_of(features, WORDS), labels, WORDS.bounds))
    own = fit_calibration(questions[:150], WORDS)
    tested = [
        JudgedHits(one.features, relevance_of(one.features, own), one.labels, own.bounds)
        for one in questions[150:]
    ]
    before, after = reliability(questions[150:]), reliability(tested)
    assert after.calibration_error < before.calibration_error
    assert after.lost is not None
    assert after.lost.low < 0.1
    assert after.false.value < 0.2


def test_reliability_by_hand() -> None:
    """One question, answered by its second hit: said .9 and .4, was 0 and 1; emptied, said .9 and was 0."""
    hits = JudgedHits(np.ones((2, 5)), np.array([0.9, 0.4]), np.array([0.0, 1.0]), EvidenceFrom(0.4, 0.9))
    measured = reliability([hits])
    assert measured.calibration_error == pytest.approx((0.9 + 0.6 + 0.9) / 3, abs=1e-4)
    assert [(one.since, one.hits, one.relevant) for one in measured.bins] == [(0.4, 1, 1.0), (0.9, 2, 0.0)]
    assert measured.lost is not None
    assert measured.strong is not None
    assert (measured.lost.value, measured.false.value, measured.strong.value) == (0.0, 1.0, 1.0)
    lexical = replace(hits, relevance=np.array([0.2, 0.1]), bounds=EvidenceFrom(0.1, 0.15))
    assert reliability([hits, lexical]).false.value == reliability([lexical, hits]).false.value == 1
    assert reliability([JudgedHits(np.ones((0, 5)), np.ones(0), np.ones(0), hits.bounds)]).lost is None


# --- evidence and requests --------------------------------------------------------------------------------------


def test_only_first_hits_are_evidence() -> None:
    """One of the first ten, at a bound or above; unknown without a calibration."""
    for verdict, bound in ("some", WORDS.some), ("strong", WORDS.strong):
        relevance = np.array([0.0] * 9 + [bound])
        assert evidence_of(relevance, WORDS) == verdict
        assert evidence_of(np.insert(relevance, 0, 0.0), WORDS) == "none"
    assert evidence_of(np.empty(0), WORDS) == "none"
    assert evidence_of(np.full(1, np.nan), None) is None


def test_cosines_that_say_nothing_are_left_out() -> None:
    """Hybrid search of a query that the model hardly reads, or with a vector of one's own, is judged by words."""
    for words in (True, False):
        said = WORDS if words else None
        assert calibration_for(BUILT_IN, "hybrid", 1.0, words=words) == BUILT_IN["hybrid"]
        assert calibration_for(BUILT_IN, "hybrid", 0.3, words=words) == said
        assert calibration_for(BUILT_IN, "hybrid", None, words=words) == said
        assert calibration_for(BUILT_IN, "lexical", None, words=words) == said
        assert calibration_for(BUILT_IN, "dense", 1.0, words=words) == BUILT_IN["dense"]
        assert calibration_for(BUILT_IN, "dense", 0.3, words=words) is None
        assert calibration_for(BUILT_IN, "dense", None, words=words) is None


def test_the_documented_example_is_what_is_built_in() -> None:
    """Sending the coefficients that docs/relevance.md shows changes nothing."""
    page = (Path(__file__).parents[2] / "docs" / "relevance.md").read_text()
    [shown] = re.findall(r"-d '(\{\"coefficients.*)'", page)
    assert calibrations_of(json.loads(shown)["coefficients"]) == BUILT_IN


def test_a_floor_needs_relevance() -> None:
    """Dense search with a vector of one's own has none, and says so."""
    search = SearchRequest(vector=msgspec.Raw(b"[1, 0]"), min_relevance=0.5)
    with pytest.raises(InvalidInput, match="have no relevance") as caught:
        make_plan(search, 2, Config())
    assert caught.value.param == "min_relevance"


# --- a real service ---------------------------------------------------------------------------------------------


@pytest.fixture
def shoes(http: Http) -> str:
    name = http.new_collection()
    http.write(name, *({"id": f"s{at}", "text": text} for at, text in enumerate(SHOES)))
    return name


@pytest.mark.model
@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
def test_what_is_not_there_has_no_evidence(http: Http, shoes: str, mode: str, model_folder: Path) -> None:
    """Quantum chromodynamics among shoes, although its best hit scores like any other; shoes have it."""
    nothing = http.search(shoes, query="quantum chromodynamics", mode=mode)
    assert nothing["receipt"]["evidence"] == "none"
    assert all(hit["relevance"] < 0.05 for hit in nothing["hits"])
    found = http.search(shoes, query="running shoes", mode=mode, explain=True)
    assert found["receipt"]["evidence"] != "none"
    first = found["hits"][0]
    assert first["document_id"] == "s1"
    assert first["relevance"] >= found["receipt"]["evidence_from"]["some"]
    cosine, floor = first["scores"]["dense"], read_manifest(model_folder).similarity_floor
    assert first["evidence"]["meaning"] == pytest.approx(
        0 if cosine is None else (cosine - floor) / (1 - floor)
    )
    again = http.search(shoes, query="running shoes", mode=mode, explain=True)
    assert (again["receipt"]["cache"], again["hits"]) == ("hit", found["hits"])
    assert again["receipt"]["evidence"] == found["receipt"]["evidence"]


@pytest.mark.model
@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
def test_nothing_is_said_of_what_is_not_read(http: Http, mode: str) -> None:
    """All emoji are one unknown token to the model, and no words."""
    name = http.new_collection()
    http.write(name, {"id": "party", "text": "\N{PARTY POPPER}"}, {"id": "shoes", "text": SHOES[1]})
    found = http.search(name, query="\N{ROCKET}", mode=mode, language="en")
    assert (found["receipt"]["evidence"], found["receipt"]["evidence_from"]) == (None, None)
    assert all("relevance" not in hit for hit in found["hits"])
    assert not http.search(name, query="\N{ROCKET}", mode=mode, min_relevance=0.01)["hits"]
    assert http.search(name, query="running shoes", mode=mode)["receipt"]["evidence"] == "strong"


@pytest.mark.model
def test_a_context_says_it_too(http: Http, shoes: str) -> None:
    """It is returned, with the relevance of each citation and the verdict in its receipt."""

    def context(query: str, **more: Any) -> Any:
        return http.ok(
            "POST", f"/v1/collections/{shoes}/context", {"query": query, "token_budget": 300, **more}
        )

    found = context("running shoes")
    assert found["receipt"]["evidence"] != "none"
    assert found["citations"][0]["relevance"] > 0.9
    nothing = context("quantum chromodynamics", min_similarity=-1)
    assert nothing["receipt"]["evidence"] == "none"
    assert len(nothing["citations"]) == len(SHOES)
    assert not context("quantum chromodynamics", min_similarity=-1, min_relevance=0.1)["citations"]


@pytest.mark.model
def test_a_floor_drops_and_goes_on(http: Http, shoes: str) -> None:
    """Hits below it go, the next that reach it come up to k, and none left is said in the receipt."""
    everything = http.search(shoes, query="running shoes", k=4)["hits"]
    floor = sorted(hit["relevance"] for hit in everything)[2]
    kept = http.search(shoes, query="running shoes", k=4, min_relevance=floor)
    assert [hit["document_id"] for hit in kept["hits"]] == [
        hit["document_id"] for hit in everything if hit["relevance"] >= floor
    ]
    most = max(everything, key=lambda hit: hit["relevance"])
    only = http.search(shoes, query="running shoes", k=1, min_relevance=most["relevance"])
    assert [hit["document_id"] for hit in only["hits"]] == [most["document_id"]]
    none = http.search(shoes, query="quantum chromodynamics", min_relevance=0.5)
    assert (none["hits"], none["receipt"]["evidence"]) == ([], "none")


@pytest.mark.model
@pytest.mark.parametrize(
    "option",
    [{"query": '"shoes running"', "operators": True}, {"min_score": 500.0}, {"min_relevance": 0.999}],
)
@pytest.mark.parametrize("mode", ["hybrid", "lexical"])
def test_no_hit_is_no_evidence(http: Http, shoes: str, mode: str, option: dict[str, object]) -> None:
    """What was found and is left out is not evidence."""
    answer = http.search(shoes, **{"query": "running shoes", "mode": mode, **option})
    assert (answer["hits"], answer["receipt"]["evidence"]) == ([], "none")


@pytest.mark.model
def test_a_collection_has_its_own_calibration(http: Http, shoes: str) -> None:
    """Seven numbers among its ranking settings are used at once, also where an answer was kept; others are refused."""
    path = f"/v1/collections/{shoes}/ranking"
    before = http.search(shoes, query="running shoes")
    http.ok("PUT", path, {"coefficients": {"relevance.hybrid": [0, 0, 0, 0, 0, 0.6, 0.7]}})
    after = http.search(shoes, query="running shoes")
    assert {hit["relevance"] for hit in after["hits"]} == {0.5}
    assert after["receipt"]["evidence"] == "none"
    assert after["receipt"]["evidence_from"] == {"some": 0.6, "strong": 0.7}
    bad = (
        [],
        [1, 2],
        [0, 0, 0, -1, 0, 0.5, 0.6],
        *([0, 0, 0, 0, 0, *two] for two in ((0.6, 0.5), (-5, -4), (0, 2))),
    )
    for numbers in bad:
        reply = http.call("PUT", path, {"coefficients": {"relevance.hybrid": numbers}})
        assert (reply.status, reply.body["error"]["param"]) == (422, "coefficients")
    assert http.call("PUT", path, {"coefficients": {"relevance.other": [0] * 7}}).status == 422
    http.call("DELETE", path)
    assert http.search(shoes, query="running shoes")["hits"] == before["hits"]


@pytest.mark.model
@pytest.mark.parametrize("path", ["search", "context"])
@pytest.mark.parametrize("value", [-0.1, 1.01, "high"])
def test_a_wrong_floor_is_refused(http: Http, shoes: str, path: str, value: object) -> None:
    """It names the field."""
    body = {"query": "shoes", "token_budget": 100, "min_relevance": value}
    if path == "search":
        del body["token_budget"]
    reply = http.call("POST", f"/v1/collections/{shoes}/{path}", body)
    assert (reply.status, reply.body["error"]["param"]) == (422, "min_relevance")


@pytest.mark.slow
@pytest.mark.model
def test_relevance_is_calibrated_on_real_questions(http: Http, shared_data: Path) -> None:
    """600 sentences of squad-sent and 200 questions about them: the calibration error is below .06, less than a
    fifth of the answered questions lack evidence, and less than a twentieth of 100 claims of scifact, about medicine,
    have it."""
    squad = shared_data / "squad-sent"
    name = http.new_collection()
    with gzip.open(squad / "corpus.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in islice(lines, 600)]
    http.write(name, *({"id": row["id"], "text": row["text"]} for row in rows))
    here = {row["id"] for row in rows}
    answers = {one.query: one.document for one in read_judgments(squad / "qrels.tsv") if one.document in here}
    with gzip.open(squad / "queries.jsonl.gz", "rt") as lines:
        asked = [row for row in map(json.loads, lines) if row["id"] in answers][::4][:200]
    hits = []
    for row in asked:
        found = http.search(name, query=row["text"], k=20, explain=True)
        features = [[1, *hit["evidence"].values()] for hit in found["hits"]]
        relevance = np.array([hit["relevance"] for hit in found["hits"]])
        labels = np.array([hit["document_id"] == answers[row["id"]] for hit in found["hits"]], float)
        hits.append(
            JudgedHits(
                np.array(features), relevance, labels, EvidenceFrom(**found["receipt"]["evidence_from"])
            )
        )
    measured = reliability(hits)
    assert measured.calibration_error < 0.06, measured
    assert measured.lost is not None
    assert measured.lost.value < 0.2, measured
    with gzip.open(shared_data / "scifact" / "queries.jsonl.gz", "rt") as lines:
        claims = [json.loads(line)["text"] for line in islice(lines, 100)]
    false = [http.search(name, query=one)["receipt"]["evidence"] != "none" for one in claims]
    assert np.mean(false) < 0.05
