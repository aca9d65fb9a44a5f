"""The tables of a log, in its present format, and the first step that older logs take to it.

    meta         format version, uid, settings, what is owed
    documents    what users sent; a passage of theirs has the ids from `first_passage` on
    passages     where a passage lies in its document. `text` is null where it is the whole of it
    vectors      float32, by passage id. Apart from the texts, so that reading these never touches the larger pages
    operations   numbers of what each write added and removed
    content      the content hash: one row, because it changes with every commit and fits on one page

Format 1 had no content hash, digests and headings; format 2 kept the vectors in `passages`.
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
    digest BLOB NOT NULL, title TEXT NOT NULL, metadata TEXT NOT NULL, text TEXT NOT NULL)"""
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
    """Format 1 to 2, in one transaction: headings of passages, digests of documents, and the content hash over them.

    Documents already there get no digest, because what they were cut by is not known; so each counts as changed when
    it is written next, and has one from then on.
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
    """Let this connection find the vectors of an older log in a table of their own, as in the present format."""
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'vectors'").get:
        db.execute("CREATE TEMP VIEW vectors AS SELECT id, vector FROM main.passages")
