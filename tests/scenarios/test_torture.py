"""Kill -9 in a loop, during mixed writes, deletions and rebuilds, against an oracle of what was acknowledged.

The whole service over HTTP, with its model. `tests/faults/test_kills.py` does the same to the indexes alone, where a
kill costs a second. `make torture` runs it NEARLINE_TORTURE_KILLS times (50). A short form of two kills is part of
`make slow`.
"""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jobs.serving.process import ServerProcess
from tests.support.http import Http

COLLECTION = "torture"
WRITERS = 3
DOCUMENTS = 300  # a writer, so that ids are replaced and deleted again and again


@dataclass
class Oracle:
    """What one writer was promised: for each document the version that must be there, or that it must not.

    At most one operation of a writer is under way at a kill; it may have happened or not.
    """

    acknowledged: dict[str, int | None] = field(default_factory=dict)
    under_way: tuple[str, int | None] | None = None

    def allows(self, document_id: str, found: int | None) -> bool:
        return found == self.acknowledged.get(document_id) or self.under_way == (document_id, found)


def text(document_id: str, version: int) -> str:
    return f"{document_id} is in state v{version}v now"


def write_until_dead(http: Http, oracle: Oracle, writer: int, seed: int) -> None:
    rng = random.Random(seed)
    version = seed * 1_000_000
    while True:
        document_id = f"w{writer}-{rng.randrange(DOCUMENTS)}"
        version += 1
        deleting = rng.random() < 0.3
        oracle.under_way = (document_id, None if deleting else version)
        try:
            if deleting:
                http.ok("POST", f"/v1/collections/{COLLECTION}/documents/delete", {"ids": [document_id]})
            else:
                http.write(COLLECTION, {"id": document_id, "text": text(document_id, version)})
        except OSError:
            return
        oracle.acknowledged[document_id] = None if deleting else version
        oracle.under_way = None


def check(http: Http, oracles: list[Oracle]) -> None:
    """Every document is what its writer was promised, and search finds exactly those."""
    live = 0
    for writer, oracle in enumerate(oracles):
        for number in range(DOCUMENTS):
            document_id = f"w{writer}-{number}"
            reply = http.call("GET", f"/v1/collections/{COLLECTION}/documents/{document_id}")
            found = int(reply.body["text"].split()[4].strip("v")) if reply.status == 200 else None
            assert oracle.allows(document_id, found), (
                document_id,
                found,
                oracle.acknowledged.get(document_id),
            )
            oracle.acknowledged[document_id] = found
            live += found is not None
        oracle.under_way = None
    info = http.ok("GET", f"/v1/collections/{COLLECTION}")
    assert info["documents"] == live
    assert sum(info["passages"].values()) == live
    for writer, oracle in enumerate(oracles):
        for number in range(0, DOCUMENTS, 10):
            document_id = f"w{writer}-{number}"
            version = oracle.acknowledged.get(document_id)
            query = text(document_id, version or 1)
            hits = http.search(COLLECTION, query=query, k=50, cache=False)["hits"]
            states = {hit["text"] for hit in hits if hit["document_id"] == document_id}
            assert states == ({text(document_id, version)} if version else set())


def torture(folder: Path, model_folder: Path, kills: int) -> None:
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_INDEX_DELTA_PASSAGES_MAX": "64",
        "NEARLINE_INDEX_SEGMENTS_MAX": "0",
    }
    rng = random.Random(kills)
    oracles = [Oracle() for _ in range(WRITERS)]
    for kill in range(kills):
        server = ServerProcess(folder / "data", environ)
        http = Http(server.url)
        if kill == 0:
            http.ok("POST", "/v1/collections", {"name": COLLECTION, "hot_capacity": 100})
        check(http, oracles)
        threads = [
            threading.Thread(
                target=write_until_dead, args=(http, oracle, writer, kill * WRITERS + writer + 1)
            )
            for writer, oracle in enumerate(oracles)
        ]
        for thread in threads:
            thread.start()
        time.sleep(rng.uniform(0.2, 1.0))
        http.call("POST", f"/v1/collections/{COLLECTION}/reindex", {})
        time.sleep(rng.uniform(0.0, 2.5))
        server.kill()
        for thread in threads:
            thread.join()
    server = ServerProcess(folder / "data", environ)
    check(Http(server.url), oracles)
    assert server.stop() == 0


@pytest.mark.slow
def test_two_kills(tmp_path: Path, model_folder: Path) -> None:
    """After each kill everything acknowledged is there, nothing deleted is back, nothing is there twice."""
    torture(tmp_path, model_folder, 2)


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_many_kills(tmp_path: Path, model_folder: Path) -> None:
    """The same, for as long as it takes to hit every moment of a rebuild."""
    torture(tmp_path, model_folder, int(os.environ.get("NEARLINE_TORTURE_KILLS", "50")))
