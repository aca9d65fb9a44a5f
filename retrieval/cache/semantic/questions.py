"""The questions asked recently in this process, found by their vectors."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np

from indexes.base.model import Floats

ROWS_MAX: Final = 4096
"""Per scope: comparing a query with this many takes half a millisecond, on the event loop."""
ROWS_FIRST: Final = 4
QUESTION_BYTES: Final = 300
"""Memory of a text besides its characters: the string, its slots in a list and a dict."""


@dataclass(frozen=True, slots=True)
class Question:
    """One asked before. `similarity` is the cosine of its vector and a query's, `member` its name in Redis."""

    text: str
    similarity: float
    member: bytes = b""


class Scope:
    """The questions that may answer one caller's search: the newest ROWS_MAX."""

    def __init__(self, dimensions: int) -> None:
        self._vectors = np.zeros((ROWS_FIRST, dimensions), np.float32)
        self._texts: list[str | None] = []
        self._rows: dict[str, int] = {}
        self._next = 0
        self._characters = 0

    @property
    def size(self) -> int:
        return self._vectors.nbytes + 4 * self._characters + QUESTION_BYTES * len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, text: str, vector: Floats) -> None:
        if text in self._rows:
            return
        row, self._next = self._next, (self._next + 1) % ROWS_MAX
        if row == len(self._vectors):
            self._vectors = np.concatenate((self._vectors, np.zeros_like(self._vectors)))
        if row == len(self._texts):
            self._texts.append(None)
        if (before := self._texts[row]) is not None:
            self.forget(before)
        self._vectors[row], self._texts[row], self._rows[text] = vector, text, row
        self._characters += len(text)

    def forget(self, text: str) -> None:
        row = self._rows.pop(text, None)
        if row is not None:
            self._texts[row] = None
            self._vectors[row] = 0
            self._characters -= len(text)

    def near(self, vector: Floats, most: int) -> list[Question]:
        """Return the `most` nearest questions, nearest first."""
        similarities = self._vectors[: len(self._texts)] @ vector
        first = np.argpartition(-similarities, most)[:most] if len(similarities) > most else slice(None)
        rows = np.arange(len(similarities))[first]
        rows = rows[np.argsort(-similarities[rows], kind="stable")]
        texts = ((self._texts[row], float(similarities[row])) for row in rows.tolist())
        return [Question(text, similarity) for text, similarity in texts if text is not None]

    def everything(self) -> list[tuple[str, Floats]]:
        return [(text, self._vectors[row].copy()) for text, row in self._rows.items()]


class Questions:
    """At most `bytes_max` by scope; the least recently used scope is evicted first. For one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self.evicted = 0  # scopes
        self._bytes_max = bytes_max
        self._scopes: OrderedDict[bytes, Scope] = OrderedDict()
        self.bytes_used = 0

    def __len__(self) -> int:
        return sum(map(len, self._scopes.values()))

    def of(self, key: bytes) -> Scope | None:
        if key in self._scopes:
            self._scopes.move_to_end(key)
        return self._scopes.get(key)

    def put(self, key: bytes, text: str, vector: Floats) -> None:
        scope = self.of(key)
        if scope is None:
            scope = self._scopes[key] = Scope(len(vector))
            self.bytes_used += scope.size
        before = scope.size
        scope.put(text, vector)
        self.bytes_used += scope.size - before
        while self.bytes_used > self._bytes_max:
            self.bytes_used -= self._scopes.popitem(last=False)[1].size
            self.evicted += 1

    def forget(self, key: bytes, text: str) -> None:
        if (scope := self._scopes.get(key)) is not None:
            before = scope.size
            scope.forget(text)
            self.bytes_used += scope.size - before

    def clear(self) -> None:
        self._scopes.clear()
        self.bytes_used = 0
