"""Fusion by rank and by score, against what a pencil gives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.fusion import reciprocal_rank, weighted

A, B = np.array([3, 1, 2]), np.array([2, 9])


def test_reciprocal_rank_by_hand() -> None:
    """1/(k + rank), summed over the rankings that have the id."""
    ids, scores = reciprocal_rank([A, B], 60)
    expected = {2: 1 / 63 + 1 / 61, 3: 1 / 61, 1: 1 / 62, 9: 1 / 62}
    assert dict(zip(ids.tolist(), scores.tolist(), strict=True)) == pytest.approx(expected)
    assert ids.tolist() == [2, 3, 1, 9]


def test_weighted_by_hand() -> None:
    """Each score over its own maximum, times its weight; NaN counts as nothing."""
    both = {"dense": np.array([0.5, 0.25], np.float32), "lexical": np.array([np.nan, 8.0], np.float32)}
    ids, scores = weighted(np.array([1, 2]), both, {"dense": 0.7, "lexical": 0.3})
    assert ids.tolist() == [1, 2]
    assert scores.tolist() == pytest.approx([0.7, 0.35 + 0.3])


def test_nothing_to_fuse() -> None:
    """Empty rankings give an empty one; all-zero scores do not divide by zero."""
    assert len(reciprocal_rank([np.empty(0, np.int64)] * 2, 60)[0]) == 0
    assert len(reciprocal_rank([], 60)[0]) == 0
    _, scores = weighted(np.array([1]), {"dense": np.zeros(1, np.float32)}, {"dense": 1.0})
    assert scores.tolist() == [0]


RANKINGS = st.lists(
    st.lists(st.integers(0, 50), unique=True, max_size=20).map(lambda ids: np.array(ids, np.int64)),
    min_size=1,
    max_size=3,
)


@given(RANKINGS, st.integers(1, 100))
def test_every_candidate_once_best_first(rankings: list[np.ndarray], k: int) -> None:
    """Fusion neither loses nor invents an id, and its scores descend."""
    ids, scores = reciprocal_rank(rankings, k)
    assert sorted(ids.tolist()) == sorted({one for ranking in rankings for one in ranking.tolist()})
    assert all(a >= b for a, b in pairwise(scores))


@given(RANKINGS)
def test_agreement_wins(rankings: list[np.ndarray]) -> None:
    """An id that leads every ranking leads the fused one."""
    led = [np.concatenate([[99], ranking]) for ranking in rankings]
    assert reciprocal_rank(led, 60)[0][0] == 99
