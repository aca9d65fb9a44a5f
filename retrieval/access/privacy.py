"""Raw vectors: who gets them, and how exact they are.

A vector reveals much of its text, so a key needs the scope `vectors` for them, which `admin` does not include. Exported
vectors can carry noise (`privacy.vector_noise`). It depends only on the vector and a secret: asking again, or under
another id, gives the same noise, so averaging does not remove it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from aiohttp import web

from indexes.base.model import Floats
from retrieval.access.auth import PRINCIPAL
from retrieval.access.key_file import Scope
from retrieval.wire.errors import Forbidden

SCOPE: Scope = "vectors"


def require_vectors() -> None:
    """Raise Forbidden for a key without the scope."""
    if SCOPE not in PRINCIPAL.get().scopes:
        raise Forbidden(f"vectors are for keys with the scope {SCOPE}, which this one does not have")


@dataclass(frozen=True, slots=True)
class VectorExport:
    """Prepares stored vectors for export. `noise` is the approximate length of the noise relative to the vector."""

    noise: float
    secret: bytes

    def of(self, vector: Floats) -> Floats:
        """Return the unit vector to export, float32 [dimensions]."""
        if not self.noise:
            return vector
        noisy = vector + self.noise / np.sqrt(len(vector)) * self._gaussian(vector)
        exported: Floats = (noisy / np.linalg.norm(noisy)).astype(np.float32)
        return exported

    def _gaussian(self, vector: Floats) -> Floats:
        """Return independent standard normal numbers, float64 [dimensions]: the Box-Muller transform of a keyed
        hash."""
        hashed = hashlib.shake_256(self.secret + vector.tobytes()).digest(8 * len(vector))
        radius, angle = (np.frombuffer(hashed, "<u4").reshape(2, -1) + 1.0) / 2**32
        normal: Floats = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
        return normal


VECTOR_EXPORT = web.AppKey("VECTOR_EXPORT", VectorExport)
