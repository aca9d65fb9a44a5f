"""A skewed load: queries about topics, few of which are asked for often.

A topic is a cluster of the passages. Which one a query is about is drawn by Zipf's law over the topics' ranks; the
query itself is a probe near a passage of the topic, led astray towards others of the same topic.
"""

from __future__ import annotations

from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray

from indexes.dense.probing import probes_of
from indexes.model import Floats, Rows

PASSAGES_MIN = 8  # of a topic: fewer are no topic, and give a probe nothing to be led astray to
TRAINING_ROUNDS, TRAINING_PASSAGES_MAX = 10, 100  # the latter for each topic


@dataclass(frozen=True, slots=True)
class Load:
    """Queries with a given popularity of topics. `members` are rows of `vectors`, the most popular topic first."""

    vectors: Floats
    members: list[Rows]
    exponent: float

    def queries(self, count: int, *, seed: int) -> Floats:
        """Unit vectors [count, dimensions] in random order. Another seed gives other queries with the same skew."""
        rng = np.random.default_rng(seed)
        drawn = rng.choice(len(self.members), count, p=popularity(len(self.members), self.exponent))
        found = np.empty((count, self.vectors.shape[1]), np.float32)
        for topic in np.unique(drawn):
            at = np.flatnonzero(drawn == topic)
            # Probes are led towards one another, so a topic that is drawn once needs companions all the same.
            rows = rng.choice(self.members[topic], max(len(at), PASSAGES_MIN))
            found[at] = probes_of(self.vectors[rows], seed=int(rng.integers(2**31)))[: len(at)]
        return found

    def shifted(self) -> Load:
        """The same topics, but the less popular half has become the more popular one, in the same order."""
        half = len(self.members) // 2
        return Load(self.vectors, [*self.members[half:], *self.members[:half]], self.exponent)


def load_of(vectors: Floats, topics: int, exponent: float, *, seed: int) -> Load:
    """Cluster the passages into at most so many topics, and draw which are popular."""
    clusters = faiss.Kmeans(
        vectors.shape[1],
        topics,
        niter=TRAINING_ROUNDS,
        spherical=True,
        seed=seed + 1,
        max_points_per_centroid=TRAINING_PASSAGES_MAX,
        min_points_per_centroid=1,
    )
    clusters.train(vectors)
    _, nearest = clusters.index.search(vectors, 1)
    order = np.argsort(nearest[:, 0], kind="stable")
    ends = np.cumsum(np.bincount(nearest[:, 0], minlength=topics))[:-1]
    members = [rows for rows in np.split(order, ends) if len(rows) >= PASSAGES_MIN]
    ranks = np.random.default_rng(seed).permutation(len(members))
    return Load(vectors, [members[topic] for topic in ranks], exponent)


def popularity(topics: int, exponent: float) -> NDArray[np.float64]:
    """Share of the queries that are about each topic, most popular first (Zipf)."""
    weights = np.arange(1, topics + 1) ** -exponent
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares
