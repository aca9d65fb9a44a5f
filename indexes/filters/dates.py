"""Dates in strings: which strings are ISO 8601 dates, and which instants they mean.

Without numpy, because `nearline ingest` uses it too and must start quickly; `values` has instants of many texts.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from indexes.base.errors import InvalidInput

NO_DATE = -(2**63)  # earlier than any date
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DECEMBER = 12
YEAR_MAX = 9999
EXPIRES_MS_MAX = 253_402_300_799_999  # the end of that year
DAY = 86_400_000_000  # microseconds
MICROSECOND = timedelta(microseconds=1)
_DATE_ALIKE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}", re.ASCII)
# `fromisoformat` accepts more, such as 20260105 and 2026-W02-1, which are more often numbers and names than dates.
_PERIOD = re.compile(r"(?P<year>\d{4})(-(?P<month>\d\d))?", re.ASCII)
YEAR = re.compile(r"\d{4}", re.ASCII)  # begins 2026, 2026-Q1 and 20260105
YEAR_CHARS = len("2026")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?", re.ASCII)
_DAY_CHARS = len("2026-01-05")

Span = tuple[int, int]  # instants: the first one inside, and the first one after


def instant_of(text: str) -> int:
    """Microseconds since 1970 in UTC, or NO_DATE. Without a zone, a time is in UTC; without a time, it is midnight."""
    if not _DATE.fullmatch(text):
        return NO_DATE
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return NO_DATE
    return ((date if date.tzinfo else date.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND


def instant_of_date(text: str) -> int | None:
    """Like `instant_of`, but None if the text is not a date."""
    instant = instant_of(text)
    return None if instant == NO_DATE else instant


def span_of(text: str) -> Span | None:
    """All instants that a filter means by a text: one instant, or a whole day, month (2024-06) or year in UTC.

    Returns None if the text is none of these.
    """
    begin = instant_of(text)
    if begin == NO_DATE:
        return _month_or_year(text)
    return begin, begin + (DAY if len(text) == _DAY_CHARS else 1)


def is_month_or_year(text: str) -> bool:
    """Whether a text has the form of a month or a year, which strings that are not dates often have too."""
    return _month_or_year(text) is not None


def _month_or_year(text: str) -> Span | None:
    found = _PERIOD.fullmatch(text)
    if not found:
        return None
    year, month = int(found["year"]), found["month"]
    begin = instant_of(f"{year:04}-{month or '01'}-01")
    if begin == NO_DATE:
        return None
    after = (year, int(month) + 1) if month and int(month) < DECEMBER else (year + 1, 1)
    if after[0] > YEAR_MAX:
        return begin, instant_of(f"{YEAR_MAX}-12-31") + DAY
    return begin, instant_of(f"{after[0]:04}-{after[1]:02}-01")


def looks_like_a_date(value: object) -> bool:
    """Whether a value was probably meant as a date, like 2026-1-5, 05/01/2026 or 2026-13-45."""
    return isinstance(value, str) and _DATE_ALIKE.match(value) is not None


def expires_ms_of(value: str | int | None, where: str) -> int | None:
    """Return milliseconds since 1970 for an ISO 8601 date (UTC by default) or for milliseconds."""
    if value is None:
        return None
    micros = instant_of_date(value) if isinstance(value, str) else 1000 * value
    if isinstance(value, str) and micros is not None:
        micros = max(micros, 0)  # any time in the past hides a document at once
    if micros is None or not 0 <= micros // 1000 <= EXPIRES_MS_MAX:
        raise InvalidInput(
            f"{where} must be a date such as 2027-01-31T12:00:00Z, or milliseconds since 1970, found {value!r:.40}",
            param=where,
        )
    return micros // 1000


def date_of(instant_ms: int) -> str:
    """Format an instant in the way `expires_ms_of` reads it."""
    date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=instant_ms)
    return date.isoformat(timespec="milliseconds" if instant_ms % 1000 else "seconds").replace("+00:00", "Z")
