"""Validates a write before it is queued, so that a rejected one has no effect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from indexes.base.errors import InvalidInput
from indexes.base.languages import AUTO, check_language, language_of
from indexes.base.model import Floats, Operation, Upsert
from indexes.base.paths import leaves
from indexes.filters.grammar import fits

UNIT_TOLERANCE = 1e-3


def check_upsert(upsert: Upsert, dimensions: int) -> None:
    if not upsert.passages:
        raise InvalidInput(f"document {upsert.id!r} has no passages", param="text")
    for passage in upsert.passages:
        check_vector(passage.vector, dimensions)
    for path, value in leaves(upsert.metadata):
        if not fits(value):
            raise InvalidInput(f"metadata {path!r} does not fit into 64 bits", param="metadata")
    if upsert.language:
        check_language(upsert.language, "language")


def with_language(operation: Operation, default: str) -> Operation:
    """An upsert with its language: its own, or the collection's `default`; detected if that is "auto"."""
    if not isinstance(operation, Upsert):
        return operation
    language = operation.language or default
    if language == AUTO:
        language = language_of(operation.title, operation.text)
    return replace(operation, language=language)


def check_vector(vector: Floats, dimensions: int) -> None:
    """Raise InvalidInput unless the vector is float32 [dimensions], finite and of unit length."""
    if vector.shape != (dimensions,):
        found = vector.shape[-1] if vector.ndim else 0
        raise InvalidInput(f"vector has {found} dimensions, expected {dimensions}", param="vector")
    if vector.dtype != np.float32 or not np.isfinite(vector).all():
        raise InvalidInput("vector holds NaN or an infinity, expected finite float32 numbers", param="vector")
    if abs(float(np.linalg.norm(vector)) - 1) > UNIT_TOLERANCE:
        raise InvalidInput(f"vector has length {np.linalg.norm(vector):.4f}, expected 1", param="vector")
