"""The tables of a log in its current format, and the first step of migrating older logs.

    meta         format version, uid, settings, owed erasures
    documents    what users sent; passage ids are consecutive from `first_passage`; `digest` is null if the document is
                 older than digests; `language` stands before `text`, to be read without it
    passages     each passage's span in its document; `text` is null if it spans the whole document
    vectors      float32, by passage id; in a separate table so that reading texts never touches the larger pages
    operations   passage id ranges that each operation added and removed
    content      the content hash: a single row, because it changes with every commit and fits on one page

Format 1 had no content hash, digests or headings; format 2 kept the vectors in `passages`; format 3
had no languages.
"""

from __future__ import annotations

import secrets

import apsw

from indexes.log.content import ContentHash, stand_in

SEED_BYTES = 32

META = "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
DOCUMENTS = """CREATE TABLE documents(
    pk INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL,
    first_passage INTEGER NOT NULL, passages INTEGER NOT NULL,
    digest BLOB, title TEXT NOT NULL, metadata TEXT NOT NULL, language TEXT NOT NULL, text TEXT NOT NULL)"""
PASSAGES = """CREATE TABLE passages(
    id INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL, ordinal INTEGER NOT NULL,
    start INTEGER NOT NULL, end INTEGER NOT NULL, tokens INTEGER NOT NULL, heading TEXT NOT NULL DEFAULT '',
    text TEXT)"""
VECTORS = "CREATE TABLE vectors(id INTEGER PRIMARY KEY, vector BLOB NOT NULL)"
OPERATIONS = """CREATE TABLE operations(
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, document_id TEXT NOT NULL,
    first_passage INTEGER NOT NULL, passages INTEGER NOT NULL,
    dead_first INTEGER NOT NULL, dead_passages INTEGER NOT NULL)"""
CONTENT = "CREATE TABLE content(sums BLOB NOT NULL)"
SCHEMA = (META, DOCUMENTS, PASSAGES, VECTORS, OPERATIONS, CONTENT)

INSERT_CONTENT = "INSERT INTO content VALUES(?)"


def add_content(db: apsw.Connection) -> None:
    """Format 1 to 2, in one transaction: passage headings, document digests, and the content hash.

    Existing documents get no digest, because the chunking settings they were split with are unknown; each counts as
    changed the next time it is written, and then gets one.
    """
    seed, content = secrets.token_bytes(SEED_BYTES), ContentHash()
    with db:
        db.execute("ALTER TABLE documents ADD COLUMN digest BLOB")
        db.execute("ALTER TABLE passages ADD COLUMN heading TEXT NOT NULL DEFAULT ''")
        db.execute(CONTENT)
        for document_id, seq in db.execute("SELECT id, seq FROM documents"):
            content.add(str(document_id), stand_in(seed, str(document_id), seq))
        db.execute(INSERT_CONTENT, (content.stored,))
        db.execute("INSERT INTO meta VALUES('digest_seed', ?)", (seed.hex(),))
        db.execute("UPDATE meta SET value = '2' WHERE key = 'format_version'")


def show_vectors(db: apsw.Connection) -> None:
    """For an older log, add a temporary `vectors` view to this connection, so queries match the current format."""
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'vectors'").get:
        db.execute("CREATE TEMP VIEW vectors AS SELECT id, vector FROM main.passages")
