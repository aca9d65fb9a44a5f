"""Backup, restore and verify from the command line, beside a real service under load."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jobs.serving.process import ServerProcess, serving
from tests.support.commands import nearline
from tests.support.http import Http

ROOT = Path(__file__).parents[2]
WRITERS, DOCUMENTS = 3, 150


def as_json(ended: subprocess.CompletedProcess[str]) -> Any:
    assert ended.returncode == 0, ended.stderr + ended.stdout
    return json.loads(ended.stdout)


def environ(model_folder: Path) -> dict[str, str]:
    return {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_INDEX_DELTA_PASSAGES_MAX": "64",
        "NEARLINE_INDEX_SEGMENTS_MAX": "0",
    }


@dataclass
class Oracle:
    """Every acknowledged operation by its seq: the document, and its new text or None where it was deleted."""

    operations: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)

    def write(self, url: str, writer: int) -> None:
        """Replace and delete this writer's documents, one an operation, until told to stop."""
        http, rng, version = Http(url), random.Random(writer), 0
        try:
            while not self.stop.is_set():
                version += 1
                document_id = f"w{writer}-{rng.randrange(DOCUMENTS)}"
                text = (
                    None
                    if rng.random() < 0.3
                    else f"{document_id} is in state v{version}v of writer {writer}"
                )
                if text is None:
                    path = "/v1/collections/docs/documents/delete"
                    answer = http.ok("POST", path, {"ids": [document_id]})
                else:
                    answer = http.write(
                        "docs", {"id": document_id, "text": text, "metadata": {"writer": writer}}
                    )
                if text is not None or answer["deleted"]:  # deleting what is not there is no operation
                    self.operations[answer["seq"]] = (document_id, text)
        except BaseException as error:
            self.failures.append(error)
            raise

    def state(self, seq: int) -> dict[str, tuple[int, str]]:
        """What is there after operation `seq`, and nothing else: id to seq and text."""
        documents: dict[str, tuple[int, str]] = {}
        for at in range(1, seq + 1):
            document_id, text = self.operations[at]
            documents.pop(document_id, None)
            if text is not None:
                documents[document_id] = (at, text)
        return documents


def everything(http: Http, name: str) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    wanted: dict[str, Any] = {"limit": 100}
    while True:
        page = http.ok("POST", f"/v1/collections/{name}/documents/scroll", wanted)
        for one in page["documents"]:
            assert one["id"] not in found
            found[one["id"]] = (one["seq"], one["text"])
        if page["cursor"] is None:
            return found
        wanted["cursor"] = page["cursor"]


@pytest.mark.slow
def test_a_backup_under_load_restores_to_exactly_its_seq(tmp_path: Path, model_folder: Path) -> None:
    """With writers and rebuilds running, each backup is the state after its seq, whole, and searchable."""
    oracle, backups = Oracle(), []
    with serving(tmp_path / "data", environ(model_folder)) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs", "hot_capacity": 50})
        http.ok("PUT", "/v1/aliases/live", {"collection": "docs"})
        writers = [
            threading.Thread(target=oracle.write, args=(server.url, writer)) for writer in range(WRITERS)
        ]
        for writer in writers:
            writer.start()
        try:
            for number in range(3):
                reached = len(oracle.operations)
                while (
                    len(oracle.operations) < reached + 100
                    or http.ok("GET", "/v1/collections/docs")["generation"] < number
                ):
                    assert not oracle.failures
                    time.sleep(0.01)
                # 409: the deletions have started one already.
                assert http.call("POST", "/v1/collections/docs/reindex", {}).status in (202, 409)
                target = tmp_path / f"backup-{number}"
                made = as_json(nearline("backup", "--data", tmp_path / "data", "--to", target, "--json"))
                backups.append((target, made["collections"][0]))
            beside = as_json(nearline("verify", "--data", tmp_path / "data", "--json"))
        finally:
            oracle.stop.set()
            for writer in writers:
                writer.join()
    assert not oracle.failures
    assert beside["ok"], [check for check in beside["checks"] if not check["ok"]]
    assert sorted(oracle.operations) == list(range(1, len(oracle.operations) + 1))
    assert len({described["seq"] for _, described in backups}) == 3
    assert backups[-1][1]["generation"] > 0

    for number, (target, described) in enumerate(backups):
        assert as_json(nearline("verify", "--backup", target, "--json"))["ok"]
        for command in ("verify", "serve"):
            mistaken = nearline(command, "--data", target)
            assert (mistaken.returncode, "is a backup" in mistaken.stderr) == (2, True)
        restored = as_json(
            nearline(
                "restore",
                "--from",
                target,
                "--data",
                tmp_path / "restored",
                "--as",
                f"docs-{number}",
                "--json",
            )
        )
        assert restored["collections"][0]["seq"] == described["seq"]
    with serving(tmp_path / "restored", environ(model_folder)) as server:
        http = Http(server.url)
        for number, (_, described) in enumerate(backups):
            name, expected = f"docs-{number}", oracle.state(described["seq"])
            assert everything(http, name) == expected
            info = http.ok("GET", f"/v1/collections/{name}")
            assert (info["seq"], info["documents"], info["generation"]) == (
                described["seq"],
                len(expected),
                described["generation"],
            )
            assert sum(info["passages"].values()) == len(expected)
            live = random.Random(number).sample(sorted(expected), 10)
            for document_id in live:
                hits = http.search(name, query=expected[document_id][1], k=20, cache=False)["hits"]
                assert [hit["text"] for hit in hits if hit["document_id"] == document_id] == [
                    expected[document_id][1]
                ]
                assert all(expected[hit["document_id"]][1] == hit["text"] for hit in hits)
    assert as_json(nearline("verify", "--data", tmp_path / "restored", "--json"))["ok"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A data directory that nobody serves, with one small collection, rebuilt, and an alias."""
    data = tmp_path_factory.mktemp("stopped") / "data"
    with serving(data, environ(model_folder)) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        http.write("docs", *({"id": f"n{n}", "text": f"Number {n} squared is {n * n}."} for n in range(60)))
        assert http.reindex("docs")["status"] == "succeeded"
        http.ok("PUT", "/v1/aliases/live", {"collection": "docs"})
    return data


@pytest.mark.slow
def test_what_the_commands_say(stopped: Path, tmp_path: Path) -> None:
    """One line a collection; a table of checks; an alias comes back with what it names."""
    ended = nearline("backup", "--data", stopped, "--to", tmp_path / "backup")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("docs: 60 documents, 60 passages at seq 60, generation 1, ")
    ended = nearline("restore", "--from", tmp_path / "backup", "--data", tmp_path / "restored")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "docs: 60 documents at seq 60, generation 1 is live, named live too\n"
    ended = nearline("verify", "--data", tmp_path / "restored")
    assert ended.returncode == 0, ended.stdout
    assert "generation 1" in ended.stdout
    assert "wrong" not in ended.stdout
    damaged = tmp_path / "restored" / "docs" / "generations" / "000001" / "hot.hnsw"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    ended = nearline("verify", "--data", tmp_path / "restored", "-c", "live")
    assert ended.returncode == 1
    assert "wrong" in ended.stdout
    assert f"delete {damaged.parent}" in " ".join(ended.stdout.split())


@pytest.mark.slow
def test_trouble_is_one_clear_line(stopped: Path, tmp_path: Path, model_folder: Path) -> None:
    """Exit code 1, one line, no traceback; a wrong call is exit code 2."""
    assert nearline("backup", "--data", stopped, "--to", tmp_path / "backup").returncode == 0
    (stopped / "empty.store").mkdir()
    empty = (stopped / "empty.store").as_uri()
    for arguments, message in [
        (["backup", "--data", stopped, "--to", tmp_path / "backup"], "exists already"),
        (["backup", "--data", stopped, "--to", stopped / "docs" / "x"], "inside the data directory"),
        (["backup", "--data", stopped, "--to", tmp_path / "x", "-c", "nobody"], "no collection 'nobody'"),
        (["backup", "--data", tmp_path, "--to", tmp_path / "x"], "not a nearline data directory"),
        (["restore", "--from", tmp_path, "--data", tmp_path / "new"], "holds no backup"),
        (["restore", "--from", tmp_path / "backup", "--data", stopped], "'docs' is taken"),
        (["restore", "--from", empty, "--data", tmp_path / "new"], "no service has written to this store"),
        (["restore", "--from", empty, "--data", tmp_path / "new", "--at", "7"], "no service has written"),
        (["verify", "--data", tmp_path], "not a nearline data directory"),
        (["accept", "--data", tmp_path, "-c", "docs", "--yes"], "not a nearline data directory"),
        (["accept", "--data", tmp_path / "none", "-c", "docs"], "not a nearline data directory"),
    ]:
        ended = nearline(*arguments)
        assert (ended.returncode, len(ended.stderr.strip().splitlines())) == (1, 1), ended.stderr
        assert message in ended.stderr
    with serving(stopped, environ(model_folder)):
        ended = nearline("restore", "--from", tmp_path / "backup", "--data", stopped, "--as", "again")
        assert (ended.returncode, "in use by another nearline process" in ended.stderr) == (1, True)
    assert nearline("verify").returncode == 2
    assert nearline("backup", "--data", stopped).returncode == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup"]


def test_sigterm_takes_the_draft_away(tmp_path: Path, stopped: Path) -> None:
    """A backup that is told to end leaves neither the folder nor a draft."""
    code = (
        "import sys, time; from indexes.directory.backup import backup; real = backup.seal\n"
        "def slow(*arguments):\n    print('sealing', flush=True); time.sleep(60); return real(*arguments)\n"
        "backup.seal = slow; from jobs.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "backup", "--data", str(stopped), "--to", str(tmp_path / "backup")]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "sealing\n"
    assert (tmp_path / ".backup.draft").exists()
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_service_killed_under_load_can_be_backed_up(tmp_path: Path, model_folder: Path) -> None:
    """What a kill -9 leaves behind, write-ahead log and all, is backed up with everything acknowledged."""
    server = ServerProcess(tmp_path / "data", environ(model_folder))
    http = Http(server.url)
    http.ok("POST", "/v1/collections", {"name": "docs"})
    for number in range(30):
        http.write("docs", {"id": f"n{number}", "text": f"text {number}"})
    server.kill()
    made = as_json(nearline("backup", "--data", tmp_path / "data", "--to", tmp_path / "backup", "--json"))
    assert (made["collections"][0]["seq"], made["collections"][0]["documents"]) == (30, 30)
    as_json(nearline("restore", "--from", tmp_path / "backup", "--data", tmp_path / "restored", "--json"))
    assert as_json(nearline("verify", "--data", tmp_path / "restored", "--json"))["ok"]
