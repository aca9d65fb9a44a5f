"""Queries for measuring an index before anybody has asked it anything: stored vectors with noise.

A query in use is not a passage: it lies further from everything than passages lie from each other, which is where an
approximate index loses recall. The noise puts a probe at a cosine of about 0.75 from its passage, as a question from
its answer.
"""

from __future__ import annotations

import numpy as np

from indexes.model import Floats

QUERY_COSINE = 0.75


def probes_of(vectors: Floats, *, seed: int = 5) -> Floats:
    """A unit vector at QUERY_COSINE from each of these, float32 of the same shape."""
    noise = np.random.default_rng(seed).standard_normal(vectors.shape).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    mixed = QUERY_COSINE * vectors + np.float32(np.sqrt(1 - QUERY_COSINE**2)) * noise
    unit: Floats = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    return unit
