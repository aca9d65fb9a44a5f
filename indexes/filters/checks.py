"""Validates a write before it is queued, so that a rejected one has no effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from indexes.base.errors import InvalidInput
from indexes.base.languages import AUTO, check_language, language_of
from indexes.base.model import Floats, Upsert
from indexes.base.paths import leaves
from indexes.filters.grammar import fits

UNIT_TOLERANCE = 1e-3
VECTORS_AT_ONCE = 256  # checked together


def check_upserts(upserts: Sequence[Upsert], dimensions: int) -> None:
    vectors = [passage.vector for upsert in upserts for passage in upsert.passages]
    for start in range(0, len(vectors), VECTORS_AT_ONCE):
        some = vectors[start : start + VECTORS_AT_ONCE]
        if not all_fit(some, dimensions):
            for vector in some:
                check_vector(vector, dimensions)
    for upsert in upserts:
        check_upsert(upsert)


def check_upsert(upsert: Upsert) -> None:
    if not upsert.passages:
        raise InvalidInput(f"document {upsert.id!r} has no passages", param="text")
    for path, value in leaves(upsert.metadata):
        if not fits(value):
            raise InvalidInput(f"metadata {path!r} does not fit into 64 bits", param="metadata")
    if upsert.language:
        check_language(upsert.language, "language")


def with_language(operation: Upsert, default: str) -> Upsert:
    """An upsert with its language: its own, or the collection's `default`; detected if that is "auto"."""
    language = operation.language or default
    if language == AUTO:
        language = language_of(operation.title, operation.text)
    return replace(operation, language=language)


def all_fit(vectors: Sequence[Floats], dimensions: int) -> bool:
    """Whether all these vectors pass `check_vector`, in a tenth of its time."""
    if any(vector.shape != (dimensions,) or vector.dtype != np.float32 for vector in vectors):
        return False
    rows = np.stack(vectors)
    # NaN and infinities make the length one of both.
    return bool((np.abs(np.sqrt(np.vecdot(rows, rows)) - 1) <= UNIT_TOLERANCE).all())


def check_vector(vector: Floats, dimensions: int) -> None:
    """Raise InvalidInput unless the vector is float32 [dimensions], finite and of unit length."""
    if vector.shape != (dimensions,):
        found = vector.shape[-1] if vector.ndim else 0
        raise InvalidInput(f"vector has {found} dimensions, expected {dimensions}", param="vector")
    if vector.dtype != np.float32 or not np.isfinite(vector).all():
        raise InvalidInput("vector holds NaN or an infinity, expected finite float32 numbers", param="vector")
    if abs(float(np.linalg.norm(vector)) - 1) > UNIT_TOLERANCE:
        raise InvalidInput(f"vector has length {np.linalg.norm(vector):.4f}, expected 1", param="vector")
