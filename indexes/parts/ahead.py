"""What is on disk of a later state than the log: it shows that the log has lost writes."""

from __future__ import annotations

from pathlib import Path

from indexes.base.errors import Damaged
from indexes.log.reader import LogPosition
from indexes.parts.segment_shelf import segments_ahead
from indexes.parts.shelf import Shelf


def ahead_of(collection: Path, end: LogPosition) -> dict[Path, str]:
    """Return the generations, refused ones too, and the segments that hold more than a log that ends here, and what
    each of them is."""
    generations = Shelf(collection).ahead(end)
    found = {path: f"generation {one.number} was built at {one.seq}" for path, one in generations.items()}
    segments = segments_ahead(collection, end)
    return found | {path: f"a segment was made at {one.seq}" for path, one in segments.items()}


def require_none_ahead(collection: Path, end: LogPosition) -> None:
    """Raise Damaged if something is ahead of its log."""
    for what in ahead_of(collection, end).values():
        raise Damaged(f"{collection.name}/log.db ends at operation {end.seq}, and {what}")
