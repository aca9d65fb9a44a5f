"""A homomorphic hash of a collection's live documents, independent of the history of writes.

LtHash (Bellare and Micciancio 1997; Lewi et al. 2019, "Securing Update Propagation with Homomorphic Hashing"): SHAKE128
maps each live document's id and digest to 1024 16-bit numbers, and the collection's hash is their sums modulo 2^16.
Writing a document adds to the sums and removing it subtracts, so a commit pays only for what it changes. Collections
with the same documents have equal sums, whatever the order, batches or intermediate states; finding two different
sets with equal sums is a hard lattice problem.
"""

from __future__ import annotations

from hashlib import blake2b, shake_128
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.base.errors import Damaged

DIGEST_BYTES: Final = 32
LANES: Final = 1024
LANE: Final = np.dtype("<u2")
SUMS_BYTES: Final = 2 * LANES


class ContentHash:
    """The sums over all live documents. Not thread-safe. `stored` is the form kept in the log, SUMS_BYTES long."""

    def __init__(self, stored: bytes = bytes(SUMS_BYTES)) -> None:
        if len(stored) != SUMS_BYTES:
            raise Damaged(f"the content hash has {len(stored)} bytes, expected {SUMS_BYTES}")
        self._sums = np.frombuffer(stored, LANE).copy()

    def add(self, document_id: str, digest: bytes) -> None:
        self._sums += element(document_id, digest)

    def remove(self, document_id: str, digest: bytes) -> None:
        self._sums -= element(document_id, digest)

    def copy(self) -> ContentHash:
        return ContentHash(self.stored)

    @property
    def stored(self) -> bytes:
        return self._sums.tobytes()

    @property
    def short(self) -> bytes:
        """A 32-byte hash of the sums."""
        return blake2b(self.stored, digest_size=DIGEST_BYTES, person=b"nearline-content").digest()


def element(document_id: str, digest: bytes) -> NDArray[np.uint16]:
    """The lanes of one document. Id and digest are framed, so no other pair encodes to the same bytes."""
    framed = msgspec.msgpack.encode((document_id, digest))
    return np.frombuffer(shake_128(framed).digest(SUMS_BYTES), LANE)
