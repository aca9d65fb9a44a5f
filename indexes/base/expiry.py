"""Where the expiry of a document is kept: beside its metadata, under a key that nobody else can write.

So it lies in the log and in the filter index of every part without a format of its own, and builds, backups and copies
carry it. Keys of people hold no NUL character.
"""

from __future__ import annotations

from indexes.base.model import Metadata

EXPIRES = "\0expires_ms"


def with_expiry(metadata: Metadata, expires_ms: int | None) -> Metadata:
    """Metadata as it is stored and indexed."""
    return metadata if expires_ms is None else {**metadata, EXPIRES: expires_ms}


def take_expiry(stored: Metadata) -> int | None:
    """When the document of this stored metadata expires. What is left is the document's own metadata."""
    expires_ms = stored.pop(EXPIRES, None)
    return expires_ms if isinstance(expires_ms, int) else None
