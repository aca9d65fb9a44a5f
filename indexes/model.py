"""The small values that travel between the parts of the index library.

All of them are immutable. Scores are inner products of unit vectors (-1 to 1) for dense search and BM25
for lexical search; in both, larger is better. Arrays of one value belong together row by row.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.residency import NOTHING, Budget

Ids = NDArray[np.int64]
Rows = NDArray[np.int64]
Floats = NDArray[np.float32]
Tier = Literal["delta", "hot", "cold"]
Scalar = str | int | float | bool
Metadata = dict[str, Scalar | list[Scalar]]
Progress = Callable[
    [str, int, int], None
]  # of long work: the stage it is in, how much of it is done, of how much

TIERS: tuple[Tier, ...] = ("delta", "hot", "cold")


@dataclass(frozen=True, slots=True)
class NewPassage:
    """A piece of a document, embedded: `text[start:end]` of the document, its tokens, its unit vector, and the headings
    it stands under, for the reader: they are not searched."""

    start: int
    end: int
    tokens: int
    vector: Floats
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Upsert:
    """Replace the document of this id, whatever it was, by this one.

    `digest`, 32 bytes, is equal for documents of equal text, title, metadata and passages. A caller that gives none
    gets a random one: such a document is like no other.
    """

    id: str
    text: str
    title: str
    metadata: Metadata
    passages: tuple[NewPassage, ...]
    digest: bytes = field(default_factory=lambda: secrets.token_bytes(32))


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the document of this id; no error if there is none."""

    id: str


Operation = Upsert | Delete


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What one acknowledged write did. `seq` is the position of its last operation in the log.

    `tokens` are those of the passages written; `unchanged` documents were in the log already and were left alone.
    """

    seq: int
    documents: int
    passages: int
    tokens: int
    deleted: int
    unchanged: int = 0


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates of one searcher, best first. `ids` int64 [n], `scores` float32 [n], `tiers` index into TIERS [n]."""

    ids: Ids
    scores: Floats
    tiers: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def empty() -> Ranking:
        return Ranking(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int8))

    @staticmethod
    def merge(rankings: list[Ranking], depth: int) -> Ranking:
        """The best `depth` of several rankings; equal scores go to the lower passage id, so order is stable."""
        if not rankings:
            return Ranking.empty()
        ids = np.concatenate([r.ids for r in rankings])
        scores = np.concatenate([r.scores for r in rankings])
        tiers = np.concatenate([r.tiers for r in rankings])
        order = np.lexsort((ids, -scores))[:depth]
        return Ranking(ids[order], scores[order], tiers[order])


@dataclass(frozen=True, slots=True)
class DenseResult:
    """A dense ranking, the tiers that were searched for it, and why the cold one was not (None: it was)."""

    ranking: Ranking
    tiers: tuple[Tier, ...]
    cold_skipped: str | None


class StoredPassage(msgspec.Struct, frozen=True):
    """A live passage as the log holds it, with the document it belongs to.

    A struct, because every search makes dozens: a frozen dataclass takes six times as long.
    """

    id: int
    document_id: str
    ordinal: int
    start: int
    end: int
    tokens: int
    text: str
    title: str
    metadata: Metadata
    heading: str = ""


class StoredDocument(msgspec.Struct, frozen=True):
    """A live document. `seq` is the operation that wrote it."""

    id: str
    seq: int
    text: str
    title: str
    metadata: Metadata
    passages: int


@dataclass(frozen=True, slots=True)
class Bm25:
    """Parameters of BM25 (Robertson and Zaragoza 2009, with the non-negative idf that Lucene uses)."""

    k1: float = 0.9
    b: float = 0.4


@dataclass(frozen=True, slots=True)
class Settings:
    """What one collection is made of; fixed when it is created and kept in its log."""

    dimensions: int
    fingerprint: str
    model: str
    hot_capacity: int = 10_000
    bm25: Bm25 = field(default_factory=Bm25)


@dataclass(frozen=True, slots=True)
class ColdPolicy:
    """When queries skip the cold tier. `budget`: mean recall, over all queries, that may be lost; `audit`: share of
    the skips that search it anyway."""

    mode: Literal["always", "calibrated", "never"] = "always"
    budget: float = 0.005
    audit: float = 0.01


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """How a process runs its collections. Sizes in passages unless the name says otherwise; `resident` is what all of
    them together may copy of their files."""

    delta_passages_max: int = 4096
    segments_max: int = 8
    dead_fraction_max: float = 0.2
    recall_target: float = 0.99
    recall_floor: float = 0.9
    build_threads: int = 1
    build_timeout_s: float = 7200
    generations_kept: int = 2
    commit_ops_max: int = 512
    exact_scan_passages_max: int = 10_000
    resident: Budget = NOTHING
    cold: ColdPolicy = ColdPolicy()

    @property
    def floor(self) -> float:
        """Recall below which a generation is not adopted; 0 = none. Never above what builds aim for."""
        return min(self.recall_floor, self.recall_target)
