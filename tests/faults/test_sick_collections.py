"""One sick collection is quarantined; the others serve, and the process stays."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from indexes.base import failures
from indexes.base.durable import FolderLock
from indexes.base.errors import Quarantined
from indexes.log.log import Log
from jobs.serving.process import log_of, serving
from nearline import JSON, AsyncClient, ServiceError, bulk_patience
from tests.support.commands import nearline
from tests.support.http import Http
from tests.support.vectors import World, make_collection

WORLD = World()


def zero_a_page(log: Path, table: str) -> None:
    """The root page of a table that opening does not read and every write does."""
    db = apsw.Connection(str(log))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    number = int(db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get)
    size = int(db.execute("PRAGMA page_size").get)
    db.close()
    with log.open("r+b") as file:
        file.seek((number - 1) * size)
        file.write(bytes(size))


@pytest.mark.slow
def test_a_damaged_log_does_not_end_the_service(tmp_path: Path, model_folder: Path) -> None:
    """A broken header does not stop the start, and a zeroed page met by a write, and by its retry, ends nothing."""
    data, environ = tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    document = {"id": "one", "text": "a document about rivers"}
    with serving(data, environ) as server:
        http = Http(server.url)
        for name in ("good", "headless", "zeroed"):
            http.ok("POST", "/v1/collections", {"name": name})
            http.write(name, document)
    zero_a_page(data / "zeroed" / "log.db", "operations")
    with (data / "headless" / "log.db").open("r+b") as file:
        file.write(bytes(100))

    with serving(data, environ) as server:
        http = Http(server.url)
        assert http.ok("GET", "/readyz") == {"status": "ready", "quarantined": ["headless"]}
        for _ in range(2):
            reply = http.call(
                "POST", "/v1/collections/zeroed/documents", {"documents": [document | {"id": "two"}]}
            )
            assert (reply.status, reply.body["error"]["type"]) == (503, "quarantined")
            assert "damaged" in reply.body["error"]["message"]
            assert str(tmp_path) not in reply.body["error"]["message"]
        http.write("good", document | {"id": "two"})
        assert http.found("good", query="rivers", k=1)
        assert http.call("POST", "/v1/collections/zeroed/search", {"query": "rivers"}).status == 503

        assert http.ok("GET", "/readyz")["quarantined"] == ["headless", "zeroed"]
        listing = http.ok("GET", "/v1/collections")
        assert [one["name"] for one in listing["collections"]] == ["good"]
        assert {one["name"]: "damaged" in one["reason"] for one in listing["quarantined"]} == {
            "headless": True,
            "zeroed": True,
        }
        assert http.metric("nearline_collections_quarantined") == 2
        with pytest.raises(ServiceError, match="damaged"):
            asyncio.run(write_patiently(server.url, "zeroed", [document]))
        listed = nearline("collections", "list", "--url", server.url)
        assert "headless is quarantined" in listed.stderr
        erased = nearline("erase", "--all", "--url", server.url)
        assert erased.returncode == 1
        assert "headless is quarantined, nothing of it was erased" in " ".join(erased.stderr.split())
        deleted = nearline("collections", "delete", "headless", "--yes", "--json", "--url", server.url)
        assert json.loads(deleted.stdout) == {"deleted": "headless", "documents": None}
        assert http.call("DELETE", "/v1/collections/zeroed").status == 204
        http.ok("POST", "/v1/collections", {"name": "zeroed"})
        assert http.ok("GET", "/readyz") == {"status": "ready", "quarantined": []}
        assert server.stop() == 0
    said = [line for line in log_of(data).read_text().splitlines() if "is quarantined" in line]
    assert len([line for line in said if "search-process" not in line]) == 2
    assert len(said) <= 4, "a process says it more than once"


def test_damage_met_by_a_read_is_remembered(tmp_path: Path) -> None:
    """From then on nothing is read or written, it is taken for no failed sync, and closing leaves the file as it is."""
    collection = make_collection(tmp_path / "c")
    collection.write([WORLD.document(number) for number in range(300)]).result()
    collection.close()
    path = tmp_path / "c" / "log.db"
    zero_a_page(path, "documents")
    damaged = path.read_bytes()
    lock, log = FolderLock(tmp_path / "LOCK"), Log(path)
    assert log.position().seq == 300
    for use in (lambda: log.document("d1"), log.position, lambda: log.commit([[WORLD.document(1)]])):
        with pytest.raises(Quarantined, match=r"c/log\.db is damaged"):
            use()
    log.close()
    failures.require_none()
    lock.close()
    assert path.read_bytes() == damaged


async def write_patiently(url: str, collection: str, documents: list[JSON]) -> None:
    """As ingest does: it waits for a busy service, but not for a collection that only an operator can mend."""
    async with AsyncClient(url) as client:
        await client.write(collection, documents, patience=bulk_patience())


def truncate(path: Path) -> None:
    os.truncate(path, 4096)


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").rename(path)


HARM: dict[str, Callable[[Path], object]] = {
    "log.db removed": lambda folder: (folder / "log.db").unlink(),
    "log.db truncated": lambda folder: truncate(folder / "log.db"),
    "log.db replaced": lambda folder: replace(folder / "log.db"),
    "log.db-wal removed": lambda folder: (folder / "log.db-wal").unlink(),
    "folder removed": shutil.rmtree,
    "folder moved": lambda folder: folder.rename(folder.parent.with_name("moved")),
}


def test_nothing_is_acknowledged_into_files_that_are_gone(tmp_path: Path, model_folder: Path) -> None:
    """Files of an open log that are removed, cut or replaced: the next write is refused, the collection is quarantined,
    and the others serve, also after the quiet time in which logs are checkpointed."""
    data, environ = tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    names = {harm: f"sick{number}" for number, harm in enumerate(HARM)}
    with serving(data, environ) as server:
        http = Http(server.url)
        for name in (*names.values(), "well"):
            http.ok("POST", "/v1/collections", {"name": name, "dimensions": 3})
        for harm, name in names.items():
            written = [{"id": f"d{at}", "text": "words " * 100, "vector": [1, 0, at]} for at in range(200)]
            http.write(name, *written)
            HARM[harm](data / name)
            reply = http.call("POST", f"/v1/collections/{name}/documents", {"documents": written[:1]})
            assert (reply.status, reply.body["error"]["type"]) == (503, "quarantined"), (harm, reply)
        assert http.ok("GET", "/readyz")["quarantined"] == sorted(names.values())
        http.write("well", {"id": "one", "text": "a document", "vector": [1, 0, 0]})
        time.sleep(1.0)
        assert http.ok("GET", "/readyz")["status"] == "ready"
        http.write("well", {"id": "two", "text": "a document", "vector": [1, 0, 0]})
    assert "CRITICAL" not in log_of(data).read_text()
    checked = nearline("verify", "--data", data)
    assert checked.returncode == 1
    assert "sick0" in checked.stdout + checked.stderr
    with serving(data, environ) as server:
        http = Http(server.url)
        assert http.ok("POST", "/v1/collections/well/documents/count", {})["documents"] == 2
        sick = set(http.ok("GET", "/readyz")["quarantined"])
        assert {names["log.db removed"], names["log.db truncated"]} <= sick
