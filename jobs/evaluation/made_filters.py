"""Filters that let about a wanted share of a collection through, made from the metadata it really has.

In this order: one value of one key, a range of numbers, several rare values of one key. How much they really let
through is counted by the service before one is used.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jobs.evaluation.survey import Key, Survey, Value
from jobs.pace import Pace
from retrieval.client import JSON, Client

EACH = 3  # filters of one selectivity: one alone may be a fluke
OFF_BY = 2.0  # times more or fewer than wanted is near enough
VALUES_MAX = 50  # in one list of values
TRIED_MAX = 12  # counted by the service, for one selectivity


@dataclass(frozen=True, slots=True)
class MadeFilter:
    """`share` of the passages satisfy it; `text` says it in words."""

    condition: JSON
    share: float
    text: str


async def make_filters(
    client: Client, collection: str, survey: Survey, wanted: float, seed: int, pace: Pace
) -> list[MadeFilter]:
    """Up to EACH, of different keys where possible. None where no metadata has values of such a frequency."""
    made: list[MadeFilter] = []
    spare: list[MadeFilter] = []
    used: set[str] = set()
    for tried, (key, text, condition) in enumerate(proposals(survey, wanted, random.Random(seed))):
        if tried == TRIED_MAX or len(made) == EACH:
            break
        await pace()
        counted = await client.count(collection, filter=condition)
        share = counted["passages"] / max(survey.passages, 1)
        if share and near(share, wanted):
            (spare if key in used else made).append(MadeFilter(condition, share, text))
            used.add(key)
    return [*made, *spare][:EACH]


def proposals(survey: Survey, wanted: float, rng: random.Random) -> Iterator[tuple[str, str, JSON]]:
    """(key, in words, filter), the simplest first and of those the nearest."""
    values = [
        (abs(math.log(count / survey.passages / wanted)), name, value)
        for name, key in survey.keys.items()
        for value, count in key.passages.items()
        if near(count / survey.passages, wanted)
    ]
    values.sort(key=lambda one: one[0])
    best: dict[str, int] = {}
    for _, name, value in values:
        best[name] = best.get(name, 0) + 1
        if best[name] <= EACH:
            yield name, f"{name} = {value}", comparison("eq", name, value)
    for name, key in survey.keys.items():
        yield from ranges(name, key, survey, wanted, rng)
        yield from lists(name, key, survey, wanted, rng)


def ranges(
    name: str, key: Key, survey: Survey, wanted: float, rng: random.Random
) -> Iterator[tuple[str, str, JSON]]:
    """From one number of the sample up to another that is as many places further on."""
    numbers = sorted(key.numbers)
    width = round(wanted * survey.documents / max(key.numbers_seen, 1) * len(numbers))
    if not 1 <= width < len(numbers):
        return
    for _ in range(EACH):
        at = rng.randrange(len(numbers) - width)
        low, high = numbers[at], numbers[at + width]
        if low < high:
            both = [comparison("gte", name, low), comparison("lt", name, high)]
            yield name, f"{low:g} <= {name} < {high:g}", {"type": "and", "filters": both}


def lists(
    name: str, key: Key, survey: Survey, wanted: float, rng: random.Random
) -> Iterator[tuple[str, str, JSON]]:
    """Values that are too rare alone."""
    rare = [(value, count) for value, count in key.passages.items() if count / survey.passages < wanted / 2]
    rng.shuffle(rare)
    chosen: list[Value] = []
    held = 0
    for value, count in rare[:VALUES_MAX]:
        chosen.append(value)
        held += count
        if held / survey.passages >= wanted:
            yield name, f"{name} is one of {len(chosen)} values", comparison("in", name, chosen)
            return


def near(share: float, wanted: float) -> bool:
    return wanted / OFF_BY <= share <= wanted * OFF_BY


def comparison(kind: str, key: str, value: Any) -> JSON:
    return {"type": kind, "key": key, "value": value}
