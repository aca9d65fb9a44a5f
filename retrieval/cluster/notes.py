"""What requests through this service have told it of shards at any node."""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from retrieval.cluster.calls import NodeShards
from retrieval.search.known_counts import KnownCounts

logger = logging.getLogger(__name__)

HITS_KEPT = 1000  # of a shard, until its node is told


@dataclass(slots=True)
class ShardNotes:
    """The last operations that answers must know of, hits that nodes shall count, and what BM25 counted before. Use it
    from one event loop."""

    hits: dict[str, list[int]] = field(default_factory=dict, init=False)  # to be counted, by shard
    # The last operation of each shard that a write through this service was acknowledged with, or that it was given
    # to another node with, and when.
    _acknowledged: dict[str, tuple[int, float]] = field(default_factory=dict, init=False)
    _counts: dict[str, KnownCounts] = field(default_factory=dict, init=False)  # by collection

    def know(self, shard: str, seq: int) -> None:
        """Have every answer from now on know of an operation of a shard."""
        self._acknowledged[shard] = max(seq, self.acknowledged(shard)), time.monotonic()

    def acknowledged(self, shard: str) -> int:
        """Return the last operation that every answer must know of."""
        return self._acknowledged.get(shard, (0, 0.0))[0]

    def lose(self, shard: str, upto: int, at: float | None = None) -> None:
        """Wait no more for operations of a shard after this one, which it has lost."""
        seq = self.acknowledged(shard)
        logger.warning("shard %s is at seq %d, and a write was acknowledged with %d", shard, upto, seq)
        self._acknowledged[shard] = upto, time.monotonic() if at is None else at

    def forget_lost(self, held: NodeShards, looked_at: float) -> None:
        """Wait no more for what was acknowledged before this look and its writer does not have: the shard was created
        again, or has lost its last writes with a machine."""
        for name, state in held.shards.items() if held.writes else ():
            seq, at = self._acknowledged.get(name, (0, 0.0))
            if state.seq < seq and at < looked_at and state.moving is None:
                self.lose(name, state.seq, looked_at)

    def forget(self, shard: str) -> None:
        """Forget what was acknowledged of a shard that was deleted."""
        self._acknowledged.pop(shard, None)

    def rename(self, shard: str, name: str) -> None:
        """Go on waiting for what was acknowledged of a shard that has another name now."""
        if (known := self._acknowledged.pop(shard, None)) is not None:
            self._acknowledged[name] = known

    def note_hits(self, shard: str, passages: Sequence[int]) -> None:
        """Keep passages that a user got until the next call of their shard, which counts them."""
        held = self.hits.setdefault(shard, [])
        held += passages[: HITS_KEPT - len(held)]

    def counts_of(self, collection: str) -> KnownCounts:
        """Return what BM25 counted in a collection for earlier searches, to be kept for later ones."""
        return self._counts.setdefault(collection, KnownCounts())

    def keep_counts(self, collections: Container[str]) -> None:
        """Forget what was counted in other collections."""
        self._counts = {name: one for name, one in self._counts.items() if name in collections}
