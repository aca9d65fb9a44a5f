"""What embedding gives back, and how texts longer than the model's window are treated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from indexes.model import Floats

Long = Literal["cut", "windows", "refuse"]
Lane = Literal["query", "bulk"]


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of some texts, in their order, and what was read of each.

    vectors     float32 [texts, dimensions]
    tokens      read of each text, special ones included
    truncated   whether the end of the text was left out
    windows     runs that the text was spread over, 1 unless windows were asked for
    tokenise_s, queue_s, run_s    seconds: making tokens; waiting for the first run; from its start to the last's end
    """

    vectors: Floats
    tokens: list[int]
    truncated: list[bool]
    windows: list[int]
    tokenise_s: float = 0.0
    queue_s: float = 0.0
    run_s: float = 0.0


def joined(
    vectors: Floats, lengths: Sequence[int], owners: Sequence[int], texts: int, *, normalise: bool
) -> Floats:
    """One vector a text from those of its windows, each with the weight of its tokens. Float32 [texts, dimensions].

    `owners` says whose window each row is. With `normalise` the mean is brought to length 1 again.
    """
    sums = np.zeros((texts, vectors.shape[1]), dtype=np.float32)
    weights = np.asarray(lengths, dtype=np.float32)
    np.add.at(sums, np.asarray(owners), vectors * weights[:, None])
    totals = np.zeros(texts, dtype=np.float32)
    np.add.at(totals, np.asarray(owners), weights)
    means = (sums / np.maximum(totals, 1)[:, None]).astype(np.float32)
    return shortened(means, means.shape[1]) if normalise else means


def shortened(vectors: Floats, dimensions: int) -> Floats:
    """The first `dimensions` of each vector, of length 1 again: float32 [texts, dimensions].

    Only models trained for it (Matryoshka representations, Kusupati et al. 2022) keep most of their quality.
    """
    kept = vectors[:, :dimensions]
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    return np.ascontiguousarray(kept / np.maximum(lengths, np.float32(1e-12)), dtype=np.float32)
