"""Where a query is answered. The stages know this interface and nothing of what lies behind it.

Today every query is answered in this process, from one snapshot of a collection and its log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec.structs import replace

from indexes.base.courtesy import Work
from indexes.base.model import Floats, Ids, Ranking, Scalar, StoredPassage
from indexes.collection.collection import Collection
from indexes.filters.grammar import Kind
from indexes.parts.prepared import Prepared
from indexes.parts.query import Candidates, Query
from indexes.parts.snapshot import Snapshot
from indexes.reading.surroundings import Reach, Surroundings, text_around
from retrieval.search.stopwatch import Stopwatch

Submit = Callable[[Callable[[], "LocalExecution"]], Future["LocalExecution"]]


class Execution(Protocol):
    """One query being answered on one frozen state of a collection. Call from any thread, one call at a time."""

    def go_on(self) -> None:
        """Raises what ends the search: its caller has left, or its deadline has passed."""
        ...

    def search(self) -> Candidates:
        """Raises InvalidInput for a filter that nothing can satisfy."""
        ...

    def scores(self, ids: Ids) -> tuple[Floats, Floats]:
        """Dense and BM25 scores of these passages: for candidates that only one searcher found."""
        ...

    @property
    def corrected(self) -> Mapping[str, str]:
        """Words of the query that no passage has, and the terms that were looked up instead."""
        ...

    @property
    def light(self) -> bool:
        """Whether its words took no time to prepare."""
        ...

    @property
    def typos_whole(self) -> bool:
        """False if not every word that no passage has was looked up, because that would take too long."""
        ...

    @property
    def scoring(self) -> bytes:
        """Equal where the same query scores the same passages alike."""
        ...

    def values(
        self, ids: Ids, key: str, where: str, kinds: Sequence[Kind] = (), *, dates: bool = False
    ) -> Sequence[Sequence[Scalar]]:
        """What each passage has under a metadata key. Raises InvalidInput naming `where` for a key that none has."""
        ...

    def looked_up(self, text: str) -> frozenset[str]:
        """The terms that words of this text are looked up as, in the query's language and those of the passages."""
        ...

    def vectors(self, ids: Ids) -> Floats:
        """The stored vectors of these passages, float32 [ids, dimensions]; zeros where there is none."""
        ...

    def fetch(self, ids: Sequence[int]) -> Mapping[int, StoredPassage]:
        """Those that still live, from the log: what was deleted since is absent."""
        ...

    def around(self, ids: Sequence[int], reach: Reach) -> Mapping[int, Surroundings]:
        """What stands around those that still live, from the log."""
        ...

    def answered(self, ids: Sequence[int]) -> None:
        """These are in the answer: wanted passages move to the hot tier."""
        ...


class Executor(Protocol):
    def prepare(self, query: Query, watch: Stopwatch) -> Execution: ...


@dataclass(slots=True)
class LocalExecutor:
    """Answers one query in this process, at one depth after the other. `begun`: of a query whose text is being embedded
    meanwhile, what needs no vector. `first`: what was prepared before. `work`: what its request may still do."""

    collection: Collection
    snapshot: Snapshot
    begun: Future[LocalExecution] | None = None
    first: LocalExecution | None = None
    work: Work = field(default_factory=Work)

    def begin(self, query: Query, watch: Stopwatch, submit: Submit) -> None:
        """Search its words meanwhile. Then ask for the same query with its vector, or for a deeper one."""

        def begun() -> LocalExecution:
            execution = self._prepared(query, watch)
            return replace(execution, words=execution.lexical())

        self.begun = submit(begun)

    def prepare(self, query: Query, watch: Stopwatch) -> LocalExecution:
        """Waits for what was begun; raises what that has raised. Words are looked up once, whatever the depth."""
        if self.first is None:
            self.first = self._prepared(query, watch) if self.begun is None else self.begun.result()
        words = self.first.words if self.first.prepared.query.depth == query.depth else None
        return replace(self.first, prepared=self.first.prepared.again(query, watch.go_on), words=words)

    def _prepared(self, query: Query, watch: Stopwatch) -> LocalExecution:
        stage = None if query.text is None else "lexical"  # it weighs the terms
        prepared = watch.timed(stage, lambda: self.snapshot.prepare(query, watch.go_on, self.work))
        return LocalExecution(self.collection, self.snapshot, prepared, watch)


class LocalExecution(msgspec.Struct, frozen=True):
    collection: Collection
    snapshot: Snapshot
    prepared: Prepared
    watch: Stopwatch
    words: Ranking | None = None

    def go_on(self) -> None:
        self.watch.go_on()

    def lexical(self) -> Ranking:
        """That of BM25, unless it is there already."""
        if self.words is not None:
            return self.words
        return self.watch.timed(
            None if self.prepared.query.text is None else "lexical", self.prepared.lexical
        )

    def search(self) -> Candidates:
        prepared, lexical = self.prepared, self.lexical()
        dense = self.watch.timed(None if prepared.query.vector is None else "dense", prepared.dense)
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

    def looked_up(self, text: str) -> frozenset[str]:
        found = self.snapshot.looked_up(text, self.prepared.query.language)
        return found.union(self.corrected.values(), self.prepared.grouped_terms)

    def vectors(self, ids: Ids) -> Floats:
        return self.prepared.vectors(ids)

    def fetch(self, ids: Sequence[int]) -> Mapping[int, StoredPassage]:
        return self.collection.passages(ids)

    def around(self, ids: Sequence[int], reach: Reach) -> Mapping[int, Surroundings]:
        return text_around(self.collection, ids, reach)

    def answered(self, ids: Sequence[int]) -> None:
        self.collection.hits.count(ids)
