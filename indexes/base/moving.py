"""The mark of a collection that moves between machines: a file beside its log, which outlives a restart.

While one is there, the collection takes no writes. At its old place it was *given* away up to an operation, and is
*gone* once the new place is known to write, until it is deleted; at its new place it is a *copy* until its writes begin
there. So at every moment at most one place writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from indexes.base.durable import disk_errors, publish, sync_folder

MOVING = "moving.json"


class Moving(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`node` is the other place. `seq` is the last operation that was written at the old one; 0 in a copy."""

    role: Literal["given", "gone", "copy"]
    node: str
    seq: int = 0


def read_moving(folder: Path) -> Moving | None:
    """Return the mark of the collection in a folder, if it moves."""
    try:
        return parse_moving((folder / MOVING).read_bytes())
    except FileNotFoundError:
        return None


def parse_moving(content: bytes | None) -> Moving | None:
    return None if content is None else msgspec.json.decode(content, type=Moving)


def write_moving(folder: Path, moving: Moving | None) -> None:
    """Set or remove the mark, durably."""
    if moving is not None:
        publish(folder / MOVING, msgspec.json.encode(moving))
        return
    with disk_errors(folder):
        (folder / MOVING).unlink(missing_ok=True)
        sync_folder(folder)
