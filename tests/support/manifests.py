"""Generations as another version of Nearline would have left them: sealed, and of no use to this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from indexes.base.durable import with_checksum
from indexes.parts.manifest import MANIFEST, Manifest


def change_manifests(collection: Path, **changes: Any) -> None:
    """Set these fields in the manifest of every generation, with a checksum that is right."""
    for path in collection.glob(f"generations/0*/{MANIFEST}"):
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        path.write_bytes(with_checksum(msgspec.structs.replace(manifest, **changes)))
