"""Values of the seam between a search and its shards as bytes: msgpack, an array as its type, shape and content."""

from __future__ import annotations

import functools
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np

T = TypeVar("T")


def _encode_array(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"a {type(value).__name__} cannot travel")
    return value.dtype.str, value.shape, value.tobytes()


def _decode_array(kind: Any, value: Any) -> Any:
    if get_origin(kind) is not np.ndarray:
        raise NotImplementedError(f"a {kind} cannot travel")
    dtype, shape, content = value
    return np.frombuffer(content, dtype).reshape(shape)


ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)


def pack(value: object) -> bytes:
    """Encode a value that can travel. Raises NotImplementedError for one that cannot."""
    return ENCODER.encode(value)


@functools.cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_decode_array)


def unpack(content: bytes | msgspec.Raw, kind: Any) -> Any:
    """Decode a value of this type. Raises msgspec.DecodeError or ValueError for something else."""
    return _decoder(kind).decode(content)
