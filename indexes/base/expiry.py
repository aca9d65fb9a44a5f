"""Stores the expiry of a document in its metadata, under a key that users cannot write.

So the log and every part's filter index store it without a format of its own, and builds, backups and copies include
it. Users' keys cannot contain a NUL character.
"""

from __future__ import annotations

from indexes.base.model import Metadata

EXPIRES = "\0expires_ms"


def with_expiry(metadata: Metadata, expires_ms: int | None) -> Metadata:
    """Metadata as it is stored and indexed."""
    return metadata if expires_ms is None else {**metadata, EXPIRES: expires_ms}


def take_expiry(stored: Metadata) -> int | None:
    """Remove the expiry from stored metadata and return it. What remains is the document's own metadata."""
    expires_ms = stored.pop(EXPIRES, None)
    return expires_ms if isinstance(expires_ms, int) else None
