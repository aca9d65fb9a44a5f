"""What `nearline serve` sets up for the whole process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.serving.process import serving
from tests.support.commands import nearline
from tests.support.http import Http

# Threads that allocate at the same time, and then what glibc says of its heaps.
PROGRAM = """
import ctypes, sys, threading
from jobs.serving.interpreter import share_heaps
share_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
together = threading.Barrier(6)
def allocate():
    together.wait()
    for _ in range(20000):
        libc.free(ctypes.c_void_p(libc.malloc(1000)))
threads = [threading.Thread(target=allocate) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="heaps are counted as glibc counts them")
@pytest.mark.parametrize(("environ", "expected"), [({}, 2), ({"MALLOC_ARENA_MAX": "4"}, 4)])
def test_threads_share_few_heaps(tmp_path: Path, environ: dict[str, str], expected: int) -> None:
    """However many threads allocate; a number given in the environment stands."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    told = tmp_path / "heaps.xml"
    command = [sys.executable, "-c", PROGRAM, str(told)]
    ended = subprocess.run(command, env={**clean, **environ}, capture_output=True, text=True, check=False)
    if "malloc_info" in ended.stderr:
        pytest.skip("this C library is not glibc")
    assert ended.returncode == 0, ended.stderr
    assert told.read_text().count("<heap nr=") == expected


def test_files_are_for_their_owner_alone(tmp_path: Path, model_folder: Path) -> None:
    """Whatever the service, its builder, a backup and a restore make, nobody else can read, whatever the umask was."""
    data, backup, restored = (tmp_path / name for name in ("data", "backup", "restored"))
    settings = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_QUERY_LOG_ENABLED": "true",
        "NEARLINE_QUERY_LOG_WRITE_EVERY_S": "0.1",
    }
    before = os.umask(0)
    try:
        with serving(data, settings) as server:
            http = Http(server.url)
            http.ok("POST", "/v1/collections", {"name": "docs"})
            http.write("docs", {"id": "a", "text": "Apples grow."})
            http.reindex("docs")
            http.search("docs", query="apples")
            http.write("docs", {"id": "b", "text": "Boats float."})
            time.sleep(0.5)
            assert nearline("backup", "--data", data, "--to", backup).returncode == 0
            made = {path.name for path in data.rglob("*")}
            assert {"log.db", "log.db-wal", "log.db-shm", "LOCK", "queries.jsonl", "CURRENT"} <= made
            assert open_to_others(data, backup) == []
        assert nearline("restore", "--from", backup, "--data", restored).returncode == 0
    finally:
        os.umask(before)
    assert open_to_others(data, backup, restored) == []


def open_to_others(*folders: Path) -> list[Path]:
    paths = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    return [path for path in paths if path.stat().st_mode & 0o077]
