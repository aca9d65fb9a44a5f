"""Collapsing: one hit for all candidates that say the same, or a few for each value of a metadata key.

Candidates come best first. Each belongs to the first group that it fits (its document, the same text, a similar vector,
the same value), or begins one. What comes after a candidate changes nothing for it, so pages of one search hold each
group once, and a deeper search only adds groups.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from indexes.base.model import Floats, Scalar, StoredPassage
from indexes.base.paths import values_at
from retrieval.admission.ceiling import size_of
from retrieval.search.shard import shard_of
from retrieval.wire.options import Collapse
from retrieval.wire.search import SearchRequest

DIGEST_BYTES = 16
ROUNDING = 1e-6  # the cosine of a vector with itself may fall short of 1 by this much
READ_AT_ONCE_MAX = 128  # passages, so that an oversized answer is refused before all of it is in memory
FREELY_READ = 2  # times the places up to the end of the page: so many candidates are read in any case
TIED_MAX = 16  # candidates with the score of the last hit that are read to count its copies


class Traits(NamedTuple):
    """What decides where a candidate belongs: its shard and document, and a key equal for those that collapse; None if
    it stands alone."""

    document: tuple[int, str]
    key: Hashable | None


@dataclass(slots=True, eq=False)
class Group:
    """The hits of a group as positions and passages, and the ids of the passages behind them. `place` is that of the
    group, from 0, and `value` that of the metadata key."""

    place: int
    value: Scalar | None
    shown: list[tuple[int, StoredPassage]] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)


class Groups:
    """The groups of the pages up to and including the one asked for, best first."""

    def __init__(self, request: SearchRequest, last: int) -> None:
        """`last` is the place of the last group of the page, from 1."""
        options = request.collapse if isinstance(request.collapse, Collapse) else Collapse()
        self.similarity = options.similarity
        self.by_text = request.collapse == "text" or self.similarity is not None
        self._key, self._hits = options.key, options.hits or 1
        self._by_document = request.group_by_document
        self._first, self._last = request.offset, last
        self._all: list[Group] = []
        self._room = 0  # of the groups of the page for further hits
        self.documents: dict[tuple[int, str], Group] = {}  # where each is shown, or what stands for it
        self._of_key: dict[Hashable, Group] = {}
        self._vectors: Floats | None = None  # of the first hit of each group
        self.size = self.longest = 0  # bytes of the hits of the page

    @property
    def page(self) -> list[Group]:
        return self._all[self._first :]

    @property
    def lack(self) -> int:
        """How many groups are still to be found."""
        return self._last - len(self._all)

    @property
    def full(self) -> bool:
        """Whether no further candidate can be a hit."""
        return self.lack + self._room == 0

    def step(self, read: int) -> int:
        """Return how many candidates to read next. At first no spares: few are copies, or deleted since the search."""
        if not self.lack:
            return READ_AT_ONCE_MAX
        return min(self.lack if read == 0 else 2 * self.lack + read // 2, READ_AT_ONCE_MAX)

    def traits_of(self, passage: StoredPassage) -> Traits:
        key: Hashable | None = None
        if self.by_text and (text := (passage.text or passage.title).strip()):
            key = blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()
        elif self._key is not None and (value := self._value_of(passage)) is not None:
            key = isinstance(value, bool), value  # true is not 1
        return Traits((shard_of(passage.id), passage.document_id), key)

    def _value_of(self, passage: StoredPassage) -> Scalar | None:
        return next(iter(values_at(passage.metadata, self._key or "")), None)

    def may_skip(self, traits: Traits | None) -> bool:
        """Whether a candidate can be counted without being read again."""
        group = None if traits is None else self._known(traits)
        return group is not None and len(group.shown) == self._hits

    def _known(self, traits: Traits) -> Group | None:
        group = self.documents.get(traits.document)
        return self._of_key.get(traits.key) if group is None else group

    def add(
        self, candidate: tuple[int, int], traits: Traits, passage: StoredPassage | None, vector: Floats | None
    ) -> bool:
        """Put a candidate, given as its position and its id, into its group. Return whether it was read and is a copy:
        behind a group, and not as another passage of a document.

        `passage` may be missing if `may_skip`, and `vector` if similar ones do not collapse.
        """
        position, passage_id = candidate
        again = traits.document in self.documents
        group = self._known(traits)
        if vector is not None:
            # Stored with half precision, it may not have length 1; it is zero if this state has none.
            length = np.linalg.norm(vector)
            vector = vector / length if length else None
        if group is None and vector is not None:
            group = self._similar(vector)
        if group is None and passage is not None and self.lack:
            group = self._begin(traits, passage, vector)
        if group is None:
            return False
        if self._by_document:
            self.documents.setdefault(traits.document, group)
        if passage is None or again or len(group.shown) == self._hits:
            group.behind.append(passage_id)
            return passage is not None and not again
        group.shown.append((position, passage))
        if group.place >= self._first:
            self._room -= 1
            size = size_of(passage)
            self.size, self.longest = self.size + size, max(self.longest, size)
        return False

    def _begin(self, traits: Traits, passage: StoredPassage, vector: Floats | None) -> Group:
        group = Group(len(self._all), None if self._key is None else self._value_of(passage))
        if vector is not None:
            if self._vectors is None:
                self._vectors = np.zeros((self._last, len(vector)), np.float32)
            self._vectors[group.place] = vector
        if traits.key is not None:
            self._of_key[traits.key] = group
        if group.place >= self._first:
            self._room += 1 if traits.key is None else self._hits
        self._all.append(group)
        return group

    def _similar(self, vector: Floats) -> Group | None:
        """Return the first group whose first hit has a similar vector."""
        if self._vectors is None or self.similarity is None:
            return None
        near = self._vectors[: len(self._all)] @ vector >= self.similarity - ROUNDING
        return self._all[int(near.argmax())] if near.any() else None
