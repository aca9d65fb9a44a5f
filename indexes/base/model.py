"""Value types shared across the index library.

All are immutable. Dense scores are inner products of unit vectors (-1 to 1), lexical scores are BM25; in both,
larger is better. Arrays within one value are parallel, row by row.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.base.residency import NOTHING, Budget

Ids = NDArray[np.int64]
Rows = NDArray[np.int64]
Floats = NDArray[np.float32]
Tier = Literal["delta", "hot", "cold"]
Scalar = str | int | float | bool
Metadata = dict[str, Any]  # JSON, as it was sent; `paths` says which values filters find in it
ACL = "acl"  # the metadata key that lists the groups which may see a document, and so is kept without a value, too
# A line of front matter, or of a sheet, that says so.
ACL_HEAD_CHARS = 2000  # in which front matter that does not end may do so
NAMES_ACL = re.compile(rf"""^[ \t]*["']?{ACL}["']?[ \t]*[:=]""", re.MULTILINE)
Progress = Callable[[str, int, int], None]  # of a long operation: stage, amount done, total

TIERS: tuple[Tier, ...] = ("delta", "hot", "cold")


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The terms of a long passage, the tag of its language among them, with their frequencies, and how many words it
    has."""

    names: Sequence[str]
    frequencies: Sequence[int]
    length: int


@dataclass(frozen=True, slots=True)
class NewPassage:
    """An embedded piece of a document: `text[start:end]`, token count, unit vector, and the headings above it, which
    are for display and not searched. `terms` are those of a long one that was analyzed ahead."""

    start: int
    end: int
    tokens: int
    vector: Floats
    heading: str = ""
    terms: Terms | None = None


@dataclass(frozen=True, slots=True)
class Upsert:
    """Insert a document, replacing any with the same id.

    `digest`, 32 bytes, is equal for documents with equal text, title, metadata and passages. The default is random,
    so the document compares equal to no other. `language` is a BCP 47 code; empty: the collection's; "auto": detected.
    From `expires_ms` on, in milliseconds since 1970, it is hidden; the digest should cover it too.
    """

    id: str
    text: str
    title: str
    metadata: Metadata
    passages: tuple[NewPassage, ...]
    digest: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    language: str = ""
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the document with this id; no error if there is none."""

    id: str


Operation = Upsert | Delete


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome of one acknowledged write. `seq` is the log position of its last operation.

    `tokens` counts the written passages' tokens; `unchanged` counts documents already in the log and skipped;
    `expired` counts those deleted that were hidden already.
    """

    seq: int
    documents: int
    passages: int
    tokens: int
    deleted: int
    unchanged: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates from one searcher, best first. `ids` int64 [n], `scores` float32 [n], `tiers` [n] index TIERS."""

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
        """The best `depth` of several rankings; ties go to the lower passage id, so the order is deterministic."""
        if not rankings:
            return Ranking.empty()
        ids = np.concatenate([r.ids for r in rankings])
        scores = np.concatenate([r.scores for r in rankings])
        tiers = np.concatenate([r.tiers for r in rankings])
        order = np.lexsort((ids, -scores))[:depth]
        return Ranking(ids[order], scores[order], tiers[order])

    def extended(self, deeper: Ranking, depth: int) -> Ranking:
        """This one, followed by what a deeper one has besides: `depth` in all."""
        new = ~np.isin(deeper.ids, self.ids)
        return Ranking(
            np.concatenate([self.ids, deeper.ids[new]])[:depth],
            np.concatenate([self.scores, deeper.scores[new]])[:depth],
            np.concatenate([self.tiers, deeper.tiers[new]])[:depth],
        )


class Sparing(msgspec.Struct, frozen=True):
    """How a query may spare the cold tier of a generation: it skips it if its margin is above `threshold`. If it is
    `observed`, it searches the tier also after skipping it, to measure what that loses. `never`: whatever it finds."""

    generation: int
    threshold: float = math.inf
    observed: bool = False
    never: bool = False


class Spared(msgspec.Struct, frozen=True):
    """What a query that might spare the cold tier did. `proven`: nothing cold could score high enough. `loss`: the
    recall, 0 to 1, that it lost or would have lost without that tier; None if it was not observed. `first_s` and
    `lists_s` are the seconds that its search of the hot tier and of the lists took, if it was."""

    by: Sparing
    outcome: Literal["searched", "skipped", "proven"]
    margin: float
    loss: float | None = None
    first_s: float = 0.0
    lists_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DenseResult:
    """A dense ranking, the tiers searched, why the cold tier was skipped (None: it was searched), and what to learn
    from it."""

    ranking: Ranking
    tiers: tuple[Tier, ...]
    cold_skipped: str | None
    spared: Spared | None = None


class StoredPassage(msgspec.Struct, frozen=True):
    """A live passage from the log, with its document's fields.

    A struct, because every search creates dozens: a frozen dataclass takes six times as long.
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
    language: str = ""


class StoredDocument(msgspec.Struct, frozen=True):
    """A live document. `seq` is the operation that wrote it."""

    id: str
    seq: int
    text: str
    title: str
    metadata: Metadata
    passages: int
    language: str = ""
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Bm25:
    """BM25 parameters (Robertson and Zaragoza 2009, with Lucene's non-negative idf)."""

    k1: float = 0.9
    b: float = 0.4


@dataclass(frozen=True, slots=True)
class FieldWeights:
    """How often BM25 counts the words of a document's title, and of the headings above a passage, beside the passage's
    own text, which counts once. 0: these words do not find it."""

    title: int = 1
    heading: int = 0

    def text_of(self, title: str, heading: str, text: str) -> str:
        """The text of a passage as BM25 reads it. What it repeats is no phrase: phrases are found in stored texts."""
        return "\n".join(filter(None, [*[title] * self.title, *[heading] * self.heading, text]))


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one collection, fixed at creation and stored in its log. `language` is the default for documents."""

    dimensions: int
    fingerprint: str
    model: str
    hot_capacity: int = 10_000
    bm25: Bm25 = field(default_factory=Bm25)
    language: str = "auto"
    field_weights: FieldWeights = field(default_factory=FieldWeights)

    @property
    def embeds(self) -> bool:
        """Whether the collection has a model. Without one, documents and queries bring their vectors."""
        return bool(self.model)


@dataclass(frozen=True, slots=True)
class ColdPolicy:
    """When queries skip the cold tier, see `cold_skips`. `budget`: mean recall over all queries that may be lost;
    `audit`: fraction of skips that search it anyway; `observed`: fraction of the queries by which `auto` learns."""

    mode: Literal["auto", "always", "calibrated", "never"] = "auto"
    budget: float = 0.005
    audit: float = 0.01
    observed: float = 0.1


class Replication:
    """What keeps a copy of the collections beyond this disk (`indexes/store`), as far as they must know; this one
    keeps none. Collections are named by their uid, which outlives a change of name."""

    def require_up(self) -> None:
        """Raise Unavailable if no write could be acknowledged now."""

    def confirm(self, uid: str, written: Future[WriteResult]) -> Future[WriteResult]:
        """The future that a caller gets for a write of a collection: it may resolve later than that of the disk."""
        return written

    def last_copied(self, uid: str) -> float:
        """The last operation that is copied; the log must keep all later ones."""
        return math.inf

    def removing(self, name: str) -> None:
        """A collection is about to be deleted."""

    def age_s(self, uid: str) -> float | None:
        """Return how many seconds ago a replica last had everything; None for a collection that is written here."""
        return None

    def erased_ms(self, uid: str) -> int:
        """When it was learned that what was deleted before must be erased, in milliseconds since 1970; 0 if never."""
        return 0

    def builds(self, uid: str) -> bool:
        """Whether rebuilds of a collection begin by themselves on this machine."""
        return True


NO_REPLICATION = Replication()


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """How a process runs its collections. Sizes are in passages unless the name says otherwise; `resident` bounds how
    much of their files all collections together copy into memory. `now_ms`, in milliseconds since 1970, decides what
    has expired. `read` gets the number of passages replayed from the log since its last call, and may raise to end
    that. `room`, given the bytes wanted, returns how many more the process may hold."""

    delta_passages_max: int = 4096
    segments_max: int = 8
    dead_fraction_max: float = 0.2
    recall_target: float = 0.99
    recall_floor: float = 0.9
    build_threads: int = 1
    build_timeout_s: float = 7200.0
    generations_kept: int = 2
    commit_ops_max: int = 512
    exact_scan_passages_max: int = 10_000
    resident: Budget = NOTHING
    cold: ColdPolicy = ColdPolicy()
    replication: Replication = NO_REPLICATION
    now_ms: Callable[[], int] = now_ms
    read: Callable[[int], None] = lambda passages: None
    room: Callable[[int], float] = lambda wanted: math.inf

    @property
    def floor(self) -> float:
        """Recall below which a generation is not adopted; 0 = no floor. Never above the builds' recall target."""
        return min(self.recall_floor, self.recall_target)
