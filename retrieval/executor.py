"""Where a query is answered. The stages know this interface and nothing of what lies behind it.

Today every query is answered in this process, from one snapshot of a collection and its log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from indexes import Candidates, Collection, Floats, Ids, Prepared, Query, Snapshot, StoredPassage
from retrieval.stopwatch import Stopwatch


class Execution(Protocol):
    """One query being answered on one frozen state of a collection. Call from any thread, one call at a time."""

    def search(self) -> Candidates:
        """Raises InvalidInput for a filter that nothing can satisfy."""
        ...

    def scores(self, ids: Ids) -> tuple[Floats, Floats]:
        """Dense and BM25 scores of these passages: for candidates that only one searcher found."""
        ...

    def vectors(self, ids: Ids) -> Floats:
        """The stored vectors of these passages, float32 [ids, dimensions]; zeros where there is none."""
        ...

    def fetch(self, ids: Sequence[int]) -> Mapping[int, StoredPassage]:
        """Those that still live, from the log: what was deleted since is absent."""
        ...

    def answered(self, ids: Sequence[int]) -> None:
        """These are in the answer: wanted passages move to the hot tier."""
        ...


class Executor(Protocol):
    def prepare(self, query: Query, watch: Stopwatch) -> Execution: ...


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Answers in this process."""

    collection: Collection
    snapshot: Snapshot

    def prepare(self, query: Query, watch: Stopwatch) -> LocalExecution:
        stage = None if query.text is None else "lexical"  # it weighs the terms
        return LocalExecution(
            self.collection, watch.timed(stage, lambda: self.snapshot.prepare(query)), watch
        )


@dataclass(frozen=True, slots=True)
class LocalExecution:
    collection: Collection
    prepared: Prepared
    watch: Stopwatch

    def search(self) -> Candidates:
        query = self.prepared.query
        lexical = self.watch.timed(None if query.text is None else "lexical", self.prepared.lexical)
        dense = self.watch.timed(None if query.vector is None else "dense", self.prepared.dense)
        prepared = self.prepared
        return Candidates.join(dense, lexical, prepared.lexical_bound)

    def scores(self, ids: Ids) -> tuple[Floats, Floats]:
        return self.prepared.scores(ids)

    def vectors(self, ids: Ids) -> Floats:
        return self.prepared.vectors(ids)

    def fetch(self, ids: Sequence[int]) -> Mapping[int, StoredPassage]:
        return self.collection.passages(ids)

    def answered(self, ids: Sequence[int]) -> None:
        self.collection.hits.count(ids)
