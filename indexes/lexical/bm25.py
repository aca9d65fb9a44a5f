"""BM25 scores of passages, the same after any history of writes that leads to the same passages.

Parts hold integers only: rows, term frequencies, lengths. Collection-wide statistics (live passages, their mean
length, document frequencies) are summed over all parts, minus deleted rows, when a query is weighed. So a passage
scores the same in any part, and scores after any writes equal those of a fresh index. The loops over postings are in
`scoring.cpp`; they skip work but never change results: rows and scores are the same as when every posting is scored.

    score(q, p) = sum over terms t of q:  idf(t) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / mean_length))
    idf(t)      = ln(1 + (N - df + 0.5) / (df + 0.5))

The formula is Robertson and Zaragoza (2009), eq. 3.15, with Lucene's idf, which is never negative. N and df are
rounded to COUNT_BITS significant bits (exact up to 16), mean_length to MEAN_BITS: a write then leaves nearly every
score of the passages it does not touch as it was, bit for bit, and answers computed before it stay right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.base.arrays import top
from indexes.base.masks import Bits, bits_at
from indexes.base.model import Bm25, Floats, Ids, Rows, Terms
from indexes.lexical.analysis import AnalyzedQuery
from indexes.lexical.prefixed import NO_GROUPS, Groups, Lists, Postings, postings_of
from indexes.lexical.synonyms import NOTHING, Expansion, Synonyms, expand

try:
    from indexes.lexical import scoring
except ImportError as error:
    raise ImportError(
        "indexes/lexical/scoring.cpp is not compiled: install Nearline again (`make setup`)"
    ) from error

NO_CORRECTIONS: Mapping[str, str] = {}
NO_ROWS: Rows = np.empty(0, np.int64)
NO_POSTINGS: Postings = (np.empty(0, np.uint32), np.empty(0, np.uint16))

COUNT_BITS = 4  # rounds by 6 percent at most, which changes an idf by 0.06
MEAN_BITS = 6
BOUNDED_POSTINGS_MIN = 16_384  # of a list; for fewer, adding up gains is faster than looking up candidates
STEPS = 255
DRIFT_MAX = 1.05  # ratio of mean lengths beyond which bounds are too loose and are recomputed
ROUNDING = 1e-4  # relative; far above the float32 error of summing a thousand terms
SMALLEST = 1e-30  # positive in float32, below any score


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

    def frequent(self, most: int) -> dict[str, int]:
        """The terms in most rows, at most so many, and in how many each is, dead ones included."""
        ...

    def impacts(self, term: str, bm25: Bm25, mean_length: float) -> Impacts | None:
        """Bounds of the term's postings at a mean length within `DRIFT_MAX` of this one; None if they do not pay."""
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
    """Upper bounds of `saturate`, uint8 [postings], in steps of its limit / STEPS: each less than one step too high;
    and how many of them are at least STEPS, STEPS - 1 and so on to 0, ascending."""

    steps: NDArray[np.uint8]
    reaching: NDArray[np.int64]
    mean_length: float

    @staticmethod
    def of(gains: Floats, limit: float, mean_length: float) -> Impacts:
        steps = np.ceil(gains * np.float32(STEPS / limit))
        steps = np.minimum(steps, STEPS).astype(np.uint8)  # float32 may round past the limit
        return Impacts(steps, np.bincount(steps, minlength=STEPS + 1)[::-1].cumsum(), mean_length)

    def best(self, rank: int) -> int:
        """The bound at a rank from 1, 0 if there are fewer."""
        return max(STEPS - int(self.reaching.searchsorted(rank)), 0)


class Formula(NamedTuple):
    """What `saturate` needs: the factor of a passage's length, what is added to that, and the limit."""

    slope: float
    base: float
    limit: float

    @staticmethod
    def of(bm25: Bm25, mean_length: float) -> Formula:
        k1, b = bm25.k1, bm25.b
        return Formula(k1 * b / mean_length, k1 * (1 - b) + SMALLEST, k1 + 1)  # SMALLEST: never 0 / 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts over all live passages of a snapshot. `dead` holds each part's term df among its deleted passages, and
    `alive` each part's mask of live rows (None: all). With `given`, the counts are over more passages than these, and
    it holds the df of each term among all of them."""

    passages: int
    length: int
    dead: Sequence[Mapping[str, int]] = ()
    alive: Sequence[Bits | None] = ()
    given: Mapping[str, int] | None = None

    def live(self, term: str, held: Sequence[Postings], *, grouped: bool) -> int:
        """How many live passages have a term, by its postings in each part. Those of a group are looked up one by one,
        because the counts of its terms do not tell how many passages have any of them."""
        if self.given is not None:
            return self.given.get(term, 0)
        if grouped and self.alive:
            return sum(_count_alive(rows, alive) for (rows, _), alive in zip(held, self.alive, strict=True))
        return max(sum(len(rows) for rows, _ in held) - sum(dead.get(term, 0) for dead in self.dead), 0)

    @property
    def mean_length(self) -> float:
        """Terms in a passage, on average, rounded; above 0."""
        mantissa, exponent = math.frexp(self.length / max(self.passages, 1))
        return max(math.ldexp(round(mantissa * (1 << MEAN_BITS)), exponent - MEAN_BITS), 1e-9)


@dataclass(frozen=True, slots=True)
class WeightedQuery:
    """A query ready to score: each term with idf times its count in the query, and the mean passage length.

    `bound` is the score of a passage with unlimited occurrences of all terms, including those that no passage has.
    `missing`: the terms of words that no live passage has. `met` keeps the postings that `weigh` found in
    each part, so scoring does not look terms up again.
    """

    weights: tuple[tuple[str, float], ...]
    mean_length: float
    bm25: Bm25
    bound: float
    missing: frozenset[str] = frozenset()
    groups: Groups = field(default_factory=dict)
    synonyms: Expansion = NOTHING
    met: tuple[tuple[LexicalPart, tuple[Postings, ...]], ...] = field(default=(), compare=False, repr=False)

    def postings_in(self, part: LexicalPart) -> Sequence[Postings]:
        """The postings of each term of `weights` in a part, whether or not the query was weighed with it."""
        for known, postings in self.met:
            if known is part:
                return postings
        return [postings_of(part, term, self.groups) for term, _ in self.weights]

    @property
    def formula(self) -> Formula:
        return Formula.of(self.bm25, self.mean_length)


def weigh(
    terms: AnalyzedQuery,
    parts: Sequence[LexicalPart],
    statistics: Statistics,
    bm25: Bm25,
    corrected: Mapping[str, str] = NO_CORRECTIONS,
    groups: Groups = NO_GROUPS,
    synonyms: Synonyms | None = None,
) -> WeightedQuery:
    """Compute each query term's document frequency over all parts, and its weight. `corrected` has other terms for
    some, `groups` names for terms that count as one word. What only `synonyms` add to the query is not in its bound: a
    passage needs no more than the query's own words.

    Document frequency is at least 1, even if only dead passages hold the term. The bound counts such a term as one that
    no passage holds, as it would be after a rebuild. If no passage holds a word in the form of the query's language,
    that in the most frequent language that has it counts instead: the language was guessed.
    """
    counts: Mapping[str, float] = terms.weights
    own: AbstractSet[str] = terms.own
    if corrected:
        counts, own = _correct(counts, corrected), frozenset(corrected.get(term, term) for term in own)
    more = expand(own, synonyms, terms.language)
    if groups or more.counts:
        kept = {term: count for term, count in counts.items() if term not in more.replaced}
        counts = {**more.counts, **kept, **dict.fromkeys(groups, 1.0)}
        groups = {**groups, **more.groups}
    met = {term: [postings_of(part, term, groups) for part in parts] for term in counts}
    lives = {term: statistics.live(term, found, grouped=term in groups) for term, found in met.items()}
    counts, own = by_form(terms, counts, own, lives)
    weights: dict[str, float] = {}
    mass, missing = 0.0, set[str]()
    for term, count in counts.items():
        held, live = any(len(rows) for rows, _ in met[term]), lives[term]
        if live or term in own or term in groups:  # a missing form in another language is not a missing word
            mass += count * idf(live, statistics.passages)
        if not live and term in own:
            missing.add(term)
        if held:
            weights[term] = count * idf(max(live, 1), statistics.passages)
    return WeightedQuery(
        tuple(weights.items()),
        statistics.mean_length,
        bm25,
        mass * (bm25.k1 + 1),
        frozenset(missing),
        groups,
        more,
        tuple((part, tuple(met[term][at] for term in weights)) for at, part in enumerate(parts)),
    )


def by_form(
    terms: AnalyzedQuery, counts: Mapping[str, float], own: AbstractSet[str], lives: Mapping[str, int]
) -> tuple[Mapping[str, float], AbstractSet[str]]:
    """The counts of a query's terms, and those of its own language. A word that no passage holds in the form of that
    language counts in the form of another one."""
    instead = {
        word: max(held, key=lambda one: counts[one])
        for word, others in terms.forms.items()
        if word in own and lives.get(word) == 0 and (held := [one for one in others if lives.get(one)])
    }
    if not instead:
        return counts, own
    raised = dict(counts)
    for word, other in instead.items():
        raised[other] = max(raised[other], counts[word])
    return raised, (own - instead.keys()) | {*instead.values()}


def _count_alive(rows: NDArray[np.uint32], alive: Bits | None) -> int:
    return len(rows) if alive is None else int(np.count_nonzero(bits_at(alive, rows.astype(np.int64))))


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
    ids_of: Callable[[Rows], Ids] | None = None,
) -> tuple[Rows, Floats]:
    """Rows with the `depth` largest scores above zero, and the scores, best first. Of those that tie with the last
    one, it keeps those with the lowest ids, or the first ones without `ids_of`: a deeper ranking holds a shallower one.

    `allowed` is a packed mask of the rows that may be returned, None for all. Rows that score below `floor`, such as
    the `depth`-th best score of other parts, may be omitted.
    """
    weights = [weight for _, weight in query.weights]
    found = query.postings_in(part)
    impacts = [
        None if term in query.groups else part.impacts(term, query.bm25, query.mean_length)
        for term, _ in query.weights
    ]
    # Impacts may have been computed at another mean length. If it has since grown by a factor r, one term of the
    # formula's denominator is divided by r, so `saturate` changes by a factor between 1 and r.
    drifts = [query.mean_length / one.mean_length for one in impacts if one is not None] or [1.0]
    step = query.formula.limit / STEPS * max(1.0, *drifts)
    bounds = [one and (one.steps, weight * step, one.best(1)) for one, weight in zip(impacts, weights)]
    if allowed is None:
        # What `depth` rows reach by one term alone.
        alone = [(one.best(depth) - 1) * weight * step for one, weight in zip(impacts, weights) if one]
        floor = max(floor, *alone, 0.0) * min(1.0, *drifts) / max(1.0, *drifts) * (1 - ROUNDING)
    rows, scores = scoring.best(found, weights, bounds, part.lengths, query.formula, depth, allowed, floor)
    return top(rows, scores, depth, ids_of)


def score_rows(part: LexicalPart, query: WeightedQuery, wanted: Rows) -> Floats:
    """BM25 scores of the given rows, float32 [len(wanted)]: for candidates from other searchers."""
    weights = [weight for _, weight in query.weights]
    found = query.postings_in(part)
    return scoring.score(found, weights, part.lengths, query.formula, wanted.astype(np.uint32))


def saturate(frequencies: NDArray[np.uint16], lengths: NDArray[np.uint32], formula: Formula) -> Floats:
    """The saturated term frequency: the formula without the term's weight."""
    slope, base, limit = np.array(formula, np.float32)
    tf = frequencies.astype(np.float32)
    saturated: Floats = tf * limit / (tf + (lengths.astype(np.float32) * slope + base))
    return saturated
