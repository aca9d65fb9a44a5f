"""BM25 over passages, exact on any history of writes.

Two indexes share one scorer: `GrowingLexical` takes passages while it is searched (the delta), `SealedLexical`
is a set of arrays on disk or in memory. Both hold integers only (rows, term frequencies, lengths). Whatever depends
on the whole collection (how many passages live, how long they are, in how many a term occurs) is counted
over all parts, less the deleted ones, when a query is scored. So a passage scores the same wherever it lives, and
the scores after any writes are those of an index built afresh.

    score(q, p) = sum over terms t of q:  idf(t) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / mean_length))
    idf(t)      = ln(1 + (N - df + 0.5) / (df + 0.5))

The formula is Robertson and Zaragoza (2009), eq. 3.15, with the idf that Lucene uses, which is never negative.
"""

from __future__ import annotations

import bisect
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.analysis import terms as terms_of
from indexes.model import Bm25, Floats, Rows

Postings = tuple[NDArray[np.uint32], NDArray[np.uint16]]
NO_POSTINGS: Postings = (np.empty(0, np.uint32), np.empty(0, np.uint16))
TF_MAX = np.iinfo(np.uint16).max


class LexicalPart(Protocol):
    """What the scorer reads of one part. Rows are 0 to size-1 within the part."""

    @property
    def size(self) -> int: ...
    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Terms in each row, uint32 [size]."""
        ...

    @property
    def length(self) -> int:
        """Terms in all rows."""
        ...

    def postings(self, term: str) -> Postings:
        """Rows that hold the term, ascending and each once, and how often each does."""
        ...

    def frequencies_of(self, rows: Rows) -> dict[str, int]:
        """In how many of these rows each term occurs. Reads all postings: for adoption, not for queries."""
        ...


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts over all live passages of a snapshot. `dead` holds, part by part, the df of its deleted passages."""

    passages: int
    length: int
    dead: Sequence[Mapping[str, int]] = ()


@dataclass(frozen=True, slots=True)
class WeightedQuery:
    """A query ready to score: each term with idf times its count in the query, and the mean passage length."""

    weights: tuple[tuple[str, float], ...]
    mean_length: float
    bm25: Bm25


def weigh(text: str, parts: Sequence[LexicalPart], statistics: Statistics, bm25: Bm25) -> WeightedQuery:
    """Count each query term over all parts. A term no live passage holds gets no weight at all."""
    weights = []
    for term, count in Counter(terms_of(text)).items():
        df = sum(len(part.postings(term)[0]) for part in parts)
        df -= sum(dead.get(term, 0) for dead in statistics.dead)
        if df > 0:
            rest = max(statistics.passages - df, 0)
            weights.append((term, count * math.log1p((rest + 0.5) / (df + 0.5))))
    return WeightedQuery(tuple(weights), max(statistics.length / max(statistics.passages, 1), 1e-9), bm25)


def score_all(part: LexicalPart, query: WeightedQuery) -> Floats:
    """BM25 of every row of the part, float32 [size]; 0 where no term occurs."""
    scores = np.zeros(part.size, np.float32)
    for term, weight in query.weights:
        rows, frequencies = part.postings(term)
        if len(rows):
            scores[rows] += _saturated(frequencies, part.lengths[rows], weight, query)
    return scores


def score_rows(part: LexicalPart, query: WeightedQuery, wanted: Rows) -> Floats:
    """BM25 of these rows only, float32 [len(wanted)]: for candidates another searcher found."""
    scores = np.zeros(len(wanted), np.float32)
    lengths = part.lengths[wanted]
    for term, weight in query.weights:
        rows, frequencies = part.postings(term)
        if not len(rows):
            continue
        at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
        found = rows[at] == wanted
        scores[found] += _saturated(frequencies[at[found]], lengths[found], weight, query)
    return scores


def _saturated(
    frequencies: NDArray[np.uint16], lengths: NDArray[np.uint32], weight: float, query: WeightedQuery
) -> Floats:
    k1, b = query.bm25.k1, query.bm25.b
    tf = frequencies.astype(np.float32)
    norm = lengths * np.float32(k1 * b / query.mean_length)
    norm += np.float32(k1 * (1 - b))
    norm += tf
    tf *= np.float32(weight * (k1 + 1))
    tf /= norm
    return tf


def best_rows(scores: Floats, depth: int) -> Rows:
    """Rows of the `depth` largest positive scores, best first; equal scores in row order."""
    touched = np.flatnonzero(scores > 0)
    if len(touched) > depth:
        values = scores[touched]
        threshold = np.partition(values, len(values) - depth)[len(values) - depth]
        # Everything at the threshold stays until the sort below, so that ties are cut in row order, not by chance.
        touched = touched[values >= threshold]
    order = np.lexsort((touched, -scores[touched]))[:depth]
    return touched[order].astype(np.int64)


class GrowingLexical:
    """An inverted index that takes passages from one thread while others search it through `view`."""

    def __init__(self) -> None:
        self._rows: dict[str, array[int]] = {}
        self._frequencies: dict[str, array[int]] = {}
        self._lengths: array[int] = array("I")

    def add(self, text: str) -> int:
        """Index a passage as the next row; returns its number of terms."""
        row = len(self._lengths)
        counts = Counter(terms_of(text))
        for term, count in counts.items():
            # Frequencies first: a reader that sees a row must also find its frequency.
            self._frequencies.setdefault(term, array("H")).append(min(count, TF_MAX))
            self._rows.setdefault(term, array("I")).append(row)
        length = counts.total()
        self._lengths.append(length)
        return length

    def view(self, size: int) -> GrowingView:
        """The first `size` rows, frozen: rows added later do not show."""
        lengths = np.frombuffer(self._lengths.tobytes(), np.uint32)[:size]
        return GrowingView(self, size, lengths, int(lengths.sum(dtype=np.int64)))

    def read(self, term: str, size: int) -> Postings:
        stored = self._rows.get(term)
        if stored is None:
            return NO_POSTINGS
        # tobytes copies under the interpreter lock; a view of the buffer would forbid the writer to grow it.
        rows = np.frombuffer(stored.tobytes(), np.uint32)
        rows = rows[: np.searchsorted(rows, size)]
        return rows, np.frombuffer(self._frequencies[term].tobytes(), np.uint16)[: len(rows)]

    def seal(self, size: int) -> SealedLexical:
        """The first `size` rows as an immutable index in memory."""
        names = sorted(self._rows, key=str.encode)
        parts = [self.read(name, size) for name in names]
        return SealedLexical.from_postings(names, parts, self.view(size).lengths)


@dataclass(frozen=True, slots=True)
class GrowingView:
    """The first rows of a growing index, as one search sees them."""

    index: GrowingLexical
    size: int
    lengths: NDArray[np.uint32]
    length: int

    def postings(self, term: str) -> Postings:
        return self.index.read(term, self.size)

    def frequencies_of(self, rows: Rows) -> dict[str, int]:
        return self.index.seal(self.size).frequencies_of(rows)


class SealedLexical:
    """An immutable inverted index: sorted terms, and for each its rows and frequencies, end to end.

        terms.npy      uint8   the terms in UTF-8, sorted, joined without a separator
        offsets.npy    int64   [terms + 1]  where each term begins in terms.npy
        starts.npy     int64   [terms + 1]  where each term's postings begin
        rows.npy       uint32  [postings]   ascending within a term
        frequencies.npy uint16 [postings]
        lengths.npy    uint32  [rows]

    Loaded from a folder, the arrays are memory maps: the dictionary and the postings cost no heap.
    """

    FILES = ("terms", "offsets", "starts", "rows", "frequencies", "lengths")

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        self._arrays = arrays
        self._names = _Names(arrays["terms"], arrays["offsets"])
        self._starts = arrays["starts"]
        self._rows = arrays["rows"]
        self._frequencies = arrays["frequencies"]
        self.lengths: NDArray[np.uint32] = arrays["lengths"]  # type: ignore[assignment]
        self.length = int(self.lengths.sum(dtype=np.int64))

    @staticmethod
    def from_postings(
        names: Sequence[str], postings: Iterable[Postings], lengths: NDArray[np.uint32]
    ) -> SealedLexical:
        """From terms sorted by their UTF-8 bytes and one pair of arrays for each."""
        pairs = list(postings)
        sizes = np.fromiter((len(rows) for rows, _ in pairs), np.int64, len(pairs))
        rows = np.concatenate([rows for rows, _ in pairs]) if pairs else NO_POSTINGS[0]
        frequencies = np.concatenate([tf for _, tf in pairs]) if pairs else NO_POSTINGS[1]
        return SealedLexical.from_arrays(names, sizes, rows, frequencies, lengths)

    @staticmethod
    def from_arrays(
        names: Sequence[str],
        sizes: NDArray[np.int64],
        rows: NDArray[np.uint32],
        frequencies: NDArray[np.uint16],
        lengths: NDArray[np.uint32],
    ) -> SealedLexical:
        """From sorted terms, the number of postings of each, and the postings end to end."""
        encoded = [name.encode() for name in names]
        offsets = np.concatenate([[0], np.cumsum([len(name) for name in encoded], dtype=np.int64)]).astype(
            np.int64
        )
        return SealedLexical(
            {
                "terms": np.frombuffer(b"".join(encoded), np.uint8),
                "offsets": offsets,
                "starts": np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
                "rows": rows.astype(np.uint32, copy=False),
                "frequencies": frequencies.astype(np.uint16, copy=False),
                "lengths": lengths.astype(np.uint32, copy=False),
            }
        )

    @staticmethod
    def load(folder: Path) -> SealedLexical:
        return SealedLexical({name: load_array(folder / f"{name}.npy") for name in SealedLexical.FILES})

    def save(self, folder: Path) -> None:
        """Write the arrays into an existing folder. Not synced: the publisher does that."""
        for name in self.FILES:
            np.save(folder / f"{name}.npy", self._arrays[name])

    @property
    def size(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        return sum(values.nbytes for values in self._arrays.values())

    def postings(self, term: str) -> Postings:
        at = self._names.find(term.encode())
        if at is None:
            return NO_POSTINGS
        start, end = int(self._starts[at]), int(self._starts[at + 1])
        return self._rows[start:end], self._frequencies[start:end]  # type: ignore[return-value]

    def frequencies_of(self, rows: Rows) -> dict[str, int]:
        if not len(rows):
            return {}
        chosen = np.zeros(self.size, bool)
        chosen[rows] = True
        hits = np.flatnonzero(chosen[self._rows])
        positions, counts = np.unique(
            np.searchsorted(self._starts, hits, side="right") - 1, return_counts=True
        )
        return {
            self._names[int(at)].decode(): int(count) for at, count in zip(positions, counts, strict=True)
        }


class _Names(Sequence[bytes]):
    """Sorted terms in one block of bytes, found by bisection: no dictionary in memory."""

    def __init__(self, block: NDArray[np.generic], offsets: NDArray[np.generic]) -> None:
        self._block = block
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, at: int) -> bytes:  # type: ignore[override]
        return self._block[int(self._offsets[at]) : int(self._offsets[at + 1])].tobytes()

    def find(self, name: bytes) -> int | None:
        at = bisect.bisect_left(self, name)
        return at if at < len(self) and self[at] == name else None


def load_array(path: Path) -> NDArray[np.generic]:
    """A memory map of a .npy file, or an empty array (an empty file cannot be mapped)."""
    array_: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    return np.asarray(array_)
