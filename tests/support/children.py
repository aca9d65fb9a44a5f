"""The processes that a service has started."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children(pid: int) -> list[int]:
    """The search processes of a service."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parent = int((one / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == pid and b"search_process" in (one / "cmdline").read_bytes():
                found.append(int(one.name))
    return found
