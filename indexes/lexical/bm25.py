"""BM25: how well a passage matches the terms of a query, exact on any history of writes.

Parts hold integers only: rows, term frequencies, lengths. Everything that depends on the whole collection (live
passages, their mean length, how many hold a term) is counted over all parts, less deleted rows, when a query is
weighed. A passage therefore scores the same wherever it lives, and after any writes scores equal those of a fresh
index. Pruning leaves out work, never a result: rows and scores are those of scoring every posting.

    score(q, p) = sum over terms t of q:  idf(t) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / mean_length))
    idf(t)      = ln(1 + (N - df + 0.5) / (df + 0.5))

The formula is Robertson and Zaragoza (2009), eq. 3.15, with the idf that Lucene uses, which is never negative.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.arrays import changes, top
from indexes.lexical.analysis import terms as terms_of
from indexes.masks import Bits, bits_at
from indexes.model import Bm25, Floats, Rows

Postings = tuple[NDArray[np.uint32], NDArray[np.uint16]]
NO_ROWS: Rows = np.empty(0, np.int64)
NO_POSTINGS: Postings = (np.empty(0, np.uint32), np.empty(0, np.uint16))

PRUNED_POSTINGS_MIN = 16_384  # scoring fewer takes less time than deciding which to skip
STEPS = 255
DRIFT_MAX = 1.05  # ratio of mean lengths; further away, bounds are too loose and are computed again
ROUNDING = 1e-4  # relative; far above what float32 loses in the sum of a thousand terms
SMALLEST = 1e-30  # positive in float32, below any score

_local = threading.local()


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

    def impacts(self, term: str, bm25: Bm25, mean_length: float) -> Impacts:
        """Bounds of `saturated` for each posting of the term, at a mean length within `DRIFT_MAX` of this one."""
        ...

    def frequencies_of(self, rows: Rows) -> dict[str, int]:
        """In how many of these rows each term occurs. Reads all postings: for adoption, not for queries."""
        ...


class Impacts(NamedTuple):
    """Upper bounds of `saturated`, uint8 [postings], in steps of (k1 + 1) / STEPS: each is less than one too high."""

    steps: NDArray[np.uint8]
    largest: int
    mean_length: float

    @staticmethod
    def of(gains: Floats, bm25: Bm25, mean_length: float) -> Impacts:
        steps = np.ceil(gains * np.float32(STEPS / (bm25.k1 + 1)))
        steps = np.minimum(steps, STEPS).astype(np.uint8)  # float32 may round past the limit k1 + 1
        return Impacts(steps, int(steps.max(initial=0)), mean_length)


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
    part: LexicalPart,
    query: WeightedQuery,
    depth: int,
    allowed: Bits | None = None,
    *,
    floor: float = 0.0,
    pruned_from: int = PRUNED_POSTINGS_MIN,
) -> tuple[Rows, Floats]:
    """Rows of the `depth` largest scores above zero and these scores, best first; equal scores in row order.

    `allowed` is a packed mask of the rows that may be returned, None for all. Rows that score less than `floor`, such
    as the `depth`-th best score of other parts, may be left out. Queries with `pruned_from` postings or more are
    pruned, which changes the time they take and nothing else.
    """
    found = query.postings_in(part)
    if sum(len(rows) for rows, _ in found) >= pruned_from:
        rows = promising(part, query, found, depth, allowed, floor)
        return top(rows, score_rows(part, query, rows), depth)
    rows, gains = _gains(part, query, found)
    if allowed is not None:
        permitted = bits_at(allowed, rows)
        rows, gains = rows[permitted], gains[permitted]
    with _zeros(part.size) as sums:
        np.add.at(sums, rows, gains)
        scores = sums.take(rows)
        sums[rows] = 0
    # One number that sorts as wanted: positive floats compare like their bits; with those inverted, the best is first.
    keys = (~scores.view(np.uint32)).astype(np.uint64) << np.uint64(32)
    keys |= rows.view(np.uint64)
    enough = depth * len(found)  # since a row occurs at most once for each term
    if len(keys) > enough:
        keys.partition(enough)
    keys = keys[:enough]
    keys.sort()
    keys = keys[changes(keys)][:depth]
    best = (~(keys >> np.uint64(32)).astype(np.uint32)).view(np.float32)
    return keys.astype(np.uint32).astype(np.int64), best


def score_rows(part: LexicalPart, query: WeightedQuery, wanted: Rows) -> Floats:
    """BM25 of these rows only, float32 [len(wanted)]: for candidates found by other means."""
    found = query.postings_in(part)
    frequencies = np.zeros((len(found), len(wanted)), np.uint16)
    wanted_ = wanted.astype(np.uint32)  # as the postings, or numpy would convert all of these
    for own, (rows, stored) in zip(frequencies, found, strict=True):
        if len(rows):
            at = rows.searchsorted(wanted_)
            held = rows.take(at, mode="clip") == wanted_
            np.multiply(stored.take(at, mode="clip"), held, out=own)
    gains = saturated(frequencies, part.lengths.take(wanted), query.bm25, query.mean_length)
    scores = np.zeros(len(wanted), np.float32)
    # Term after term, as `best_of` adds them: float sums in another order would differ.
    for own, (_, weight) in zip(gains, query.weights, strict=True):
        scores += own * np.float32(weight)
    return scores


def saturated(
    frequencies: NDArray[np.uint16], lengths: NDArray[np.uint32], bm25: Bm25, mean_length: float
) -> Floats:
    """What the formula gives of term frequency and passage length: all but the weight of the term. 0 for 0."""
    k1, b = bm25.k1, bm25.b
    tf = frequencies.astype(np.float32)
    norm = lengths.astype(np.float32)
    norm *= np.float32(k1 * b / mean_length)
    norm += np.float32(k1 * (1 - b) + SMALLEST)  # never 0 / 0
    divisor = tf + norm
    tf *= np.float32(k1 + 1)
    tf /= divisor
    return tf


def promising(
    part: LexicalPart,
    query: WeightedQuery,
    found: Sequence[Postings],
    depth: int,
    allowed: Bits | None,
    floor: float,
) -> Rows:
    """A superset of the `depth` best rows, ascending: MaxScore (Turtle and Flood 1995), term at a time.

    Terms come in order of document frequency, and at first all their rows are candidates. Once the remaining terms
    together cannot lift a row above the `depth`-th best score so far, rows that hold only those are out: the remaining
    terms add to candidates that can still make it, and skip everything else. All sums are upper bounds.
    """
    mean = query.mean_length
    impacts = [part.impacts(term, query.bm25, mean) for term, _ in query.weights]
    # Impacts may be from when the mean length was another. Growing by r, it divides one term of the formula's
    # denominator by r: `saturated` then changes by a factor between 1 and r.
    drifts = [mean / one.mean_length for one in impacts] or [1.0]
    step = (query.bm25.k1 + 1) / STEPS * max(1.0, *drifts)
    shrunk = min(1.0, *drifts) / max(1.0, *drifts) * (1 - ROUNDING)
    terms = [
        (rows, one, weight * step)
        for (rows, _), one, (_, weight) in zip(found, impacts, query.weights, strict=True)
    ]
    terms.sort(key=lambda term: len(term[0]))
    # rest[i]: the most that terms i and later can add.
    rest = list(accumulate((one.largest * unit for _, one, unit in reversed(terms)), initial=0.0))[::-1]
    rounded_up = sum(unit for _, _, unit in terms)
    least = floor * (1 - ROUNDING)

    def reached(sums: Floats) -> float:
        """A score that at least `depth` rows reach, from the upper bounds of some rows."""
        if len(sums) < depth:
            return 0.0
        return (float(np.partition(sums, len(sums) - depth)[len(sums) - depth]) - rounded_up) * shrunk

    with _zeros(part.size) as sums:
        met = [NO_ROWS]
        for at, (stored, one, unit) in enumerate(terms):
            rows, steps = stored.astype(np.int64), one.steps
            if rest[at] < least:
                hits = np.flatnonzero(sums.take(rows) >= max(least - rest[at], SMALLEST))
                rows, steps = rows.take(hits), steps.take(hits)
            else:
                if allowed is not None:
                    permitted = bits_at(allowed, rows)
                    rows, steps = rows[permitted], steps[permitted]
                met.append(rows)
            bounds = steps * np.float32(unit)
            bounds += sums.take(rows)
            sums[rows] = bounds
            least = max(least, reached(bounds))
        rows = np.concatenate(met)
        bounds = sums.take(rows)
        sums[rows] = 0
    return np.unique(rows.take(np.flatnonzero(bounds >= least)))


def _gains(part: LexicalPart, query: WeightedQuery, found: Sequence[Postings]) -> tuple[Rows, Floats]:
    """What each posting of each term adds to the score of its row, term after term."""
    postings = [NO_POSTINGS, *found]
    rows = np.concatenate([rows for rows, _ in postings], dtype=np.int64)
    frequencies = np.concatenate([frequencies for _, frequencies in postings])
    gains = saturated(frequencies, part.lengths.take(rows), query.bm25, query.mean_length)
    weights = np.array([weight for _, weight in query.weights], np.float32)
    gains *= np.repeat(weights, [len(rows) for rows, _ in found])
    return rows, gains


@contextmanager
def _zeros(size: int) -> Iterator[Floats]:
    """At least `size` zeros, which the caller zeroes again. Kept per thread: mapping fresh pages would take longer
    than scoring a short query."""
    sums: Floats | None = _local.__dict__.pop("sums", None)
    if sums is None or len(sums) < size:
        sums = np.zeros(size, np.float32)
    yield sums
    _local.sums = sums  # not after an exception, which may have left something in it
