"""The log: what it keeps, what it never does twice, and what a kill leaves behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest

from indexes.base import failures
from indexes.base.errors import Conflict, DiskFull, NotReady, Overloaded, StorageError
from indexes.base.model import Delete
from indexes.log.log import Log
from indexes.log.owed import Owed
from indexes.log.reader import LogReader
from indexes.log.wal import wal_of
from indexes.log.writer import Writer
from tests.support.vectors import World, make_collection, settings

WORLD = World()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log.create(tmp_path / "log.db", settings(), "uid")


def bytes_of(log: Log) -> int:
    return sum(path.stat().st_size for path in log.path.parent.iterdir())


def test_numbers_are_never_used_twice(log: Log) -> None:
    """Also after everything was deleted and the log opened again, seq and passage ids go on growing."""
    log.commit([[WORLD.document(1), WORLD.document(2)]])
    log.commit([[Delete("d1"), Delete("d2")]])
    before = log.position()
    log.forget_operations(before.seq)
    log.close()
    again = Log(log.path)
    _, applied = again.commit([[WORLD.document(3)]])
    assert applied[0].seq == before.seq + 1
    assert applied[0].first_passage == before.last_passage + 1
    again.close()


def test_what_was_written_is_read_back(log: Log) -> None:
    """Text, title, metadata and the vector, bit by bit."""
    document = WORLD.document(5)
    log.commit([[document]])
    stored = log.document("d5")
    assert stored is not None
    assert (stored.text, stored.metadata, stored.passages) == (document.text, document.metadata, 1)
    [(ids, vectors)] = log.vectors(0, 10)
    assert np.array_equal(vectors[0], document.passages[0].vector)
    assert log.passages(ids.tolist())[int(ids[0])].text == document.text


def test_a_passage_of_a_longer_document_keeps_its_own_text(log: Log) -> None:
    """Offsets and text of each passage agree with the document."""
    text = "First part. Second part."
    whole = WORLD.document(1)
    piece = whole.passages[0]
    parts = tuple(type(piece)(start, end, 2, piece.vector) for start, end in ((0, 11), (12, 24)))
    log.commit([[type(whole)("x", text, "Title", {}, parts)]])
    stored = log.passages([1, 2])
    assert [stored[1].text, stored[2].text] == ["First part.", "Second part."]
    assert [pair[:2] for block in log.searchable(0, 2) for pair in block] == [
        (1, "Title\nFirst part."),
        (2, "Title\nSecond part."),
    ]


def test_a_removal_names_what_went(log: Log) -> None:
    """Replacing a document tells the ids and texts of its old passages, and `dead_since` remembers them."""
    log.commit([[WORLD.document(1, passages=2)]])
    _, applied = log.commit([[WORLD.document(1, version=1)]])
    assert applied[0].dead == range(1, 3)
    assert applied[0].dead_texts == (WORLD.text(1, 0),) * 2
    assert log.dead_since(1) == [range(1, 3)]
    assert log.dead_since(2) == []


def test_several_writes_share_a_commit_and_keep_their_own_results(log: Log) -> None:
    """Each write of a group learns its own seq and counts."""
    results, _ = log.commit([[WORLD.document(1)], [WORLD.document(2), Delete("d1"), Delete("nobody")]])
    assert [result.seq for result in results] == [1, 3]
    assert (results[1].documents, results[1].deleted) == (1, 1)


def test_deleting_what_does_not_exist_leaves_nothing(log: Log) -> None:
    """No operation is noted and the log does not grow, however many and however long the ids."""
    log.commit([[WORLD.document(1)]])
    before = bytes_of(log)
    for first in range(0, 5000, 500):
        [result], applied = log.commit([[Delete(f"{first + at} ".ljust(30_000, "x")) for at in range(500)]])
        assert (result.seq, result.deleted, applied) == (1, 0, [])
    assert bytes_of(log) == before
    assert log.position().seq == log.newest_seq == 1


def test_operations_hold_no_ids(log: Log) -> None:
    """What a document was called is forgotten with it."""
    log.commit([[WORLD.document(1)], [Delete("d1")]])
    assert log._db.execute("SELECT DISTINCT document_id FROM operations").fetchall() == [("",)]


def test_what_is_removed_is_owed(log: Log) -> None:
    """Deleted and overwritten bytes are counted, also after opening again; a write that fails adds nothing."""
    log.commit([[WORLD.document(1), WORLD.document(2)]])
    assert log.owed == Owed()
    log.commit([[Delete("d1")]])
    once = log.owed
    assert once.bytes > 4 * settings().dimensions
    assert once.since_ms is not None
    log.commit([[WORLD.document(2, version=1)]])
    assert log.owed.bytes > once.bytes
    assert log.owed.since_ms == once.since_ms
    broken = WORLD.document(2)
    broken = type(broken)(broken.id, broken.text, broken.title, {"x": object()}, broken.passages)
    with pytest.raises(TypeError):
        log.commit([[Delete("d2")], [broken]])
    log.close()
    again = Log(log.path)
    assert again.owed == log.owed
    again.close()


def test_a_failing_operation_takes_the_whole_commit_back(log: Log) -> None:
    """If one write of a group cannot be stored, none is, and the next commit works."""
    broken = WORLD.document(2)
    broken = type(broken)(broken.id, broken.text, broken.title, {"x": object()}, broken.passages)
    with pytest.raises(TypeError):
        log.commit([[WORLD.document(1)], [broken]])
    assert log.position().seq == 0
    assert log.commit([[WORLD.document(1)]])[0][0].seq == 1


def test_a_full_disk_is_told_apart(log: Log) -> None:
    """SQLite's SQLITE_FULL becomes DiskFull, the transaction is rolled back, and room makes it work again."""
    log._db.execute("PRAGMA max_page_count = 20")
    documents = [WORLD.document(number) for number in range(500)]
    with pytest.raises(DiskFull):
        log.commit([documents])
    assert log.position().seq == 0
    log._db.execute("PRAGMA max_page_count = 100000")
    assert log.commit([documents])[0][0].documents == 500


def test_another_process_can_read_beside_the_writer(log: Log) -> None:
    """A reader of its own sees each commit after it happened."""
    reader = LogReader(log.path)
    log.commit([[WORLD.document(1)]])
    assert reader.document("d1") is not None
    log.commit([[Delete("d1")]])
    assert reader.document("d1") is None
    reader.close()


def test_commits_are_synced(log: Log) -> None:
    """The connection that commits runs in WAL mode with synchronous=FULL."""
    assert log._db.pragma("journal_mode") == "wal"
    assert log._db.pragma("synchronous") == 2


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    """A SQLite file that is no log, and a file that is no SQLite, are errors with the path."""
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("CREATE TABLE t(x)")
    other.close()
    with pytest.raises(StorageError, match=r"other\.db"):
        Log(tmp_path / "other.db")
    (tmp_path / "text.db").write_text("not a database at all" * 100)
    with pytest.raises(StorageError, match=r"text\.db"):
        Log(tmp_path / "text.db")


def test_a_log_is_not_made_twice(log: Log) -> None:
    """Creating over an existing file is a conflict."""
    with pytest.raises(Conflict):
        Log.create(log.path, settings(), "other")


CHILD = """
import sys
from pathlib import Path
from tests.support.vectors import World, make_collection
collection, world = make_collection(Path(sys.argv[1])), World()
for number in range(100000):
    collection.write([world.document(number), world.document(number + 500000)]).result()
    print(number, flush=True)
"""


def test_kill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """After SIGKILL amid writes, every acknowledged pair is there, and no pair is half there."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "c")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    acknowledged = -1
    for line in child.stdout:
        acknowledged = int(line)
        if acknowledged >= 60:
            break
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read().split()
    child.wait()
    acknowledged = int(rest[-1]) if rest else acknowledged
    log = Log(tmp_path / "c" / "log.db")
    for number in range(acknowledged + 1):
        assert log.document(f"d{number}") is not None
    for number in range(acknowledged + 5):
        pair = [log.document(f"d{n}") is not None for n in (number, number + 500000)]
        assert pair[0] == pair[1]
    log.close()


def test_a_commit_not_seen_at_one_opening_is_not_seen_at_the_next(log: Log, tmp_path: Path) -> None:
    """A kill between SQLite's two steps of a commit, while another program reads: it is in the WAL and not seen."""

    def sees_killed(path: Path) -> bool:
        with apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY) as db:
            found = bool(db.execute("SELECT count(*) FROM meta WHERE key = 'killed'").get)
        db.close()
        return found

    log.commit([[WORLD.document(1)]])
    other_program = apsw.Connection(str(log.path), flags=apsw.SQLITE_OPEN_READONLY)
    assert other_program.execute("SELECT count(*) FROM documents").get == 1
    log.close(as_is=True)
    elsewhere = Path(shutil.copytree(tmp_path, tmp_path.with_name("elsewhere"))) / "log.db"
    killed = apsw.Connection(str(elsewhere))
    killed.execute("INSERT INTO meta VALUES('killed', '')")
    wal_of(log.path).write_bytes(wal_of(elsewhere).read_bytes())
    killed.close()

    assert not sees_killed(log.path)
    Log(log.path).close(as_is=True)
    other_program.close()
    again = Log(log.path)
    assert not sees_killed(log.path)
    again.commit([[WORLD.document(2)]])
    again.close()
    assert Log(log.path).position().seq == 2


def test_a_failed_disk_stops_acknowledgements() -> None:
    """After a storage error nothing more is acknowledged, even if the disk seems to work again."""
    outcomes = iter([StorageError("the disk failed"), None])

    def commit(writes: list[Any]) -> list[Any]:
        if (error := next(outcomes)) is not None:
            raise error
        return [None] * len(writes)

    writer = Writer("test", commit, operations_max=10, on_idle=lambda: None)
    release = failures.hold()
    for _ in range(2):
        with pytest.raises(StorageError, match="the disk failed"):
            writer.write([Delete("x")]).result(5)
    writer.close()
    release()
    with pytest.raises(NotReady):
        writer.write([Delete("x")])


def test_a_commit_of_one_write_runs_in_its_context() -> None:
    """What is logged there has the id of the request that wrote; a commit that several share has none."""
    request_id: ContextVar[str] = ContextVar("request_id", default="")
    seen: list[tuple[int, str]] = []

    def commit(writes: list[Any]) -> list[Any]:
        seen.append((len(writes), request_id.get()))
        return [None] * len(writes)

    writer = Writer("test", commit, operations_max=10, on_idle=lambda: None)
    request_id.set("first")
    writer.write([Delete("x")]).result(5)
    gate = threading.Event()
    writer.call(gate.wait)
    pair = [writer.write([Delete("x")]) for _ in range(2)]
    gate.set()
    for one in pair:
        one.result(5)
    writer.close()
    assert seen == [(1, "first"), (2, "")]


def test_a_cancelled_write_is_not_committed(tmp_path: Path) -> None:
    """A caller who left before the commit began leaves nothing behind, and the writer goes on."""
    collection = make_collection(tmp_path / "c")
    gate = threading.Event()
    blocked = collection._writer.call(gate.wait)
    future = collection.write([WORLD.document(1)])
    assert future.cancel()
    gate.set()
    blocked.result()
    collection.write([WORLD.document(2)]).result()
    assert collection.snapshot.live == 1
    collection.close()


def test_a_full_queue_turns_writes_away_and_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit a write is refused at once; what puts a finished segment in place still gets through."""
    monkeypatch.setattr("indexes.log.writer.WAITING_WRITES_MAX", 3)
    gate = threading.Event()
    writer = Writer("test", lambda writes: [], operations_max=10, on_idle=lambda: None)
    blocked = writer.call(gate.wait)
    while writer._queue.qsize():
        time.sleep(0.001)  # until the thread has taken the step it now waits in
    steps = [writer.call(lambda: "done") for _ in range(4)]
    with pytest.raises(Overloaded):
        writer.write([Delete("x")])
    gate.set()
    blocked.result(5)
    assert [step.result(5) for step in steps] == ["done"] * 4
    writer.close()
