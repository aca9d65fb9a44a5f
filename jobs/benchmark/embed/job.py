"""What a child process is told, and how it speaks meanwhile.

On its standard output it says what comes next and which process does it, and waits for a line in answer, so that memory
is looked at between two stages, and several children take turns:

    @stage NAME PID
"""

from __future__ import annotations

import sys
from typing import Literal

import msgspec

from jobs.benchmark.embed.engine import Setup

MARK = "@stage "

Task = Literal["plain", "cold", "speed", "vectors"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is to do. `run` is the folder with the texts of this run.

    `begun` is time.monotonic() when the child was started, which all processes of a machine share.
    """

    task: Task
    engine: str
    setup: Setup
    run: str
    result: str
    begun: float = 0.0


def announce(stage: str, pid: int) -> None:
    """Say that a stage begins, done by the process `pid`; returns when the parent says so."""
    print(f"{MARK}{stage} {pid}", flush=True)  # noqa: T201 - the parent waits for this line
    sys.stdin.readline()
