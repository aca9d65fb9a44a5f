"""A cost model for searches of the cold lists: predicts scans, time and recall, to choose lists and settings."""

from __future__ import annotations

import numpy as np

from indexes.base.model import Floats, Rows
from indexes.dense.cold import RANKS, ColdIndex, ColdSettings, candidates_of, middle

# Search costs in nanoseconds, on one thread at 384 dimensions with AVX512; only the ratios matter.
RANK_A_LIST_NS, PROBE_A_LIST_NS, SCAN_A_CODE_NS, RESCORE_NS = 35, 600, 1.5, 100
SCAN_AGAIN_NS = 30_000
THOROUGH = 400  # candidates rescored to estimate the true scores of a query's answer


def search_ns(lists: int, probes: float, codes: float, rescored: float = 0.0) -> float:
    """Estimated time of a search that scans `codes` codes in `probes` of `lists` lists."""
    return RANK_A_LIST_NS * lists + PROBE_A_LIST_NS * probes + SCAN_A_CODE_NS * codes + RESCORE_NS * rescored


class Forecast:
    """Predicts what any settings would scan and find for a sample of queries."""

    def __init__(self, shard: ColdIndex, queries: Floats) -> None:
        """Runs one exhaustive search per query."""
        similarities = queries @ shard.centroids().T
        order = np.argsort(-similarities, axis=1)
        self._shard = shard
        self._queries = queries
        self._similarities = np.take_along_axis(similarities, order, axis=1)
        self._codes = np.cumsum(shard.list_sizes()[order], axis=1)
        rows, self._scores = self._thorough(THOROUGH)
        # For each of the nearest passages, the rank of its list in the query's list order.
        self._places = np.take_along_axis(np.argsort(order, axis=1), shard.lists_of(rows), axis=1)
        self._kept: dict[int, float] = {}

    @property
    def lists(self) -> int:
        """Number of lists."""
        return self._shard.lists

    def codes(self, settings: ColdSettings) -> float:
        """Mean number of codes scanned per query."""
        return float(self._scanned(settings)[1].mean())

    def cost_ns(self, settings: ColdSettings) -> float:
        """Mean time per query, estimated with `search_ns`."""
        probes, codes = self._scanned(settings)
        again = float((probes > self._first(settings)).mean())
        rescored = settings.rescored * (1 + again)
        return (
            search_ns(self.lists, float(probes.mean()), float(codes.mean()), rescored) + SCAN_AGAIN_NS * again
        )

    def recall(self, settings: ColdSettings) -> float:
        """Share of the nearest passages that lie in scanned lists and survive the selection by code."""
        if settings.rescored not in self._kept:
            _, scores = self._thorough(settings.rescored)
            self._kept[settings.rescored] = float((scores >= self._scores[:, -1:]).mean())
        probes, _ = self._scanned(settings)
        return float((self._places < probes[:, None]).mean()) * self._kept[settings.rescored]

    def _thorough(self, rescored: int) -> tuple[Rows, Floats]:
        """The RANKS nearest rows of each query over all lists, and their scores (-inf if fewer are found)."""
        settings = ColdSettings(self._shard.lists, rescored)
        shape = len(self._queries), RANKS
        rows, scores = np.zeros(shape, np.int64), np.full(shape, -np.inf, np.float32)
        for at, query in enumerate(self._queries):
            found = self._shard.nearest(query, RANKS, None, self._shard.size, settings)
            rows[at, : len(found[0])], scores[at, : len(found[1])] = found
        return rows, scores

    def _first(self, settings: ColdSettings) -> int:
        return self._shard.first_lists(settings, candidates_of(settings, RANKS, self._shard.size), 1.0)

    def _scanned(self, settings: ColdSettings) -> tuple[Rows, Rows]:
        """Lists probed and codes scanned, per query."""
        horizons = middle(self._similarities[:, 0], self._scores[:, -1]) - settings.reach
        near = (self._similarities > horizons[:, None]).sum(axis=1)
        probes = np.clip(near, self._first(settings), self.lists)
        return probes, np.take_along_axis(self._codes, probes[:, None] - 1, axis=1)[:, 0]
