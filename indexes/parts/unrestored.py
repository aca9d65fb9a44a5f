"""A note in the folder of a collection that a store has, and that could not be restored or compared: it says why.

The folder may hold nothing else, or what the disk had before. The note keeps the collection closed, in quarantine, so
that the others are served; the next start tries again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from indexes.base.durable import disk_errors, publish
from indexes.base.errors import Damaged

FILE = "unrestored.txt"


def note_unrestored(folder: Path, reason: str) -> None:
    with disk_errors(folder):
        folder.mkdir(exist_ok=True)
    publish(folder / FILE, reason.encode())


def is_unrestored(folder: Path) -> bool:
    try:
        return (folder / FILE).exists()
    except PermissionError:  # the log says it
        return False


def require_restored(folder: Path) -> None:
    """Raise Damaged if there is a note."""
    if is_unrestored(folder):
        reason = (folder / FILE).read_text()
        raise Damaged(f"it could not be restored from the store: {reason}. The next start tries again")


def remove_note(folder: Path) -> None:
    """Remove a note, and the folder if it holds nothing else."""
    if is_unrestored(folder):
        with contextlib.suppress(OSError):  # one that stays keeps the collection closed, which says why
            (folder / FILE).unlink()
            folder.rmdir()
