"""Dates in strings: which strings are ISO 8601 dates, and which instants they mean."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from indexes.filters.values import Texts

Instants = NDArray[np.int64]

COMPARE = {"gt": np.greater, "gte": np.greater_equal, "lt": np.less, "lte": np.less_equal}
NO_DATE = -(2**63)  # in the place of an instant; no date is that early
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
# `fromisoformat` takes more, such as 20260105 and 2026-W02-1, which are more often numbers and names than dates.
_DATE_ALIKE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?", re.ASCII)


def instant_of(text: str) -> int:
    """Microseconds since 1970 in UTC; NO_DATE where the text is no date. No zone means UTC, no time midnight."""
    if not _DATE.fullmatch(text):
        return NO_DATE
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return NO_DATE
    return ((date if date.tzinfo else date.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND


def looks_like_a_date(value: object) -> bool:
    """Whether it was probably meant as a date, like 2026-1-5, 05/01/2026 or 2026-13-45."""
    return isinstance(value, str) and _DATE_ALIKE.match(value) is not None


def instants_of(texts: Texts) -> Instants:
    """The instant of each text. Only those with hyphens in the right places cost Python's time."""
    found = np.full(len(texts), NO_DATE)
    long = np.flatnonzero(texts.lengths() >= len("2026-01-05"))
    starts = texts.offsets[long].astype(np.int64)
    dated = (texts.block[starts + 4] == ord("-")) & (texts.block[starts + 7] == ord("-"))
    for at in long[dated].tolist():
        found[at] = instant_of(texts.value_at(at))
    return found


def satisfying(instants: Instants, ordering: str, bound: int) -> NDArray[np.bool_]:
    """Which of the instants are gt, gte, lt or lte the bound. NO_DATE never is."""
    found: NDArray[np.bool_] = (instants != NO_DATE) & COMPARE[ordering](instants, bound)
    return found
