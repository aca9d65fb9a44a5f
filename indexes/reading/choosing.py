"""The documents that a filter or their ids choose for one write, which takes them in parts.

They are kept by id, with their first passages: one that is replaced before its turn has another one by then, and the
write looks at it again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import apsw
import msgspec

from indexes.base.work import OnStep, do_nothing
from indexes.collection.collection import Collection
from indexes.filters.grammar import Filter
from indexes.log.reader import json_list
from indexes.reading.scrolling import LOOKED_UP, at_one_commit, blocks

OF_PASSAGES = (
    "SELECT d.id, d.first_passage, d.passages FROM passages p JOIN documents d ON d.pk = p.document"
    " WHERE p.ordinal = 0 AND p.id IN (SELECT value FROM json_each(?)) ORDER BY p.id"
)
OF_IDS = "SELECT id, first_passage, passages FROM documents WHERE id IN (SELECT value FROM json_each(?))"


class ChosenDocuments:
    """Each document's id, first passage and number of passages; in columns, because they may be millions."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._firsts, self._sizes = array("q"), array("q")

    def add(self, rows: Iterable[tuple[str, int, int]]) -> None:
        for document_id, first, passages in rows:
            self._ids.append(document_id)
            self._firsts.append(first)
            self._sizes.append(passages)

    def parts(self, passages_max: int) -> Iterator[dict[str, int]]:
        """First passages by id, in parts of at most this many passages, or of one document with more."""
        part, size = dict[str, int](), 0
        for document_id, first, passages in zip(self._ids, self._firsts, self._sizes, strict=True):
            if part and size + passages > passages_max:
                yield part
                part, size = {}, 0
            part[document_id] = first
            size += passages
        if part:
            yield part


def matching(collection: Collection, condition: Filter, on_step: OnStep = do_nothing) -> ChosenDocuments:
    """The documents that match now. Raises InvalidInput for a filter that nothing can ever match."""
    chosen = ChosenDocuments()
    with at_one_commit(collection) as (db, snapshot):
        for ids in blocks(snapshot.matching(condition, on_step), LOOKED_UP):
            on_step()
            chosen.add(rows_of(db, OF_PASSAGES, json_list(ids)))
    return chosen


def named(collection: Collection, document_ids: Iterable[str]) -> ChosenDocuments:
    """The documents among these that exist now."""
    chosen = ChosenDocuments()
    with collection.log.transaction() as db:
        chosen.add(rows_of(db, OF_IDS, msgspec.json.encode(list(document_ids)).decode()))
    return chosen


def rows_of(db: apsw.Connection, sql: str, wanted: str) -> list[Any]:
    return db.execute(sql, (wanted,)).fetchall()
