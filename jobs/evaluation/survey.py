"""One reading of all documents, without their texts: which exist, which are the newest, what their metadata holds.

Memory stays small: some forty bytes a document at most, and of each metadata key a bounded number of values.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from indexes.arrays import find_sorted
from indexes.model import Ids, Progress
from jobs.pace import Pace
from retrieval.client import JSON, Client

PAGE = 1000
VALUES_MAX = 10_000  # different ones counted of one key; later ones are passed over
KEYS_MAX = 200
NUMBERS_MAX = 5000  # of one key, sampled, for ranges
NEWEST_SHARE = 0.1

Value = str | int | float | bool


@dataclass(slots=True)
class Key:
    """Passages by value of one metadata key; of numbers also a sample [<= NUMBERS_MAX]."""

    passages: Counter[Value] = field(default_factory=Counter)
    numbers: list[float] = field(default_factory=list)
    numbers_seen: int = 0


class Survey:
    """What the documents of a collection are, as they were when it was read. Ids are kept as hashes of 64 bits.

    `add` each document in the order of writing, then `finish`; only then `is_newest` and `holds` may be asked.
    """

    def __init__(self, wanted: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._wanted = wanted
        self._hashes = array("q")
        self._counts = array("i")
        self._all = self._newest = np.empty(0, np.int64)
        self.documents = self.passages = 0
        self.keys: dict[str, Key] = {}
        self.sample: list[str] = []  # ids of documents, at most `wanted`

    def add(self, document: JSON) -> None:
        self._hashes.append(hash(document["id"]))
        self._counts.append(document["passages"])
        self.documents += 1
        self.passages += document["passages"]
        self._sample(document["id"])
        for name, values in document["metadata"].items():
            if name in self.keys or len(self.keys) < KEYS_MAX:
                key = self.keys.setdefault(name, Key())
                for value in values if isinstance(values, list) else [values]:
                    self._count(key, value, document["passages"])

    def _sample(self, document_id: str) -> None:
        if len(self.sample) < self._wanted:
            self.sample.append(document_id)
        elif (at := self._rng.randrange(self.documents)) < self._wanted:
            self.sample[at] = document_id

    def _count(self, key: Key, value: Value, passages: int) -> None:
        if value in key.passages or len(key.passages) < VALUES_MAX:
            key.passages[value] += passages
        if isinstance(value, int | float) and not isinstance(value, bool):
            key.numbers_seen += 1
            if len(key.numbers) < NUMBERS_MAX:
                key.numbers.append(value)
            elif (at := self._rng.randrange(key.numbers_seen)) < NUMBERS_MAX:
                key.numbers[at] = value

    def finish(self) -> Survey:
        """The newest are those that hold the last tenth of the passages."""
        sums = np.cumsum(np.array(self._counts))
        first = int(np.searchsorted(sums, (1 - NEWEST_SHARE) * self.passages)) + 1
        hashes = np.array(self._hashes)
        self._newest, self._all = np.sort(hashes[first:]), np.sort(hashes)
        del self._hashes, self._counts
        return self

    def is_newest(self, document_id: str) -> bool:
        return contains(self._newest, document_id)

    def holds(self, document_id: str) -> bool:
        return contains(self._all, document_id)


def contains(hashes: Ids, document_id: str) -> bool:
    return bool(find_sorted(hashes, np.array([hash(document_id)]))[0] >= 0)


async def survey(
    client: Client, collection: str, wanted: int, seed: int, pace: Pace, progress: Progress
) -> Survey:
    """Read page by page; each page counts as a query for the pace."""
    found = Survey(wanted, seed)
    total = (await client.count(collection))["documents"]
    async for document in client.scroll(collection, limit=PAGE, text=False):
        if found.documents % PAGE == 0:
            progress("reading documents", found.documents, total)
            await pace()
        found.add(document)
    return found.finish()
