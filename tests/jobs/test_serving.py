"""What `nearline serve` sets up for the whole process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Threads that allocate at the same time, and then what glibc says of its heaps.
PROGRAM = """
import ctypes, sys, threading
from jobs.serving import share_heaps
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
