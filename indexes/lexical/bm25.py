"""BM25 scores of passages, the same after any history of writes that leads to the same passages.

Parts hold integers only: rows, term frequencies, lengths. Collection-wide statistics (live passages, their mean
length, document frequencies) are summed over all parts, minus deleted rows, when a query is weighed. So a passage
scores the same in any part, and scores after any writes equal those of a fresh index. Pruning skips work but never
changes results: rows and scores are the same as when every posting is scored.

    score(q, p) = sum over terms t of q:  idf(t) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / mean_length))
    idf(t)      = ln(1 + (N - df + 0.5) / (df + 0.5))

The formula is Robertson and Zaragoza (2009), eq. 3.15, with Lucene's idf, which is never negative. N and df are
rounded to COUNT_BITS significant bits (exact up to 16), mean_length to MEAN_BITS: a write then leaves nearly every
score of the passages it does not touch as it was, bit for bit, and answers computed before it stay right.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.base.arrays import changes, top
from indexes.base.masks import Bits, bits_at
from indexes.base.model import Bm25, Floats, Ids, Rows
from indexes.lexical.analysis import NONE, query_terms_and_own
from indexes.lexical.prefixed import NO_GROUPS, Groups, Lists, Postings, postings_of
from indexes.lexical.synonyms import NOTHING, Expansion, Synonyms, expand

NO_CORRECTIONS: Mapping[str, str] = {}
NO_ROWS: Rows = np.empty(0, np.int64)
NO_POSTINGS: Postings = (np.empty(0, np.uint32), np.empty(0, np.uint16))

COUNT_BITS = 4  # rounds by 6 percent at most, which changes an idf by 0.06
MEAN_BITS = 6
PRUNED_POSTINGS_MIN = 16_384  # scoring fewer is faster than pruning
STEPS = 255
DRIFT_MAX = 1.05  # ratio of mean lengths beyond which bounds are too loose and are recomputed
ROUNDING = 1e-4  # relative; far above the float32 error of summing a thousand terms
SMALLEST = 1e-30  # positive in float32, below any score

_local = threading.local()


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The terms of a long passage, the tag of its language among them, with their frequencies, and how many words it
    has."""

    names: Sequence[str]
    frequencies: Sequence[int]
    length: int


NO_TERMS = Terms((), (), 0)


class LexicalPart(Lists, Protocol):
    """The postings of one part, as the scorer reads them. Rows are 0 to size-1 within the part."""

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

    @property
    def languages(self) -> Mapping[str, int]:
        """Number of rows in each language, dead ones included."""
        ...

    def starting(self, prefix: str, bytes_min: int = 0, bytes_max: int = 1 << 32) -> list[str]:
        """The terms with this prefix and a UTF-8 size between both bounds, perhaps with others of about that size, in
        no order. Some may not occur in any row yet."""
        ...

    def impacts(self, term: str, bm25: Bm25, mean_length: float) -> Impacts:
        """Upper bounds of `saturate` per posting of the term, at a mean length within `DRIFT_MAX` of this one."""
        ...

    def named(self, keys: range) -> NDArray[np.uint32]:
        """The rows under these keys of `names`."""
        ...

    def frequencies_of(self, rows: Rows) -> dict[str, int]:
        """Document frequency of each term within these rows. Reads all postings: for adoption, not for queries."""
        ...

    def terms_of(self, row: int, chars: int) -> Terms | None:
        """The terms under which a row with a text of so many characters is found; None if analyzing the text takes less
        time."""
        ...


class Impacts(NamedTuple):
    """Upper bounds of `saturate`, uint8 [postings], in steps of (k1 + 1) / STEPS: each less than one step too high; and
    how many of them are at least STEPS, STEPS - 1 and so on to 0, ascending."""

    steps: NDArray[np.uint8]
    reaching: NDArray[np.int64]
    mean_length: float

    @staticmethod
    def of(gains: Floats, bm25: Bm25, mean_length: float) -> Impacts:
        steps = np.ceil(gains * np.float32(STEPS / (bm25.k1 + 1)))
        steps = np.minimum(steps, STEPS).astype(np.uint8)  # float32 may round past the limit k1 + 1
        return Impacts(steps, np.bincount(steps, minlength=STEPS + 1)[::-1].cumsum(), mean_length)

    def best(self, rank: int) -> int:
        """The bound at a rank from 1, 0 if there are fewer."""
        return max(STEPS - int(self.reaching.searchsorted(rank)), 0)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts over all live passages of a snapshot. `dead` holds each part's term df among its deleted passages. With
    `given`, the counts are over more passages than these, and it holds the df of each term among all of them."""

    passages: int
    length: int
    dead: Sequence[Mapping[str, int]] = ()
    given: Mapping[str, int] | None = None

    def live(self, term: str, held: int) -> int:
        """How many live passages have a term that `held` passages of the parts have."""
        if self.given is not None:
            return self.given.get(term, 0)
        return max(held - sum(dead.get(term, 0) for dead in self.dead), 0)

    @property
    def mean_length(self) -> float:
        """Terms in a passage, on average, rounded; above 0."""
        mantissa, exponent = math.frexp(self.length / max(self.passages, 1))
        return max(math.ldexp(round(mantissa * (1 << MEAN_BITS)), exponent - MEAN_BITS), 1e-9)


@dataclass(frozen=True, slots=True)
class WeightedQuery:
    """A query ready to score: each term with idf times its count in the query, and the mean passage length.

    `bound` is the score of a passage with unlimited occurrences of all terms, including those that no passage has.
    `complete`: each word is a term of some passage, even a dead one. `met` keeps the postings that `weigh` found in
    each part, so scoring does not look terms up again.
    """

    weights: tuple[tuple[str, float], ...]
    mean_length: float
    bm25: Bm25
    bound: float
    complete: bool = True
    groups: Groups = field(default_factory=dict)
    synonyms: Expansion = NOTHING
    met: tuple[tuple[LexicalPart, tuple[Postings, ...]], ...] = field(default=(), compare=False, repr=False)

    def postings_in(self, part: LexicalPart) -> Sequence[Postings]:
        """The postings of each term of `weights` in a part, whether or not the query was weighed with it."""
        for known, postings in self.met:
            if known is part:
                return postings
        return [postings_of(part, term, self.groups) for term, _ in self.weights]

    def impacts_in(self, part: LexicalPart, found: Sequence[Postings]) -> list[Impacts | None]:
        """The impacts of each term of `weights`, whose postings are `found`; None for a term without postings."""
        return [
            None
            if not len(postings[0])
            else impacts_of(part, postings, self.bm25, self.mean_length)
            if term in self.groups
            else part.impacts(term, self.bm25, self.mean_length)
            for (term, _), postings in zip(self.weights, found, strict=True)
        ]


def weigh(
    text: str,
    parts: Sequence[LexicalPart],
    statistics: Statistics,
    bm25: Bm25,
    language: str = "en",
    others: Mapping[str, float] = NONE,
    corrected: Mapping[str, str] = NO_CORRECTIONS,
    groups: Groups = NO_GROUPS,
    synonyms: Synonyms | None = None,
) -> WeightedQuery:
    """Compute each query term's document frequency over all parts, and its weight. `language` and `others` as for
    `query_terms`; `corrected` has other terms for some, `groups` names for terms that count as one word. What only
    `synonyms` add to the query is not in its bound: a passage needs no more than the query's own words.

    Document frequency is at least 1, even if only dead passages hold the term. The bound counts such a term as one that
    no passage holds, as it would be after a rebuild.
    """
    counts, own = query_terms_and_own(text, language, others)
    if corrected:
        counts, own = _correct(counts, corrected), {corrected.get(term, term) for term in own}
    more = expand(own, synonyms, language)
    if groups or more.counts:
        kept = {term: count for term, count in counts.items() if term not in more.replaced}
        counts = {**more.counts, **kept, **dict.fromkeys(groups, 1.0)}
        groups = {**groups, **more.groups}
    met = [[postings_of(part, term, groups) for term in counts] for part in parts]
    weights = {}
    mass, complete = 0.0, True
    for at, (term, count) in enumerate(counts.items()):
        held = sum(len(postings[at][0]) for postings in met)
        live = statistics.live(term, held)
        if live or term in own or term in groups:  # a missing form in another language is not a missing word
            mass += count * idf(live, statistics.passages)
        complete &= held > 0 or live > 0 or term not in own
        if held:
            weights[at] = (term, count * idf(max(live, 1), statistics.passages))
    return WeightedQuery(
        tuple(weights.values()),
        statistics.mean_length,
        bm25,
        mass * (bm25.k1 + 1),
        complete,
        groups,
        more,
        tuple((part, tuple(found[at] for at in weights)) for part, found in zip(parts, met, strict=True)),
    )


def impacts_of(part: LexicalPart, postings: Postings, bm25: Bm25, mean_length: float) -> Impacts:
    rows, frequencies = postings
    return Impacts.of(saturate(frequencies, part.lengths.take(rows), bm25, mean_length), bm25, mean_length)


def _correct(counts: Mapping[str, float], corrected: Mapping[str, str]) -> dict[str, float]:
    changed: dict[str, float] = {}
    for term, count in counts.items():
        name = corrected.get(term, term)
        changed[name] = max(changed.get(name, 0.0), count)
    return changed


def round_count(count: int) -> int:
    """The nearest number with COUNT_BITS significant bits, the larger one of two."""
    dropped = max(count.bit_length() - COUNT_BITS, 0)
    return count + (1 << dropped >> 1) >> dropped << dropped


def idf(df: int, passages: int) -> float:
    df, passages = round_count(df), round_count(passages)
    return math.log1p((max(passages - df, 0) + 0.5) / (df + 0.5))


def best_of(
    part: LexicalPart,
    query: WeightedQuery,
    depth: int,
    allowed: Bits | None = None,
    *,
    floor: float = 0.0,
    pruned_from: int = PRUNED_POSTINGS_MIN,
    ids_of: Callable[[Rows], Ids] | None = None,
) -> tuple[Rows, Floats]:
    """Rows with the `depth` largest scores above zero, and the scores, best first. Of those that tie with the last
    one, it keeps those with the lowest ids, or the first ones without `ids_of`: a deeper ranking holds a shallower one.

    `allowed` is a packed mask of the rows that may be returned, None for all. Rows that score below `floor`, such as
    the `depth`-th best score of other parts, may be omitted. Queries with `pruned_from` or more postings are pruned,
    which only affects speed.
    """
    found = query.postings_in(part)
    if sum(len(rows) for rows, _ in found) >= pruned_from:
        rows = find_promising(part, query, found, depth, allowed, floor)
        return top(rows, score_rows(part, query, rows), depth, ids_of)
    rows, gains = _gains(part, query, found)
    if allowed is not None:
        permitted = bits_at(allowed, rows)
        rows, gains = rows[permitted], gains[permitted]
    with _zeros(part.size) as sums:
        np.add.at(sums, rows, gains)
        scores = sums.take(rows)
        sums[rows] = 0
    # Sort by (score descending, row) as one integer: positive floats order like their bits, inverted for best first.
    keys = (~scores.view(np.uint32)).astype(np.uint64) << np.uint64(32)
    keys |= rows.view(np.uint64)
    enough = (depth + 1) * len(found)  # a row occurs at most once per term
    if len(keys) > enough:
        keys.partition(enough)
    keys = keys[:enough]
    keys.sort()
    keys = keys[changes(keys)][: depth + 1]
    best = (~(keys >> np.uint64(32)).astype(np.uint32)).view(np.float32)
    if ids_of is not None and len(keys) > depth and best[-1] == best[-2]:
        reaching = np.flatnonzero(scores >= best[-1])
        rows, first = np.unique(rows[reaching], return_index=True)
        return top(rows, scores[reaching[first]], depth, ids_of)
    keys, best = keys[:depth], best[:depth]
    return keys.astype(np.uint32).astype(np.int64), best


def score_rows(part: LexicalPart, query: WeightedQuery, wanted: Rows) -> Floats:
    """BM25 scores of the given rows, float32 [len(wanted)]: for candidates from other searchers."""
    found = query.postings_in(part)
    wanted_ = wanted.astype(np.uint32)  # the postings' type, or numpy would convert every posting
    ascending = bool((wanted_[1:] > wanted_[:-1]).all())
    places: list[Rows] = [NO_ROWS]  # in `wanted`
    frequencies = [NO_POSTINGS[1]]
    for rows, stored in found:
        # Look up the shorter list in the longer one: rare words have few rows, and candidates may be all rows.
        if ascending and len(rows) < len(wanted_):
            at = wanted_.searchsorted(rows)
            held = np.flatnonzero(wanted_.take(at, mode="clip") == rows)
            places.append(at.take(held))
            frequencies.append(stored.take(held))
        else:
            at = rows.searchsorted(wanted_)
            held = np.flatnonzero(rows.take(at, mode="clip") == wanted_) if len(rows) else NO_ROWS
            places.append(held)
            frequencies.append(stored.take(at.take(held)))
    where = np.concatenate(places)
    lengths = part.lengths.take(wanted.take(where))
    gains = saturate(np.concatenate(frequencies), lengths, query.bm25, query.mean_length)
    weights = np.array([weight for _, weight in query.weights], np.float32)
    gains *= np.repeat(weights, [len(held) for held in places[1:]])
    scores = np.zeros(len(wanted), np.float32)
    # Term by term, in the same order as `best_of`: float sums depend on the order.
    np.add.at(scores, where, gains)
    return scores


def saturate(
    frequencies: NDArray[np.uint16], lengths: NDArray[np.uint32], bm25: Bm25, mean_length: float
) -> Floats:
    """The saturated term frequency: the formula without the term's weight. 0 for a frequency of 0."""
    k1, b = bm25.k1, bm25.b
    tf = frequencies.astype(np.float32)
    norm = lengths.astype(np.float32)
    norm *= np.float32(k1 * b / mean_length)
    norm += np.float32(k1 * (1 - b) + SMALLEST)  # never 0 / 0
    divisor = tf + norm
    tf *= np.float32(k1 + 1)
    tf /= divisor
    return tf


class BoundedTerm(NamedTuple):
    """The rows of a term, the bounds of its gains in steps, and the most that a step may stand for."""

    rows: NDArray[np.uint32]
    impacts: Impacts
    unit: float


def bounded_terms(
    part: LexicalPart, query: WeightedQuery, found: Sequence[Postings]
) -> tuple[list[BoundedTerm], float]:
    """The terms that have postings, rarest first, and the factor that makes a lower bound of a sum of their bounds.

    Impacts may have been computed at another mean length. If it has since grown by a factor r, one term of the
    formula's denominator is divided by r, so `saturate` changes by a factor between 1 and r.
    """
    impacts = query.impacts_in(part, found)
    drifts = [query.mean_length / one.mean_length for one in impacts if one is not None] or [1.0]
    step = (query.bm25.k1 + 1) / STEPS * max(1.0, *drifts)
    terms = [
        BoundedTerm(rows, one, weight * step)
        for (rows, _), one, (_, weight) in zip(found, impacts, query.weights, strict=True)
        if one is not None
    ]
    terms.sort(key=lambda term: len(term.rows))
    return terms, min(1.0, *drifts) / max(1.0, *drifts) * (1 - ROUNDING)


def find_promising(
    part: LexicalPart,
    query: WeightedQuery,
    found: Sequence[Postings],
    depth: int,
    allowed: Bits | None,
    floor: float,
) -> Rows:
    """A superset of the `depth` best rows, ascending: MaxScore (Turtle and Flood 1995), term at a time.

    Terms are processed rarest first, and initially all their rows become candidates. Once the remaining terms together
    cannot lift a row above the `depth`-th best score so far, they add no new candidates: they only update candidates
    that can still reach that score. All sums are upper bounds.
    """
    terms, shrunk = bounded_terms(part, query, found)
    # rest[i]: upper bound on what terms i and later can add.
    rest = list(accumulate((one.best(1) * unit for _, one, unit in reversed(terms)), initial=0.0))[::-1]
    rounded_up = sum(unit for _, _, unit in terms)
    # What `depth` rows reach by one term alone, if all of them may be returned.
    alone = [(one.best(depth) - 1) * unit * shrunk for _, one, unit in terms] if allowed is None else []
    least = max(floor * (1 - ROUNDING), *alone, 0.0)

    def reached(sums: Floats) -> float:
        """A score that at least `depth` rows reach: a lower bound derived from the upper bounds of some rows."""
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
                elif (enough := math.ceil((least - rest[at + 1]) / unit)) > 0:
                    reach = steps >= enough
                    if at:
                        reach |= sums.take(rows) > 0
                    hits = np.flatnonzero(reach)
                    rows, steps = rows.take(hits), steps.take(hits)
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
    """The score contribution of each posting to its row, term by term."""
    postings = [NO_POSTINGS, *found]
    rows = np.concatenate([rows for rows, _ in postings], dtype=np.int64)
    frequencies = np.concatenate([frequencies for _, frequencies in postings])
    gains = saturate(frequencies, part.lengths.take(rows), query.bm25, query.mean_length)
    weights = np.array([weight for _, weight in query.weights], np.float32)
    gains *= np.repeat(weights, [len(rows) for rows, _ in found])
    return rows, gains


@contextmanager
def _zeros(size: int) -> Iterator[Floats]:
    """An array of at least `size` zeros, which the caller must zero again. Reused per thread: mapping fresh pages takes
    longer than scoring a short query."""
    sums: Floats | None = _local.__dict__.pop("sums", None)
    if sums is None or len(sums) < size:
        sums = np.zeros(size, np.float32)
    yield sums
    _local.sums = sums  # not after an exception: it may hold nonzero values
