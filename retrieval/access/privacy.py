"""Raw vectors: who gets them, and how exactly.

A vector tells much of its text, so a key needs the scope `vectors` for them, which `admin` does not include. What
leaves can carry noise (`privacy.vector_noise`). It depends on the vector and a secret alone: whoever asks again, or
under another id, gets the same noise, and averaging does not remove it.
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
    """Raises Forbidden for a key without the scope."""
    if SCOPE not in PRINCIPAL.get().scopes:
        raise Forbidden(f"vectors are for keys with the scope {SCOPE}, which this one does not have")


@dataclass(frozen=True, slots=True)
class VectorExport:
    """Stored vectors as they may leave. `noise` is the length of the noise, about, where the vector's is 1."""

    noise: float
    secret: bytes

    def of(self, vector: Floats) -> Floats:
        """A unit vector, as the given one is: float32 [dimensions]."""
        if not self.noise:
            return vector
        noisy = vector + self.noise / np.sqrt(len(vector)) * self._gaussian(vector)
        exported: Floats = (noisy / np.linalg.norm(noisy)).astype(np.float32)
        return exported

    def _gaussian(self, vector: Floats) -> Floats:
        """Independent standard normal numbers, float64 [dimensions]: Box and Muller's transform of a keyed hash."""
        hashed = hashlib.shake_256(self.secret + vector.tobytes()).digest(8 * len(vector))
        radius, angle = (np.frombuffer(hashed, "<u4").reshape(2, -1) + 1.0) / 2**32
        normal: Floats = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
        return normal


VECTOR_EXPORT = web.AppKey("VECTOR_EXPORT", VectorExport)
