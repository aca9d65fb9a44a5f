"""Applies one operation inside a commit: removes the old version of a document, inserts the new, records both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apsw
import msgspec

from indexes.base.expiry import EXPIRES, take_expiry, with_expiry
from indexes.base.model import FieldWeights, Operation, Upsert, now_ms
from indexes.log.content import ContentHash

INSERT_DOCUMENT = (
    "INSERT INTO documents(id, seq, first_passage, passages, digest, title, metadata, language, text)"
    " VALUES(?, 0, 0, ?, ?, ?, ?, ?, ?)"
)
INSERT_PASSAGE = (
    "INSERT INTO passages(document, ordinal, start, end, tokens, heading, text) VALUES(?, ?, ?, ?, ?, ?, ?)"
)
INSERT_VECTOR = "INSERT INTO vectors VALUES(?, ?)"
# No document id: it could reveal a deleted document. Earlier versions stored it.
INSERT_OPERATION = (
    "INSERT INTO operations(at_ms, document_id, first_passage, passages, dead_first, dead_passages)"
    " VALUES(?, '', ?, ?, ?, ?)"
)
REMOVED_DOCUMENT = (
    "SELECT pk, first_passage, passages, digest, title, language, text,"
    " octet_length(id) + octet_length(title) + octet_length(metadata) + octet_length(text),"
    " CASE WHEN instr(metadata, ?) THEN metadata END"
    " FROM documents WHERE id = ?"
)
STORED_EXPIRES = msgspec.json.encode(EXPIRES).decode()
REMOVED_PASSAGES = (
    "SELECT start, end, heading, octet_length(heading) + coalesce(octet_length(text), 0)"
    " FROM passages WHERE id >= ? AND id < ? ORDER BY id"
)
REMOVE_VECTORS = "DELETE FROM vectors WHERE id >= ? AND id < ? RETURNING octet_length(vector)"


@dataclass(frozen=True, slots=True)
class Applied:
    """One committed operation, as the indexes need it: passages added, passages removed, and the removed texts
    with their language.

    `dead_bytes` is the size in the log of the removed passages and their document, which expires at
    `dead_expires_ms`.
    """

    seq: int
    first_passage: int
    upsert: Upsert | None
    dead: range
    dead_texts: tuple[str, ...]
    dead_language: str
    dead_bytes: int
    dead_expires_ms: int | None


def apply(
    db: apsw.Connection, operation: Operation, content: ContentHash, weights: FieldWeights
) -> Applied | None:
    """Inside a transaction: remove the old version, insert the new one, record both in `operations` and `content`.

    Returns None for the deletion of a missing document, which records nothing.
    """
    dead, dead_texts, dead_language, dead_bytes, dead_expires_ms = remove(db, operation.id, content, weights)
    upsert = operation if isinstance(operation, Upsert) else None
    if not dead and upsert is None:
        return None
    first = insert(db, upsert) if upsert else 0
    count = len(upsert.passages) if upsert else 0
    db.execute(INSERT_OPERATION, (now_ms(), first, count, dead.start, len(dead)))
    seq = db.last_insert_rowid()
    if upsert:
        db.execute("UPDATE documents SET seq = ? WHERE id = ?", (seq, operation.id))
        content.add(upsert.id, upsert.digest)
    return Applied(seq, first, upsert, dead, dead_texts, dead_language, dead_bytes, dead_expires_ms)


def remove(
    db: apsw.Connection, document_id: str, content: ContentHash, weights: FieldWeights
) -> tuple[range, tuple[str, ...], str, int, int | None]:
    """Remove a document. Returns its passage ids, their texts as BM25 reads them, in order, its language, the total
    bytes, and when it expires."""
    row: Any = db.execute(REMOVED_DOCUMENT, (STORED_EXPIRES, document_id)).fetchone()
    if row is None:
        return range(0), (), "", 0, None
    pk, first, count, digest, title, language, text, size, expiring = row
    spans: Any = db.execute(REMOVED_PASSAGES, (first, first + count)).fetchall()
    vectors: Any = db.execute(REMOVE_VECTORS, (first, first + count)).fetchall()
    db.execute("DELETE FROM passages WHERE id >= ? AND id < ?", (first, first + count))
    db.execute("DELETE FROM documents WHERE pk = ?", (pk,))
    content.remove(document_id, digest)
    texts = tuple(weights.text_of(title, heading, text[start:end]) for start, end, heading, _ in spans)
    size += sum(one[-1] for one in [*spans, *vectors])
    expires_ms = take_expiry(msgspec.json.decode(expiring)) if expiring else None
    return range(first, first + count), texts, language, size, expires_ms


def insert(db: apsw.Connection, new: Upsert) -> int:
    """Insert a document and its passages, which get consecutive ids. Returns the first passage id."""
    metadata = msgspec.json.encode(with_expiry(new.metadata, new.expires_ms)).decode()
    values = (new.id, len(new.passages), new.digest, new.title, metadata, new.language, new.text)
    db.execute(INSERT_DOCUMENT, values)
    pk = db.last_insert_rowid()
    first = 0
    for ordinal, passage in enumerate(new.passages):
        whole = passage.start == 0 and passage.end == len(new.text)
        text = None if whole else new.text[passage.start : passage.end]
        where = (pk, ordinal, passage.start, passage.end, passage.tokens, passage.heading)
        db.execute(INSERT_PASSAGE, (*where, text))
        passage_id = db.last_insert_rowid()
        db.execute(INSERT_VECTOR, (passage_id, passage.vector.tobytes()))
        first = first or passage_id
    db.execute("UPDATE documents SET first_passage = ? WHERE pk = ?", (first, pk))
    return first
