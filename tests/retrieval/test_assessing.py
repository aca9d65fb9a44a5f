"""Assessments: the risk of an action by how events like it ended, with its evidence, or none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes.base.errors import InvalidInput
from indexes.base.model import Metadata
from retrieval.base.settings import AssessSection, Config
from retrieval.insight.assessing import Judge, PastOutcomes, assess, text_of
from retrieval.wire.assess import Assessment, AssessRequest, Outcome
from retrieval.wire.decoding import decode
from retrieval.wire.search import Hit, Receipt, Scores, SearchAnswer, Timings
from tests.support.http import Http

RECEIPT = Receipt("c", 1, 1, ["hot"], None, None, None, "miss", "m")
SETTINGS = AssessSection()
JUDGE = Judge.of(None, SETTINGS)
DEPLOYS = [
    {
        "id": f"d{number}",
        "title": f"Deploy {service} to production",
        "text": f"Deploy version {number} of the {service} service to production. {what}",
        "metadata": {"outcome": outcome, "remedy": remedy, "severity": severity, "team": service},
    }
    for number, (service, what, outcome, remedy, severity) in enumerate(
        [
            ("payments", "Migrates the orders table.", "rollback", "Revert the migration", 3),
            ("payments", "Migrates the ledger table.", "failed", "Revert the migration", 4),
            ("payments", "Migrates the refunds table.", "rollback", "Restore the backup", 3),
            ("catalog", "Changes the colors of the page.", "ok", None, 0),
            ("catalog", "Changes the fonts of the page.", "ok", None, 0),
            ("catalog", "Changes the footer of the page.", "ok", None, 1),
        ]
    )
]
MIGRATION = "Deploy the payments service to production, with a migration of the customers table"
RESTYLING = "Deploy the catalog service to production, with other colors and fonts of the page"


def event(score: float, metadata: Metadata, number: int = 0) -> Hit:
    return Hit(f"d{number}", 0, 0, 4, "text", f"Title {number}", metadata, score, Scores(score, 1.0), "hot")


def assessed(*hits: Hit, base_rate: float | None = 0.1, ever_bad: bool = True, **options: Any) -> Assessment:
    wanted = AssessRequest(**{"action": b'"x"', **options})
    judge = Judge.of(wanted.outcome, SETTINGS)
    return assess(
        SearchAnswer(list(hits), RECEIPT, Timings()),
        wanted,
        judge,
        PastOutcomes(base_rate, ever_bad),
        SETTINGS,
    )


BAD: Metadata = {"outcome": "failed"}
GOOD: Metadata = {"outcome": "ok"}


# --- the risk -------------------------------------------------------------------------------------------------


def test_each_neighbor_counts_by_its_similarity() -> None:
    """Beside two events' worth of the base rate, by default."""
    found = assessed(event(0.9, BAD), event(0.3, GOOD), event(0.1, BAD))
    assert found.risk_score == pytest.approx((2 * 0.1 + 0.9) / (2 + 0.9 + 0.3), abs=1e-4)
    assert found.events == 2
    assert found.events_worth == pytest.approx(1.2)
    assert [one.counted for one in found.evidence] == [True, True, False]  # the last is not near


@given(st.lists(st.tuples(st.floats(-0.2, 1.2), st.booleans()), max_size=30), st.floats(0, 1))
def test_bounds_of_the_risk(events: list[tuple[float, bool]], base_rate: float) -> None:
    """The risk lies in its interval, the interval in 0 to 1, and one more bad event never lowers it."""
    hits = [event(score, BAD if bad else GOOD) for score, bad in sorted(events, reverse=True)]
    found = assessed(*hits, base_rate=base_rate)
    if found.risk_score is None:
        assert found.abstained == "nothing_near"
        assert (found.interval, found.recommendation) == (None, "review")
        return
    assert found.interval is not None
    low, high = found.interval
    assert 0 <= low <= found.risk_score + 1e-4
    assert found.risk_score - 1e-4 <= high <= 1
    more = assessed(event(1.0, BAD), *hits, base_rate=base_rate)
    assert more.risk_score is not None
    assert more.risk_score >= found.risk_score - 1e-4


def test_nothing_near_and_no_outcomes() -> None:
    """There is no risk then, a person should look, and the sentence says why."""
    far, unknown = assessed(event(0.1, BAD)), assessed(event(0.9, {}), base_rate=None)
    assert (far.abstained, far.risk_score, far.recommendation) == ("nothing_near", None, "review")
    assert (unknown.abstained, unknown.risk_score, unknown.recommendation) == ("no_outcomes", None, "review")
    assert "'outcome'" in unknown.summary
    assert assessed().abstained == "nothing_near"


def test_where_nothing_ever_ended_badly_there_is_no_risk() -> None:
    """A misspelt outcome would call everything safe; the sentence says what counts as bad."""
    outcome = Outcome(bad=[*map(str, range(12))], bad_from=2.5)
    found = assessed(event(0.9, GOOD), base_rate=0.0, ever_bad=False, outcome=outcome)
    assert (found.abstained, found.risk_score, found.recommendation) == ("none_bad", None, "review")
    assert "'8', '9', ... and numbers from 2.5 on" in found.summary


def test_blank_remedies_are_none() -> None:
    """A remedy without a word is not listed."""
    hits = [event(0.9, {"remedy": [" ", "", " restart "]}, 1), event(0.8, {"remedy": "restart"}, 2)]
    assert [(one.remedy, one.document_ids) for one in assessed(*hits).remedies] == [("restart", ["d1", "d2"])]


@pytest.mark.parametrize(("bad", "says"), [(0, "proceed"), (5, "review"), (20, "stop")])
def test_the_recommendation_goes_by_the_risk(bad: int, says: str) -> None:
    """`proceed` below `assess.review_from`, `stop` from `assess.stop_from` on."""
    hits = [event(0.8, BAD if number < bad else GOOD) for number in range(20)]
    assert assessed(*hits).recommendation == says


def test_which_outcomes_are_bad() -> None:
    """Values are compared with their type; of a list one bad value is enough; numbers go by a threshold."""
    judge = Judge("end", ["failed", True], 3.0)
    cases: list[tuple[Metadata, bool | None]] = [
        ({"end": "failed"}, True), ({"end": "ok"}, False), ({"end": ["ok", "failed"]}, True), ({"end": True}, True),
        ({"end": 1}, False), ({"end": 3}, True), ({"end": 2.9}, False), ({"other": "failed"}, None),
        ({"end": []}, None),
    ]  # fmt: skip
    for metadata, expected in cases:
        assert judge.is_bad(metadata) is expected, metadata


@pytest.mark.parametrize("bad", ["2026-01-05", "2026-01", "2026"])
def test_dates_are_bad_as_in_filters(http: Http, bad: str) -> None:
    """A day, month or year covers the dates in it, for the base rate and for the neighbors alike."""
    name = http.new_collection()
    dates = ["2026-01-05", "2026-01-05T10:00:00Z", "2026-01-20", "2025-03-01"]
    http.write(
        name,
        *(
            {"id": f"e{at}", "text": "Deploy the payments service.", "metadata": {"at": date}}
            for at, date in enumerate(dates)
        ),
    )
    outcome = {"key": "at", "bad": [bad]}
    found = http.ok(
        "POST",
        f"/v1/collections/{name}/assess",
        {"action": "Deploy the payments service.", "outcome": outcome},
    )
    within = {"type": "in", "key": "at", "value": [bad]}
    count = http.ok("POST", f"/v1/collections/{name}/documents/count", {"filter": within})["documents"]
    assert found["base_rate"] == count / 4
    assert sum(event["bad"] for event in found["evidence"]) == count


def test_the_request_replaces_what_is_bad() -> None:
    """A key alone keeps the configured values; values or a threshold take the place of both."""
    assert Judge.of(Outcome(key="end"), SETTINGS).bad == SETTINGS.bad
    assert Judge.of(Outcome(bad_from=3), SETTINGS) == Judge("outcome", [], 3)
    assert Judge.of(Outcome(bad=["x"]), AssessSection(bad_from=3)) == Judge("outcome", ["x"], None)


# --- the action -----------------------------------------------------------------------------------------------


def test_the_text_of_an_alert() -> None:
    """Sentences first, then labels; times, pods and links of this alert alone are left out, repetitions too."""
    alert = {
        "status": "firing",
        "labels": {"service": "refunds", "pod": "web-7d9f", "severity": None, "team": "refunds"},
        "annotations": {"summary": "Refunds are late.", "again": "Refunds are late."},
        "startsAt": "2026-11-20T08:12:11Z",
        "links": ["http://prometheus.example/graph"],
    }
    assert text_of(alert) == "Refunds are late.\nstatus: firing\nservice: refunds\nteam: refunds"
    assert text_of("  as it is  ") == "as it is"
    assert not text_of({"at": 17, "deep": [[]]})


def test_an_alert_nested_too_deep_is_refused() -> None:
    """Rather than recursing through it."""
    deep: object = "x"
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(InvalidInput, match="nested too deep"):
        text_of(deep)


# --- over HTTP ------------------------------------------------------------------------------------------------


@pytest.fixture
def deploys(http: Http) -> str:
    name = http.new_collection(language="en")
    http.write(name, *DEPLOYS)
    return f"/v1/collections/{name}/assess"


def test_risky_and_harmless_actions_differ(http: Http, deploys: str) -> None:
    """With the three most similar events as evidence, and what helped in them."""
    risky, harmless = (http.ok("POST", deploys, {"action": text}) for text in (MIGRATION, RESTYLING))
    assert risky["risk_score"] > 0.5 > harmless["risk_score"]
    assert (risky["recommendation"], risky["base_rate"]) == ("stop", 0.5)
    assert sorted(one["document_id"] for one in risky["evidence"]) == ["d0", "d1", "d2"]
    assert all(one["bad"] and one["counted"] for one in risky["evidence"])
    assert {one["remedy"] for one in risky["remedies"]} == {"Revert the migration", "Restore the backup"}
    assert "ended badly" in risky["summary"]
    assert not any(one["bad"] for one in harmless["evidence"])


def test_an_alert_as_it_arrives(http: Http, deploys: str) -> None:
    """JSON in, the same events out as for its text; what was read of it is told."""
    alert = {
        "labels": {"service": "payments"},
        "annotations": {"summary": MIGRATION},
        "startsAt": "2026-11-20T08:12",
    }
    found = http.ok("POST", deploys, {"action": alert})
    assert found["recommendation"] == "stop"
    assert (found["read_chars"], found["cut"]) == (len(text_of(alert)), False)
    long = http.ok("POST", deploys, {"action": f"{MIGRATION}. " * 500})
    assert (long["read_chars"] <= Config().limits.query_chars_max, long["cut"]) == (True, True)


def test_outcomes_of_the_request(http: Http, deploys: str) -> None:
    """Another key, a threshold, and a filter, which the base rate follows; values of a kind that no event has are no
    mistake beside others."""
    severe = {"action": MIGRATION, "outcome": {"key": "severity", "bad_from": 4}}
    found = http.ok("POST", deploys, severe)
    assert found["base_rate"] == pytest.approx(1 / 6, abs=1e-4)
    assert found["events"] >= 3
    only = {"type": "eq", "key": "team", "value": "payments"}
    found = http.ok("POST", deploys, {**severe, "filter": only})
    assert found["base_rate"] == pytest.approx(1 / 3, abs=1e-4)
    mixed = {"action": MIGRATION, "outcome": {"bad": [True, 7, *SETTINGS.bad]}}
    assert http.ok("POST", deploys, mixed)["base_rate"] == 0.5
    misspelt = http.ok("POST", deploys, {"action": MIGRATION, "outcome": {"bad": ["rolback"]}})
    assert (misspelt["abstained"], misspelt["recommendation"]) == ("none_bad", "review")
    good = {
        "type": "eq",
        "key": "team",
        "value": "catalog",
    }  # others ended badly: what is good here is known to be
    found = http.ok("POST", deploys, {"action": RESTYLING, "filter": good})
    assert (found["abstained"], found["recommendation"]) == (None, "proceed")


@pytest.mark.parametrize("nested", [1, 16])
def test_a_filter_at_its_limits_is_the_same_as_a_smaller_one(http: Http, deploys: str, nested: int) -> None:
    """What the service asks about the outcome counts against no limit."""
    most = Config().limits.filter_conditions_max
    few: dict[str, Any] = {"type": "eq", "key": "team", "value": "payments"}
    many = {"type": "or", "filters": [few] * most} if nested == 1 else few
    for _ in range(nested - 2):
        many = {"type": "and", "filters": [many]}
    found = [http.ok("POST", deploys, {"action": MIGRATION, "filter": one}) for one in (few, many)]
    assert found[0]["risk_score"] == found[1]["risk_score"] is not None
    assert found[0]["base_rate"] == found[1]["base_rate"]


def test_the_message_says_what_is_missing(http: Http, deploys: str) -> None:
    """It says so for a key whose values have another kind than the usual ones, and for a collection without a model."""
    reply = http.call("POST", deploys, {"action": MIGRATION, "outcome": {"key": "severity"}})
    assert "give bad or bad_from" in reply.body["error"]["message"]
    bare = http.new_collection(model=None, dimensions=2)
    http.write(bare, {"id": "a", "text": "deploy", "vector": [1, 0]})
    reply = http.call("POST", f"/v1/collections/{bare}/assess", {"action": MIGRATION})
    assert (reply.status, reply.body["error"]["param"]) == (422, "action")
    assert "no model" in reply.body["error"]["message"]


def test_an_unrelated_action_gets_no_risk(http: Http, deploys: str) -> None:
    """The collection's base rate is no answer to a question that none of its events is about."""
    found = http.ok("POST", deploys, {"action": "The choir rehearses Bach's cantatas in the cathedral"})
    assert (found["risk_score"], found["abstained"], found["remedies"]) == (None, "nothing_near", [])
    assert not any(one["counted"] for one in found["evidence"])


def test_events_without_outcomes_are_shown(http: Http) -> None:
    """Runbooks have no outcome: they are evidence, and no risk."""
    name = http.new_collection(language="en")
    http.write(
        name, {"id": "r", "title": "Disk full", "text": "The disk of a database is full. Delete old logs."}
    )
    found = http.ok("POST", f"/v1/collections/{name}/assess", {"action": "database disk is full"})
    assert (found["abstained"], found["base_rate"], found["evidence"][0]["document_id"]) == (
        "no_outcomes",
        None,
        "r",
    )
    assert found["evidence"][0]["outcome"] is None
    assert (
        http.ok("POST", f"/v1/collections/{http.new_collection()}/assess", {"action": "x"})["evidence"] == []
    )


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 422, "action"),
        ({"action": "  "}, 422, "action"),
        ({"action": {"at": 17}}, 422, "action"),
        ({"action": ["x"]}, 422, "action"),
        ({"action": "x" * 300_000}, 413, "action"),
        ({"action": "x", "outcome": {"bad": []}}, 422, "outcome"),
        ({"action": "x", "outcome": {"key": "outcom"}}, 422, "outcome"),
        ({"action": "x", "outcome": {"key": "severity"}}, 422, "outcome"),
        ({"action": "x", "remedy_key": "remdy"}, 422, "remedy_key"),
        ({"action": "x", "neighbors": 100_000}, 422, "neighbors"),
        ({"action": "x", "filter": {"type": "eq"}}, 422, "filter"),
    ],
)
def test_what_is_refused(http: Http, deploys: str, body: dict[str, Any], status: int, param: str) -> None:
    """Each refusal names the field of the request, also where a filter of ours found it."""
    reply = http.call("POST", deploys, body)
    assert (reply.status, reply.body["error"].get("param")) == (status, param), reply.body
    assert "filters[" not in reply.body["error"]["message"]


def test_the_action_is_required() -> None:
    """By its type."""
    with pytest.raises(InvalidInput, match="action"):
        decode(b"{}", AssessRequest)
