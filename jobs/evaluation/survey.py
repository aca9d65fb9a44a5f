"""Scans all documents once, without their texts, to find the newest ones, the judged ones that exist, and a sample.

The metadata of the sample gives filters that match about a wanted share of the collection.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from typing import Any

from indexes.base.paths import leaves
from jobs.evaluation.asking import Asker
from nearline import JSON

PAGE = 1000
SAMPLE = 10_000  # documents: a filter of .1 percent still matches about ten of them
NEWEST_SHARE = 0.1
FILTERS = 3  # per selectivity: a single one may be a fluke
OFF_BY = 2.0  # factor by which matches may differ from the wanted share
VALUES_MAX = 50  # in one list of values
COUNTS_MAX = 12  # filters counted by the service, per selectivity

Value = str | int | float | bool


class Survey:
    """The results of one scan. `add` documents in the order of writing; `expected` is the number of passages."""

    def __init__(
        self, expected: int, judged: Collection[str] = (), size: int = SAMPLE, seed: int = 0
    ) -> None:
        self._rng = random.Random(seed)
        self._expected, self._judged, self._size = expected, judged, size
        self.documents = self.passages = 0
        self.newest: set[str] = set()  # the documents that hold the last tenth of the passages
        self.present: set[str] = set()  # of the judged documents
        self.sample: list[JSON] = []  # uniform, at most `size`

    def add(self, document: JSON) -> None:
        if self.passages >= (1 - NEWEST_SHARE) * self._expected:
            self.newest.add(document["id"])
        if document["id"] in self._judged:
            self.present.add(document["id"])
        self.documents += 1
        self.passages += document["passages"]
        if len(self.sample) < self._size:
            self.sample.append(document)
        elif (at := self._rng.randrange(self.documents)) < self._size:
            self.sample[at] = document

    def values(self) -> dict[str, Counter[Value]]:
        """How many of the sampled passages have each value of each metadata key."""
        passages: dict[str, Counter[Value]] = defaultdict(Counter)
        for document in self.sample:
            for path, value in leaves(document["metadata"]):
                passages[path][value] += document["passages"]
        return passages


async def survey(asker: Asker, judged: Collection[str], size: int, seed: int) -> Survey:
    """Read all documents page by page; each page counts as a query for the rate."""
    total = await asker.client.count(asker.collection)
    found = Survey(total["passages"], judged, max(size, SAMPLE), seed)
    async for document in asker.client.scroll(asker.collection, limit=PAGE, text=False):
        if found.documents % PAGE == 0:
            asker.progress("reading documents", found.documents, total["documents"])
            await asker.pace()
        found.add(document)
    return found


async def make_filters(
    asker: Asker, survey: Survey, wanted: float, seed: int
) -> list[tuple[str, JSON, float]]:
    """Up to FILTERS filters, each in words, as JSON, and with the share it matches by the service's count."""
    made: list[tuple[str, JSON, float]] = []
    for tried, (text, condition) in enumerate(proposals(survey, wanted, random.Random(seed))):
        if tried == COUNTS_MAX or len(made) == FILTERS:
            break
        share = await asker.share(condition, survey.passages)
        if is_near(share, wanted):
            made.append((text, condition, share))
    return made


def proposals(survey: Survey, wanted: float, rng: random.Random) -> Iterator[tuple[str, JSON]]:
    """Filters in words and as JSON, the simplest first: single values, ranges of numbers, lists of rare values."""
    passages = sum(one["passages"] for one in survey.sample)
    values = survey.values()
    single = [
        (key, value)
        for key, counts in values.items()
        for value, count in counts.items()
        if is_near(count / passages, wanted)
    ]
    rng.shuffle(single)
    for key, value in single:
        yield f"{key} = {value}", comparison("eq", key, value)
    for key, counts in values.items():
        numbers = sorted(one for one in counts.elements() if type(one) in (int, float))
        width = round(wanted * passages)
        for _ in range(FILTERS if 0 < width < len(numbers) else 0):
            at = rng.randrange(len(numbers) - width)
            low, high = numbers[at], numbers[at + width]
            if low < high:
                both = [comparison("gte", key, low), comparison("lt", key, high)]
                yield f"{low:g} <= {key} < {high:g}", {"type": "and", "filters": both}
        rare = [value for value, count in counts.items() if count / passages < wanted / 2]
        some = rng.sample(rare, min(VALUES_MAX, len(rare)))
        reached = 0.0
        for number, value in enumerate(some, 1):
            reached += counts[value] / passages
            if reached >= wanted:
                yield f"{key} is one of {number} values", comparison("in", key, some[:number])
                break


def is_near(share: float, wanted: float) -> bool:
    return wanted / OFF_BY <= share <= wanted * OFF_BY


def comparison(kind: str, key: str, value: Any) -> JSON:
    return {"type": kind, "key": key, "value": value}
