"""Queries for measuring an index before anybody has asked it anything: stored vectors, led astray.

A query in use is not a passage: it lies further from everything than passages lie from each other, which is where an
approximate index loses recall. A probe is what is particular to a passage with some of what is particular to another:
a question is not as much like all passages as they are like each other. `nearline bench index` shows what settings
chosen by probes find for real queries.
"""

from __future__ import annotations

import numpy as np

from indexes.model import Floats

LENGTH_MIN = 1e-3
OTHER = 0.6  # weight of the other passage


def probes_of(vectors: Floats, *, seed: int = 5) -> Floats:
    """A unit vector near each of these, float32 of the same shape."""
    centred = vectors - vectors.mean(axis=0)
    other = np.random.default_rng(seed).permutation(len(vectors))
    mixed = centred + OTHER * centred[other]
    lengths = np.linalg.norm(mixed, axis=1, keepdims=True)
    # Where nothing is particular, as where all are alike, the passage itself has to do.
    unit: Floats = np.where(lengths > LENGTH_MIN, mixed / np.maximum(lengths, LENGTH_MIN), vectors).astype(
        np.float32
    )
    return unit
