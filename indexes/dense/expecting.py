"""A model of what a query would lose without the cold tier, fitted to queries for which that is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexes.model import Floats

Values = NDArray[np.float64]
Lists = NDArray[np.int64]

NUMBERS = 4
ROUNDS, RIDGE, CONVERGED = 25, 1e-3, 1e-6  # of fitting
PRIOR_QUERIES = 2.0  # what a list has lost so far counts as that of all lists until it was nearest so often


@dataclass(frozen=True, slots=True)
class Described:
    """What is known of a query before the cold tier is searched: NUMBERS numbers, and which cold list is nearest."""

    numbers: Values
    nearest: int


def describe(scores: Floats, similarities: Floats, k: int) -> Described:
    """The k-th score, its distance to the first, and how near the cold lists are: the nearest, and eight on average."""
    near = similarities if len(similarities) <= 8 else np.partition(similarities, -8)[-8:]
    kth = float(scores[k - 1])
    numbers = np.array([kth, float(scores[0]) - kth, float(near.max()), float(near.mean())])
    return Described(numbers, int(similarities.argmax()))


class ListLosses:
    """What queries have lost so far, by the cold list nearest to them, and how often each list was nearest."""

    def __init__(self, nearest: Lists, losses: Values) -> None:
        lists = int(nearest.max()) + 1
        self._mean = float(losses.mean())
        self._queries: Values = np.bincount(nearest, minlength=lists).astype(np.float64)
        self._sums: Values = np.bincount(nearest, weights=losses, minlength=lists).astype(np.float64)

    def seen(self, nearest: Lists) -> NDArray[np.bool_]:
        """Whether any query was near these lists."""
        known = nearest < len(self._queries)
        return known & (self._queries[np.where(known, nearest, 0)] > 0)

    def features(self, nearest: Lists, losses: Values | None = None) -> Values:
        """[n, 2]: mean loss and, as a logarithm, number of queries. With `losses`, each query's own is left out."""
        at = np.minimum(nearest, len(self._queries) - 1)
        queries, sums = self._queries[at], self._sums[at]
        if losses is not None:
            queries, sums = queries - 1, sums - losses
        means = (sums + PRIOR_QUERIES * self._mean) / (queries + PRIOR_QUERIES)
        return np.stack([means, np.log1p(queries)], axis=1)


class Model:
    """Expected loss of a query: logistic regression on its standardised features, their squares and products.

    A query with a number beyond all that it was fitted to, or near a list that no query was near, is expected to lose
    everything: squares tell nothing of what lies beyond.
    """

    def __init__(
        self, lists: ListLosses, numbers: Values, mean: Values, scale: Values, weights: Values
    ) -> None:
        self._lists, self._mean, self._scale, self._weights = lists, mean, scale, weights
        self._least, self._most = numbers.min(axis=0), numbers.max(axis=0)
        count = len(mean)
        self._linear, self._products = weights[1 : 1 + count], np.zeros((count, count))
        self._products[np.triu_indices(count)] = weights[1 + count :]

    @staticmethod
    def fitted(numbers: Values, nearest: Lists, losses: Values) -> Model:
        """To queries [n, NUMBERS], [n] and their losses, by iteratively reweighted least squares.

        A ridge keeps separable data finite.
        """
        lists = ListLosses(nearest, losses)
        features = np.hstack([numbers, lists.features(nearest, losses)])
        mean, scale = features.mean(axis=0), features.std(axis=0) + 1e-9
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
        return Model(lists, numbers, mean, scale, weights)

    def losses(self, numbers: Values, nearest: Lists) -> Values:
        features = np.hstack([numbers, self._lists.features(nearest)])
        terms = expanded((features - self._mean) / self._scale)
        found = 1 / (1 + np.exp(-np.clip(terms @ self._weights, -30, 30)))
        strange = ((numbers < self._least) | (numbers > self._most)).any(axis=1)
        return np.where(strange | ~self._lists.seen(nearest), 1.0, found)

    def loss(self, described: Described) -> float:
        """The same for one query, without the arrays of terms: every search of a skipping collection asks."""
        numbers, nearest = described.numbers, np.array([described.nearest])
        if (numbers < self._least).any() or (numbers > self._most).any() or not self._lists.seen(nearest)[0]:
            return 1.0
        scaled = (np.concatenate([numbers, self._lists.features(nearest)[0]]) - self._mean) / self._scale
        value = float(self._weights[0] + (self._linear + self._products @ scaled) @ scaled)
        return 1 / (1 + math.exp(-min(max(value, -30), 30)))


def expanded(features: Values) -> Values:
    """[n, features] with a constant, squares and products added."""
    first, second = np.triu_indices(features.shape[1])
    return np.hstack([np.ones((len(features), 1)), features, features[:, first] * features[:, second]])
