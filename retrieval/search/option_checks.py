"""Check the options of a search and fill in their defaults. Errors name the field."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from indexes.base.errors import InvalidInput
from indexes.filters.dates import instant_of_date
from indexes.reading.surroundings import Reach
from retrieval.base.settings import Config
from retrieval.wire.options import Boost, Collapse, Expand, Neighbors
from retrieval.wire.search import SearchRequest

CollapseOption = bool | Literal["text"] | Collapse | None

HOUR_S = 3600
MMR_CANDIDATES = (
    128  # how many candidates mmr may move, or k if larger; the rest keep their places behind them
)


def check_offset(offset: int, k: int, config: Config) -> int:
    """Return the place of the last hit of the page, counted from 1. Raises InvalidInput beyond `limits.k_max`."""
    last, most = offset + k, config.limits.k_max
    if last > most:
        raise InvalidInput(
            f"offset + k must be at most {most}, found {last}; to read all documents, scroll them",
            param="offset",
        )
    return last


def check_arranged(request: SearchRequest, last: int, page_depth: int) -> None:
    """Raise InvalidInput where boosts, sort or mmr would have to order more than the first candidates, or where two of
    them conflict."""
    if request.mmr is not None and request.sort:
        raise InvalidInput("mmr and sort are two orders, expected one", param="mmr")
    if request.mmr is not None and request.offset and last > MMR_CANDIDATES:
        raise InvalidInput(
            f"mmr orders the first {MMR_CANDIDATES} candidates, offset + k is {last}", param="offset"
        )
    if last > page_depth and (request.boosts or request.sort):
        raise InvalidInput(
            f"boosts and sort order the first {page_depth} candidates, offset + k is {last}",
            param="offset",
        )


def checked_collapse(collapse: CollapseOption, last: int, config: Config) -> CollapseOption:
    """Return the option in its one form. `last` is the place of the last hit. Raises InvalidInput naming the field."""
    if not isinstance(collapse, Collapse):
        return False if collapse is False else "text"
    if (collapse.similarity is None) == (collapse.key is None):
        raise InvalidInput("collapse needs either similarity or key", param="collapse")
    if collapse.hits is not None and collapse.key is None:
        raise InvalidInput("collapse.hits goes with collapse.key", param="collapse.hits")
    hits, most = last * (collapse.hits or 1), config.limits.k_max
    if hits > most:
        raise InvalidInput(
            f"(offset + k) * collapse.hits must be at most {most}, found {hits}", param="collapse.hits"
        )
    return collapse


def reach_of(expand: Expand | None, chars_max: int) -> Reach | None:
    if expand is None:
        return None
    if isinstance(expand, Neighbors):
        return Reach(expand.before, expand.after, chars_max)
    return Reach(None, None, chars_max, same_heading=expand == "section")


def boosts_at(boosts: list[Boost] | None, now_s: float) -> list[Boost] | None:
    """Fill in the time that decays count from: the current hour where none is given, so that answers can be cached.

    Raises InvalidInput naming the field.
    """
    if boosts is None:
        return None
    return [_boost_at(boost, f"boosts[{at}]", now_s) for at, boost in enumerate(boosts)]


def _boost_at(boost: Boost, where: str, now_s: float) -> Boost:
    decay = boost.decay
    if decay is None:
        return boost
    if boost.scale != "linear":
        raise InvalidInput(f"{where}.scale is for numbers, and decay for dates", param=f"{where}.scale")
    if decay.now is None:
        hour = np.datetime64(int(now_s) // HOUR_S * HOUR_S, "s")
        return msgspec.structs.replace(boost, decay=msgspec.structs.replace(decay, now=f"{hour}Z"))
    if instant_of_date(decay.now) is None:
        raise InvalidInput(
            f"{where}.decay.now is no date; write 2026-01-05 or 2026-01-05T10:00:00Z",
            param=f"{where}.decay.now",
        )
    return boost
