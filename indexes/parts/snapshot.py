"""What one search reads: an immutable set of parts, each with its deleted passages masked.

The collection publishes a new snapshot by assigning one reference, so a running search finishes on the old one and
never waits for a write or a build.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.base.languages import QueryLanguage
from indexes.base.masks import Bits, bits_at
from indexes.base.model import Bm25, DenseResult, Floats, Ids, Ranking, Spared, Tier
from indexes.base.work import OnStep, WorkBudget, do_nothing
from indexes.dense.cold_skips import ColdSkipper, ListBounds
from indexes.filters.grammar import Filter
from indexes.filters.satisfiable import require_key
from indexes.lexical.analysis import TAG, AnalyzedQuery
from indexes.lexical.bm25 import NO_CORRECTIONS, Statistics, round_count, weigh
from indexes.lexical.names import asked_keys
from indexes.lexical.operators import phrase_terms, prefix_groups
from indexes.lexical.typos import Corrections
from indexes.parts.prepared import Prepared, locate, select, tiers_of
from indexes.parts.query import Query, TermCounts
from indexes.parts.unexpired import NONE, Hidden, expires, hide_expired
from indexes.parts.visible import Visible, sum_by_tier, tiers_in


@dataclass(frozen=True)
class Snapshot:
    """One frozen view of a collection. Safe from any thread.

    `content`, 32 bytes, is equal for snapshots of equal documents, in any collection (`log.content`). `expired` are the
    passages that it hides although they are not deleted yet, ascending. `skipper` says how queries may spare the cold
    tier of the generation, and `bounds` are those of its lists; None: they do not.
    """

    seq: int
    content: bytes
    generation: int
    parts: tuple[Visible, ...]
    bm25: Bm25
    exact_scan_max: int
    skipper: ColdSkipper | None = None
    bounds: ListBounds | None = None
    expired: Ids = field(default_factory=lambda: NONE)
    _unexpired: list[tuple[Hidden, Snapshot | None]] = field(default_factory=list, init=False, compare=False)

    @cached_property
    def _expires(self) -> bool:
        return expires(self.parts)

    def unexpired(self, now_ms: Callable[[], int]) -> Snapshot:
        """The same snapshot without expired passages."""
        if not self._expires:
            return self
        now = now_ms()
        known = self._unexpired[-1:]
        if known and known[0][0].holds(now):
            return known[0][1] or self
        hidden = hide_expired(self.parts, now)
        shown = None  # this snapshot: a reference to itself would leave it to the garbage collector
        if len(hidden.expired):
            content = hidden.content(self.content)
            shown = replace(self, parts=hidden.parts, content=content, expired=hidden.expired)
        self._unexpired[:] = [(hidden, shown)]  # one atomic step, because other threads do the same
        return shown or self

    def allowed(self, condition: Filter | None, on_step: OnStep = do_nothing) -> Ids | None:
        """Ids of the live passages that match, ascending; None for all that the log holds."""
        if condition is None and not len(self.expired):
            return None
        return self.matching(condition, on_step)

    def with_cold_policy(self, query: Query) -> Query:
        """Return the query with what the cold policy says about it. What comes back with its candidates is for `learn`,
        if the query is counted."""
        if self.skipper is None:
            return query
        return msgspec.structs.replace(query, sparing=self.skipper.sparing(counted=query.counted))

    def learn(self, spared: Spared | None) -> None:
        """Take what the cold policy learns from a query."""
        if spared is not None and self.skipper is not None:
            self.skipper.learn(spared)

    def _with_policy_of_this(self, query: Query) -> Query:
        """Return the query with how it may spare the cold tier of this generation."""
        if self.skipper is not None and self.skipper.policy.mode == "never":
            return self.with_cold_policy(query)
        if query.sparing is not None and query.sparing.generation != self.generation:
            return msgspec.structs.replace(query, sparing=None)  # its threshold is that of other lists
        return query

    def prepare(
        self,
        query: Query,
        on_step: OnStep = do_nothing,
        work: WorkBudget | None = None,
        *,
        gather: bool = False,
    ) -> Prepared:
        """Prepare a query. The methods of the result raise InvalidInput for a filter on a key or kind of value that no
        passage has. `on_step` is called between steps, both here and in the result. `work` is what is left of the
        request's budget; None: a full one. `gather`: words are not corrected, but what is near them is returned, and
        the counts are those of these passages."""
        query = self._with_policy_of_this(query)
        if query.text is None:
            return Prepared(
                self.parts,
                query,
                None,
                self.exact_scan_max,
                self.bounds,
                spoken=self.spoken_of(query),
                on_step=on_step,
            )
        lexical = [visible.part.lexical for visible in self.parts]
        held = self.spoken_of(query)
        terms = self.terms_of(query)
        languages = terms.language, terms.others
        statistics, corrected = self.statistics(None if gather else query.statistics), NO_CORRECTIONS
        groups = prefix_groups(query.prefixes, lexical, *languages, on_step, work)
        weigh_with = partial(weigh, terms, lexical, statistics, self.bm25)
        weighed = weigh_with(groups=groups, synonyms=query.synonyms)
        known = weighed.synonyms.replaced.union(query.statistics.seen if query.statistics else ())
        corrections = Corrections(lexical, on_step, work, self._seen(query), known)
        if query.statistics is not None and query.statistics.corrected is not None:
            corrections.found = dict(query.statistics.corrected)
        # Terms of passages that are hidden from the caller, or have expired, would show by not being corrected.
        elif query.typos and (weighed.missing or self._hides(query)):
            (corrections.gather if gather else corrections.look_up)(query.text, *languages)
        if found := corrections.found:
            corrected = {word: name for word, (_, name) in found.items()}
            others = {term: name for meant, name in found.values() for term in meant}
            weighed = weigh_with(corrected=others, groups=groups, synonyms=query.synonyms)
        required = [one for phrase in query.phrases for one in phrase_terms(phrase, *languages)]
        return Prepared(
            self.parts,
            query,
            weighed,
            self.exact_scan_max,
            self.bounds,
            corrected,
            [*required, *groups.values()],
            held,
            names=asked_keys(query.text),
            seen=frozenset(corrections.held),
            near=corrections.near,
            typos_whole=corrections.whole and (query.statistics is None or query.statistics.whole),
            light=not (corrections.compared or query.phrases or query.prefixes),
            on_step=on_step,
        )

    def _seen(self, query: Query) -> list[Bits | None]:
        """Return a mask of the rows of each part among which typing errors are corrected; None: all."""
        return [chosen.allowed for chosen in select(self.parts, query.visible)] if query.typos else []

    def matching(self, condition: Filter | None, on_step: OnStep = do_nothing) -> Ids:
        """Ids of the live passages that match the filter, ascending. `on_step` is called before each condition."""
        found = [chosen.ids() for chosen in select(self.parts, condition, on_step)]
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)

    def require_key(self, key: str, where: str) -> None:
        """Raise InvalidInput naming `where` for a metadata key that no passage has."""
        require_key(key, where, [visible.part.filters for visible in self.parts])

    @property
    def newest(self) -> int:
        """An upper bound on the ids of its passages."""
        return max((visible.part.newest for visible in self.parts), default=0)

    def live_among(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of these passages are live."""
        live = np.zeros(len(ids), bool)
        for visible, at, rows in locate(self.parts, ids):
            live[at] = True if visible.alive is None else bits_at(visible.alive, rows)
        return live

    def tiers_of(self, ids: Ids) -> NDArray[np.int8]:
        """Each passage's tier, as an index into TIERS; the delta for passages written after this snapshot."""
        return tiers_of(self.parts, ids)

    def vectors(self, ids: Ids) -> Floats:
        """The stored vectors of any passages, float32 [ids, dimensions]; zeros for a passage in no part."""
        located = [(at, visible.part.vectors.take(rows)) for visible, at, rows in locate(self.parts, ids)]
        found = np.zeros((len(ids), located[0][1].shape[1] if located else 1), np.float32)
        for at, taken in located:
            found[at] = taken
        return found

    # --- one searcher at a time, for measurements -------------------------------------------------------------

    def dense(self, vector: Floats, depth: int, condition: Filter | None = None) -> DenseResult:
        """The `depth` passages nearest to a unit vector; the cold tier is never skipped."""
        query = Query(depth, depth, vector=vector, condition=condition)
        return Prepared(self.parts, query, None, self.exact_scan_max).dense()

    def lexical(self, text: str, depth: int, condition: Filter | None = None) -> Ranking:
        """The `depth` passages with the highest BM25 scores above zero."""
        return self.prepare(Query(depth, depth, text, condition=condition)).lexical()

    # --- languages --------------------------------------------------------------------------------------------

    def languages(self) -> dict[str, int]:
        """Live passages by language, the most frequent first."""
        held: Counter[str] = Counter()
        for visible in self.parts:
            for code, rows in visible.part.lexical.languages.items():
                held[code] += rows - sum(layer[TAG + code] for layer in visible.dead_terms)
        return dict(
            sorted(((code, n) for code, n in held.items() if n > 0), key=lambda one: (-one[1], one[0]))
        )

    @cached_property
    def spoken(self) -> Mapping[str, int]:
        """Live passages by language, so rounded that few writes change them, for judging a query's language."""
        return rounded(self.languages())

    def spoken_of(self, query: Query) -> Mapping[str, int]:
        """The languages among which that of a query is guessed."""
        return rounded(query.spoken) if query.spoken else self.spoken

    def language_of(
        self, query: str, given: str | None = None, held: Mapping[str, int] | None = None
    ) -> QueryLanguage:
        """The language of a query: `given`, else a guess among those of the passages, weighted by their number; among
        those in `held`, if given."""
        return QueryLanguage.of(query, given, rounded(held) if held else self.spoken)

    def terms_of(self, query: Query) -> AnalyzedQuery:
        """Return the terms under which the words of a query with a text are looked up."""
        if query.terms is not None:
            return query.terms
        assert query.text is not None
        spoken = self.language_of(query.text, query.language, query.spoken)
        return AnalyzedQuery.of(query.text, spoken.language, spoken.others).with_phrases(query.phrases)

    # --- counting ---------------------------------------------------------------------------------------------

    def counts(self) -> dict[Tier, int]:
        """Live passages per tier."""
        return sum_by_tier(visible.by_tier for visible in self.parts)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Tiers that hold live passages."""
        return tiers_in(visible.by_tier for visible in self.parts)

    @property
    def live(self) -> int:
        return sum(visible.live for visible in self.parts)

    @property
    def dead(self) -> int:
        """Deleted passages that are still in an index."""
        return sum(visible.dead for visible in self.parts)

    def count_terms(self, query: Query, on_step: OnStep = do_nothing) -> TermCounts:
        """What the BM25 scores of a query rest on here."""
        return self.counts_for(self.prepare(query, on_step, gather=True))

    def counts_for(self, prepared: Prepared) -> TermCounts:
        """What the BM25 scores of a query that is prepared rest on here, whatever it was prepared with."""
        query, statistics, weighed = prepared.query, self.statistics(), prepared.weighed
        counts: dict[str, int] = {}
        if weighed is not None:
            for at, (term, _) in enumerate(weighed.weights):
                held = [postings[at] for _, postings in weighed.met]
                counts[term] = statistics.live(term, held, grouped=term in weighed.groups)
        missing = weighed.missing if weighed is not None else frozenset[str]()
        hides, live = self._hides(query), frozenset(term for term, count in counts.items() if count)
        seen = prepared.seen if hides else live
        near, whole = tuple(prepared.near), prepared.typos_whole
        return TermCounts(statistics.passages, statistics.length, counts, missing, seen, hides, near, whole)

    def frequent_terms(self, most: int) -> TermCounts:
        """About how many passages have each of the most frequent terms, at most so many of them, or of all terms."""
        statistics, held = self.statistics(), Counter[str]()
        for visible in self.parts:
            held.update(visible.part.lexical.frequent(most))
        for layer in statistics.dead:
            held.subtract({term: layer[term] for term in layer.keys() & held.keys()})
        counts = {term: count for term, count in held.most_common(most) if count > 0}
        return TermCounts(statistics.passages, statistics.length, counts, hides=len(self.expired) > 0)

    def _hides(self, query: Query) -> bool:
        return query.visible is not None or len(self.expired) > 0

    def statistics(self, given: TermCounts | None = None) -> Statistics:
        if given is not None:
            return Statistics(given.passages, given.length, given=given.frequencies)
        length = sum(visible.part.lexical.length - visible.dead_length for visible in self.parts)
        dead = [layer for visible in self.parts for layer in visible.dead_terms]
        return Statistics(self.live, length, dead, [visible.alive for visible in self.parts])


def rounded(counts: Mapping[str, int]) -> dict[str, int]:
    """Round counts so that few writes change them."""
    return {key: round_count(count) for key, count in counts.items()}
