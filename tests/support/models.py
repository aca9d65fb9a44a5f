"""Variations of the exported model, for what the one that `make setup` leaves does not show: prefixes, for example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from retrieval.embedding.models import MANIFEST, fingerprint, read_manifest


def variation(model: Path, folder: Path, **changes: Any) -> Path:
    """A model in `folder` with the files of another and some fields of its manifest changed.

    It keeps the other's name in its manifest: the service names models by their folders. Known answers are left out,
    since they would not hold with other prefixes.
    """
    folder.mkdir(parents=True)
    manifest = msgspec.structs.replace(read_manifest(model), known_answers=[], **changes)
    manifest = msgspec.structs.replace(manifest, fingerprint=fingerprint(manifest))
    for name in manifest.files:
        (folder / name).symlink_to((model / name).resolve())
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return folder
