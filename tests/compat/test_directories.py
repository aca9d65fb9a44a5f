"""Data directories of released versions open and serve without loss.

Each fixture was written by the version that it is of (`make_directory`). One is added when a format is raised; none is
ever replaced or removed, because that is what users have on their disks.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

import apsw
import msgspec
import numpy as np
import pytest

from indexes.base.errors import NotFound
from indexes.base.model import Delete, IndexOptions
from indexes.collection.collection import Collection
from indexes.directory.backup.backup import back_up
from indexes.directory.backup.restoring import restore
from indexes.directory.backup.verifying import verify_data
from indexes.directory.catalog import Catalog
from indexes.filters.grammar import parse_filter
from jobs.serving.process import serving
from retrieval.upkeep.line_file import read_lines
from retrieval.upkeep.query_log import FILE
from tests.compat.make_directory import (
    FOLDER,
    TUNING,
    CollectionExpected,
    Expected,
    as_expected,
    document,
    present_formats,
    rebuild,
)
from tests.support.commands import nearline
from tests.support.http import Http
from tests.support.vectors import found_ids

FIXTURES = sorted(
    FOLDER.glob("directory-*.tar.gz"), key=lambda path: int(path.name.split("-")[1].split(".")[0])
)


def unpacked(fixture: Path, folder: Path) -> tuple[Path, Expected]:
    with tarfile.open(fixture) as archive:
        archive.extractall(folder, filter="data")
    return folder / "data", msgspec.json.decode((folder / "expected.json").read_bytes(), type=Expected)


@pytest.fixture(params=FIXTURES, ids=lambda path: path.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Expected]:
    return unpacked(request.param, tmp_path)


@pytest.fixture
def newest(tmp_path: Path) -> tuple[Path, Expected]:
    return unpacked(FIXTURES[-1], tmp_path)


def quiet(stage: str, done: int, total: int) -> None:
    pass


def test_the_present_formats_have_a_fixture(newest: tuple[Path, Expected]) -> None:
    """Of every format that this version writes there is a directory that users of it have."""
    assert newest[1].formats == present_formats(), (
        "A format was raised: run `python -m tests.compat.make_directory` and commit the file that it adds. "
        "Leave the other fixtures as they are; if they fail, old directories need a migration."
    )


def test_all_of_it_is_found(kept: tuple[Path, Expected]) -> None:
    """Documents, vectors, deletions, counts, aliases and settings are those that were written; nothing is lost."""
    data, expected = kept
    catalog = Catalog(data, TUNING)
    assert catalog.quarantined == {}
    assert catalog.aliases == expected.aliases
    assert catalog.collections.keys() == expected.collections.keys()
    for name, wanted in expected.collections.items():
        collection = catalog.get(name)
        assert (collection.uid, collection.snapshot.seq) == (wanted.uid, wanted.seq)
        assert collection.recall_target == wanted.recall_target
        live = collection.snapshot.generation
        if live == wanted.generation:
            assert collection.info().passages == wanted.passages
        else:
            assert "could not be used" in (collection.wants_rebuild() or "")
        as_written(collection, wanted)
    header, queries = read_lines(data / "docs" / FILE)
    assert (header.uid, len(queries)) == (catalog.get("docs").uid, 1)
    catalog.close()


def as_written(collection: Collection, wanted: CollectionExpected) -> None:
    """Read back, and found by every kind of search."""
    assert collection.info().documents == len(wanted.documents)
    for name, one in wanted.documents.items():
        stored = collection.log.upsert_of(name)
        assert stored is not None
        assert as_expected(stored) == one
        assert stored.language == wanted.languages.get(name, stored.language) != ""
    for name in wanted.deleted:
        with pytest.raises(NotFound):
            collection.document(name)
    for name, vector in wanted.vectors.items():
        assert found_ids(collection, np.array(vector, np.float32), 1) == [name]
    for word, name in wanted.words.items():
        found = collection.snapshot.lexical(word, 10).ids.tolist()
        assert {one.document_id for one in collection.passages(found).values()} == {name}
    topic = parse_filter({"type": "eq", "key": "topic", "value": "t3"}, conditions_max=1)
    matching = collection.log.documents_of(collection.snapshot.matching(topic).tolist())
    assert set(matching) == {
        name for name, one in wanted.documents.items() if one.metadata.get("topic") == "t3"
    }


def test_it_is_written_rebuilt_verified_and_backed_up(kept: tuple[Path, Expected], tmp_path: Path) -> None:
    """After new writes and a rebuild it is whole, and so is a copy restored from its backup."""
    data, expected = kept
    catalog = Catalog(data, TUNING)
    for name, wanted in expected.collections.items():
        collection = catalog.get(name)
        gone = next(iter(wanted.documents), None)
        collection.write([document(200, passages=2), *([Delete(gone)] if gone else [])]).result()
        rebuild(collection)
        assert collection.wants_rebuild() is None
        if gone:
            forget(wanted, gone)
        remember(wanted, collection, "d200")
        as_written(collection, wanted)
    catalog.close()
    assert [check for check in verify_data(data, [], quiet) if not check.ok] == []
    back_up(data, tmp_path / "copy", progress=quiet)
    restore(tmp_path / "copy", tmp_path / "restored", progress=quiet)
    catalog = Catalog(tmp_path / "restored", TUNING)
    assert catalog.aliases == expected.aliases
    for name, wanted in expected.collections.items():
        as_written(catalog.get(name), wanted)
    catalog.close()


def forget(wanted: CollectionExpected, name: str) -> None:
    del wanted.words[wanted.documents.pop(name).title]
    wanted.vectors.pop(name, None)
    wanted.languages.pop(name, None)
    wanted.deleted.append(name)


def remember(wanted: CollectionExpected, collection: Collection, name: str) -> None:
    stored = collection.log.upsert_of(name)
    assert stored is not None
    wanted.documents[name] = as_expected(stored)
    wanted.words[stored.title] = name


def test_a_service_rebuilds_it_unasked(
    kept: tuple[Path, Expected], model_folder: Path, tmp_path: Path
) -> None:
    """Where a generation is of no use any more, an idle service makes one that is; where all are, it makes none."""
    data, expected = kept
    with serving(data, {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}) as server:
        http = Http(server.url)
        deadline = time.monotonic() + 120
        while any(one["rebuild_due"] for one in http.ok("GET", "/v1/collections")["collections"]):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert http.ok("GET", "/readyz") == {"status": "ready", "quarantined": []}
        for name, wanted in expected.collections.items():
            shown = http.ok("GET", f"/v1/collections/{name}")
            assert shown["documents"] == len(wanted.documents)
            assert bool(shown["generation"]) == bool(wanted.generation)
            for word, document_id in list(wanted.words.items())[:3]:
                assert set(http.found(name, query=word, mode="lexical")) == {document_id}


# --- a directory from the future ------------------------------------------------------------------------------


def raise_marker(data: Path) -> None:
    """With another shape too: the number has to be read before all else."""
    fields = {"format": 2, "aliases": ["another shape"]}
    digest = hashlib.sha256(msgspec.json.encode(fields)).hexdigest()
    (data / "nearline.json").write_bytes(msgspec.json.encode({**fields, "sha256": digest}))


def raise_log(data: Path) -> None:
    Catalog(data, IndexOptions()).close()  # adds what the newer version has too
    db = apsw.Connection(str(data / "notes" / "log.db"))
    db.execute("UPDATE meta SET value = '5' WHERE key = 'format'")
    db.close()


@pytest.mark.parametrize(
    ("make_newer", "reason"),
    [
        (raise_marker, "it has format 2, this version reads 1"),
        (raise_log, "it has log format 5, this version reads 1"),
    ],
)
def test_a_newer_directory_is_refused_and_left_alone(
    newest: tuple[Path, Expected], make_newer: object, reason: str
) -> None:
    """The service does not start, says both formats in one line, and what is newer stays as it was."""
    data, _ = newest
    assert callable(make_newer)
    make_newer(data)
    before = contents(data)
    ended = nearline("serve", "--data", str(data), "--port", "0")
    assert ended.returncode == 1
    [line] = [one for one in ended.stderr.splitlines() if "newer version" in one]
    assert "a newer version of nearline wrote " in line
    assert reason in line
    assert "Traceback" not in ended.stderr
    assert contents(data) == before


def contents(data: Path) -> Mapping[str, bytes]:
    """All generations and the newer log, without hints and SQLite's empty side files. Logs that were opened before it
    may have been brought to the present format."""
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in data.rglob("*")
        if path.is_file()
        and path.name not in ("LOCK", "hits.msgpack", "log.db-wal", "log.db-shm")
        and (path.name != "log.db" or path.parent.name == "notes")
    }


def test_a_newer_generation_is_rebuilt(newest: tuple[Path, Expected]) -> None:
    """Indexes can be made again from the log, so they keep nobody from going back: the reason names both formats."""
    data, expected = newest
    manifest = data / "docs" / "generations" / "000002" / "manifest.json"
    manifest.write_text(json.dumps({"format": 99, "another": "shape"}))
    shutil.rmtree(data / "docs" / "generations" / "000001")
    catalog = Catalog(data, TUNING)
    docs = catalog.get("docs")
    assert "format 99; this version reads" in (docs.wants_rebuild() or "")
    as_written(docs, expected.collections["docs"])
    rebuild(docs)
    as_written(docs, expected.collections["docs"])
    catalog.close()
