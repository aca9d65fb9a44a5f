"""Vectors that clients send in requests: lists of numbers, or as base64 of their float32, as OpenAI's API answers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.base.errors import InvalidInput
from indexes.base.model import Floats
from retrieval.wire.decoding import decode_part, is_absent

NUMBER_BYTES_MAX = 100  # of one number as JSON, including white space before it
FLOAT32 = np.dtype("<f4")  # little-endian, on any machine
LOOKED_AT_BYTES = 1 << 20


def vector_of(raw: msgspec.Raw, dimensions: int, param: str) -> Floats | None:
    """Return the normalized vector of a request, float32 [dimensions], or None if it has none.

    Raises InvalidInput before decoding far too many numbers, for a wrong dimension, NaN or zero length, and for what is
    no base64.
    """
    if is_absent(raw):
        return None
    if len(raw) > dimensions * NUMBER_BYTES_MAX:
        raise InvalidInput(
            f"{param} has {len(raw)} bytes, more than {dimensions} dimensions take", param=param
        )
    if memoryview(raw)[0] == ord('"'):
        values = floats_of(decode_part(raw, str, param), param)
    else:
        values = rounded(np.array(decode_part(raw, list[float], param), np.float64))
    if len(values) != dimensions:
        raise InvalidInput(f"{param} has {len(values)} dimensions, expected {dimensions}", param=param)
    return normalized(values, param)


def floats_of(encoded: str, param: str) -> NDArray[np.float64]:
    """Return the numbers of a vector in base64."""
    try:
        return np.frombuffer(base64.b64decode(encoded, validate=True), FLOAT32).astype(np.float64)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"{param} is not base64 of 32-bit floating point numbers", param=param) from None


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to float32, so that the same vector in base64 is the same document, unless that loses its direction."""
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32).astype(np.float64)
    return floats if np.isfinite(floats).all() and floats.any() else values


def normalized(vector: NDArray[np.float64], param: str) -> Floats:
    scale = np.abs(vector).max()  # dividing by it first keeps squares of huge and tiny numbers in range
    if not np.isfinite(scale):
        raise InvalidInput(f"{param} holds NaN or an infinity, expected finite numbers", param=param)
    if scale == 0:
        raise InvalidInput(f"{param} has no direction: all its numbers are 0", param=param)
    vector /= scale
    unit: Floats = (vector / np.sqrt(vector @ vector)).astype(np.float32)
    return unit


def mentions_vectors(pieces: Iterable[bytes]) -> bool:
    """Whether the beginning of a body, which came in these pieces, names a field `vector`."""
    left = LOOKED_AT_BYTES
    for piece in pieces:
        if left <= 0 or b'"vector"' in piece[:left]:
            return left > 0
        left -= len(piece)
    return False
