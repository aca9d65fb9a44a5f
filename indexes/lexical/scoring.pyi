"""BM25 over posting lists, compiled from `scoring.cpp`. All calls release the GIL while they work."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from indexes.base.masks import Bits
from indexes.base.model import Floats, Rows
from indexes.lexical.prefixed import Postings

MADE_OF: str  # `mark_of` in hatch_build.py

Formula: TypeAlias = tuple[float, float, float]
# Of each posting, in steps; a step as a score; the highest, in steps.
Bounds: TypeAlias = tuple[NDArray[np.uint8], float, float]

def best(
    postings: Sequence[Postings],
    weights: Sequence[float],
    bounds: Sequence[Bounds | None],
    lengths: NDArray[np.uint32],
    formula: Formula,
    depth: int,
    allowed: Bits | None,
    floor: float,
) -> tuple[Rows, Floats]:
    """All rows that score above zero, at least `floor`, and at least as much as the `depth`-th best, in any order. The
    rows of each posting list ascend."""

def score(
    postings: Sequence[Postings],
    weights: Sequence[float],
    lengths: NDArray[np.uint32],
    formula: Formula,
    wanted: NDArray[np.uint32],
) -> Floats:
    """The scores of these rows, in their order. Ascending rows are found faster."""
