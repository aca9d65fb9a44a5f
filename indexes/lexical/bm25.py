"""BM25: how well a passage matches the terms of a query, exact on any history of writes.

Parts (`lexical`) hold integers only: rows, term frequencies, lengths. Whatever depends on the whole collection (how
many passages live, how long they are, in how many a term occurs) is counted over all parts, less the deleted ones,
when a query is scored. So a passage scores the same wherever it lives, and the scores after any writes are those of an
index built afresh.

    score(q, p) = sum over terms t of q:  idf(t) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / mean_length))
    idf(t)      = ln(1 + (N - df + 0.5) / (df + 0.5))

The formula is Robertson and Zaragoza (2009), eq. 3.15, with the idf that Lucene uses, which is never negative.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.lexical.analysis import terms as terms_of
from indexes.masks import Bits, bits_at
from indexes.model import Bm25, Floats, Rows

Postings = tuple[NDArray[np.uint32], NDArray[np.uint16]]
NO_POSTINGS: Postings = (np.empty(0, np.uint32), np.empty(0, np.uint16))


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
    """A query ready to score: each term with idf times its count in the query, and the mean passage length.

    It keeps the postings that `weigh` met in each part, so that scoring does not look the terms up again.
    """

    weights: tuple[tuple[str, float], ...]
    mean_length: float
    bm25: Bm25
    met: tuple[tuple[LexicalPart, tuple[Postings, ...]], ...] = field(default=(), compare=False, repr=False)

    def postings_in(self, part: LexicalPart) -> Sequence[Postings]:
        """The postings of each term of `weights` in a part, whether or not the query was weighed with it."""
        for known, postings in self.met:
            if known is part:
                return postings
        return [part.postings(term) for term, _ in self.weights]


def weigh(text: str, parts: Sequence[LexicalPart], statistics: Statistics, bm25: Bm25) -> WeightedQuery:
    """Count each query term over all parts.

    A term that only dead passages hold counts as held by one: it finds nothing, and a search on an older snapshot,
    whose dead may be counted ahead of it, still finds what lived then.
    """
    counts = Counter(terms_of(text))
    met = [[part.postings(term) for term in counts] for part in parts]
    weights = {}
    for at, (term, count) in enumerate(counts.items()):
        held = sum(len(postings[at][0]) for postings in met)
        if held:
            df = max(held - sum(dead.get(term, 0) for dead in statistics.dead), 1)
            rest = max(statistics.passages - df, 0)
            weights[at] = (term, count * math.log1p((rest + 0.5) / (df + 0.5)))
    return WeightedQuery(
        tuple(weights.values()),
        max(statistics.length / max(statistics.passages, 1), 1e-9),
        bm25,
        tuple((part, tuple(found[at] for at in weights)) for part, found in zip(parts, met, strict=True)),
    )


def best_of(
    part: LexicalPart, query: WeightedQuery, depth: int, allowed: Bits | None = None
) -> tuple[Rows, Floats]:
    """Rows of the `depth` largest scores above zero and these scores, best first; equal scores in row order.

    `allowed` is a packed mask of the rows that may be returned, None for all. The time depends on the postings of
    the terms, hardly on the size of the part.
    """
    rows, gains = _gains(part, query)
    if allowed is not None:
        permitted = bits_at(allowed, rows)
        rows, gains = rows[permitted], gains[permitted]
    scores = np.zeros(part.size, np.float32)  # pages of memory that no posting touches are never made
    np.add.at(scores, rows, gains)
    # One number that sorts as wanted: positive floats compare like their bits; with those inverted, the best is first.
    keys = (~scores[rows].view(np.uint32)).astype(np.uint64) << np.uint64(32)
    keys |= rows.view(np.uint64)
    enough = depth * len(query.weights)  # since a row occurs at most once for each term
    if len(keys) > enough:
        keys.partition(enough)
    keys = keys[:enough]
    keys.sort()
    keys = np.concatenate([keys[:1], keys[1:][keys[1:] != keys[:-1]]])[:depth]
    best = keys.astype(np.uint32).astype(np.int64)
    return best, scores[best]


def score_rows(part: LexicalPart, query: WeightedQuery, wanted: Rows) -> Floats:
    """BM25 of these rows only, float32 [len(wanted)]: for candidates another searcher found."""
    scores = np.zeros(len(wanted), np.float32)
    lengths = part.lengths[wanted]
    wanted_ = wanted.astype(np.uint32)  # as the postings, or numpy would convert all of these
    for (_, weight), (rows, frequencies) in zip(query.weights, query.postings_in(part), strict=True):
        if not len(rows):
            continue
        at = np.minimum(np.searchsorted(rows, wanted_), len(rows) - 1)
        found = rows[at] == wanted_
        scores[found] += _saturated(frequencies[at[found]], lengths[found], query) * np.float32(weight)
    return scores


def _gains(part: LexicalPart, query: WeightedQuery) -> tuple[Rows, Floats]:
    """What each posting of each term adds to the score of its row, term after term."""
    postings = [NO_POSTINGS, *query.postings_in(part)]
    rows = np.concatenate([rows for rows, _ in postings], dtype=np.int64)
    frequencies = np.concatenate([frequencies for _, frequencies in postings])
    gains = _saturated(frequencies, part.lengths.take(rows), query)
    weights = np.array([weight for _, weight in query.weights], np.float32)
    gains *= np.repeat(weights, [len(rows) for rows, _ in postings[1:]])
    return rows, gains


def _saturated(frequencies: NDArray[np.uint16], lengths: NDArray[np.uint32], query: WeightedQuery) -> Floats:
    """What the formula gives of term frequency and passage length: all but the weight of the term."""
    k1, b = query.bm25.k1, query.bm25.b
    tf = frequencies.astype(np.float32)
    norm = lengths.astype(np.float32)
    norm *= np.float32(k1 * b / query.mean_length)
    norm += np.float32(k1 * (1 - b))
    norm += tf
    tf *= np.float32(k1 + 1)
    tf /= norm
    return tf
