"""A damaged write-ahead log: what it lost is reported, and what a power cut leaves is not taken for damage."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from indexes.base.errors import Quarantined
from indexes.base.model import IndexOptions
from indexes.directory.backup.verifying import verify_data
from indexes.directory.catalog import Catalog
from indexes.log.wal import HEADER, lost_commits
from jobs.serving.process import ServerProcess, serving
from tests.support.http import Http
from tests.support.vectors import World, settings

WORLD = World()
COMMITS = 30
FRAME = 24 + 4096


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory as a kill leaves it: the commits are in the WAL, and behind them frames from before a reset."""
    folder = tmp_path_factory.mktemp("killed")
    catalog = Catalog(folder / "data", IndexOptions())
    docs = catalog.create("docs", settings())
    docs.write([WORLD.document(1000 + number) for number in range(8000)]).result()
    docs.log._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    for number in range(COMMITS):
        docs.write([WORLD.document(number)]).result()
    docs.settle()
    shutil.copytree(catalog.folder, folder / "copy")
    catalog.close()
    return folder / "copy"


def wal_of(data: Path) -> Path:
    return data / "docs" / "log.db-wal"


def lost(killed: Path, folder: Path, wal: bytes) -> int:
    """Commits that are reported lost with this WAL in place of the whole one."""
    shutil.copytree(killed, folder / "data", dirs_exist_ok=True)
    wal_of(folder / "data").write_bytes(wal)
    return lost_commits(folder / "data" / "docs" / "log.db")


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


def live_frames(wal: bytes) -> list[int]:
    """Offsets of the frames since the last reset."""
    offsets = range(HEADER.size, len(wal) - FRAME + 1, FRAME)
    return [at for at in offsets if wal[at + 8 : at + 16] == wal[16:24]]


def commits(wal: bytes) -> list[int]:
    """Offsets of the frames that end a commit."""
    return [at for at in live_frames(wal) if any(wal[at + 4 : at + 8])]


@pytest.mark.slow
def test_a_flipped_bit_is_found_wherever_it_is(killed: Path, tmp_path: Path) -> None:
    """In the header, or in any part of a frame that is not of the last commit: what follows is counted as lost."""
    wal = wal_of(killed).read_bytes()
    ends = commits(wal)
    assert len(ends) >= COMMITS
    assert len(live_frames(wal)) * FRAME < len(wal) - FRAME  # the rest is older
    assert lost(killed, tmp_path, wal) == 0
    for at in range(0, HEADER.size, 3):
        assert lost(killed, tmp_path, flipped(wal, at)) >= COMMITS - 3, at
    parts = (0, 4, 8, 12, 16, 20, 24, 24 + 4095)
    for frame in (live_frames(wal)[0], ends[0], ends[COMMITS // 2], ends[COMMITS // 2] + FRAME):
        behind = sum(end > frame for end in ends)
        for part in parts:
            assert behind - 3 <= lost(killed, tmp_path, flipped(wal, frame + part)) < behind, (frame, part)


def test_what_a_power_cut_leaves_is_not_reported(killed: Path, tmp_path: Path) -> None:
    """Any part of the last commit may be there, be torn or be missing, whatever is behind it."""
    wal, rng = wal_of(killed).read_bytes(), random.Random(1)
    ends = commits(wal)
    last = range(ends[-2] + FRAME, ends[-1] + FRAME)
    for _ in range(30):
        at = rng.choice(last)
        torn = rng.choice(
            (flipped(wal, at), wal[:at], wal[:at] + bytes(len(last)), wal[:at] + rng.randbytes(FRAME))
        )
        assert lost(killed, tmp_path, torn) == 0, at


def test_such_a_collection_is_quarantined_as_it_is(killed: Path, tmp_path: Path) -> None:
    """It is not served without what it lost, its files stay as they were found, and verifying sees it too."""
    shutil.copytree(killed, data := tmp_path / "data")
    wal = wal_of(data)
    wal.write_bytes(damaged := flipped(wal.read_bytes(), live_frames(wal.read_bytes())[1] + 100))
    catalog = Catalog(data, IndexOptions())
    with pytest.raises(Quarantined, match=r"docs/log\.db-wal is damaged: at least \d+ acknowledged commits"):
        catalog.get("docs")
    catalog.close()
    wrong = [check for check in verify_data(data, (), lambda *_: None) if not check.ok]
    assert any("acknowledged commits" in check.detail for check in wrong)
    assert wal.read_bytes() == damaged


def test_the_service_says_so(tmp_path: Path, model_folder: Path) -> None:
    """After a kill and a flipped bit a service starts, names the collection, and loses nothing silently."""
    data, environ = tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    server = ServerProcess(data, environ)
    http = Http(server.url)
    for name in ("docs", "other"):
        http.ok("POST", "/v1/collections", {"name": name})
        for number in range(20):
            http.write(name, {"id": str(number), "text": f"document {number}"})
    server.kill()
    wal_of(data).write_bytes(flipped(wal_of(data).read_bytes(), HEADER.size + 500))
    with serving(data, environ) as again:
        http = Http(again.url)
        assert http.ok("GET", "/readyz") == {"status": "ready", "quarantined": ["docs"]}
        reply = http.call("GET", "/v1/collections/docs/documents/1")
        assert (reply.status, reply.body["error"]["type"]) == (503, "quarantined")
        assert http.ok("POST", "/v1/collections/other/documents/count")["documents"] == 20
    command = [sys.executable, "-m", "jobs.cli", "verify", "--data", str(data), "--json"]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    assert verified.returncode == 1
    wrong = [one for one in json.loads(verified.stdout)["checks"] if not one["ok"]]
    assert {one["collection"] for one in wrong} == {"docs"}
