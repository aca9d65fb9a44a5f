"""A collection that a store has and that could not be restored from it: a folder with a note that says why.

It keeps the name, so that the collection is quarantined instead of being absent, and the others are served. The next
start tries again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from indexes.base.durable import disk_errors, publish
from indexes.base.errors import Damaged

FILE = "unrestored.txt"


def note_unrestored(folder: Path, reason: str) -> None:
    with disk_errors(folder):
        folder.mkdir(exist_ok=True)
    publish(folder / FILE, reason.encode())


def is_unrestored(folder: Path) -> bool:
    return (folder / FILE).exists()


def require_restored(folder: Path) -> None:
    """Raise Damaged if the folder has no more than a note."""
    if is_unrestored(folder):
        reason = (folder / FILE).read_text()
        raise Damaged(f"it could not be restored: {reason}. The next start tries again")


def clear_unrestored(folder: Path) -> None:
    if is_unrestored(folder):
        shutil.rmtree(folder)
