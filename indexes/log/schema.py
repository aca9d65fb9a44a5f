"""The tables of a log.

meta         format, uid, settings, owed erasures
documents    what users sent; passage ids are consecutive from `first_passage`; `language` precedes `text`, so that it
             can be read without the text
passages     each passage's span in its document; `text` is null if it spans the whole document
vectors      float32, by passage id; in a separate table so that reading texts never touches the larger pages
operations   passage id ranges that each operation added and removed
content      the content hash: a single row, because it changes with every commit and fits on one page
"""

from __future__ import annotations

META = "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
# Keys of `meta`: when the log was made; when the last operation was committed that is no longer in `operations`; of a
# copy, the uid of the first original.
CREATED, FORGOTTEN, ORIGIN = "created_ms", "forgotten_ms", "origin"
DOCUMENTS = """CREATE TABLE documents(
    pk INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL,
    first_passage INTEGER NOT NULL, passages INTEGER NOT NULL,
    digest BLOB NOT NULL, title TEXT NOT NULL, metadata TEXT NOT NULL, language TEXT NOT NULL, text TEXT NOT NULL)"""
PASSAGES = """CREATE TABLE passages(
    id INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL, ordinal INTEGER NOT NULL,
    start INTEGER NOT NULL, end INTEGER NOT NULL, tokens INTEGER NOT NULL, heading TEXT NOT NULL,
    text TEXT)"""
VECTORS = "CREATE TABLE vectors(id INTEGER PRIMARY KEY, vector BLOB NOT NULL)"
OPERATIONS = """CREATE TABLE operations(
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, document_id TEXT NOT NULL,
    first_passage INTEGER NOT NULL, passages INTEGER NOT NULL,
    dead_first INTEGER NOT NULL, dead_passages INTEGER NOT NULL)"""
CONTENT = "CREATE TABLE content(sums BLOB NOT NULL)"
SCHEMA = (META, DOCUMENTS, PASSAGES, VECTORS, OPERATIONS, CONTENT)

INSERT_CONTENT = "INSERT INTO content VALUES(?)"
