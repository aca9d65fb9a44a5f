"""The wire types of assessments: an action or an alert, and how events like it ended."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from indexes.base.model import Metadata
from retrieval.base.settings import Count, Positive
from retrieval.wire.decoding import FilterJson, absent
from retrieval.wire.search import Chance, DeadlineMs, Doc, NonEmpty, Receipt, Request, Timings

ActionJson = Annotated[
    msgspec.Raw,
    Meta(
        description="What is about to be done, or the alert: text, or any JSON object, of which the texts are read",
        extra_json_schema={"type": ["string", "object"]},
    ),
]


class Outcome(Request, frozen=True, kw_only=True):
    """Which events ended badly. What is absent comes from the settings; `bad` and `bad_from` replace both of theirs."""

    key: Annotated[NonEmpty | None, Doc("The metadata key that says how an event ended")] = None
    bad: Annotated[
        Annotated[list[str | int | float | bool], Meta(max_length=100)] | None,
        Doc("Values of it that count as bad"),
    ] = None
    bad_from: Annotated[float | None, Doc("Numbers from here on count as bad too")] = None


class AssessRequest(Request, frozen=True, kw_only=True):
    """An action or alert, to be compared with the events of the collection."""

    action: ActionJson
    outcome: Annotated[Outcome | None, Doc("Which outcomes are bad")] = None
    remedy_key: Annotated[NonEmpty | None, Doc("The metadata key that says what helped")] = None
    neighbors: Annotated[Positive | None, Doc("Number of events to look up")] = None
    near_from: Annotated[
        Chance | None, Doc("Events less similar do not count, from 0 (unrelated) to 1 (the same)")
    ] = None
    filter: Annotated[
        FilterJson, Doc("Only events whose metadata match, which are then the base rate as well")
    ] = field(default_factory=absent)
    language: Annotated[str | None, Doc("BCP 47 code of the action's language; absent: guessed")] = None
    min_seq: Annotated[Count | None, Doc("Wait up to 5 s until this write is visible")] = None
    deadline_ms: Annotated[DeadlineMs | None, Doc("Give up after this time, with status 503")] = None
    cache: Annotated[bool, Doc("False bypasses the result cache and the query vector cache")] = True


class PastEvent(msgspec.Struct):
    """One of the most similar events."""

    document_id: Annotated[str, Doc("Id of its document")]
    title: Annotated[str, Doc("Title of the document")]
    text: Annotated[str, Doc("Its passage that is most like the action")]
    metadata: Annotated[Metadata, Doc("As it was sent")]
    similarity: Annotated[
        float, Doc("From 0 (unrelated) to 1 (the same), by meaning and words; its weight in the risk")
    ]
    outcome: Annotated[
        str | int | float | bool | list[str | int | float | bool] | None,
        Doc("How it ended; null where unknown"),
    ]
    bad: Annotated[bool | None, Doc("Whether that is bad; null where the outcome is unknown")]
    counted: Annotated[bool, Doc("Whether the risk counts it: it is near, and its outcome is known")]


class RemedyOf(msgspec.Struct):
    """What helped in similar events, by their metadata."""

    remedy: Annotated[str, Doc("As the events have it")]
    document_ids: Annotated[list[str], Doc("The events that have it, most similar first")]


class Assessment(msgspec.Struct):
    """How risky the action is, going by how events like it ended."""

    risk_score: Annotated[
        float | None, Doc("Foretold chance that it ends badly, 0 to 1; null where nothing can be said")
    ]
    interval: Annotated[
        list[float] | None,
        Doc("Wilson's 90 percent interval of that share, for so many events: wide for few"),
    ]
    recommendation: Annotated[
        Literal["proceed", "review", "stop"], Doc("By the risk; `review` where nothing can be said")
    ]
    summary: Annotated[str, Doc("One sentence that says why")]
    abstained: Annotated[
        Literal["nothing_near", "no_outcomes"] | None,
        Doc("Why there is no risk: no event is similar, or none of the similar ones has an outcome"),
    ]
    base_rate: Annotated[
        float | None, Doc("Share of bad outcomes among all events that have one; null where none has")
    ]
    events: Annotated[int, Doc("Number of similar events that count")]
    events_worth: Annotated[float, Doc("What they are worth: each counts by its similarity")]
    evidence: Annotated[list[PastEvent], Doc("The three most similar events")]
    remedies: Annotated[list[RemedyOf], Doc("What helped in the events that are near, most similar first")]
    read_chars: Annotated[int, Doc("Characters of the action that were read, as text")]
    cut: Annotated[bool, Doc("Whether the action was longer than that (`limits.query_chars_max`)")]
    receipt: Annotated[Receipt, Doc("How the events were found")]
    timings_ms: Annotated[Timings, Doc("Milliseconds of each stage of the search")]
