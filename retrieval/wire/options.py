"""The wire types of search options that have several fields."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from retrieval.wire.decoding import Doc, Request

SnippetChars = Annotated[int, Meta(ge=20, le=10_000)]
PassageCount = Annotated[int, Meta(ge=0, le=100)]
FacetValues = Annotated[int, Meta(ge=1, le=1000)]
Days = Annotated[float, Meta(gt=0, le=1_000_000)]
BoostWeight = Annotated[float, Meta(ge=-1000, le=1000)]
RerankCount = Annotated[int, Meta(ge=1, le=1000)]
RerankMs = Annotated[float, Meta(gt=0, le=10_000)]
RerankWeight = Annotated[float, Meta(ge=0, le=1)]
NearCopy = Annotated[float, Meta(ge=0.1, le=1)]
GroupHits = Annotated[int, Meta(ge=1, le=100)]
Name = Annotated[str, Meta(min_length=1)]
Place = Annotated[int, Meta(ge=0)]
OverBudget = Literal[
    "typos", "synonyms", "operators", "highlight", "facets", "collapse",
    "min_score", "min_relevance", "group_by_document",
]  # fmt: skip
Span = tuple[Place, Place]  # [start, end) in a hit's text, in characters


class Highlight(Request, frozen=True, kw_only=True):
    """Mark where each hit contains words of the query."""

    snippet_chars: Annotated[SnippetChars, Doc("Maximum characters of `snippet`")] = 240


class Neighbors(Request, frozen=True, kw_only=True):
    """How many passages around each hit to show with it."""

    before: Annotated[PassageCount, Doc("Passages before it in the document")] = 0
    after: Annotated[PassageCount, Doc("Passages after it")] = 0


Expand = Neighbors | Literal["section", "document"]


class Expanded(msgspec.Struct, omit_defaults=True):
    """A hit with the passages around it, as one stretch of the document without repetition."""

    passages: Annotated[Span, Doc("Positions of the first and the last passage, inclusive")]
    start: Annotated[int, Doc("Start in the document's text, in characters")]
    end: Annotated[int, Doc("End in the document's text, in characters, exclusive")]
    text: Annotated[str, Doc("The document's text from `start` to `end`")]
    cut: Annotated[bool, Doc("Whether limits.expanded_chars_max cut it short")] = False


Bound = int | float | str


class Facet(Request, frozen=True, kw_only=True):
    """Count the documents that match the filter by the values of a metadata key, or by ranges of them."""

    key: Annotated[Name, Doc("The metadata key")]
    top: Annotated[FacetValues, Doc("Maximum number of values to list, most frequent first")] = 10
    ranges: Annotated[
        list[Bound] | None, Doc("Count ranges instead: their bounds, ascending, either numbers or ISO dates")
    ] = None


class ValueCount(msgspec.Struct):
    value: Annotated[str | int | float | bool, Doc("The value")]
    count: Annotated[int, Doc("Documents with this value")]


class RangeCount(msgspec.Struct, omit_defaults=True):
    """Values from `gte` (inclusive) to `lt` (exclusive); an absent bound is open."""

    count: Annotated[int, Doc("Documents with a value in this range")]
    gte: Annotated[Bound | None, Doc("Lower bound, inclusive")] = None
    lt: Annotated[Bound | None, Doc("Upper bound, exclusive")] = None


class FacetBody(msgspec.Struct):
    """The counts among all `documents` that match the filter. A document with several values counts for each."""

    key: Annotated[str, Doc("The metadata key")]
    values: Annotated[list[ValueCount], Doc("The most frequent values; empty if ranges were requested")]
    ranges: Annotated[list[RangeCount], Doc("The requested ranges, ascending")]
    distinct: Annotated[int, Doc("Number of distinct values, listed or not; 0 with `ranges`")]
    missing: Annotated[int, Doc("Documents without a value")]
    documents: Annotated[int, Doc("Documents that match the filter")]


class Decay(Request, frozen=True, kw_only=True):
    """A weight that halves with age."""

    half_life_days: Annotated[Days, Doc("Age in days at which half of the weight is left")]
    now: Annotated[str | None, Doc("ISO date that ages are measured from; absent: the current hour")] = None


class Boost(Request, frozen=True, kw_only=True):
    """Multiplies scores by `1 + weight * f(value)`. `f` is the number itself (true is 1), ln(1 + number), or with
    `decay` the fraction of 1 left at the age of the date (ISO, or seconds since 1970)."""

    key: Annotated[Name, Doc("The metadata key; passages without a value keep their score")]
    weight: Annotated[BoostWeight, Doc("Strength of the boost; negative values lower scores")] = 1.0
    scale: Annotated[
        Literal["linear", "log"], Doc("How numbers count: as they are, or as ln(1 + number)")
    ] = "linear"
    decay: Annotated[Decay | None, Doc("For dates: newer is better")] = None


class Sort(Request, frozen=True, kw_only=True):
    """Order by a metadata key."""

    key: Annotated[Name, Doc("The metadata key; passages without a value come last")]
    order: Annotated[Literal["asc", "desc"], Doc("Ascending or descending")] = "asc"


Boosts = Annotated[list[Boost], Meta(min_length=1, max_length=8)]
Sorts = Annotated[list[Sort], Meta(min_length=1, max_length=8)]


class Rerank(Request, frozen=True, kw_only=True):
    """Let a cross-encoder read the first candidates together with the query. Absent fields come from the
    configuration."""

    candidates: Annotated[RerankCount | None, Doc("Number of first candidates to read")] = None
    budget_ms: Annotated[
        RerankMs | None, Doc("Time limit for reranking; candidates not read in time keep their order")
    ] = None
    weight: Annotated[
        RerankWeight | None, Doc("Weight of the cross-encoder relative to the fused score, 0 to 1")
    ] = None


class Collapse(Request, frozen=True, kw_only=True):
    """Collapse passages that are similar, or those with the same value under a metadata key."""

    similarity: Annotated[
        NearCopy | None,
        Doc("Collapse passages whose vectors have at least this cosine, and identical texts"),
    ] = None
    key: Annotated[
        Name | None,
        Doc("The metadata key; passages without a value stand alone, and of several the first counts"),
    ] = None
    hits: Annotated[GroupHits | None, Doc("Hits of each value of `key`, 1 by default; `k` counts values")] = (
        None
    )


class Reranked(msgspec.Struct):
    """`passages` of the `of` requested candidates were read before the time limit."""

    model: Annotated[str, Doc("Name of the cross-encoder")]
    passages: Annotated[int, Doc("Number of candidates that it read")]
    of: Annotated[int, Doc("Number of candidates that it was asked to read")]
