"""A collection that is kept equal to a folder: what changed is written, what is gone is deleted, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from jobs.ingestion import syncing
from jobs.ingestion.ingesting import IngestProgress
from jobs.ingestion.sync_record import Stamp, SyncRecord
from jobs.ingestion.syncing import record_path, sync
from jobs.serving.process import ServerProcess, serving
from jobs.sources.files import FoundFile
from jobs.sources.model import SourceDocument, SourceOptions, SourceReport
from jobs.sources.read import read_files
from nearline import AsyncClient, CollectionBody
from tests.jobs.test_commands import ROOT
from tests.jobs.test_ingest import started, wait_for
from tests.jobs.test_sources import put
from tests.support.commands import nearline
from tests.support.doorway import Doorway
from tests.support.files import docx, pdf, xlsx
from tests.support.http import Http

pytestmark = pytest.mark.model


class Folder:
    """A folder and a collection of its own, synced by the command itself."""

    def __init__(self, path: Path, http: Http) -> None:
        self.path, self.http, self.name = path, http, http.new_collection()
        self.state = path.parent / f"state-{path.name}"

    def arguments(self, *more: object) -> list[object]:
        return ["ingest", self.path, "--url", self.http.url, "-c", self.name, "--state", self.state, *more]

    def sync(self, *more: object, code: int = 0) -> dict[str, object]:
        ended = nearline(*self.arguments("--sync", "--json", *more))
        assert ended.returncode == code, ended.stderr
        found: dict[str, object] = json.loads(ended.stdout)
        return found

    def ids(self) -> list[str]:
        return sorted(self.texts())

    def texts(self) -> dict[str, str]:
        documents = self.http.ok("POST", f"/v1/collections/{self.name}/documents/scroll", {"limit": 1000})[
            "documents"
        ]
        return {one["id"].removeprefix("docs/"): one["text"] for one in documents}


@pytest.fixture
def folder(http: Http, tmp_path: Path) -> Folder:
    path = tmp_path / "docs"
    put(path, "a.txt", "Apples.")
    put(path, "b.md", "# Bread\n\nBaked.")
    put(path, "sub/c.txt", "Cheese.")
    put(path, "sub/rows.csv", "id,text\nr1,One.\nr2,Two.\nr3,Three.\n")
    return Folder(path, http)


EVERYTHING = ["a.txt", "b.md", "r1", "r2", "r3", "sub/c.txt"]


def counts(done: dict[str, object]) -> tuple[object, ...]:
    return tuple(done[key] for key in ("files_changed", "documents", "unchanged", "deleted"))


def test_only_what_changed_is_written(folder: Folder) -> None:
    """A second run opens nothing; of a table with a new row that row alone is sent; touching a file changes nothing."""
    assert counts(folder.sync()) == (4, 6, 0, 0)
    assert folder.ids() == EVERYTHING
    os.utime(folder.path / "a.txt", (1e9, 1e9))
    assert counts(folder.sync()) == (0, 0, 0, 0)
    put(
        folder.path,
        "sub/rows.csv",
        "id,text\nr1,One.\nr2,Two, again.\nr3,Three.\nr4,Four.\n".replace(", a", " a"),
    )
    done = folder.sync()
    assert counts(done) == (1, 2, 2, 0)
    assert folder.texts()["r2"] == "Two again."


def test_what_is_gone_is_deleted_when_told_to(folder: Folder) -> None:
    """A file and a row; a dry run shows both and does neither, and without --yes nothing is deleted."""
    folder.http.write(folder.name, {"id": "docs/other.txt", "text": "Of somebody else."})
    folder.sync()
    (folder.path / "sub" / "c.txt").unlink()
    put(folder.path, "sub/rows.csv", "id,text\nr1,One.\nr3,Three, changed.\n".replace(", c", " c"))
    shown = folder.sync("--dry-run")
    assert (shown["gone"], shown["documents"]) == (["docs/sub/c.txt", "r2"], 1)
    assert folder.ids() == sorted([*EVERYTHING, "other.txt"])
    assert folder.texts()["r3"] == "Three."
    assert folder.sync(code=1)["gone"] == ["docs/sub/c.txt", "r2"]
    assert folder.texts()["r3"] == "Three changed."
    done = folder.sync("--yes")
    assert (done["deleted"], done["gone"]) == (2, [])
    assert folder.ids() == ["a.txt", "b.md", "other.txt", "r1", "r3"]
    assert counts(folder.sync("--yes")) == (0, 0, 0, 0)


def test_more_than_half_needs_force(folder: Folder) -> None:
    """A folder that lost most of its files may be the wrong one."""
    folder.sync()
    shutil.rmtree(folder.path / "sub")
    assert folder.sync("--yes", code=1)["deleted"] == 0
    assert folder.ids() == EVERYTHING
    assert folder.sync("--force")["deleted"] == 4
    assert folder.ids() == ["a.txt", "b.md"]


def test_an_empty_or_missing_folder_deletes_nothing(folder: Folder) -> None:
    """It may be a mount point without its disk; --force does not change that."""
    folder.sync()
    folder.path.rename(folder.path.parent / "away")
    assert "does not exist" in nearline(*folder.arguments("--sync", "--force")).stderr
    folder.path.mkdir()
    ended = nearline(*folder.arguments("--sync", "--force"))
    assert (ended.returncode, "nothing was deleted" in ended.stderr) == (1, True)
    assert folder.ids() == EVERYTHING


def test_a_folder_that_cannot_be_listed_keeps_its_documents(folder: Folder) -> None:
    """Its files may be there still; files elsewhere that are gone are deleted."""
    folder.sync()
    (folder.path / "a.txt").unlink()
    (folder.path / "sub").chmod(0)
    ended = synced_without_override(folder)
    (folder.path / "sub").chmod(0o700)
    assert json.loads(ended.stdout)["deleted"] == 1, ended.stderr
    assert "sub: cannot be listed" in ended.stderr
    assert folder.ids() == [one for one in EVERYTHING if one != "a.txt"]


def synced_without_override(folder: Folder) -> subprocess.CompletedProcess[str]:
    """Sync as a user whom permissions stop: root may list and read everything, unless it gives that up."""
    held = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if held and not shutil.which("setpriv"):
        pytest.skip("root reads everything, and setpriv is not installed")
    command = [*held, sys.executable, "-m", "jobs.cli", *folder.arguments("--sync", "--json", "--yes")]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_file_that_cannot_be_read_keeps_its_documents(folder: Folder) -> None:
    """A row that is broken is no row that is gone, and the file is read again each time."""
    folder.sync()
    put(folder.path, "sub/rows.csv", "id,text\nr1,One.\nr2\n")
    put(folder.path, "b.md", b"\xff")
    for _ in range(2):
        done = folder.sync("--yes", code=1)
        assert (done["failures"], done["deleted"]) == (2, 0)
    assert folder.ids() == EVERYTHING


def test_a_failure_is_told_once(folder: Folder) -> None:
    """Also where files are read a second time, because another one lost an id that they have."""
    put(folder.path, "sub/more.csv", "id,text\nr1,More one.\n")
    put(folder.path, "b.md", b"\xff")
    folder.sync("--yes", code=1)
    (folder.path / "sub/more.csv").unlink()
    done = folder.sync("--yes", code=1)
    assert (done["failures"], len(cast("list[object]", done["failed"])), done["shared"]) == (1, 1, 1)
    assert folder.texts()["r1"] == "One."


def test_files_that_failed_before_are_not_changed(folder: Folder) -> None:
    """They are read again and counted by themselves until their content changes, and then are like any other."""

    def files(*more: object, code: int) -> tuple[object, ...]:
        done = folder.sync(*more, code=code)
        return tuple(done[f"files_{how}"] for how in ("changed", "unchanged", "retried"))

    put(folder.path, "sub/rows.csv", "id,text\nr1,One.\nr2\n")
    put(folder.path, "b.md", b"\xff")
    assert files(code=1) == (4, 0, 0)
    os.utime(folder.path / "b.md", (1e9, 1e9))
    assert files("--dry-run", code=1) == files(code=1) == (0, 2, 2)
    put(folder.path, "b.md", b"\xfe")
    assert files(code=1) == (1, 2, 1)
    put(folder.path, "b.md", "Baked.")
    put(folder.path, "sub/rows.csv", "id,text\nr1,One.\n")
    assert files(code=0) == (2, 2, 0)
    assert files(code=0) == (0, 4, 0)


def test_a_file_that_cannot_be_opened_is_not_unchanged(folder: Folder) -> None:
    """It has failed, and nothing is known about its content."""
    (folder.path / "a.txt").chmod(0)
    done = json.loads(synced_without_override(folder).stdout)
    assert (done["failures"], done["files_changed"], done["files_unchanged"]) == (1, 3, 0)


def test_what_was_deleted_or_lost_elsewhere_is_written_again(folder: Folder) -> None:
    """The collection is asked what it has; one made anew gets everything."""
    folder.sync()
    folder.http.ok("DELETE", f"/v1/collections/{folder.name}/documents/r2")
    assert folder.sync()["documents"] == 1
    folder.http.ok("DELETE", f"/v1/collections/{folder.name}")
    assert folder.sync("--create")["documents"] == 6
    assert folder.ids() == EVERYTHING


def test_a_collection_that_was_put_back_gets_what_is_newer(folder: Folder) -> None:
    """After a restore the documents are older than those that were sent; each is sent again."""
    folder.sync()
    older = [
        {"id": one if one.startswith("r") else f"docs/{one}", "text": text}
        for one, text in folder.texts().items()
    ]
    put(folder.path, "a.txt", "Apricots.")
    assert folder.sync()["documents"] == 1
    folder.http.ok("DELETE", f"/v1/collections/{folder.name}")
    folder.http.ok("POST", "/v1/collections", {"name": folder.name})
    folder.http.write(folder.name, *older)
    assert folder.sync()["files_changed"] == 4
    assert folder.texts()["a.txt"] == "Apricots."
    assert counts(folder.sync()) == (0, 0, 0, 0)


def test_what_others_wrote_over_a_document_stays(folder: Folder) -> None:
    """A patch, such as of the groups that may read a document, is not undone while the document's file is unchanged."""
    folder.sync()
    path = f"/v1/collections/{folder.name}/documents/r2"
    folder.http.ok("PATCH", path, {"metadata": {"acl": "blue"}})
    assert counts(folder.sync()) == (0, 0, 0, 0)
    assert folder.http.ok("GET", path)["metadata"] == {"acl": "blue"}


@pytest.mark.parametrize(("before", "other", "now"), [(3, 9, 8), ("0.3-1.2", "0.9-1.2", "0.8-1.2")])
def test_a_document_older_than_the_one_that_was_sent(
    tmp_path: Path, before: int | str, other: int | str, now: int | str
) -> None:
    """It is sent again: after a restore others may have written so much that the collection itself is at a later
    operation."""
    stamp = Stamp(1, 1, b"digest")
    with contextlib.closing(SyncRecord(tmp_path / "record.db", "/docs")) as record:
        record.follow_settings("{}")
        for file in ("put back", "patched", "expired"):
            record.claim(file, file, b"digest")
            record.acknowledge(file, file, b"digest", 1 if file == "expired" else None)
            record.finish(file, stamp)
        record.note_collection(before, {"put back": now, "patched": now})
        record.follow_collection(other, {"put back": before, "patched": other})
        assert {file for file in ("put back", "patched", "expired") if record.stamp(file)} == {
            "patched",
            "expired",
        }


def test_a_sync_that_was_cut_off_before_a_restore(tmp_path: Path) -> None:
    """What it wrote is known, though not with which operation; what had expired is not sent again."""
    with contextlib.closing(SyncRecord(tmp_path / "record.db", "/docs")) as record:
        record.follow_settings("{}")
        record.note_collection(10, {})
        for file, expires_ms in (("newer", None), ("expired", 1)):
            record.claim(file, file, b"digest")
            record.acknowledge(file, file, b"digest", expires_ms)
            record.finish(file, Stamp(1, 1, b"digest"))
        record.reach(20)
        record.follow_collection(15, {"newer": 9})
        assert record.stamp("newer") is None
        assert record.stamp("expired") is not None


def test_an_expired_row_is_written_once(folder: Folder) -> None:
    """It is gone from the collection, and nothing changed in the folder."""
    put(folder.path, "old.csv", "id,text,until\no1,Gone.,2020-01-01\no2,Stays.,2999-01-01\n")
    options = "--expires-field", "until"
    assert folder.sync(*options)["documents"] == 8
    assert "o1" not in folder.ids()
    assert counts(folder.sync(*options)) == (0, 0, 0, 0)


def test_a_link_to_the_newest_of_several_folders(folder: Folder) -> None:
    """Ids begin with the name of the link, so its documents are the same ones whatever it leads to."""
    home = folder.path.parent
    put(home / "r1", "a.txt", "First release.")
    put(home / "r2", "a.txt", "Second release.")
    folder.path = home / "current"
    for release, text in (("r1", "First release."), ("r2", "Second release.")):
        folder.path.unlink(missing_ok=True)
        folder.path.symlink_to(release)
        assert folder.sync()["read"] == 1
        assert folder.texts() == {"current/a.txt": text}


def test_a_file_that_loses_its_ids_to_none(folder: Folder) -> None:
    """When the file whose document counted is deleted, another one that has the id is read again: nothing failed."""
    put(folder.path, "sub/a.csv", "id,text\nr1,First.\n")
    folder.sync()
    (folder.path / "sub/rows.csv").write_text("id,text\nr1,One.\n")
    folder.sync("--yes")
    (folder.path / "sub/a.csv").unlink()
    done = folder.sync("--yes")
    assert (done["files_unchanged"], done["deleted"], done["shared"]) == (4, 0, 1)
    assert folder.texts()["r1"] == "One."


def test_a_name_that_is_not_utf_8_fails_alone(folder: Folder) -> None:
    """The file is listed, and the others are written."""
    (folder.path / os.fsdecode(b"bad\xff.md")).write_text("x")
    folder.sync(code=1)
    assert folder.ids() == EVERYTHING


def test_two_folders_in_one_collection(folder: Folder, tmp_path: Path) -> None:
    """Neither deletes what the other wrote, nor an id that both have."""
    other = Folder(tmp_path / "more", folder.http)
    other.name, other.state = folder.name, folder.state
    put(other.path, "rows.csv", "id,text\nr1,Also one.\nx,Own.\ny,Own.\n")
    folder.sync()
    other.sync()
    assert folder.texts()["r1"] == "Also one."
    put(other.path, "rows.csv", "id,text\nx,Own.\ny,Own.\n")
    done = other.sync("--yes")
    assert (done["deleted"], done["shared"]) == (0, 1)
    assert folder.sync("--yes")["documents"] == 1
    assert folder.texts()["r1"] == "One."
    assert folder.ids() == sorted([*EVERYTHING, "x", "y"])


def test_folders_of_one_name_are_told_apart(folder: Folder) -> None:
    """Their files have the same ids; a note says that one takes the other's place."""
    folder.sync()
    twin = folder.path.parent / "elsewhere" / folder.path.name
    put(twin, "a.txt", "Apricots.")
    other = Folder.__new__(Folder)
    other.path, other.http, other.name, other.state = twin, folder.http, folder.name, folder.state
    notes = other.sync()["notes"]
    assert len(notes) == 1  # type: ignore[arg-type]
    assert str(folder.path) in str(notes)
    assert folder.texts()["a.txt"] == "Apricots."


@pytest.mark.slow
def test_ids_that_several_files_have(folder: Folder) -> None:
    """The first file's documents are written and stay; a note names the others. Each takes over once the one before
    lacks the id. Nothing is written twice."""
    put(folder.path, "sub/more.csv", "id,text\nr1,More one.\nr9,Nine.\n")
    put(
        folder.path, "sub/book.xlsx", xlsx(A=[["id", "text"], ["r9", "A."]], B=[["id", "text"], ["r9", "B."]])
    )
    done = folder.sync()
    assert (done["documents"], done["duplicates"]) == (7, 3)
    assert len(cast("list[str]", done["notes"])) == 3
    assert (folder.texts()["r1"], folder.texts()["r9"]) == ("More one.", "A.")
    assert counts(folder.sync()) == (0, 0, 0, 0)
    put(folder.path, "sub/rows.csv", "id,text\nr1,Other one.\nr2,Two.\nr3,Three!\n")
    done = folder.sync()
    assert (done["documents"], done["duplicates"]) == (1, 1)
    assert "sub/more.csv" in str(done["notes"])
    assert folder.texts()["r1"] == "More one."
    put(folder.path, "sub/more.csv", "id,text\nr9,Nine.\n")
    folder.sync("--yes")
    assert folder.texts()["r1"] == "Other one."
    (folder.path / "sub/book.xlsx").unlink()
    folder.sync("--yes")
    assert folder.texts()["r9"] == "Nine."
    assert counts(folder.sync()) == (0, 0, 0, 0)
    for run in range(2):
        ended = nearline(*folder.arguments("--json"))
        assert json.loads(ended.stdout)["documents"] == 0, run


def test_an_id_that_changes_in_both_of_its_files(folder: Folder) -> None:
    """The one that is written stays the one that counts, whichever file is read first."""
    put(folder.path, "n.csv", "id,text\nx,old\n")
    folder.sync()
    for number in range(2):
        put(folder.path, "m.csv", f"id,text\nx,other {number}\n")
        put(folder.path, "n.csv", f"id,text\nx,new {number}\n")
        done = folder.sync()
        assert (done["documents"], done["duplicates"]) == (1, 1)
        assert folder.texts()["x"] == f"new {number}"


def test_whatever_happens_in_a_folder_the_collection_equals_it(folder: Folder) -> None:
    """Files that share ids come, change and go: each id has a text that some file gives it now, and no other id is
    there. A sync without changes writes nothing."""
    draw = random.Random(3)
    shutil.rmtree(folder.path)
    files: dict[str, dict[str, str]] = {}
    for step in range(14):
        for _ in range(draw.randint(1, 3)):
            name = f"{draw.choice('abcd')}.csv"
            if name in files and draw.random() < 0.2 and len(files) > 1:
                del files[name]
                (folder.path / name).unlink()
                continue
            held = {id_: f"{id_} of {name} at {step}" for id_ in draw.sample("uvwxyz", draw.randint(1, 4))}
            kept = {id_: text for id_, text in files.get(name, {}).items() if draw.random() < 0.6}
            files[name] = held | kept
            put(folder.path, name, "id,text\n" + "".join(f"{i},{t}\n" for i, t in files[name].items()))
        folder.sync("--yes", "--force")
        texts = folder.texts()
        assert texts.keys() == {id_ for held in files.values() for id_ in held}
        assert all(any(held.get(id_) == text for held in files.values()) for id_, text in texts.items())
        if step % 4 == 0:
            assert counts(folder.sync()) == (0, 0, 0, 0)


def test_an_id_that_moves_to_another_file(folder: Folder) -> None:
    """It is written from there and not deleted."""
    folder.sync()
    put(folder.path, "a.csv", "id,text\nr1,One.\n")
    put(folder.path, "sub/rows.csv", "id,text\nr2,Two.\nr3,Three.\n")
    done = folder.sync("--yes")
    assert done["deleted"] == 0
    assert folder.ids() == EVERYTHING


def test_a_document_that_goes_while_it_is_synced(http: Http, tmp_path: Path) -> None:
    """It was written by the first reading of its file, and the second one, for an id that moved, no longer has it."""
    path, name = tmp_path / "moving", http.new_collection()
    put(path, "a.jsonl", '{"id": "y", "text": "why"}\n{"id": "a", "text": "aa"}\n')

    async def run(between: Callable[[IngestProgress], None]) -> None:
        with contextlib.closing(SyncRecord(tmp_path / "record.db", str(path))) as record:
            async with AsyncClient(http.url) as client:
                found = await client.collection(name)
                await sync(
                    client,
                    name,
                    path,
                    record,
                    options=SourceOptions(),
                    report=SourceReport(),
                    consent=lambda *_: True,
                    limits=found["limits"],
                    seq=found["seq"],
                    progress=between,
                )

    def lose(progress: IngestProgress) -> None:
        put(path, "b.jsonl", '{"id": "y", "text": "why"}\n')

    asyncio.run(run(lambda _: None))
    put(path, "a.jsonl", '{"id": "a", "text": "aa"}\n')
    put(path, "b.jsonl", '{"id": "y", "text": "why"}\n{"id": "x", "text": "secret"}\n')
    asyncio.run(run(lose))
    documents = http.ok("POST", f"/v1/collections/{name}/documents/scroll", {})["documents"]
    assert sorted(one["id"] for one in documents) == ["a", "y"]


def test_other_options_read_files_again(folder: Folder) -> None:
    """And send what they change; an exclusion makes a file one that is gone."""
    folder.sync()
    assert folder.sync("--title-field", "text", code=0)["files_changed"] == 4
    assert folder.sync("--title-field", "text", "--exclude", "a.txt", "--yes")["deleted"] == 1


def test_tenants_have_records_of_their_own(tmp_path: Path) -> None:
    """Their collections may have one name; and whoever syncs, by whatever name, finds the same record."""

    def record(name: str, tenant: str) -> Path:
        return record_path(tmp_path, "http://host/", cast(CollectionBody, {"name": name, "tenant": tenant}))

    assert record("docs", "acme") != record("docs", "beta")
    assert record("docs", "acme") == record("docs@acme", "acme")
    assert record("docs", "") not in (record("docs", "acme"), record("docs2", ""))


def test_one_sync_at_a_time(tmp_path: Path) -> None:
    """The record belongs to one process."""
    record = SyncRecord(tmp_path / "record.db", "/docs")
    code = (
        "import sys, pathlib, jobs.ingestion.sync_record as r; r.WAIT_MS_MAX = 50;"
        "r.SyncRecord(pathlib.Path(sys.argv[1]), '/docs')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "record.db")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "another sync into this collection is under way" in ended.stderr
    record.close()


def test_options_that_go_with_sync_alone(folder: Folder) -> None:
    """A usage error, before anything is written."""
    assert nearline(*folder.arguments("--yes")).returncode == 2
    assert nearline(*folder.arguments("--watch", "--dry-run")).returncode == 2


# -- killed


def rows(numbers: range) -> str:
    return "".join(json.dumps({"id": f"m{at}", "text": f"Row {at}. " * 30}) + "\n" for at in numbers)


def test_a_file_that_changes_while_it_is_read(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read is not what it held before or after, and the next run reads it again."""
    path = put(folder.path, "a.txt", "First.")

    async def once() -> None:
        async with AsyncClient(folder.http.url) as client:
            found = await client.collection(folder.name)
            state = record_path(folder.state, folder.http.url, found)
            with contextlib.closing(SyncRecord(state, str(folder.path))) as record:
                await sync(
                    client,
                    folder.name,
                    folder.path,
                    record,
                    options=SourceOptions(),
                    report=SourceReport(),
                    consent=lambda *_: False,
                    limits=found["limits"],
                )

    def read_another(files: Iterable[FoundFile], **options: Any) -> Iterator[SourceDocument]:
        """Read the file while it holds something else."""

        def given() -> Iterator[FoundFile]:
            for one in files:
                if one.path.name == path.name:
                    time.sleep(0.02)
                    path.write_text("Something else.")
                yield one
                if one.path.name == path.name:
                    time.sleep(0.02)
                    path.write_text("What it holds.")

        return read_files(given(), **options)

    asyncio.run(once())
    path.write_text("What it holds.")
    with monkeypatch.context() as changed:
        changed.setattr(syncing, "read_files", read_another)
        asyncio.run(once())
    assert "Something else." in folder.texts().values()
    asyncio.run(once())
    assert "What it holds." in folder.texts().values()
    assert "Something else." not in folder.texts().values()


@pytest.mark.slow
def test_killed_at_any_time(folder: Folder) -> None:
    """Killed again and again while the folder changes: in the end the collection is the folder, and no more."""
    for at in range(150):
        put(folder.path, f"many/{at}.txt", f"Number {at}. " * 30)
    put(folder.path, "many/a.docx", docx("Word", "By word."))
    put(folder.path, "many/b.pdf", pdf("A page."))
    put(folder.path, "many.jsonl", rows(range(300)))
    for killed in range(6):
        with started(*folder.arguments("--sync", "--yes")) as run:
            time.sleep(0.5 + 0.35 * killed)
            run.send_signal(signal.SIGKILL)
        (folder.path / "many" / f"{killed}.txt").unlink()
        put(folder.path, f"many/{killed + 50}.txt", f"Changed {killed}.")
        put(folder.path, "many.jsonl", rows(range(killed, 300)))
    folder.sync("--yes")
    texts = folder.texts()
    rest = {"many/a.docx", "many/b.pdf", *EVERYTHING}
    assert set(texts) == {
        *rest,
        *(f"many/{at}.txt" for at in range(6, 150)),
        *(f"m{at}" for at in range(5, 300)),
    }
    assert [texts[f"many/{at}.txt"] for at in (50, 55, 56)] == [
        "Changed 0.",
        "Changed 5.",
        "Number 56. " * 30,
    ]


# -- watching


def watched(folder: Folder, wanted: list[str], run: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while folder.ids() != wanted:
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline, folder.ids()
        time.sleep(0.1)


@pytest.mark.slow
def test_a_folder_is_followed(folder: Folder) -> None:
    """New, changed and deleted files are in the collection soon after, until SIGTERM."""
    with started(*folder.arguments("--watch", "--yes")) as run:
        watched(folder, EVERYTHING, run)
        put(folder.path, "new/d.txt", "Dates.")
        watched(folder, sorted([*EVERYTHING, "new/d.txt"]), run)
        (folder.path / "a.txt").unlink()
        watched(folder, sorted([*EVERYTHING[1:], "new/d.txt"]), run)
        run.terminate()
        assert run.wait(30) == 143


class Cuts(Doorway):
    """Breaks the connection at the first two requests to this path."""

    def __init__(self, target: str, path: str) -> None:
        super().__init__(target)
        self._path, self.left = path, 2

    async def _answer(self, request: web.Request) -> web.Response:
        if request.path.endswith(self._path) and self.left:
            self.left -= 1
            return self._cut(request)
        return await super()._answer(request)


def test_a_restart_before_the_first_write_is_waited_for(folder: Folder) -> None:
    """A sync waits when the service restarts after the collection was created and before a document was sent."""
    service = folder.http
    with Cuts(service.url, "/documents/scroll") as door:
        folder.http = Http(door.url)
        assert counts(folder.sync("--create")) == (4, 6, 0, 0)
        assert door.left == 0
    folder.http = service
    assert folder.ids() == EVERYTHING


@pytest.mark.slow
def test_watching_survives_the_service(folder: Folder, tmp_path: Path, model_folder: Path) -> None:
    """While it is away changes wait; when it is back they are written."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    first = ServerProcess(tmp_path / "data", environ)
    Http(first.url).ok("POST", "/v1/collections", {"name": folder.name})
    with Doorway(first.url) as door:
        folder.http = Http(door.url)
        with started(*folder.arguments("--watch")) as run:
            wait_for(Http(first.url), folder.name, 6, run)
            first.kill()
            put(folder.path, "late.txt", "Late.")
            time.sleep(4)
            with serving(tmp_path / "data", environ) as second:
                door.target = second.url
                wait_for(Http(second.url), folder.name, 7, run)
                folder.http = Http(second.url)
                watched(folder, sorted([*EVERYTHING, "late.txt"]), run)
                run.terminate()
                run.wait(30)
