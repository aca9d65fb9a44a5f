"""Pages through documents in the order they were written, during concurrent writes; and counts them.

A position is a number assigned to each written document. Positions only grow: a replaced document gets a new one. So
paging by position returns every unchanged document exactly once, and a document replaced during paging once more, at
the end, in its new version. A passage's metadata never changes, and so neither does whether it matches a filter.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apsw
import numpy as np

from indexes.base.errors import NotFound, Unavailable
from indexes.base.model import Floats, Ids, StoredDocument
from indexes.base.normalizing import utf8_bytes
from indexes.base.work import OnStep, do_nothing
from indexes.collection.collection import Collection
from indexes.filters.grammar import Filter
from indexes.log.reader import as_document, json_list
from indexes.log.schema import CREATED, FORGOTTEN
from indexes.parts.snapshot import Snapshot

PAGE_BYTES_MAX = 16 << 20  # as JSON; a larger document is still returned, alone
NUMBER_JSON_BYTES = 20  # a float32 at full precision
LOOKED_UP = 10_000  # passages per query
CATCHING_UP_TRIES, CATCHING_UP_S = 1000, 0.002

DOCUMENTS = "SELECT pk, first_passage, id, seq, {text}, title, metadata, passages, language FROM documents"
AT_POSITIONS = "WHERE pk IN (SELECT value FROM json_each(?)) ORDER BY pk"
PASSAGES = (
    "SELECT d.pk, p.ordinal, p.start, p.end, p.tokens, v.vector FROM documents d CROSS JOIN passages p"
    " JOIN vectors v ON v.id = p.id"
    " WHERE d.pk IN (SELECT value FROM json_each(?)) AND p.id >= d.first_passage"
    " AND p.id < d.first_passage + d.passages ORDER BY p.id"
)
FIRST_OF_DOCUMENTS = "FROM passages WHERE ordinal = 0 AND id IN (SELECT value FROM json_each(?))"


@dataclass(frozen=True, slots=True)
class VectorPassage:
    """One passage of a document: `text[start:end]`, token count, unit vector float32 [dimensions]."""

    ordinal: int
    start: int
    end: int
    tokens: int
    vector: Floats


@dataclass(frozen=True, slots=True)
class ScrolledDocument:
    """A live document; `passages` in order if vectors were requested, else None."""

    position: int
    document: StoredDocument
    passages: list[VectorPassage] | None


@dataclass(frozen=True, slots=True)
class ScrolledPage:
    """Documents in the order they were written, and the position after which the next page starts; None: the end."""

    documents: list[ScrolledDocument]
    following: int | None


@dataclass(frozen=True, slots=True)
class Counted:
    """Live documents and passages after operation `seq`."""

    documents: int
    passages: int
    seq: int


def page(
    collection: Collection,
    after: int,
    limit: int,
    *,
    condition: Filter | None = None,
    text: bool = True,
    vectors: bool = False,
    bytes_max: int = PAGE_BYTES_MAX,
    on_step: OnStep = do_nothing,
) -> ScrolledPage:
    """At most `limit` documents after a position (0: from the start); fewer if they exceed `bytes_max`.

    Without `text`, their texts are empty. Reads only the documents it returns and the filter's bitmaps. `on_step` is
    called between steps.
    Raises InvalidInput for a filter that nothing can ever match.
    """
    with at_one_commit(collection) as (db, snapshot):
        sql = DOCUMENTS.format(text="text" if text else "''")
        matching = snapshot.allowed(condition, on_step)
        if matching is None:
            rows = db.execute(f"{sql} WHERE pk > ? ORDER BY pk LIMIT ?", (after, limit + 1))
        else:
            positions = json_list(positions_matching(db, after, matching, limit + 1))
            rows = db.execute(f"{sql} {AT_POSITIONS}", (positions,))
        passage_bytes = NUMBER_JSON_BYTES * collection.settings.dimensions if vectors else 0
        with contextlib.closing(rows):
            taken, more = take(rows, limit, passage_bytes, bytes_max)
        documents = with_passages(db, taken, vectors)
    return ScrolledPage(documents, documents[-1].position if more else None)


def document(collection: Collection, document_id: str, *, vectors: bool = False) -> ScrolledDocument:
    """One document by its id. Raises NotFound."""
    with collection.log.transaction() as db:
        row: Any = db.execute(f"{DOCUMENTS.format(text='text')} WHERE id = ?", (document_id,)).fetchone()
        found = [] if row is None else with_passages(db, [row], vectors)
    if not found or not collection.log.is_live(found[0].document.expires_ms):
        raise NotFound(f"no document {document_id!r}", param="id")
    return found[0]


def count(collection: Collection, condition: Filter | None = None, on_step: OnStep = do_nothing) -> Counted:
    """Matching documents and passages, at one seq. `on_step` is called between steps. Raises InvalidInput for
    a filter that nothing can ever match."""
    with at_one_commit(collection) as (db, snapshot):
        ids = snapshot.allowed(condition, on_step)
        if ids is None:
            documents: Any = db.execute("SELECT count(*) FROM documents").get
            return Counted(documents, snapshot.live, snapshot.seq)
        return Counted(sum(documents_among(db, ids)), len(ids), snapshot.seq)


@contextlib.contextmanager
def at_one_commit(collection: Collection) -> Iterator[tuple[apsw.Connection, Snapshot]]:
    """A connection to the log and a snapshot of the same commit: what a filter finds in one is in the other, too."""
    for _ in range(CATCHING_UP_TRIES):
        with collection.log.transaction() as db:
            snapshot = collection.snapshot
            if snapshot.seq == (
                db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'operations'").get or 0
            ):
                yield db, snapshot
                return
        time.sleep(CATCHING_UP_S)  # a commit is on disk and about to be published
    raise Unavailable("the collection changes too fast to be read; try again")


def written_ms(collection: Collection, seqs: Sequence[int]) -> dict[int, int]:
    """When these operations were committed, in milliseconds since 1970; uncommitted ones are left out. Rebuilds forget
    operations: for those, it is when the last one that they forgot was committed."""
    sql = "SELECT seq, at_ms FROM operations WHERE seq IN (SELECT value FROM json_each(?))"
    with collection.log.transaction() as db:
        last = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'operations'").get or 0
        forgotten = db.execute("SELECT value FROM meta WHERE key = ?", (FORGOTTEN,)).get
        known = {seq: int(forgotten) for seq in seqs if 0 < seq <= last} if forgotten else {}
        return known | dict(db.execute(sql, (json_list(seqs),)))


def created_ms(collection: Collection) -> int | None:
    """When the collection was made, in milliseconds since 1970; None if an earlier version made it."""
    with collection.log.transaction() as db:
        found = db.execute("SELECT value FROM meta WHERE key = ?", (CREATED,)).get
    return None if found is None else int(found)


def take(rows: Iterable[Any], limit: int, passage_bytes: int, bytes_max: int) -> tuple[list[Any], bool]:
    """The first rows that fit on a page, and whether there are more."""
    taken: list[Any] = []
    size = 0
    for row in rows:
        _, _, document_id, _, text, title, metadata, passages, _ = row
        size += sum(map(utf8_bytes, (document_id, text, title, metadata))) + passages * passage_bytes
        if len(taken) == limit or (taken and size > bytes_max):
            return taken, True
        taken.append(row)
    return taken, False


def with_passages(db: apsw.Connection, rows: list[Any], vectors: bool) -> list[ScrolledDocument]:
    passages: dict[int, list[VectorPassage]] = {row[0]: [] for row in rows}
    if vectors:
        for pk, ordinal, start, end, tokens, vector in db.execute(PASSAGES, (json_list(passages),)):
            piece = VectorPassage(ordinal, start, end, tokens, np.frombuffer(vector, np.float32))
            passages[pk].append(piece)
    return [
        ScrolledDocument(
            pk,
            as_document((document_id, seq, text, title, metadata, count, language)),
            passages[pk] if vectors else None,
        )
        for pk, _, document_id, seq, text, title, metadata, count, language in rows
    ]


def positions_matching(db: apsw.Connection, after: int, matching: Ids, wanted: int) -> list[int]:
    """Positions of the next documents with these passages. Passage ids and positions ascend together."""
    sql = "SELECT first_passage FROM documents WHERE pk > ? ORDER BY pk LIMIT 1"
    first = db.execute(sql, (after,)).get
    if first is None:
        return []
    found: list[int] = []
    for ids in blocks(matching[np.searchsorted(matching, first) :], max(wanted, 256)):
        sql = f"SELECT document {FIRST_OF_DOCUMENTS} ORDER BY id"
        found += [pk for (pk,) in db.execute(sql, (json_list(ids),))]
        if len(found) >= wanted:
            break
    return found[:wanted]


def documents_among(db: apsw.Connection, ids: Ids) -> Iterator[int]:
    """Number of documents in each block of passages."""
    for block in blocks(ids, LOOKED_UP):
        counted: Any = db.execute(f"SELECT count(*) {FIRST_OF_DOCUMENTS}", (json_list(block),)).get
        yield counted


def blocks(ids: Ids, size: int) -> Iterator[Ids]:
    for at in range(0, len(ids), size):
        yield ids[at : at + size]
