"""Read errors that pass: one costs nothing, more quarantine a collection until its files read well again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from indexes.base.errors import Quarantined
from indexes.base.model import IndexOptions
from indexes.collection.collection import Collection
from indexes.directory.catalog import Catalog
from indexes.log.sqlite import close_idle_readers
from jobs.serving.process import serving
from tests.support.http import Http
from tests.support.inspection import consistent
from tests.support.vectors import settings
from tests.support.versions import document

PATIENCE_S = 30.0


class ReadErrors(apsw.VFS):
    """Reads of logs fail while there are `left`."""

    def __init__(self) -> None:
        self.left = 0
        super().__init__("read-errors", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return FailingFile(self, name, flags)


class FailingFile(apsw.VFSFile):
    def __init__(self, errors: ReadErrors, name: Any, flags: list[int]) -> None:
        self._errors = errors
        super().__init__("unix", name, flags)

    def excepthook(self, *error: object) -> bool:
        """SQLite keeps some errors to itself. apsw would print them."""
        return True

    def xLock(self, level: int) -> None:
        """The last reader to close cannot lock what it opened for reading; SQLite ignores it, apsw would raise it."""
        try:
            super().xLock(level)
        except apsw.IOError as error:
            raise apsw.BusyError from error

    def xRead(self, amount: int, offset: int) -> bytes:
        if self._errors.left > 0:
            self._errors.left -= 1
            raise apsw.exception_for(apsw.SQLITE_IOERR_READ)
        return super().xRead(amount, offset)


@pytest.fixture
def errors() -> Iterator[ReadErrors]:
    vfs = ReadErrors()
    yield vfs
    close_idle_readers()
    vfs.unregister()


@pytest.fixture
def data(tmp_path: Path, errors: ReadErrors) -> Path:
    with closing(Catalog(tmp_path / "data", IndexOptions())) as catalog:
        for name in ("docs", "other"):
            catalog.create(name, settings()).write([document(number, 1) for number in range(9)]).result()
    return tmp_path / "data"


def forget_what_was_read(collection: Collection) -> None:
    close_idle_readers()
    collection.on_writer(collection.log._disconnect)


def test_one_error_costs_nothing(data: Path, errors: ReadErrors) -> None:
    """Neither a read nor a write that meets it fails, and a write is there once."""
    with closing(Catalog(data, IndexOptions())) as catalog:
        docs = catalog.get("docs")
        for number in range(9):
            forget_what_was_read(docs)
            errors.left = 1
            assert docs.document(f"d{number}").metadata["version"] == 1
            errors.left = 0
            forget_what_was_read(docs)
            errors.left = 1
            assert docs.write([document(number, 2)]).result().seq == 10 + number
        assert not catalog.quarantined
        assert {version for version, _ in consistent(docs).values()} == {2}


def test_a_quarantine_ends_with_its_reason(data: Path, errors: ReadErrors) -> None:
    """Errors that last take one collection out of service, met by a read or by opening; then all of it is there."""
    with closing(Catalog(data, IndexOptions())) as catalog:
        docs, other = catalog.get("docs"), catalog.get("other")
        forget_what_was_read(docs)
        errors.left = 1000
        with pytest.raises(Quarantined):
            docs.document("d1")
        assert not catalog.retry("docs")
        errors.left = 0
        assert len(consistent(other)) == 9
        assert catalog.retry("docs")
        assert not catalog.quarantined
        catalog.get("docs").write([document(1, 2)]).result()
        assert consistent(catalog.get("docs"))[1] == (2, 10)
    errors.left = 1000
    with closing(Catalog(data, IndexOptions())) as catalog:
        assert list(catalog.quarantined) == ["docs", "other"]
        errors.left = 0
        assert catalog.retry("docs")
        assert list(catalog.quarantined) == ["other"]
        assert len(consistent(catalog.get("docs"))) == 9


def test_a_service_lifts_a_quarantine(tmp_path: Path, model_folder: Path) -> None:
    """Once the log is back the collection serves, by itself and at once on SIGHUP; one that stays damaged does not."""
    data, environ = tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with serving(data, environ) as server:
        http = Http(server.url)
        for name in ("gone", "damaged", "well"):
            http.ok("POST", "/v1/collections", {"name": name})
            http.write(name, {"id": "1", "text": "a document about rivers"})
    log = data / "gone" / "log.db"
    aside = log.rename(tmp_path / "aside")
    (data / "damaged" / "log.mark").unlink()
    with serving(data, environ) as server:
        http = Http(server.url)
        assert http.ok("GET", "/readyz")["quarantined"] == ["damaged", "gone"]
        reply = http.call("GET", "/v1/collections/gone")
        assert (reply.status, "log.db is gone" in reply.body["error"]["message"]) == (503, True)
        aside.rename(log)
        os.kill(server.pid, signal.SIGHUP)
        until = time.monotonic() + PATIENCE_S
        while http.ok("GET", "/readyz")["quarantined"] != ["damaged"]:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert http.found("gone", query="rivers") == ["1"]
