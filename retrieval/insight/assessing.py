"""How risky an action is, judging by how the most similar past events ended.

    risk = (prior_events * base_rate + sum of the similarities of the bad neighbors)
         / (prior_events             + sum of the similarities of all neighbors)

A beta-binomial estimate in which each neighbor counts in proportion to its similarity: an identical one as one
event, an unrelated one as none. The prior is the share of bad outcomes in the whole collection, worth
`prior_events`, so that few or distant neighbors hardly change it.

Similarity is the score of weighted fusion: cosine above that of unrelated texts, and BM25, both relative to what an
equal text would score. The relevance of a hit is less useful here: it measures the lead over the tenth hit, and ten
equally similar past events should all count. docs/assess.md has the measurements and what was tried.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from indexes.base.errors import InvalidInput
from indexes.base.model import Metadata, Scalar
from indexes.base.paths import value_at, values_at
from indexes.filters.dates import instant_of, span_of
from indexes.filters.grammar import Kind, canonical, kind_of
from indexes.rebuild.shares import wilson
from retrieval.base.settings import AssessSection
from retrieval.wire.assess import Assessment, AssessRequest, Outcome, PastEvent, RemedyOf
from retrieval.wire.search import Fusion, Hit, SearchAnswer, SearchRequest

EVIDENCE = 3
REMEDIES_MAX = 3
Z = 1.645  # for a 90 percent interval
DECIMALS = 4
TITLE_CHARS = 80
SHOWN_MAX = 10  # values in a sentence
DEPTH_MAX = 32  # of nested values in an alert
OWN = re.compile(r"\d|://")

Abstained = Literal["nothing_near", "no_outcomes", "none_bad"]


@dataclass(frozen=True, slots=True)
class Judge:
    """Decides which outcomes are bad."""

    key: str
    bad: Sequence[Scalar]
    bad_from: float | None
    spans: Sequence[tuple[float, float]] = ()  # of the dates in `bad`

    @staticmethod
    def of(wanted: Outcome | None, settings: AssessSection) -> Judge:
        wanted = wanted or Outcome()
        key = wanted.key or settings.outcome_key
        if wanted.bad is None and wanted.bad_from is None:
            bad, bad_from = settings.bad, None if settings.bad_from == "none" else settings.bad_from
        else:
            bad, bad_from = wanted.bad or [], wanted.bad_from
        spans = tuple(span for one in bad if isinstance(one, str) and (span := span_of(one)))
        return Judge(key, bad, bad_from, spans)

    def meaning(self) -> str:
        """Say which values count as bad."""
        values = ", ".join(map(repr, self.bad[:SHOWN_MAX])) + (", ..." if len(self.bad) > SHOWN_MAX else "")
        numbers = [] if self.bad_from is None else [f"numbers from {self.bad_from:g} on"]
        return f"what counts as bad is {' and '.join([*([values] if values else []), *numbers])}"

    def is_bad(self, metadata: Metadata) -> bool | None:
        """Whether the outcome is bad, or None if it is unknown. A list is bad if one of its values is, and a date if it
        lies in a day, month or year that is, as in filters."""
        outcomes = values_at(metadata, self.key)
        if not outcomes and not isinstance(metadata.get(self.key), dict):  # an empty list is none
            return None
        return any(map(self._is_bad, outcomes))

    def _is_bad(self, value: Scalar) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and self.bad_from is not None and float(value) >= self.bad_from:
            return True
        wanted = kind_of(value), canonical(value)
        if any(wanted == (kind_of(one), canonical(one)) for one in self.bad):
            return True
        return isinstance(value, str) and any(first <= instant_of(value) < end for first, end in self.spans)

    def filters(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return a filter for events with an outcome, and those for events with a bad outcome, each about one kind of
        value."""
        kinds: dict[Kind, list[Scalar]] = {}
        for one in self.bad:
            kinds.setdefault(kind_of(one), []).append(one)
        bad: list[dict[str, Any]] = [
            {"type": "in", "key": self.key, "value": alike} for alike in kinds.values()
        ]
        if self.bad_from is not None:
            bad.append({"type": "gte", "key": self.key, "value": self.bad_from})
        return {"type": "exists", "key": self.key}, bad


def text_of(action: object) -> str:
    """Return the text of an action: of an object its sentences, then its labels as `key: value`, each once.

    Labels with digits and addresses are left out: times, pods and links are specific to this alert and reduce its
    similarity to others.
    """
    if isinstance(action, str):
        return action.strip()
    found = dict.fromkeys(leaves(action))
    sentences = [value for _, value in found if " " in value]
    labels = [f"{key}: {value}" for key, value in found if " " not in value and not OWN.search(value)]
    return "\n".join(dict.fromkeys([*sentences, *labels]))


def leaves(value: object, key: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield each string, number and boolean in order, with the last key above it. Raises InvalidInput if nested too
    deep."""
    if depth > DEPTH_MAX:
        raise InvalidInput(
            f"action is nested too deeply, at most {DEPTH_MAX} objects and lists", param="action"
        )
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, name, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, key, depth + 1)
    elif value is not None and (text := str(value).strip()):
        yield key, text


def search_request(wanted: AssessRequest, text: str, neighbors: int) -> SearchRequest:
    return SearchRequest(
        query=text,
        k=neighbors,
        mode="hybrid",
        fusion=Fusion(method="weighted"),
        group_by_document=True,
        collapse=False,  # each event is evidence of its own
        filter=wanted.filter,
        language=wanted.language,
        min_seq=wanted.min_seq,
        deadline_ms=wanted.deadline_ms,
        cache=wanted.cache,
    )


@dataclass(frozen=True, slots=True)
class PastOutcomes:
    """How events end in general: `base_rate` is the share of bad outcomes among those that match the request's filter,
    None if none of them has an outcome. `ever_bad`: some event of the collection ended badly."""

    base_rate: float | None
    ever_bad: bool = True


@dataclass(frozen=True, slots=True)
class Neighbor:
    hit: Hit
    similarity: float
    bad: bool | None
    near: bool

    @property
    def counted(self) -> bool:
        return self.near and self.bad is not None


def assess(
    found: SearchAnswer,
    wanted: AssessRequest,
    judge: Judge,
    past: PastOutcomes,
    settings: AssessSection,
) -> Assessment:
    """Assess an action by the events found. The caller sets `read_chars` and `cut`."""
    base_rate = past.base_rate
    near_from = settings.near_from if wanted.near_from is None else wanted.near_from
    neighbors = [
        Neighbor(hit, min(1.0, max(0.0, hit.score)), judge.is_bad(hit.metadata), hit.score >= near_from)
        for hit in found.hits
    ]
    counted = [one for one in neighbors if one.counted]
    abstained: Abstained | None = None
    if not any(one.near for one in neighbors):
        abstained = "nothing_near"
    elif not counted:
        abstained = "no_outcomes"
    elif not past.ever_bad:
        abstained = "none_bad"
    worth = sum(one.similarity for one in counted)
    risk = interval = None
    if abstained is None and base_rate is not None:
        prior, bad = settings.prior_events, sum(one.similarity for one in counted if one.bad)
        risk = (prior * base_rate + bad) / (prior + worth)
        interval = [round(end, DECIMALS) for end in wilson(risk, worth + prior, Z)]
    return Assessment(
        risk_score=None if risk is None else round(risk, DECIMALS),
        interval=interval,
        recommendation=recommendation_of(risk, settings),
        summary=summary(abstained, counted, neighbors, judge, base_rate),
        abstained=abstained,
        base_rate=None if base_rate is None else round(base_rate, DECIMALS),
        events=len(counted),
        events_worth=round(worth, DECIMALS),
        evidence=[past_event(one, judge) for one in neighbors[:EVIDENCE]],
        remedies=remedies_of(neighbors, wanted.remedy_key or settings.remedy_key),
        read_chars=0,
        cut=False,
        receipt=found.receipt,
        timings_ms=found.timings_ms,
    )


def recommendation_of(risk: float | None, settings: AssessSection) -> Literal["proceed", "review", "stop"]:
    if risk is None:
        return "review"
    if risk >= settings.stop_from:
        return "stop"
    return "review" if risk >= settings.review_from else "proceed"


def summary(
    abstained: Abstained | None,
    counted: list[Neighbor],
    neighbors: list[Neighbor],
    judge: Judge,
    base_rate: float | None,
) -> str:
    if abstained == "nothing_near":
        return "No past event is similar to this one, so nothing can be said."
    if abstained == "no_outcomes":
        near = sum(one.near for one in neighbors)
        events = "One past event is" if near == 1 else f"{near} past events are"
        return f"{events} similar to this one, but none has {judge.key!r} in its metadata."
    if abstained == "none_bad":
        return (
            f"No event of the collection ended badly, judging by {judge.key!r}, so nothing can be said; "
            f"{judge.meaning()}."
        )
    bad = [one for one in counted if one.bad]
    ended = Counter(str(value_at(one.hit.metadata, judge.key)) for one in bad)
    how = f" ({', '.join(f'{number} {name}' for name, number in ended.most_common(EVIDENCE))})" if bad else ""
    first = counted[0].hit
    of_all = f", {base_rate:.0%} of all do" if base_rate is not None else ""
    return (
        f"{len(bad)} of {len(counted)} similar past events ended badly{how}{of_all}; the most similar, "
        f"{shorten(first.title or first.text)!r}, ended with {judge.key}: {value_at(first.metadata, judge.key)}."
    )


def shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TITLE_CHARS else f"{line[: TITLE_CHARS - 1]}…"


def past_event(one: Neighbor, judge: Judge) -> PastEvent:
    return PastEvent(
        document_id=one.hit.document_id,
        title=one.hit.title,
        text=one.hit.text,
        metadata=one.hit.metadata,
        similarity=round(one.similarity, DECIMALS),
        outcome=value_at(one.hit.metadata, judge.key),
        bad=one.bad,
        counted=one.counted,
    )


def remedies_of(neighbors: list[Neighbor], key: str) -> list[RemedyOf]:
    """Return the remedies of similar events, whether their outcome is known or not."""
    events: dict[str, list[str]] = {}
    for one in neighbors:
        for value in values_at(one.hit.metadata, key) if one.near else []:
            if remedy := str(value).strip():
                events.setdefault(remedy, []).append(one.hit.document_id)
    return [RemedyOf(remedy, ids) for remedy, ids in list(events.items())[:REMEDIES_MAX]]
