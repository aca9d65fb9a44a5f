"""No two threads make the first use of a type: msgspec would crash the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = """
import sys
from functools import partial

from indexes.store.checkpoints import SealedParts
from indexes.store.reading import in_order
from indexes.store.rows import Rows
from indexes.store.slots import FORMAT, seal, unseal

sys.setswitchinterval(1e-6)
sealed = seal(SealedParts(FORMAT, Rows([(1, "a", 1, 1, 1, b"", "", "", "", "t")])))
for _ in in_order(lambda name: unseal(name, sealed, SealedParts), ["x"] * 200):
    pass
"""


def test_threads_may_decode_at_once() -> None:
    """In a process that has decoded nothing yet. Without `learn_structs` most of these runs end by a signal."""
    for _ in range(4):
        ended = subprocess.run(
            [sys.executable, "-c", PARTS], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
