"""Fusion by rank and by score, against what a pencil gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes.base.model import DenseResult, Ranking
from indexes.parts.query import Candidates
from retrieval.search.fusion import fuse_weighted, order_by_score, reciprocal_rank

IDS = np.array([3, 1, 2, 9])
A, B = np.array([0, 1, 2, -1], np.int32), np.array([-1, -1, 0, 1], np.int32)  # their places in two rankings


def test_reciprocal_rank_by_hand() -> None:
    """1/(k + rank), summed over the rankings that have the candidate."""
    scores = reciprocal_rank([A, B], 60)
    assert scores.tolist() == pytest.approx([1 / 61, 1 / 62, 1 / 63 + 1 / 61, 1 / 62])
    assert IDS[order_by_score(IDS, scores)].tolist() == [2, 3, 1, 9]


def test_weighted_by_hand() -> None:
    """The cosine from the floor to 1, the BM25 score as a share of its bound; NaN counts as nothing."""
    dense, lexical = np.array([0.6, 0.2, np.nan], np.float32), np.array([np.nan, 8.0, 4.0], np.float32)
    scores = fuse_weighted(dense, lexical, weight=0.7, floor=0.2, bound=16)
    assert scores.tolist() == pytest.approx([0.7 * 0.5, 0.3 * 0.5, 0.3 * 0.25])


def test_nothing_to_fuse() -> None:
    """No candidates give no scores; all-zero scores do not divide by zero."""
    assert len(reciprocal_rank([np.empty(0, np.int32)] * 2, 60)) == 0
    assert fuse_weighted(*np.zeros((2, 1), np.float32), weight=0.5, floor=0, bound=0).tolist() == [0]


RANKINGS = st.lists(
    st.lists(st.integers(0, 50), unique=True, max_size=20).map(lambda ids: np.array(ids, np.int64)),
    min_size=2,
    max_size=2,
)


def joined(rankings: list[np.ndarray]) -> Candidates:
    dense, lexical = (
        Ranking(ids, np.linspace(1, 0.5, len(ids), dtype=np.float32), np.zeros(len(ids), np.int8))
        for ids in rankings
    )
    return Candidates.join(DenseResult(dense, (), None), lexical)


@given(RANKINGS)
def test_joining_keeps_every_id_rank_and_score(rankings: list[np.ndarray]) -> None:
    """Each id once, with its place and score in both rankings."""
    found = joined(rankings)
    assert sorted(found.ids.tolist()) == sorted({one for ranking in rankings for one in ranking.tolist()})
    for ranking, ranks, scores in zip(
        rankings, (found.dense_ranks, found.lexical_ranks), (found.dense, found.lexical), strict=True
    ):
        assert found.ids[np.argsort(ranks)][np.sum(ranks < 0) :].tolist() == ranking.tolist()
        assert np.array_equal(np.isnan(scores), ranks < 0)
        assert np.array_equal(
            np.sort(scores[ranks >= 0])[::-1], np.linspace(1, 0.5, len(ranking), dtype=np.float32)
        )


@given(RANKINGS, st.integers(1, 100))
def test_agreement_wins(rankings: list[np.ndarray], k: int) -> None:
    """An id that leads every ranking leads the fused one."""
    found = joined([np.concatenate([[99], ranking]) for ranking in rankings])
    fused = reciprocal_rank([found.dense_ranks, found.lexical_ranks], k)
    assert found.ids[order_by_score(found.ids, fused)[0]] == 99
