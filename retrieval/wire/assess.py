"""The wire types of assessments: an action or an alert, and how similar events ended."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from indexes.base.model import Metadata
from retrieval.base.settings import Positive
from retrieval.wire.decoding import FilterJson, absent
from retrieval.wire.search import Chance, DeadlineMs, Doc, MinSeq, NonEmpty, Receipt, Request, Timings

ActionJson = Annotated[
    msgspec.Raw,
    Meta(
        description="The planned action or the alert: text, or any JSON object, whose strings are read",
        extra_json_schema={"type": ["string", "object"]},
    ),
]


class Outcome(Request, frozen=True, kw_only=True):
    """Which events ended badly. Absent fields come from the settings; `bad` or `bad_from` replaces both of theirs."""

    key: Annotated[NonEmpty | None, Doc("The metadata key of an event's outcome")] = None
    bad: Annotated[
        Annotated[list[str | int | float | bool], Meta(max_length=100)] | None,
        Doc("Outcomes that count as bad"),
    ] = None
    bad_from: Annotated[float | None, Doc("Numbers from this one up count as bad too")] = None


class AssessRequest(Request, frozen=True, kw_only=True):
    """An action or alert to compare with the events of the collection."""

    action: ActionJson
    outcome: Annotated[Outcome | None, Doc("Which outcomes are bad")] = None
    remedy_key: Annotated[NonEmpty | None, Doc("The metadata key of what helped")] = None
    neighbors: Annotated[Positive | None, Doc("Number of events to look up")] = None
    near_from: Annotated[
        Chance | None, Doc("Minimum similarity of events that count, from 0 (unrelated) to 1 (the same)")
    ] = None
    filter: Annotated[FilterJson, Doc("Use only events whose metadata match, for the base rate as well")] = (
        field(default_factory=absent)
    )
    language: Annotated[str | None, Doc("BCP 47 code of the action's language; absent: detected")] = None
    min_seq: MinSeq = None
    deadline_ms: Annotated[DeadlineMs | None, Doc("Give up after this time, with status 503")] = None
    cache: Annotated[bool, Doc("False bypasses the result cache and the query vector cache")] = True


class PastEvent(msgspec.Struct):
    """One of the most similar events."""

    document_id: Annotated[str, Doc("Id of its document")]
    title: Annotated[str, Doc("Title of the document")]
    text: Annotated[str, Doc("Its passage that is most similar to the action")]
    metadata: Annotated[Metadata, Doc("As it was sent")]
    similarity: Annotated[
        float, Doc("From 0 (unrelated) to 1 (the same), by meaning and words; its weight in the risk")
    ]
    outcome: Annotated[
        str | int | float | bool | list[str | int | float | bool] | None,
        Doc("Its outcome; null if unknown"),
    ]
    bad: Annotated[bool | None, Doc("Whether the outcome is bad; null if unknown")]
    counted: Annotated[
        bool, Doc("Whether it counts for the risk: it is similar enough and its outcome is known")
    ]


class RemedyOf(msgspec.Struct):
    """What helped in similar events, by their metadata."""

    remedy: Annotated[str, Doc("As the events state it")]
    document_ids: Annotated[list[str], Doc("Events with this remedy, most similar first")]


class Assessment(msgspec.Struct):
    """How risky the action is, judging by how similar events ended."""

    risk_score: Annotated[
        float | None, Doc("Estimated probability of a bad outcome, 0 to 1; null if unknown")
    ]
    interval: Annotated[
        list[float] | None,
        Doc("Wilson's 90 percent interval of the risk for this number of events: wide if they are few"),
    ]
    recommendation: Annotated[
        Literal["proceed", "review", "stop"], Doc("Depends on the risk; `review` if it is unknown")
    ]
    summary: Annotated[str, Doc("The reason in one sentence")]
    abstained: Annotated[
        Literal["nothing_near", "no_outcomes", "none_bad"] | None,
        Doc(
            "Why the risk is unknown: no event is similar, none of the similar ones has an outcome, or no event of the "
            "collection ended badly"
        ),
    ]
    base_rate: Annotated[
        float | None, Doc("Share of bad outcomes among all events that have one; null if none has")
    ]
    events: Annotated[int, Doc("Number of similar events that count")]
    events_worth: Annotated[float, Doc("Total weight of those events: the sum of their similarities")]
    evidence: Annotated[list[PastEvent], Doc("The three most similar events")]
    remedies: Annotated[list[RemedyOf], Doc("What helped in similar events, most similar first")]
    read_chars: Annotated[int, Doc("Characters of the action that were read, as text")]
    cut: Annotated[bool, Doc("Whether the action was longer than that (`limits.query_chars_max`)")]
    receipt: Annotated[Receipt, Doc("How the events were found")]
    timings_ms: Annotated[Timings, Doc("Milliseconds of each stage of the search")]
