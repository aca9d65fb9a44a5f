"""The text around a passage: its neighbors in the document, its section, or all of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from indexes.collection.view import CollectionView
from indexes.log.reader import json_list

PASSAGES = (
    "SELECT p.id, p.ordinal, d.pk, d.first_passage, d.passages FROM passages p JOIN documents d ON d.pk = p.document"
    " WHERE p.id IN (SELECT value FROM json_each(?)) ORDER BY d.pk, p.id"
)
NEIGHBORS = "SELECT ordinal, start, end, heading FROM passages WHERE id >= ? AND id < ? ORDER BY id"
TEXT = "SELECT text FROM documents WHERE pk = ?"


@dataclass(frozen=True, slots=True)
class Reach:
    """How many passages before and after one belong to its surroundings (None: all), and whether only those under the
    same headings do. Together with the passage, they span at most `chars_max` characters."""

    before: int | None
    after: int | None
    chars_max: int
    same_heading: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`text` is the document's from `start` to `end`: passages `first` to `last`. `cut`: there was more than
    `chars_max`."""

    first: int
    last: int
    start: int
    end: int
    text: str
    cut: bool


def text_around(collection: CollectionView, passages: Iterable[int], reach: Reach) -> dict[int, Surroundings]:
    """The surroundings of the live passages among these, by id. Reads each document's text once, one at a time."""
    found: dict[int, Surroundings] = {}
    with collection.log.transaction() as db:
        of, text = -1, ""
        wanted: Any = db.execute(PASSAGES, (json_list(passages),)).fetchall()
        for passage, ordinal, document, first, count in wanted:
            if document != of:
                of, text = document, str(db.execute(TEXT, (document,)).get)
            before = ordinal if reach.before is None else min(reach.before, ordinal)
            after = count - ordinal - 1 if reach.after is None else min(reach.after, count - ordinal - 1)
            ids = first + ordinal - before, first + ordinal + after + 1
            rows: Any = db.execute(NEIGHBORS, ids).fetchall()
            low, high, cut = _around(rows, before, reach)
            start, end = rows[low][1], max(row[2] for row in rows[low : high + 1])
            found[passage] = Surroundings(rows[low][0], rows[high][0], start, end, text[start:end], cut)
    return found


def _around(rows: list[Any], at: int, reach: Reach) -> tuple[int, int, bool]:
    """The first and last rows that surround the one at `at`, and whether some did not fit.

    Rows are added alternately, one after it and one before it.
    """
    low = high = at
    heading, cut = rows[at][3], False
    open_ends = {1, -1}
    while open_ends:
        for step in sorted(open_ends, reverse=True):
            further = high + 1 if step > 0 else low - 1
            if not 0 <= further < len(rows) or (reach.same_heading and rows[further][3] != heading):
                open_ends.discard(step)
                continue
            start, end = rows[min(low, further)][1], rows[max(high, further)][2]
            if end - start > reach.chars_max:
                open_ends.discard(step)
                cut = True
                continue
            low, high = min(low, further), max(high, further)
    return low, high, cut
