"""A model of what a query would lose without the cold tier, fitted to queries for which that is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexes.arrays import find_sorted
from indexes.model import Floats, Ids

Values = NDArray[np.float64]

NUMBERS, FOUND = 4, 5
NOBODY = -1  # in the place of a passage that was not found
ROUNDS, RIDGE, CONVERGED = 25, 1e-3, 1e-6  # of fitting
SCALE_MIN = 0.01  # of a feature: what varies less is no feature
PRIOR_QUERIES = 2.0  # what was lost so far counts as the mean of all queries until there were about so many


@dataclass(frozen=True, slots=True)
class Described:
    """What is known of a query before the cold tier is searched.

    NUMBERS numbers; which cold list is nearest; ids of the FOUND nearest passages that are not cold.
    """

    numbers: Values
    nearest: int
    found: Ids


def describe(ids: Ids, scores: Floats, similarities: Floats, k: int) -> Described:
    """`ids` and `scores` of the nearest passages that are not cold, at least k; `similarities` of the cold lists.

    The numbers are the k-th score, its distance to the first, and how near the cold lists are: the nearest, and eight
    on average.
    """
    near = similarities if len(similarities) <= 8 else np.partition(similarities, -8)[-8:]
    kth = float(scores[k - 1])
    numbers = np.array([kth, float(scores[0]) - kth, float(near.max()), float(near.mean())])
    found = np.full(FOUND, NOBODY)
    found[: min(len(ids), FOUND)] = ids[:FOUND]
    return Described(numbers, int(similarities.argmax()), found)


@dataclass(frozen=True, slots=True)
class Queries:
    """Several described queries, a row each: float64 [n, NUMBERS], int64 [n], int64 [n, FOUND]."""

    numbers: Values
    nearest: Ids
    found: Ids


class PastLosses:
    """What queries have lost so far that had something in common: a list that was nearest, passages that they found."""

    def __init__(self, keys: Ids, losses: Values) -> None:
        """`keys` int64 [n, several]: what each query has, each at most once."""
        several = keys.shape[1]
        self._keys, places = np.unique(keys, return_inverse=True)
        self._queries = np.bincount(places.ravel(), minlength=len(self._keys)).astype(np.float64)
        self._sums = np.bincount(places.ravel(), np.repeat(losses, several), len(self._keys))
        self._mean = float(losses.mean())
        # For one query at a time, where arrays would take longer than all else.
        self._places = dict(zip(self._keys.tolist(), range(len(self._keys)), strict=True))
        self._means = ((self._sums + PRIOR_QUERIES * self._mean) / (self._queries + PRIOR_QUERIES)).tolist()
        self._logarithms = np.log1p(self._queries).tolist()

    @property
    def usual(self) -> tuple[float, float]:
        """The features of a query that has nothing in common with any."""
        return self._mean, 0.0

    def of(self, keys: list[int]) -> tuple[float, float] | None:
        """The features of one query; None if nobody before it had any of these."""
        at = [place for key in keys if (place := self._places.get(key)) is not None]
        if not at:
            return None
        unseen = len(keys) - len(at)
        mean = (sum(self._means[place] for place in at) + unseen * self._mean) / len(keys)
        return mean, sum(self._logarithms[place] for place in at) / len(keys)

    def seen(self, keys: Ids) -> NDArray[np.bool_]:
        """Whether any query had these."""
        found: NDArray[np.bool_] = find_sorted(self._keys, keys.ravel()).reshape(keys.shape) >= 0
        return found

    def features(self, keys: Ids, losses: Values | None = None) -> Values:
        """[n, 2]: mean loss and, as a logarithm, number of queries, on average over what each query has.

        With `losses`, each query's own is left out.
        """
        at = find_sorted(self._keys, keys.ravel()).reshape(keys.shape)
        queries, sums = np.where(at >= 0, self._queries[at], 0.0), np.where(at >= 0, self._sums[at], 0.0)
        if losses is not None:
            queries, sums = queries - 1, sums - losses[:, None]
        means = (sums + PRIOR_QUERIES * self._mean) / (queries + PRIOR_QUERIES)
        return np.stack([means.mean(axis=1), np.log1p(queries).mean(axis=1)], axis=1)


class Model:
    """Expected loss of a query: logistic regression on its standardised features, their squares and products.

    A query with a number beyond all that it was fitted to, or near a list that no query was near, is expected to lose
    everything: squares tell nothing of what lies beyond.
    """

    def __init__(
        self,
        lists: PastLosses,
        passages: PastLosses,
        numbers: Values,
        mean: Values,
        scale: Values,
        weights: Values,
    ) -> None:
        self._lists, self._passages = lists, passages
        self._mean, self._scale, self._weights = mean, scale, weights
        self._least, self._most = numbers.min(axis=0), numbers.max(axis=0)
        self._seen = list(zip(self._least.tolist(), self._most.tolist(), strict=True))
        count = len(mean)
        self._linear, self._products = weights[1 : 1 + count], np.zeros((count, count))
        self._products[np.triu_indices(count)] = weights[1 + count :]

    @staticmethod
    def fitted(seen: Queries, losses: Values) -> Model:
        """To queries and their losses, by reweighted least squares; a ridge keeps separable data finite."""
        lists, passages = PastLosses(seen.nearest[:, None], losses), PastLosses(seen.found, losses)
        past = lists.features(seen.nearest[:, None], losses), passages.features(seen.found, losses)
        features = np.hstack([seen.numbers, *past])
        # Where all have a past in common, leaving out one's own loss would otherwise tell what that was.
        mean, scale = features.mean(axis=0), np.maximum(features.std(axis=0), SCALE_MIN)
        terms = expanded((features - mean) / scale)
        weights = np.zeros(terms.shape[1])
        ridge = RIDGE * len(terms)
        for _ in range(ROUNDS):
            expected = 1 / (1 + np.exp(-np.clip(terms @ weights, -30, 30)))
            curvature = np.maximum(expected * (1 - expected), 1e-6)
            normal = (terms * curvature[:, None]).T @ terms + ridge * np.eye(terms.shape[1])
            step = np.linalg.solve(normal, terms.T @ (losses - expected) - ridge * weights)
            weights = weights + step
            if np.abs(step).max() < CONVERGED:
                break
        return Model(lists, passages, seen.numbers, mean, scale, weights)

    def losses(self, queries: Queries) -> Values:
        terms = expanded((self._features(queries) - self._mean) / self._scale)
        found = 1 / (1 + np.exp(-np.clip(terms @ self._weights, -30, 30)))
        return np.where(self._strange(queries), 1.0, found)

    def loss(self, described: Described) -> float:
        """The same for one query, without arrays of terms: every search of a skipping collection asks."""
        numbers = described.numbers.tolist()
        if any(not least <= one <= most for one, (least, most) in zip(numbers, self._seen, strict=True)):
            return 1.0
        nearest = self._lists.of([described.nearest])
        if nearest is None:
            return 1.0
        found = self._passages.of(described.found.tolist())
        features = [*numbers, *nearest, *(found or self._passages.usual)]
        scaled = (np.array(features) - self._mean) / self._scale
        value = float(self._weights[0] + (self._linear + self._products @ scaled) @ scaled)
        return 1 / (1 + math.exp(-min(max(value, -30), 30)))

    def _features(self, queries: Queries) -> Values:
        lists = self._lists.features(queries.nearest[:, None])
        return np.hstack([queries.numbers, lists, self._passages.features(queries.found)])

    def _strange(self, queries: Queries) -> NDArray[np.bool_]:
        beyond = ((queries.numbers < self._least) | (queries.numbers > self._most)).any(axis=1)
        strange: NDArray[np.bool_] = beyond | ~self._lists.seen(queries.nearest[:, None])[:, 0]
        return strange


def expanded(features: Values) -> Values:
    """[n, features] with a constant, squares and products added."""
    first, second = np.triu_indices(features.shape[1])
    return np.hstack([np.ones((len(features), 1)), features, features[:, first] * features[:, second]])
