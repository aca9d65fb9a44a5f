"""The hot graph, and what it makes of hnswlib's errors."""

from __future__ import annotations

import hnswlib
import numpy as np
import pytest

from indexes.dense.hot import HotGraph

VECTORS = np.eye(8, dtype=np.float32)


def graph() -> HotGraph:
    return HotGraph.build([(np.arange(8), VECTORS)], 8, 8, ef=16, threads=1)


def test_a_walk_that_reaches_too_few_rows_finds_nothing() -> None:
    """The caller is told to scan: hnswlib gives all the rows that were asked for, or none."""
    index = hnswlib.Index(space="ip", dim=8)
    index.init_index(max_elements=8)
    index.add_items(VECTORS)
    for row in range(4):
        index.mark_deleted(row)  # the cheapest way to rows that no walk returns
    assert HotGraph(index, 16).search(VECTORS[0], 8) is None


def test_other_errors_of_hnswlib_are_raised() -> None:
    """An error is not answered by scanning: nobody would learn of it, but for slow searches."""
    with pytest.raises(RuntimeError, match="wrong shape"):
        graph().search(VECTORS[:, :, None], 1)
