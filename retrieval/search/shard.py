"""What the stages of a search ask of the passages that they search.

The stages know no more of a collection than `Searchable`; `Partition` and `Shard` add what explanations and joint
searches ask. Every argument and result is a plain value, so a shard may be in another process. `LocalShard` is the one
in this process: one snapshot of a collection, and its log.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from indexes.base.model import (
    DenseResult,
    Floats,
    Ids,
    Metadata,
    Ranking,
    Scalar,
    StoredDocument,
    StoredPassage,
)
from indexes.base.suggestions import similar
from indexes.base.work import WorkBudget
from indexes.collection.view import CollectionView
from indexes.dense.vectors import search_with_one_thread
from indexes.filters.grammar import Filter, Kind, parse_filter
from indexes.filters.unmet import Unmet, relax
from indexes.parts.prepared import Prepared
from indexes.parts.query import Candidates, Query, TermCounts
from indexes.parts.snapshot import Snapshot
from indexes.parts.standing import (
    Standing,
    ahead_of,
    best_of_each,
    find_holding,
    holds,
    standings,
    words_of,
)
from indexes.reading.facets import FacetCounts, FacetQuery, count_facets
from indexes.reading.surroundings import Reach, Surroundings, text_around
from retrieval.search.stopwatch import Stopwatch

SHARD_BITS = 48
"""A passage of the n-th of several shards has the id that it has there plus n << SHARD_BITS: a log numbers its
passages from 1, so these never need more."""

T = TypeVar("T")
Seqs = Mapping[int, int]  # operations, by the number of their shard; a collection in one piece is shard 0
IDS_COMPARED = 1000  # ids compared with an unknown one, per kind


class ValuesQuery(msgspec.Struct, frozen=True):
    """The values of the candidates under a metadata key, of a long list those that decide an order. `where` is the
    key's place in the request. If the collection has the key, it must have values of these `kinds` (any, if empty), or
    dates if `dates` count. With `exists` no values are brought along: only that the collection has the key is checked.
    """

    key: str
    where: str
    kinds: tuple[Kind, ...] = ()
    dates: bool = False
    exists: bool = False


class Ask(msgspec.Struct, frozen=True):
    """A search of one shard, and what the answer brings along.

    exact      the ranking of an exact scan, which takes the place of the search
    values     the metadata values to bring along for each candidate
    highlight  a text: bring along the terms as which its words are looked up
    grounds    bring along `Searched.grounds`
    counts     bring along `Searched.counts`
    """

    query: Query
    exact: Ranking | None = None
    values: tuple[ValuesQuery, ...] = ()
    highlight: str | None = None
    grounds: bool = False
    counts: bool = False


class StateSearched(msgspec.Struct, frozen=True):
    """The state of a shard on which a search was answered.

    `scoring` is equal for two states if the same query scores the same passages alike on both. `newest` is an upper
    bound on the ids of its passages; `expired` are those that it hides, int64. `light`: preparing the query's words
    took no time.
    """

    seq: int
    newest: int
    expired: Ids
    scoring: bytes
    light: bool


class Searched(msgspec.Struct, frozen=True):
    """What a shard found. Candidates of a hybrid search have both of their scores.

    corrected    query words that no passage has, each with the term that was looked up instead
    passages     how many the shard has in all
    typos_whole  false if some unknown words were not looked up because that would take too long; the same for synonyms
    values       for each ValuesQuery, the values of each candidate
    counts       what the scores would rest on if this shard were all
    """

    candidates: Candidates
    corrected: Mapping[str, str]
    typos_whole: bool
    values: Sequence[Sequence[Sequence[Scalar]]]
    terms: frozenset[str]
    grounds: StateSearched | None
    synonyms_whole: bool = True
    passages: int = 0
    counts: TermCounts | None = None


class What(msgspec.Struct, frozen=True):
    """What to read of passages: the passages themselves, their surroundings, or their vectors. `hits` counts them as
    hits, so that popular ones move to the hot tier."""

    passages: bool = False
    reach: Reach | None = None
    vectors: bool = False
    hits: bool = False


class Fetched(msgspec.Struct, frozen=True):
    """What was read, by passage id: passages and their surroundings from the log, where those deleted since are absent;
    `vectors` as indexed, float32 [ids, dimensions], with zeros where there is none."""

    passages: Mapping[int, StoredPassage] = {}
    around: Mapping[int, Surroundings] = {}
    vectors: Floats | None = None


class Example(msgspec.Struct, frozen=True):
    """A document as an example: its passages' ids, ascending, and the mean of their vectors, float32 [dimensions]."""

    metadata: Metadata
    passages: Ids
    mean: Floats


class Later(msgspec.Struct, frozen=True):
    """A question about passages written since an answer was made: those with ids above `newest`, if there are at most
    `most`. `lives` and `expired` are int64 ids of passages that must be live, and must not be; `scoring` is that of the
    answer (`StateSearched`)."""

    query: Query
    scoring: bytes
    newest: int
    most: int
    lives: Ids
    expired: Ids


class LaterPassages(msgspec.Struct, frozen=True):
    """The passages written since, with both scores: None if they are too many, or if the passages asked about are not
    as they must be, or the query scores differently now. `newest` as in `StateSearched`."""

    newest: int
    candidates: Candidates | None


class Follow(msgspec.Struct, frozen=True):
    """Passages of one document to follow through a search.

    first      those of them that the search ranked first, examined whatever their scores
    condition  the filter of the request as JSON, if any
    whole      return also what explains why none of them is a hit
    """

    query: Query
    ids: Ids
    first: Ids
    condition: dict[str, Any] | None
    whole: bool


class Followed(msgspec.Struct, frozen=True):
    """Where the passages stand that are the best by each score, ordered by id, and those passages if they are still
    live.

    words    the query's words that count, each with its terms
    holding  the passages that hold each term that one of these lacks, if `whole`
    unmet    the conditions of the filter that the document fails, if `whole`
    relaxed  the filter without them, None if nothing is left
    """

    standings: Sequence[Standing]
    passages: Mapping[int, StoredPassage]
    words: Mapping[str, Sequence[str]]
    language: str
    holding: Mapping[str, Ids] = {}
    unmet: Sequence[Unmet] = ()
    relaxed: dict[str, Any] | None = None


class Rivals(msgspec.Struct, frozen=True):
    """The scores of passages of another shard, to be compared with those of all that the query allows. With `first`,
    passages of the same score rank before them."""

    query: Query
    dense: Floats
    lexical: Floats
    first: bool


class Ahead(msgspec.Struct, frozen=True):
    """How many passages rank before each of the `Rivals`, by each score."""

    dense: Ids
    lexical: Ids


class DocumentRead(msgspec.Struct, frozen=True):
    """A document as the log has it, also while an expired one is not deleted yet, and its first passage. `alike`: ids
    of documents that are similar to the one asked for."""

    document: StoredDocument | None
    expired: bool
    first: int
    alike: Sequence[str]


class Searchable(Protocol):
    """Passages in one frozen state. One call at a time, from any thread."""

    async def search(self, ask: Ask) -> Searched:
        """Find candidates. Raises InvalidInput for a filter that nothing can satisfy, or naming `where` for values that
        no passage has. Searches of one shard differ only in vector, depth and statistics."""
        ...

    async def fetch(self, ids: Sequence[int], what: What) -> Fetched:
        """Read passages as they are now, or count them as hits."""
        ...


class Partition(Searchable, Protocol):
    """Some of the passages of a collection, which may be on another machine."""

    async def statistics(self, query: Query) -> TermCounts:
        """Count what the BM25 scores of a query rest on. The sum over several shards can be an input of their
        searches."""
        ...

    async def facets(self, condition: Filter | None, asked: Sequence[FacetQuery]) -> list[FacetCounts]:
        """Count facets. Raises InvalidInput for a key with too many different values."""
        ...

    async def examples(self, documents: Sequence[str]) -> list[Example | None]:
        """Read documents as examples; None for one that does not exist."""
        ...

    async def scan(self, vectors: Floats, depth: int, condition: Filter | None) -> list[Ranking]:
        """Rank the passages exactly for each vector, float32 [queries, dimensions], reading every vector of the log
        once. Returns the best `depth` of each."""
        ...

    async def read(self, document_id: str, alike: int = 0) -> DocumentRead:
        """Read a document, and up to so many similar ids."""
        ...

    async def follow(self, asked: Follow) -> Followed:
        """Find where passages stand for a query, among all that the filter allows."""
        ...

    async def count_ahead(self, rivals: Rivals) -> Ahead:
        """Count the passages that rank before those of another shard."""
        ...


class Shard(Partition, Protocol):
    """Some of the passages of a collection, or all, in one frozen state."""

    @property
    def seq(self) -> int:
        """The last operation that this state holds."""
        ...

    async def later(self, asked: Later) -> LaterPassages:
        """Look at what was written since a search."""
        ...


def shard_of(passage_id: int) -> int:
    """Return the number of a passage's shard."""
    return passage_id >> SHARD_BITS


def run_at_once(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on this thread, without an event loop. It must not wait for anything: a search of a shard in this
    process does not."""
    coroutine = work()
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    coroutine.close()
    raise RuntimeError("the search waited for something, so it needs an event loop")


@dataclass(slots=True)
class LocalShard:
    """A snapshot of a collection in this process. No method waits for anything (`run_at_once`).

    `work` is the work budget of the request. `first` is what was prepared first.
    """

    collection: CollectionView
    snapshot: Snapshot
    watch: Stopwatch
    work: WorkBudget = field(default_factory=WorkBudget)
    first: Prepared | None = None

    @property
    def seq(self) -> int:
        return self.snapshot.seq

    def prepare(self, query: Query) -> Prepared:
        """Prepare the query. Its words are looked up once, at any depth, unless they count otherwise now."""
        if self.first is None or self.first.query.statistics != query.statistics:
            stage = None if query.text is None else "lexical"  # preparing weighs the terms
            self.first = self.watch.time_stage(
                stage, lambda: self.snapshot.prepare(query, self.watch.on_step, self.work)
            )
        return self.first.again(query, self.watch.on_step)

    async def search(self, ask: Ask) -> Searched:
        query, snapshot = ask.query, self.snapshot
        prepared = self.prepare(query)
        if ask.exact is not None:
            # An exact scan reads the log, which may be ahead of the snapshot.
            scanned = DenseResult(
                Ranking(ask.exact.ids, ask.exact.scores, snapshot.tiers_of(ask.exact.ids)),
                snapshot.tiers,
                None,
            )
            candidates = Candidates.join(scanned, Ranking.empty())
        else:
            words = self.watch.time_stage(None if query.text is None else "lexical", prepared.lexical)
            dense = self.watch.time_stage(None if query.vector is None else "dense", prepared.dense)
            candidates = prepared.add_named(Candidates.join(dense, words, prepared.lexical_bound))
        if query.text is not None and query.vector is not None:
            candidates = self.watch.time_stage("fuse", lambda: complete_scores(candidates, prepared))
        ids = candidates.ids
        return Searched(
            candidates=candidates,
            corrected=prepared.corrected,
            typos_whole=prepared.typos_whole,
            values=deciding_values(ask.values, prepared, ids),
            terms=frozenset() if ask.highlight is None else self._terms_of(ask.highlight, prepared),
            grounds=StateSearched(
                snapshot.seq, snapshot.newest, snapshot.expired, prepared.scoring, prepared.light
            )
            if ask.grounds
            else None,
            synonyms_whole=prepared.synonyms_whole,
            passages=snapshot.live,
            counts=snapshot.counts_for(prepared) if ask.counts else None,
        )

    def _terms_of(self, text: str, prepared: Prepared) -> frozenset[str]:
        """Return the terms as which the words of a text are looked up, in the languages of query and passages."""
        found = self.snapshot.terms_of(replace(prepared.query, text=text, terms=None))
        return frozenset(found.weights).union(prepared.corrected.values(), prepared.grouped_terms)

    async def fetch(self, ids: Sequence[int], what: What) -> Fetched:
        if what.hits:
            self.collection.hits.count(ids)
        return Fetched(
            passages=self.collection.passages(ids) if what.passages else {},
            around=text_around(self.collection, ids, what.reach) if what.reach is not None else {},
            vectors=self.snapshot.vectors(np.array(ids, np.int64)) if what.vectors else None,
        )

    async def statistics(self, query: Query) -> TermCounts:
        return self.snapshot.count_terms(query, self.watch.on_step)

    async def facets(self, condition: Filter | None, asked: Sequence[FacetQuery]) -> list[FacetCounts]:
        return count_facets(self.collection, self.snapshot, condition, asked, self.watch.on_step)

    async def examples(self, documents: Sequence[str]) -> list[Example | None]:
        return [self._example(one) for one in documents]

    def _example(self, document_id: str) -> Example | None:
        document = self.collection.log.document(document_id)
        found = self.collection.log.vectors_of_document(document_id)
        if document is None or found is None:
            return None
        return Example(document.metadata, found[0], found[1].mean(axis=0))

    async def later(self, asked: Later) -> LaterPassages:
        snapshot, found = self.snapshot, None
        if snapshot.live_among(asked.lives).all() and not snapshot.live_among(asked.expired).any():
            prepared = snapshot.prepare(asked.query, work=self.work)
            if prepared.scoring == asked.scoring:
                found = prepared.newer(asked.newest, asked.most)
        return LaterPassages(snapshot.newest, found)

    async def scan(self, vectors: Floats, depth: int, condition: Filter | None) -> list[Ranking]:
        found = self.collection.exact(vectors, depth, condition, self.watch.on_step)
        return [Ranking(ids, scores, np.zeros(len(ids), np.int8)) for ids, scores in found]

    async def follow(self, asked: Follow) -> Followed:
        search_with_one_thread()
        prepared = self.prepare(asked.query)
        words, language = words_of(self.snapshot, asked.query)
        counts = {term: count for terms in words.values() for term, count in terms.items()}
        best = np.union1d(best_of_each(prepared, asked.ids), asked.first)
        found = standings(prepared, best, counts, self.watch.on_step)
        followed = Followed(
            standings=found,
            passages=self.collection.passages([one.id for one in found]),
            words={word: list(terms) for word, terms in words.items()},
            language=language,
        )
        if not asked.whole or not found:
            return followed
        relaxed, unmet = asked.condition, list[Unmet]()
        if asked.condition is not None:
            condition = parse_filter(asked.condition, conditions_max=sys.maxsize)
            relaxed, unmet = relax(asked.condition, condition, partial(holds, prepared, found[0].id))
        lacking = {term for one in found for term in one.lacks if term in counts}
        holding = find_holding(prepared, asked.ids, lacking)
        return replace(followed, holding=holding, unmet=unmet, relaxed=relaxed)

    async def count_ahead(self, rivals: Rivals) -> Ahead:
        search_with_one_thread()
        prepared, step = self.prepare(rivals.query), self.watch.on_step
        return Ahead(*ahead_of(prepared, rivals.dense, rivals.lexical, first=rivals.first, on_step=step))

    async def read(self, document_id: str, alike: int = 0) -> DocumentRead:
        log = self.collection.log
        document, near = log.document(document_id), list[str]()
        if alike:
            groups = log.ids_like(document_id, IDS_COMPARED)
            closest = {one for group in groups for one in similar(document_id, group, alike)}
            near = [one for one in similar(document_id, closest, alike) if log.document(one)]
        ended = None if document else log.expired(document_id)
        first = log.passages_of(document_id).start
        return DocumentRead(document or ended, ended is not None, first, near)


def deciding_values(asked: Sequence[ValuesQuery], prepared: Prepared, ids: Ids) -> list[list[list[Scalar]]]:
    for one in asked:
        prepared.require_values(one.key, one.where, one.kinds, dates=one.dates)
    keys = dict.fromkeys(one.key for one in asked if not one.exists)
    held = {key: prepared.deciding_values(ids, key) for key in keys}
    nothing: list[list[Scalar]] = [[] for _ in range(len(ids))]
    return [nothing if one.exists else held[one.key] for one in asked]


def complete_scores(candidates: Candidates, prepared: Prepared) -> Candidates:
    """Compute the scores that a searcher did not return, because missing is not the same as 0."""
    lacking: NDArray[np.intp] = np.flatnonzero(np.isnan(candidates.dense) | np.isnan(candidates.lexical))
    if not len(lacking):
        return candidates
    dense, lexical = candidates.dense.copy(), candidates.lexical.copy()
    dense[lacking], lexical[lacking] = prepared.scores(candidates.ids[lacking])
    return replace(candidates, dense=dense, lexical=lexical)
