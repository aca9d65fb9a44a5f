"""The wire types of search options that are more than one value."""

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
Name = Annotated[str, Meta(min_length=1)]
Place = Annotated[int, Meta(ge=0)]
OverBudget = Literal["typos", "operators", "highlight", "facets"]
Span = tuple[Place, Place]  # [start, end) in a hit's text, in characters


class Highlight(Request, frozen=True, kw_only=True):
    """Show where each hit has words of the query."""

    snippet_chars: Annotated[SnippetChars, Doc("Most characters of `snippet`")] = 240


class Neighbors(Request, frozen=True, kw_only=True):
    """How many passages around each hit are shown with it."""

    before: Annotated[PassageCount, Doc("Passages before it in the document")] = 0
    after: Annotated[PassageCount, Doc("Passages after it")] = 0


Expand = Neighbors | Literal["section", "document"]


class Expanded(msgspec.Struct, omit_defaults=True):
    """A hit with the passages around it, as they stand in the document: nothing comes twice."""

    passages: Annotated[Span, Doc("Positions of the first and the last passage, inclusive")]
    start: Annotated[int, Doc("Start in the document's text, in characters")]
    end: Annotated[int, Doc("End in the document's text, in characters, exclusive")]
    text: Annotated[str, Doc("The document's text from `start` to `end`")]
    cut: Annotated[bool, Doc("Whether limits.expanded_chars_max left out some that belong to it")] = False


Bound = int | float | str


class Facet(Request, frozen=True, kw_only=True):
    """Count the documents that match the filter by the values of a metadata key, or by ranges of them."""

    key: Annotated[Name, Doc("The metadata key")]
    top: Annotated[FacetValues, Doc("Most values that are listed, the most frequent first")] = 10
    ranges: Annotated[
        list[Bound] | None, Doc("Count ranges instead: their bounds, ascending, all numbers or all ISO dates")
    ] = None


class ValueCount(msgspec.Struct):
    value: Annotated[str | int | float | bool, Doc("The value")]
    count: Annotated[int, Doc("Documents that have it")]


class RangeCount(msgspec.Struct, omit_defaults=True):
    """Values from `gte`, where there is one, and below `lt`, where there is one."""

    count: Annotated[int, Doc("Documents with a value in it")]
    gte: Annotated[Bound | None, Doc("The least value")] = None
    lt: Annotated[Bound | None, Doc("The value it ends before")] = None


class FacetBody(msgspec.Struct):
    """Of all `documents` that match the filter. One with several values counts for each."""

    key: Annotated[str, Doc("The metadata key")]
    values: Annotated[list[ValueCount], Doc("The most frequent values; empty where ranges were asked for")]
    ranges: Annotated[list[RangeCount], Doc("The ranges asked for, ascending")]
    distinct: Annotated[int, Doc("Number of different values, listed or not")]
    missing: Annotated[int, Doc("Documents without a value")]
    documents: Annotated[int, Doc("Documents that match the filter")]


class Decay(Request, frozen=True, kw_only=True):
    """A weight that halves with age."""

    half_life_days: Annotated[Days, Doc("Age in days at which half of it is left")]
    now: Annotated[str | None, Doc("ISO date that ages count from; absent: the present hour")] = None


class Boost(Request, frozen=True, kw_only=True):
    """Multiplies scores by `1 + weight * f(value)`: the number itself (true is 1), ln(1 + number), or with `decay` what
    is left of 1 at the age of the date (ISO, or seconds since 1970)."""

    key: Annotated[Name, Doc("The metadata key; passages without a value keep their score")]
    weight: Annotated[BoostWeight, Doc("How much it counts; below 0 lowers scores")] = 1.0
    scale: Annotated[Literal["linear", "log"], Doc("Of numbers: as they are, or ln(1 + number)")] = "linear"
    decay: Annotated[Decay | None, Doc("For dates: newer is better")] = None


class Sort(Request, frozen=True, kw_only=True):
    """Order by a metadata key."""

    key: Annotated[Name, Doc("The metadata key; passages without a value come last")]
    order: Annotated[Literal["asc", "desc"], Doc("Ascending or descending")] = "asc"


Boosts = Annotated[list[Boost], Meta(min_length=1, max_length=8)]
Sorts = Annotated[list[Sort], Meta(min_length=1, max_length=8)]


class Rerank(Request, frozen=True, kw_only=True):
    """Read the first candidates beside the query; what is absent comes from the configuration."""

    candidates: Annotated[RerankCount | None, Doc("How many of the first candidates are read")] = None
    budget_ms: Annotated[RerankMs | None, Doc("Time for that; the rest keep their order")] = None
    weight: Annotated[RerankWeight | None, Doc("Of the cross-encoder against the fused score, 0 to 1")] = None


class Reranked(msgspec.Struct):
    """`passages` were read `of` those wanted: less where the budget ended."""

    model: Annotated[str, Doc("Name of the cross-encoder")]
    passages: Annotated[int, Doc("Candidates it read, the first ones")]
    of: Annotated[int, Doc("Candidates it was to read")]
