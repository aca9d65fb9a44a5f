"""One sick collection is quarantined; the others serve, and the process stays."""

from __future__ import annotations

from pathlib import Path

import apsw

from jobs.server_process import log_of, serving
from tests.support.http import Http


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
        for name in ("headless", "zeroed"):
            assert http.call("DELETE", f"/v1/collections/{name}").status == 204
        http.ok("POST", "/v1/collections", {"name": "zeroed"})
        assert http.ok("GET", "/readyz") == {"status": "ready", "quarantined": []}
        assert server.stop() == 0
    assert log_of(data).read_text().count("is quarantined") == 2
