"""Boosts and sorting: what metadata does to the order of the candidates."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes.filters.index import GrowingFilters
from jobs.serving.process import ServerProcess
from retrieval.search.boosting import boost_scores, factors_of, sort_keys
from retrieval.search.option_checks import boosts_at
from retrieval.wire.options import Boost, Decay
from tests.support.http import Http

NOW = datetime(2026, 6, 1, tzinfo=UTC)
METADATA: dict[str, dict[str, Any]] = {
    "old": {"updated": "2024-06-01", "votes": 1000, "tags": ["b", "z"], "mixed": 5},
    "new": {
        "updated": "2026-05-31T00:00:00+00:00",
        "votes": 3,
        "retired": False,
        "tags": ["a"],
        "mixed": "x",
    },
    "mid": {"updated": "2026-05-02", "votes": 40, "retired": True, "tags": ["c", "y"], "mixed": True},
    "none": {"title": "no date"},
}
DECAY = {"half_life_days": 30, "now": "2026-06-01"}


@pytest.fixture(scope="module", params=["delta", "generation"])
def notes(service: ServerProcess, request: pytest.FixtureRequest) -> tuple[Http, str]:
    """Documents of equal text, so that metadata alone tells them apart."""
    http = Http(service.url)
    name = http.new_collection()
    http.write(name, *({"id": one, "text": "river", "metadata": held} for one, held in METADATA.items()))
    if request.param == "generation":
        http.reindex(name)
    return http, name


@pytest.mark.parametrize("mode", ["hybrid", "lexical", "dense"])
def test_boosts_multiply_scores(notes: tuple[Http, str], mode: str) -> None:
    """A score is the plain one times `scores.boost`, the product of what each boost makes of its value."""
    http, name = notes
    plain = {
        hit["document_id"]: hit["score"]
        for hit in http.search(name, query="river", collapse=False, mode=mode)["hits"]
    }
    boosts = [
        {"key": "updated", "weight": 2, "decay": DECAY},
        {"key": "votes", "weight": 0.1, "scale": "log"},
        {"key": "retired", "weight": -0.5},
    ]
    hits = http.search(name, query="river", collapse=False, mode=mode, boosts=boosts)["hits"]
    wanted = {
        "old": (1 + 2 * 0.5 ** (730 / 30)) * (1 + 0.1 * math.log(1001)),
        "new": (1 + 2 * 0.5 ** (1 / 30)) * (1 + 0.1 * math.log(4)),
        "mid": (1 + 2 * 0.5) * (1 + 0.1 * math.log(41)) * 0.5,
        "none": 1.0,
    }
    assert {hit["document_id"]: hit["scores"]["boost"] for hit in hits} == pytest.approx(wanted, abs=1e-5)
    for hit in hits:
        assert hit["score"] == pytest.approx(plain[hit["document_id"]] * hit["scores"]["boost"], abs=1e-4)
    assert [hit["document_id"] for hit in hits] == sorted(wanted, key=lambda one: -wanted[one])
    assert all(
        "boost" not in hit["scores"]
        for hit in http.search(name, query="river", collapse=False, mode=mode)["hits"]
    )


@pytest.mark.parametrize("mode", ["hybrid", "lexical"])
def test_hits_that_only_a_boost_lifts_over_a_floor_are_evidence(notes: tuple[Http, str], mode: str) -> None:
    """The receipt judges what may be a hit."""
    http, name = notes
    boosts = [{"key": "votes", "scale": "log"}]
    asked = {"query": "river", "mode": mode, "collapse": False}
    plain = http.search(name, **asked)
    floor = max(hit["score"] for hit in plain["hits"]) + 0.1
    lifted = http.search(name, **asked, boosts=boosts, min_score=floor)
    assert lifted["hits"]
    assert plain["receipt"]["evidence"] == lifted["receipt"]["evidence"] != "none"
    none = http.search(name, **asked, min_score=floor)
    assert (none["hits"], none["receipt"]["evidence"]) == ([], "none")


def test_a_decay_counts_from_now(notes: tuple[Http, str]) -> None:
    """Without `now`, ages are those of the present; what lies ahead is as good as new."""
    http, _ = notes
    name = http.new_collection()
    days = {"ahead": -5, "today": 0, "week": 7}
    http.write(
        name,
        *(
            {
                "id": one,
                "text": "river",
                "metadata": {"at": (datetime.now(UTC) - timedelta(days=age)).isoformat()},
            }
            for one, age in days.items()
        ),
    )
    hits = http.search(
        name, query="river", collapse=False, boosts=[{"key": "at", "decay": {"half_life_days": 7}}]
    )["hits"]
    found = {hit["document_id"]: hit["scores"]["boost"] for hit in hits}
    assert found == pytest.approx({"ahead": 2, "today": 2, "week": 1.5}, abs=0.01)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ([{"key": "updated", "order": "desc"}], ["new", "mid", "old", "none"]),
        ([{"key": "updated"}], ["old", "mid", "new", "none"]),
        ([{"key": "votes"}], ["new", "mid", "old", "none"]),
        ([{"key": "tags"}], ["new", "old", "mid", "none"]),
        ([{"key": "tags", "order": "desc"}], ["old", "mid", "new", "none"]),
        ([{"key": "mixed"}], ["mid", "old", "new", "none"]),
        ([{"key": "title"}, {"key": "votes", "order": "desc"}], ["none", "old", "mid", "new"]),
    ],
    ids=str,
)
def test_hits_are_sorted(notes: tuple[Http, str], sort: Any, order: list[str]) -> None:
    """By each key in turn, those without a value last; dates as instants, of a list its first in that order."""
    http, name = notes
    assert http.found(name, query="river", collapse=False, sort=sort) == order
    paged = [
        one
        for at in range(4)
        for one in http.found(name, query="river", collapse=False, sort=sort, k=1, offset=at)
    ]
    assert paged == order


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"sort": [{"key": "vots"}]}, "sort[0].key"),
        ({"sort": []}, "sort"),
        ({"sort": [{"key": "votes", "order": "up"}]}, "sort[0].order"),
        ({"boosts": [{"key": "votes"}, {"key": "vots"}]}, "boosts[1].key"),
        ({"boosts": [{"key": "updated", "decay": {"half_life_days": 0}}]}, "boosts[0].decay.half_life_days"),
        (
            {"boosts": [{"key": "updated", "decay": {"half_life_days": 1, "now": "soon"}}]},
            "boosts[0].decay.now",
        ),
        ({"boosts": [{"key": "updated", "scale": "log", "decay": DECAY}]}, "boosts[0].scale"),
        ({"sort": [{"key": "votes"}], "offset": 95}, "offset"),
    ],
    ids=str,
)
def test_a_wrong_order_is_refused(notes: tuple[Http, str], options: dict[str, Any], param: str) -> None:
    """The error names the field, and the key that was probably meant."""
    http, name = notes
    reply = http.call("POST", f"/v1/collections/{name}/search", {"query": "river", **options})
    assert (reply.status, reply.body["error"]["param"]) == (422, param)
    assert "vots" not in str(options) or "'votes'" in reply.body["error"]["message"]


def test_a_context_prefers_what_is_new(notes: tuple[Http, str]) -> None:
    """Boosts are for contexts too."""
    http, name = notes
    body = {"query": "river", "token_budget": 40, "boosts": [{"key": "updated", "weight": 5, "decay": DECAY}]}
    found = http.ok("POST", f"/v1/collections/{name}/context", body)
    assert found["citations"][0]["document_id"] == "new"


def test_huge_numbers_are_no_fault(http: Http) -> None:
    """Neither as times, which they cannot be, nor as factors, which are bounded: scores stay numbers."""
    name = http.new_collection()
    http.write(name, {"id": "d", "text": "river", "metadata": {"x": 1e308}})
    for boost in ({"decay": {"half_life_days": 1}}, {"weight": 1000.0}):
        hits = http.search(name, query="river", collapse=False, boosts=[{"key": "x", **boost}])["hits"]
        assert isinstance(hits[0]["score"], float)


def test_the_hour_is_part_of_the_request() -> None:
    """Answers of one hour are shared by the cache, those of the next are not."""
    boost = Boost(key="at", decay=Decay(half_life_days=1))
    first, later, next_hour = (boosts_at([boost], at) for at in (7200.0, 10_799.9, 10_800.0))
    assert first == later
    assert first != next_hour


@given(st.lists(st.floats(-1, 1), min_size=1), st.data())
def test_a_larger_factor_never_harms(scores: list[float], data: st.DataObject) -> None:
    """A score grows with its factor, below 0 too."""
    factors = data.draw(st.lists(st.floats(0.01, 10), min_size=len(scores), max_size=len(scores)))
    one, more = (boost_scores(np.array(scores), np.array(factors) * by) for by in (1, 2))
    assert (more >= one).all()


VALUES = st.one_of(
    st.integers(-3, 3),
    st.floats(-3, 3),
    st.booleans(),
    st.sampled_from(["x", "y", "2026-01-05", "2026-01-05T00:00+02:00", "2026-02-01"]),
)
BOOSTS = [
    Boost(key="key", weight=0.5),
    Boost(key="key", scale="log"),
    Boost(key="key", decay=Decay(half_life_days=3, now="2026-01-07")),
]


@given(st.lists(st.lists(VALUES, max_size=12), min_size=1, max_size=30), st.data())
def test_columns_know_the_values_that_decide(rows: list[list[Any]], data: st.DataObject) -> None:
    """Both forms of the filter index give for some rows the values that decide: the sort keys and the factors are those
    of all values that went in."""
    growing = GrowingFilters()
    for values in rows:
        growing.add({"key": values})
    some = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1))))
    for part in (growing.view(len(rows)), growing.seal(len(rows))):
        found: dict[int, list[Any]] = {row: [] for row in some}
        for kind, column in part.columns("key").items():
            for row, value in column.deciding(np.array(some, np.int64)):
                found[row].append(bool(value) if kind == "boolean" else value)
        for last in (False, True):
            assert sort_keys(list(found.values()), last=last) == sort_keys(
                [rows[at] for at in some], last=last
            )
        for boost in BOOSTS:
            decided, whole = (
                next(factors_of([boost], [held])) for held in ([*found.values()], [rows[at] for at in some])
            )
            assert decided.tolist() == whole.tolist()
