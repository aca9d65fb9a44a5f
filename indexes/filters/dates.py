"""Dates in strings: which strings are ISO 8601 dates, and which instants they mean.

Without numpy, because `nearline ingest` uses it too and must start quickly; instants of many texts are in `values`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

NO_DATE = -(2**63)  # stands for no date; none is that early
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DECEMBER = 12
MICROSECOND = timedelta(microseconds=1)
_DATE_ALIKE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}", re.ASCII)
# `fromisoformat` takes more, such as 20260105 and 2026-W02-1, which are more often numbers and names than dates.
_PERIOD = re.compile(r"(?P<year>\d{4})(-(?P<month>\d\d))?", re.ASCII)
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


def instant_of_date(text: str) -> int | None:
    """The same, None where the text is no date."""
    instant = instant_of(text)
    return None if instant == NO_DATE else instant


def period_of(text: str) -> tuple[int, int] | None:
    """The instants at which a month such as 2024-06, or a year, begins and at which the next one does; else None."""
    found = _PERIOD.fullmatch(text)
    if not found:
        return None
    year, month = int(found["year"]), found["month"]
    after = (year, int(month) + 1) if month and int(month) < DECEMBER else (year + 1, 1)
    begin, end = instant_of(f"{year:04}-{month or '01'}-01"), instant_of(f"{after[0]:04}-{after[1]:02}-01")
    return None if NO_DATE in (begin, end) else (begin, end)


def looks_like_a_date(value: object) -> bool:
    """Whether it was probably meant as a date, like 2026-1-5, 05/01/2026 or 2026-13-45."""
    return isinstance(value, str) and _DATE_ALIKE.match(value) is not None
