"""Copies a log's live rows to a new file that replaces it: how removed content is erased.

SQLite keeps deleted bytes in its pages. `secure_delete` zeroes almost all of them, but misses copies left in gaps when
cells move between pages (3 of 60,000 deleted keys were still there), and frees no space. A copy of the live rows
holds nothing else and has minimal size. VACUUM would make one too, but blocks all writes while it runs.

1. Rows are copied in blocks, each in a short read transaction, while searches and writes continue.
2. Later commits are copied in rounds, each shorter than the one before.
3. Between two commits the last round runs, the copy is synced, and `Log.replace_by` gives it the log's name.

A crash leaves either the old log and a partial copy, which the next opening removes, or the new log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from indexes.base.durable import sync_file
from indexes.base.work import OnStep, do_nothing
from indexes.log.mark import first_cycle
from indexes.log.owed import OWED, Owed
from indexes.log.sqlite import BUSY_TIMEOUT_MS, WRITER_CACHE_KIB, sqlite_errors

ROWS = 1024  # per statement: searches run between statements
TABLES_OF = "SELECT sql FROM old.sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY rowid"
# Passages before documents: if a copied document is deleted later, it is found through its passages.
TABLES = (
    ("vectors", "id", "id, vector"),
    ("passages", "id", "id, document, ordinal, start, end, tokens, heading, text"),
    ("documents", "pk", "pk, id, seq, first_passage, passages, digest, title, metadata, language, text"),
    ("operations", "seq", "seq, at_ms, '', first_passage, passages, dead_first, dead_passages"),
)
BLOCK_ENDS = (
    "SELECT max(n) FROM (SELECT {key} AS n FROM old.{table} WHERE n > ? AND n <= ? ORDER BY n LIMIT ?)"
)
# OR REPLACE: after an interrupted round, the next one copies some rows again.
COPY_BLOCK = "INSERT OR REPLACE INTO {table} SELECT {columns} FROM old.{table} WHERE {key} > ? AND {key} <= ?"
REMOVE_DOCUMENTS = (
    "DELETE FROM documents WHERE pk IN (SELECT document FROM passages WHERE id IN"
    " (SELECT dead_first FROM old.operations WHERE seq > ? AND seq <= ? AND dead_passages > 0))"
)
REMOVE_PASSAGES = (
    "DELETE FROM {table} WHERE id IN (SELECT p.id FROM old.operations o CROSS JOIN {table} p"
    " WHERE o.seq > ? AND o.seq <= ? AND o.dead_passages > 0"
    " AND p.id >= o.dead_first AND p.id < o.dead_first + o.dead_passages)"
)
REMOVALS = (
    (REMOVE_DOCUMENTS, "documents"),
    (REMOVE_PASSAGES, "passages"),
    (REMOVE_PASSAGES, "vectors"),
)
FINISH = """
DELETE FROM meta; INSERT INTO meta SELECT * FROM old.meta;
DELETE FROM content; INSERT INTO content SELECT * FROM old.content;
DELETE FROM sqlite_sequence; INSERT INTO sqlite_sequence SELECT * FROM old.sqlite_sequence;
"""


class Copy:
    """A copy in progress, beside its log. One thread at a time; call `remove_copies` to abandon it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.path = log.with_name(f".{log.name}.draft")
        self.cycle = first_cycle()
        self._reached = dict.fromkeys((table for table, _, _ in TABLES), 0)
        remove_copies(log)
        with self._open() as db:
            for (sql,) in db.execute(TABLES_OF).fetchall():
                db.execute(str(sql))

    def follow(self, on_step: OnStep = do_nothing) -> int:
        """Catch up with the log. Returns by how many operations the copy advanced.

        `on_step` is called between blocks, and may raise.
        """
        with self._open() as db:
            return self._follow(db, on_step)

    def finish(self, owed: Owed) -> None:
        """Catch up to the last commit, and sync. Repeatable if there are later commits."""
        with self._open() as db:
            self._follow(db, do_nothing)
            db.execute(FINISH)
            db.execute("UPDATE meta SET value = ? WHERE key = ?", (owed.stored, OWED))
            db.execute("DETACH old")
            db.execute(f"PRAGMA user_version = {self.cycle}")
            db.execute("PRAGMA journal_mode = WAL")  # as the next opener expects
        sync_file(self.path)

    def _follow(self, db: apsw.Connection, on_step: OnStep) -> int:
        before = self._reached
        # In one statement, so all counters are from the same commit.
        counters: Any = db.execute("SELECT name, seq FROM old.sqlite_sequence").fetchall()
        now: dict[str, int] = before | dict(counters)
        now["vectors"] = now["passages"]
        for sql, table in REMOVALS:
            db.execute(sql.format(table=table), (before["operations"], now["operations"]))
        for table, key, columns in TABLES:
            at, upto = before[table], now[table]
            while at < upto:
                on_step()
                ends = db.execute(BLOCK_ENDS.format(table=table, key=key), (at, upto, ROWS)).get
                if not isinstance(ends, int):
                    break
                db.execute(COPY_BLOCK.format(table=table, key=key, columns=columns), (at, ends))
                at = ends
        self._reached = now
        return now["operations"] - before["operations"]

    @contextlib.contextmanager
    def _open(self) -> Iterator[apsw.Connection]:
        """A connection to the copy, with the log attached read-only as `old`. Not journaled: a copy that is interrupted
        before its final sync is discarded anyway."""
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
        with sqlite_errors(self._log):
            db = apsw.Connection(str(self.path), flags=flags)
        try:
            with sqlite_errors(self._log, db):
                db.set_busy_timeout(BUSY_TIMEOUT_MS)
                db.execute("PRAGMA journal_mode = OFF")
                db.execute("PRAGMA synchronous = OFF")
                db.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
                db.execute("ATTACH ? AS old", (f"file:{quote(str(self._log))}?mode=ro",))
                yield db
        finally:
            db.close()


def remove_copies(log: Path) -> None:
    """Remove abandoned copies, including those left by a crash."""
    for path in log.parent.glob(f".{log.name}.draft*"):
        path.unlink(missing_ok=True)
