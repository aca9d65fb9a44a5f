"""Synthetic queries: mixtures of two stored vectors, for measuring an index before there are real queries.

A real query is not a passage: it lies further from all passages than they lie from each other, and that is where an
approximate index loses recall. A mixture adds part of one passage's deviation from the mean to another's.
`nearline bench index` shows the recall of settings chosen by mixtures on real queries.
"""

from __future__ import annotations

import numpy as np

from indexes.base.model import Floats

LENGTH_MIN = 1e-3
OTHER = 0.6  # weight of the second passage


def mixtures_of(vectors: Floats, *, seed: int = 5) -> Floats:
    """One unit vector near each of these, float32 of the same shape."""
    centred = vectors - vectors.mean(axis=0)
    other = np.random.default_rng(seed).permutation(len(vectors))
    mixed = centred + OTHER * centred[other]
    lengths = np.linalg.norm(mixed, axis=1, keepdims=True)
    # If both nearly equal the mean, there is nothing to mix: use the passage itself.
    unit: Floats = np.where(lengths > LENGTH_MIN, mixed / np.maximum(lengths, LENGTH_MIN), vectors).astype(
        np.float32
    )
    return unit
