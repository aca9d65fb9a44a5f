"""Keys of cached values: hashes of everything that a value depends on."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

KEY_BYTES: Final = 32
"""256 bits: two requests under one key would give one user another's answer, so nobody may find such two."""


def key_of(kind: bytes, *parts: str | bytes) -> bytes:
    """KEY_BYTES that differ when the kind (16 bytes at most), a part or the number of parts does."""
    digest = blake2b(digest_size=KEY_BYTES, person=kind)
    for part in parts:
        # surrogatepass: text that is not well-formed Unicode has a key too, so that making one never raises.
        encoded = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        # The length in front keeps ("ab", "c") apart from ("a", "bc").
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.digest()
