"""Boosts and sorting: how the metadata of the candidates changes their order.

    score = score * product of max(1 + weight * f(value), 0) over the boosts

f is the value itself (true is 1), ln(1 + value), or for dates 0.5 ** (age / half-life), which is 1 for the present and
the future. A passage without a value has f = 0. A negative score is divided instead, so that a positive boost always
raises it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from indexes.base.model import Scalar
from indexes.filters.dates import instant_of_date
from indexes.filters.grammar import Kind
from retrieval.documents.metadata import instant_at
from retrieval.search.fusion import Scores
from retrieval.search.ranking import Fused, round_scores
from retrieval.search.shard import ValuesQuery
from retrieval.wire.options import Boost, Collapse
from retrieval.wire.search import SearchRequest

DAY_US = 86_400_000_000
LEAST_FACTOR, FACTOR_MAX = 1e-6, 1e9
COUNTED: dict[bool, tuple[Kind, ...]] = {  # kinds of values that a boost reads, with decay and without
    True: ("number",),
    False: ("number", "boolean"),
}

Values = Sequence[Sequence[Scalar]]  # for each candidate, its values under one key


def values_queries(request: SearchRequest) -> tuple[ValuesQuery, ...]:
    """Return what `arrange` needs to know of the candidates, and last the key by which they collapse: it must exist."""
    boosts = [
        ValuesQuery(one.key, f"boosts[{at}].key", COUNTED[one.decay is not None], one.decay is not None)
        for at, one in enumerate(request.boosts or [])
    ]
    sorts = [ValuesQuery(one.key, f"sort[{at}].key") for at, one in enumerate(request.sort or [])]
    grouped = request.collapse.key if isinstance(request.collapse, Collapse) else None
    return (
        *boosts,
        *sorts,
        *([] if grouped is None else [ValuesQuery(grouped, "collapse.key", exists=True)]),
    )


def arrange(request: SearchRequest, fused: Fused, values: Sequence[Values]) -> Fused:
    """Order the candidates by boosts and sort. `values` are those that `values_queries` asks for."""
    boosts, sorts = request.boosts or [], request.sort or []
    for factors in factors_of(boosts, values):
        fused = replace(fused, boosts=factors if fused.boosts is None else fused.boosts * factors)
    if fused.boosts is not None:
        boosted = round_scores(boost_scores(fused.ranked, fused.boosts))
        fused = replace(fused, ranked=boosted, score_max=boosted.max(initial=fused.score_max))
        fused = replace(fused, order=fused.ordered_by(boosted))
    positions: list[int] = fused.order.tolist()
    for sort, held in reversed(list(zip(sorts, values[len(boosts) :], strict=False))):
        keys = sort_keys(held, last=sort.order == "desc")
        present = [position for position in positions if keys[position] is not None]
        present.sort(key=keys.__getitem__, reverse=sort.order == "desc")
        positions = present + [position for position in positions if keys[position] is None]
    order = np.array(positions, np.intp)
    if fused.levels is not None:
        order = order[np.argsort(fused.levels[order], kind="stable")]
    return replace(fused, order=order)


def boost_scores(scores: Scores, factors: Scores) -> Scores:
    return np.where(scores >= 0, scores * factors, scores / np.maximum(factors, LEAST_FACTOR))


def factors_of(boosts: Sequence[Boost], values: Sequence[Values]) -> Iterator[Scores]:
    """Return for each boost the factors by which it multiplies the scores of the candidates. Of several values of a
    candidate the largest counts."""
    newest: dict[str, list[int | None]] = {}  # instants of the candidates, by key
    for boost, held in zip(boosts, values, strict=False):
        if boost.decay is None:
            yield np.array([of_number(boost, largest(one)) for one in held])
            continue
        if boost.key not in newest:
            newest[boost.key] = [newest_instant(one) for one in held]
        now, half_life = instant_of_date(boost.decay.now or "") or 0, boost.decay.half_life_days * DAY_US
        yield np.array([of_age(boost, one, now, half_life) for one in newest[boost.key]])


def of_number(boost: Boost, number: float) -> float:
    return bounded(boost, math.log1p(max(number, 0.0)) if boost.scale == "log" else number)


def of_age(boost: Boost, instant: int | None, now: int, half_life: float) -> float:
    """All times are in microseconds."""
    return bounded(boost, 0.0 if instant is None else 0.5 ** (max(now - instant, 0) / half_life))


def bounded(boost: Boost, f: float) -> float:
    return min(max(1 + boost.weight * f, 0.0), FACTOR_MAX)


def largest(values: Sequence[Scalar]) -> float:
    return max((float(one) for one in values if not isinstance(one, str)), default=0.0)


def newest_instant(values: Sequence[Scalar]) -> int | None:
    return max((instant for one in values if (instant := instant_at(one)) is not None), default=None)


def sort_keys(values: Values, *, last: bool) -> list[Any]:
    """Return a comparable key for each candidate, None for one without a value. With several values, the one that comes
    first in the order counts.

    Booleans come before numbers, and numbers before strings. Strings compare as instants if all of them are dates.
    """
    instants = {one: instant_of_date(one) for some in values for one in some if isinstance(one, str)}
    dated = None not in instants.values()

    def key(one: Scalar) -> tuple[int, Any]:
        if isinstance(one, str):
            return 2, instants[one] if dated else one
        return (0 if isinstance(one, bool) else 1), one

    return [(max if last else min)(map(key, some), default=None) for some in values]
