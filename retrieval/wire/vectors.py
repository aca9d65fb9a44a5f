"""Vectors that clients send in requests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from indexes.base.errors import InvalidInput
from indexes.base.model import Floats
from retrieval.wire.decoding import decode_part, is_absent

NUMBER_BYTES_MAX = 100  # of one number as JSON, including white space before it


def vector_of(raw: msgspec.Raw, dimensions: int, param: str) -> list[float] | None:
    """Return the vector of a request, or None if it has none. Raises InvalidInput before decoding far too many
    numbers."""
    if len(raw) > dimensions * NUMBER_BYTES_MAX:
        raise InvalidInput(
            f"{param} has {len(raw)} bytes, more than {dimensions} dimensions take", param=param
        )
    return None if is_absent(raw) else decode_part(raw, list[float], param)


def unit_vector(values: Sequence[float], dimensions: int, param: str) -> Floats:
    """Return the normalized vector, float32 [dimensions]. Raises InvalidInput for a wrong dimension, NaN or zero
    length."""
    if len(values) != dimensions:
        raise InvalidInput(f"{param} has {len(values)} dimensions, expected {dimensions}", param=param)
    vector = np.asarray(values, np.float64)
    if not np.isfinite(vector).all():
        raise InvalidInput(f"{param} holds NaN or an infinity, expected finite numbers", param=param)
    scale = np.abs(vector).max()  # dividing by it first keeps squares of huge and tiny numbers in range
    if scale == 0:
        raise InvalidInput(f"{param} has no direction: all its numbers are 0", param=param)
    vector /= scale
    unit: Floats = (vector / np.linalg.norm(vector)).astype(np.float32)
    return unit
