"""The seam between the stages and the index: the stages know this interface and nothing behind it.

Today every query is answered in this process, from one snapshot of a collection and its log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec.structs import replace

from indexes.base.model import Floats, Ids, Ranking, Scalar, StoredPassage
from indexes.base.work import WorkBudget
from indexes.collection.collection import Collection
from indexes.filters.grammar import Kind
from indexes.parts.prepared import Prepared
from indexes.parts.query import Candidates, Query
from indexes.parts.snapshot import Snapshot
from indexes.reading.surroundings import Reach, Surroundings, text_around
from retrieval.search.stopwatch import Stopwatch

Submit = Callable[[Callable[[], "LocalExecution"]], Future["LocalExecution"]]


class Execution(Protocol):
    """One query, answered on one frozen state of a collection. Call from any thread, one call at a time."""

    def on_step(self) -> None:
        """Raise what ends the search: Abandoned if its caller has left, DeadlineExceeded after its deadline."""
        ...

    def search(self) -> Candidates:
        """Return the candidates of both searchers. Raises InvalidInput for a filter that nothing can satisfy."""
        ...

    def scores(self, ids: Ids) -> tuple[Floats, Floats]:
        """Return the dense and BM25 scores of these passages, for candidates that only one searcher found."""
        ...

    @property
    def corrected(self) -> Mapping[str, str]:
        """Query words that no passage has, each with the term that was looked up instead."""
        ...

    @property
    def light(self) -> bool:
        """Whether preparing the query's words took no time."""
        ...

    @property
    def typos_whole(self) -> bool:
        """False if some unknown words were not looked up because that would take too long."""
        ...

    @property
    def scoring(self) -> bytes:
        """Equal for two states if the same query scores the same passages alike on both."""
        ...

    def values(
        self, ids: Ids, key: str, where: str, kinds: Sequence[Kind] = (), *, dates: bool = False
    ) -> Sequence[Sequence[Scalar]]:
        """Return the values of each passage under a metadata key. Raises InvalidInput naming `where` if no passage has
        the key, or none has a value of these `kinds`, or a date if `dates` count."""
        ...

    def terms_of(self, text: str) -> frozenset[str]:
        """Return the terms that the words of this text are looked up as, in the languages of the query and of the
        passages."""
        ...

    def vectors(self, ids: Ids) -> Floats:
        """Return the stored vectors, float32 [ids, dimensions]; zeros where there is none."""
        ...

    def fetch(self, ids: Sequence[int]) -> Mapping[int, StoredPassage]:
        """Return those that are still live, from the log. Passages deleted since are absent."""
        ...

    def around(self, ids: Sequence[int], reach: Reach) -> Mapping[int, Surroundings]:
        """Return the surroundings of those that are still live, from the log."""
        ...

    def count_hits(self, ids: Sequence[int]) -> None:
        """Count these passages as hits, so that popular ones move to the hot tier."""
        ...


class Executor(Protocol):
    def prepare(self, query: Query, watch: Stopwatch) -> Execution: ...


@dataclass(slots=True)
class LocalExecutor:
    """Answers one query in this process, at increasing depths.

    `begun` is the lexical part of a query whose text is still being embedded. `first` is what was prepared first.
    `work` is the work budget of the request.
    """

    collection: Collection
    snapshot: Snapshot
    begun: Future[LocalExecution] | None = None
    first: LocalExecution | None = None
    work: WorkBudget = field(default_factory=WorkBudget)

    def begin(self, query: Query, watch: Stopwatch, submit: Submit) -> None:
        """Start the lexical search while the text is being embedded. `prepare` is then called with the same query and
        its vector, or with a deeper one."""

        def begun() -> LocalExecution:
            execution = self._prepared(query, watch)
            return replace(execution, words=execution.lexical())

        self.begun = submit(begun)

    def prepare(self, query: Query, watch: Stopwatch) -> LocalExecution:
        """Prepare the query, waiting for what `begin` started and raising its error. Words are looked up once, at any
        depth."""
        if self.first is None:
            self.first = self._prepared(query, watch) if self.begun is None else self.begun.result()
        words = self.first.words if self.first.prepared.query.depth == query.depth else None
        return replace(self.first, prepared=self.first.prepared.again(query, watch.on_step), words=words)

    def _prepared(self, query: Query, watch: Stopwatch) -> LocalExecution:
        stage = None if query.text is None else "lexical"  # preparing weighs the terms
        prepared = watch.time_stage(stage, lambda: self.snapshot.prepare(query, watch.on_step, self.work))
        return LocalExecution(self.collection, self.snapshot, prepared, watch)


class LocalExecution(msgspec.Struct, frozen=True):
    collection: Collection
    snapshot: Snapshot
    prepared: Prepared
    watch: Stopwatch
    words: Ranking | None = None

    def on_step(self) -> None:
        self.watch.on_step()

    def lexical(self) -> Ranking:
        """Return the BM25 ranking, computing it if it is not there yet."""
        if self.words is not None:
            return self.words
        return self.watch.time_stage(
            None if self.prepared.query.text is None else "lexical", self.prepared.lexical
        )

    def search(self) -> Candidates:
        prepared, lexical = self.prepared, self.lexical()
        dense = self.watch.time_stage(None if prepared.query.vector is None else "dense", prepared.dense)
        return Candidates.join(dense, lexical, prepared.lexical_bound)

    def scores(self, ids: Ids) -> tuple[Floats, Floats]:
        return self.prepared.scores(ids)

    @property
    def corrected(self) -> Mapping[str, str]:
        return self.prepared.corrected

    @property
    def light(self) -> bool:
        return self.prepared.light

    @property
    def typos_whole(self) -> bool:
        return self.prepared.typos_whole

    @property
    def scoring(self) -> bytes:
        return self.prepared.scoring

    def values(
        self, ids: Ids, key: str, where: str, kinds: Sequence[Kind] = (), *, dates: bool = False
    ) -> Sequence[Sequence[Scalar]]:
        return self.prepared.values(ids, key, where, kinds, dates=dates)

    def terms_of(self, text: str) -> frozenset[str]:
        found = self.snapshot.looked_up(text, self.prepared.query.language)
        return found.union(self.corrected.values(), self.prepared.grouped_terms)

    def vectors(self, ids: Ids) -> Floats:
        return self.prepared.vectors(ids)

    def fetch(self, ids: Sequence[int]) -> Mapping[int, StoredPassage]:
        return self.collection.passages(ids)

    def around(self, ids: Sequence[int], reach: Reach) -> Mapping[int, Surroundings]:
        return text_around(self.collection, ids, reach)

    def count_hits(self, ids: Sequence[int]) -> None:
        self.collection.hits.count(ids)
