"""Reads a log: from any thread or process, always at the last commit.

Every read borrows its own connection and holds no transaction longer than one block of rows.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw
import msgspec
import numpy as np

from indexes.base.errors import Damaged, NewerFormat, OlderFormat, Quarantined, StorageError
from indexes.base.expiry import take_expiry
from indexes.base.model import (
    Floats,
    Ids,
    Metadata,
    NewPassage,
    Settings,
    StoredDocument,
    StoredPassage,
    Terms,
    Upsert,
    now_ms,
)
from indexes.log.content import ContentHash
from indexes.log.schema import ORIGIN
from indexes.log.sqlite import Readers, close_idle_readers

logger = logging.getLogger(__name__)
T = TypeVar("T")

FORMAT = 1
SCAN_ROWS = 2048
TITLES_READ = 4  # times as many documents as titles wanted: some have none, or the same
AGAIN_AFTER_S = (0.01, 0.1)  # pauses before a read that found damage is retried
METADATA = msgspec.json.Decoder(
    dict[str, Any]
)  # reused: passing the type on each call is twenty times slower

LIVE = "FROM passages p JOIN documents d ON d.pk = p.document"
ONE_PASSAGE = (
    "SELECT p.id, d.id, p.ordinal, p.start, p.end, p.tokens, coalesce(p.text, d.text), d.title, d.metadata,"
    " p.heading, d.language"
)
ONE_DOCUMENT = "SELECT id, seq, text, title, metadata, passages, language FROM documents"
WHOLE_DOCUMENT = "SELECT text, title, metadata, language, first_passage, passages FROM documents WHERE id = ?"
ITS_PASSAGES = (
    "SELECT start, end, tokens, heading, vector FROM passages JOIN vectors USING (id)"
    " WHERE id >= ? AND id < ? ORDER BY id"
)
VECTORS = "SELECT p.id, p.vector FROM vectors p"
VECTORS_OF_DOCUMENT = (
    "SELECT v.id, v.vector FROM documents d CROSS JOIN vectors v"
    " WHERE d.id = ? AND v.id >= d.first_passage AND v.id < d.first_passage + d.passages ORDER BY v.id"
)
FIRST_PASSAGES = "SELECT pk, first_passage FROM documents WHERE pk > ? AND pk <= ? ORDER BY pk"
AMONG = "WHERE p.id IN (SELECT value FROM json_each(?))"
BETWEEN = "WHERE p.id > ? AND p.id <= ? ORDER BY p.id"
ENTRIES = (
    "SELECT p.id, coalesce(p.text, d.text), d.language, d.metadata, v.vector, d.id, d.title, p.heading, p.ordinal"
    f" {LIVE} JOIN vectors v ON v.id = p.id {BETWEEN}"
)
POSITION = "SELECT name, seq FROM sqlite_sequence"
CHANGED_SINCE = (
    "SELECT seq, iif(passages > 0, first_passage, dead_first), iif(dead_passages > 0, dead_first, first_passage)"
    " FROM operations WHERE seq > ? AND passages + dead_passages > 0 ORDER BY seq"
)
DEAD_SINCE = "SELECT dead_first, dead_passages FROM operations WHERE seq > ? AND dead_passages > 0"


class PassagePlace(NamedTuple):
    """What names a passage: its document's id and title, the headings above it, and its position in the document."""

    document_id: str
    title: str
    heading: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class PassageEntry:
    """One live passage, with the fields that indexes need. `terms` are those of a long text that was analyzed."""

    passage: int
    text: str
    metadata: Metadata
    vector: Floats
    language: str
    place: PassagePlace
    terms: Terms | None = None


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The end of the log: the last operation and the last passage id assigned."""

    seq: int
    last_passage: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What one commit of the log holds that an earlier state does not: the live passages written since, in ascending
    order, and the ids of those removed. `content` identifies its documents (`ContentHash.short`)."""

    position: LogPosition
    content: bytes
    entries: list[PassageEntry]
    dead: list[range]


class LogReader:
    """A log open for reading. Raises StorageError if this version cannot read the file's format. Call `close`.

    Once a read or write finds damage that stays, all later ones raise Quarantined: a damaged file cannot be trusted
    even where SQLite can still read it, and writing to it could spread the damage.

    A document that has expired by `clock` is not found by its id.
    """

    def __init__(self, path: Path, clock: Callable[[], int] = now_ms) -> None:
        self.path = path
        self.damage: str | None = None
        self.clock = clock
        self._readers = Readers(path)
        meta: dict[str, str] = dict(self._rows("SELECT key, value FROM meta"))
        require_format(meta, path)
        self.uid = meta["uid"]
        self.origin = meta.get(ORIGIN, self.uid)  # the uid of the log that this is a copy of
        # Of documents up to a position and of operations up to a seq, and the ids.
        self._firsts: tuple[tuple[int, int], Ids] = (0, 0), np.empty(0, np.int64)
        self.settings = msgspec.json.decode(meta["settings"], type=Settings)

    def close(self) -> None:
        self._readers.close()

    def _rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        def read() -> list[Any]:
            with self._readers.borrow() as db:
                return db.execute(sql, parameters).fetchall()

        return self._retry_on_damage(read)

    def _retry_on_damage(self, work: Callable[[], T]) -> T:
        """Run `work`, and retry it after each of a few pauses if it finds damage, because a read error may pass. Then
        raises Quarantined. `work` must undo what it did when it fails."""
        with self._sound():
            for pause_s in AGAIN_AFTER_S:
                try:
                    return work()
                except Damaged as error:
                    logger.warning("%s; trying again", error.message)
                    close_idle_readers(self._readers)
                    time.sleep(pause_s)
            return work()

    @contextlib.contextmanager
    def _sound(self) -> Iterator[None]:
        """Raise Quarantined if the log is known to be damaged, or damage is found in this block."""
        if self.damage is not None:
            raise Quarantined(self.damage)
        try:
            yield
        except Damaged as error:
            if self.damage is None:
                self.damage = error.message
                logger.error("collection %s is quarantined: %s", self.path.parent.name, error.message)
            raise Quarantined(error.message) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """A connection for several reads at the same commit. Hold it for one page of results at most."""
        with self._sound(), self._readers.transaction() as db:
            yield db

    @contextlib.contextmanager
    def pinned(self) -> Iterator[int]:
        """Inside this block this thread reads the log as it was after one operation, which is returned, whatever is
        written. Hold it for one search at most."""
        with self._sound(), self._readers.pinned() as db:
            rows: Any = db.execute(POSITION).fetchall()
            yield position_of(rows).seq

    # -- single records

    def position(self) -> LogPosition:
        return position_of(self._rows(POSITION))

    def forgotten(self) -> int:
        """The last operation that the log has dropped; it has all later ones."""
        ((oldest,),) = self._rows("SELECT min(seq) FROM operations")
        return self.position().seq if oldest is None else int(oldest) - 1

    def passages_between(self, after: int, upto: int) -> tuple[int, int]:
        """How many live passages come after one and up to another, and how many bytes their texts have."""
        size = "sum(octet_length(d.title) + octet_length(coalesce(p.text, d.text)))"
        sql = f"SELECT count(*), coalesce({size}, 0) {LIVE} WHERE p.id > ? AND p.id <= ?"
        ((count, held),) = self._rows(sql, (after, upto))
        return int(count), int(held)

    def document_count(self) -> int:
        return int(self._rows("SELECT count(*) FROM documents")[0][0])

    def titles(self, most: int) -> list[str]:
        """Different titles of documents, up to `most`, from all over the log."""
        ((last,),) = self._rows("SELECT coalesce(max(pk), 0) FROM documents")
        places = np.unique(np.linspace(1, max(last, 1), TITLES_READ * most).astype(np.int64)).tolist()
        rows = self._rows(
            "SELECT title FROM documents WHERE title <> '' AND pk IN (SELECT value FROM json_each(?))",
            (json_list(places),),
        )
        found = list(dict.fromkeys(title for (title,) in rows))
        return found[:: math.ceil(len(found) / most)] if found else []

    def passages(self, ids: Iterable[int]) -> dict[int, StoredPassage]:
        """The live passages among these, by id. Deleted passages are absent."""
        rows = self._rows(f"{ONE_PASSAGE} {LIVE} {AMONG}", (json_list(ids),))
        return {row[0]: as_passage(row) for row in rows}

    def documents_of(self, ids: Iterable[int]) -> list[str]:
        """Ids of the documents that hold the live passages among these."""
        return [one for (one,) in self._rows(f"SELECT DISTINCT d.id {LIVE} {AMONG}", (json_list(ids),))]

    def document(self, document_id: str) -> StoredDocument | None:
        document = self._document(document_id)
        return document if document and self.is_live(document.expires_ms) else None

    def expired(self, document_id: str) -> StoredDocument | None:
        """The document, if it has expired and is not deleted yet."""
        document = self._document(document_id)
        return None if document is None or self.is_live(document.expires_ms) else document

    def _document(self, document_id: str) -> StoredDocument | None:
        rows = self._rows(f"{ONE_DOCUMENT} WHERE id = ?", (document_id,))
        return as_document(rows[0]) if rows else None

    def is_live(self, expires_ms: int | None) -> bool:
        return expires_ms is None or self.clock() < expires_ms

    def passages_of(self, document_id: str) -> range:
        """The passage ids of a document, in order; empty if there is no such document."""
        rows = self._rows("SELECT first_passage, passages FROM documents WHERE id = ?", (document_id,))
        return range(rows[0][0], sum(rows[0])) if rows else range(0)

    def ids_like(self, document_id: str, most: int) -> list[list[str]]:
        """Document ids that may be meant by an unknown one: those next to it in order, and some of similar length."""
        after = "SELECT id FROM documents WHERE id > ?1 ORDER BY id LIMIT ?2"
        before = "SELECT id FROM documents WHERE id < ?1 ORDER BY id DESC LIMIT ?2"
        as_long = "SELECT id FROM documents WHERE abs(length(id) - length(?1)) <= 2 LIMIT ?2"
        return [[one for (one,) in self._rows(sql, (document_id, most))] for sql in (after, before, as_long)]

    def seqs_of(self, document_ids: Iterable[str]) -> dict[str, int]:
        """The operations that wrote these documents; missing documents are left out."""
        wanted = msgspec.json.encode(list(document_ids)).decode()
        return dict(
            self._rows(
                "SELECT id, seq FROM documents WHERE id IN (SELECT value FROM json_each(?))", (wanted,)
            )
        )

    def first_passages_of(self, document_ids: Iterable[str]) -> dict[str, int]:
        """The first passages of the documents among these that exist."""
        wanted = msgspec.json.encode(list(document_ids)).decode()
        sql = "SELECT id, first_passage FROM documents WHERE id IN (SELECT value FROM json_each(?))"
        return dict(self._rows(sql, (wanted,)))

    def known(self, document_ids: Iterable[str]) -> set[str]:
        """The ids among these that exist."""
        wanted = msgspec.json.encode(list(document_ids)).decode()
        sql = "SELECT id FROM documents WHERE id IN (SELECT value FROM json_each(?))"
        return {one for (one,) in self._rows(sql, (wanted,))}

    def visible(self, document_ids: Iterable[str], may_read: Callable[[Metadata], bool]) -> set[str]:
        """The ids among these of documents that have not expired and whose metadata `may_read` accepts."""
        wanted = msgspec.json.encode(list(document_ids)).decode()
        sql = "SELECT id, metadata FROM documents WHERE id IN (SELECT value FROM json_each(?))"

        def is_visible(stored: str) -> bool:
            metadata = decode_metadata(stored)
            return self.is_live(take_expiry(metadata)) and may_read(metadata)

        def read() -> set[str]:
            with self._readers.borrow() as db:
                return {one for one, stored in db.execute(sql, (wanted,)) if is_visible(stored)}

        return self._retry_on_damage(read)

    def upsert_of(self, document_id: str) -> Upsert | None:
        """The upsert that would recreate this document with its passages and vectors; None if it does not exist."""
        with self.transaction() as db:
            row: Any = db.execute(WHOLE_DOCUMENT, (document_id,)).fetchone()
            if row is None:
                return None
            text, title, metadata, language, first, count = row
            passages: Any = db.execute(ITS_PASSAGES, (first, first + count)).fetchall()
        pieces = (
            NewPassage(start, end, tokens, np.frombuffer(vector, np.float32), heading)
            for start, end, tokens, heading, vector in passages
        )
        held = decode_metadata(metadata)
        expires_ms = take_expiry(held)
        if not self.is_live(expires_ms):
            return None
        return Upsert(document_id, text, title, held, tuple(pieces), language=language, expires_ms=expires_ms)

    def dead_since(self, seq: int) -> list[range]:
        """Id ranges of the passages that operations after `seq` removed."""
        return [range(first, first + count) for first, count in self._rows(DEAD_SINCE, (seq,))]

    def first_passages(self) -> Ids:
        """Ids of the first passages of all live documents, ascending, and of those that were deleted or replaced since
        an earlier state, in which a snapshot may still have them.

        Each call reads only what was written since the previous one.
        """
        (after, seq), known = self._firsts
        found = []
        for rows in self._scan(FIRST_PASSAGES, after, 1 << 62):
            found.append(np.fromiter((row[1] for row in rows), np.int64, len(rows)))
            after = rows[-1][0]
        changed = np.array(self._rows(CHANGED_SINCE, (seq,)), np.int64).reshape(-1, 3)
        if len(changed):
            seq = int(changed[-1, 0])
        known = with_new(known, np.unique(np.concatenate([*found, changed[:, 1:].ravel()])))
        self._firsts = (after, seq), known
        return known

    def passage_ids(self, upto: int) -> Ids:
        """Ids of all live passages up to this one, ascending. Reads only documents, each with consecutive passages."""
        sql = "SELECT pk, first_passage, passages FROM documents WHERE pk > ? AND first_passage <= ? ORDER BY pk"
        blocks = [np.array(rows, np.int64) for rows in self._scan(sql, 0, upto)]
        if not blocks:
            return np.empty(0, np.int64)
        _, starts, counts = np.concatenate(blocks).T
        before = np.cumsum(counts) - counts
        ids: Ids = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
        return ids[ids <= upto]

    def vectors_of(self, ids: Sequence[int]) -> Floats:
        """Vectors of the live passages among these, float32 [found, dimensions], in the order of their ids.

        Memory: the result plus one block of rows.
        """
        sql = f"{VECTORS} {AMONG} ORDER BY p.id"
        vectors = np.empty((len(ids), self.settings.dimensions), np.float32)
        found = 0
        for start in range(0, len(ids), SCAN_ROWS):
            rows = self._rows(sql, (json_list(ids[start : start + SCAN_ROWS]),))
            for _, blob in rows:
                vectors[found] = np.frombuffer(blob, np.float32)
                found += 1
        return vectors[:found]

    def vectors_of_document(self, document_id: str) -> tuple[Ids, Floats] | None:
        """Passage ids, ascending, and vectors of a document, float32 [passages, dimensions]; None if there is none."""
        rows = self._rows(VECTORS_OF_DOCUMENT, (document_id,))
        if not rows:
            return None
        ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
        vectors = np.frombuffer(b"".join(row[1] for row in rows), np.float32)
        return ids, vectors.reshape(len(rows), self.settings.dimensions)

    # -- scans: live passages with after < id <= upto, ascending, in blocks

    def vectors(self, after: int, upto: int) -> Iterator[tuple[Ids, Floats]]:
        """Blocks of passage ids, and their float32 vectors [n, dimensions]."""
        for rows in self._scan(f"{VECTORS} {BETWEEN}", after, upto):
            ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
            vectors = np.frombuffer(b"".join(row[1] for row in rows), np.float32)
            yield ids, vectors.reshape(len(rows), self.settings.dimensions)

    def searchable(self, after: int, upto: int) -> Iterator[list[tuple[int, str, str, str, PassagePlace]]]:
        """Blocks of passage ids, each with the text that BM25 reads, its document's language and metadata as JSON, and
        what names it."""
        sql = (
            "SELECT p.id, coalesce(p.text, d.text), d.language, d.metadata, d.id, d.title, p.heading, p.ordinal"
            f" {LIVE} {BETWEEN}"
        )
        for rows in self._scan(sql, after, upto):
            yield [
                (passage, self._read_by_words(where, text), language, metadata, where)
                for passage, text, language, metadata, *place in rows
                for where in [PassagePlace(*place)]
            ]

    def entries(self, after: int, upto: int) -> Iterator[PassageEntry]:
        """Every field that indexes need, passage by passage."""
        for rows in self._scan(ENTRIES, after, upto):
            yield from map(self._as_entry, rows)

    def _as_entry(self, row: Any) -> PassageEntry:
        passage, text, language, metadata, vector, *names = row
        place, values = PassagePlace(*names), np.frombuffer(vector, np.float32)
        read = self._read_by_words(place, text)
        return PassageEntry(passage, read, decode_metadata(metadata), values, language, place)

    def _read_by_words(self, place: PassagePlace, text: str) -> str:
        return self.settings.field_weights.text_of(place.title, place.heading, text)

    def changes(self, since: LogPosition) -> Changes | None:
        """What was written since, up to the last commit. None if the log has forgotten some of it.

        For what one transaction can read: scan `entries` first if it may be more.
        """
        with self.transaction() as db:
            rows: Any = db.execute(POSITION).fetchall()
            position = position_of(rows)
            if since.seq < forgotten_upto(db, position):
                return None
            dead: Any = db.execute(DEAD_SINCE, (since.seq,)).fetchall()
            sums = bytes(db.execute("SELECT sums FROM content").get)
            entries: Any = db.execute(ENTRIES, (since.last_passage, position.last_passage)).fetchall()
        removed = [range(first, first + count) for first, count in dead]
        return Changes(position, ContentHash(sums).short, list(map(self._as_entry, entries)), removed)

    def remembers(self, since: LogPosition) -> bool:
        """Whether `changes` can still say what was written since."""
        with self.transaction() as db:
            rows: Any = db.execute(POSITION).fetchall()
            return since.seq >= forgotten_upto(db, position_of(rows))

    def _scan(self, sql: str, after: int, upto: int) -> Iterator[list[Any]]:
        """Each block is a separate transaction, so a long scan never blocks checkpoints."""
        while rows := self._rows(f"{sql} LIMIT {SCAN_ROWS}", (after, upto)):
            yield rows
            after = rows[-1][0]


def require_format(meta: Mapping[str, str], path: Path) -> None:
    """Raises NewerFormat, OlderFormat or StorageError if this version cannot read a log."""
    found = meta.get("format", "")
    if "format_version" in meta:
        raise OlderFormat.of(path)
    if found.isdigit() and int(found) > FORMAT:
        raise NewerFormat(
            f"a newer version of nearline wrote {path}: it has log format {found}, this version reads {FORMAT}"
        )
    if found != str(FORMAT):
        raise StorageError(f"{path} has log format {found!r}; this version reads {FORMAT}")


def searchable_text(title: str, text: str) -> str:
    """The text of a passage that is indexed: its document's title, then its own text. Either may be empty."""
    return f"{title}\n{text}" if title and text else title or text


def position_of(rows: Iterable[tuple[str, int]]) -> LogPosition:
    found = dict(rows)
    return LogPosition(int(found.get("operations", 0)), int(found.get("passages", 0)))


def forgotten_upto(db: apsw.Connection, position: LogPosition) -> int:
    """The last operation that a log no longer has, if its last one of all is at this position."""
    oldest = db.execute("SELECT min(seq) FROM operations").get
    return position.seq if oldest is None else int(str(oldest)) - 1


def as_passage(row: Any) -> StoredPassage:
    passage, document_id, ordinal, start, end, tokens, text, title, metadata, heading, language = row
    held = decode_metadata(metadata)
    take_expiry(held)
    return StoredPassage(
        passage,
        document_id,
        ordinal,
        start,
        end,
        tokens,
        text,
        title,
        held,
        heading,
        language,
    )


def as_document(row: Any) -> StoredDocument:
    document_id, seq, text, title, metadata, passages, language = row
    held = decode_metadata(metadata)
    expires_ms = take_expiry(held)
    return StoredDocument(document_id, seq, text, title, held, passages, language, expires_ms)


def decode_metadata(text: str) -> Metadata:
    """Decode metadata as it is stored, with the document's expiry (`expiry.take_expiry`)."""
    return {} if text == "{}" else METADATA.decode(text)


def json_list(ids: Iterable[int]) -> str:
    return msgspec.json.encode([int(one) for one in ids]).decode()


def with_new(known: Ids, found: Ids) -> Ids:
    """Both together, each ascending. Few are found, and millions may be known, so these are not sorted again."""
    places = np.searchsorted(known, found)
    if len(known):
        is_new = known.take(places, mode="clip") != found
        found, places = found[is_new], places[is_new]
    return np.insert(known, places, found) if len(found) else known
