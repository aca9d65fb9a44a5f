"""How much memory a build and a serving process take: measured, and predicted by a formula.

Memory here is a process's own (anonymous pages). The formula leaves out the files that searches read in place: those
that fit the budget of `residency` are copied and add to it, the others are mapped, and the system keeps their pages
while it has room. docs/benchmarks.md compares the formula with measurements.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from indexes.dense.hot import M
from indexes.dense.training import SAMPLE_MAX, TRIAL_ROWS, codes_for

EVERY_S = 0.02

PROCESS_BYTES = 55e6  # Python with faiss, hnswlib and numpy, before anything is read
NUMBERS_BYTES = 48  # ids, places and order of a passage, as integers of eight bytes
LIST_GROWTH = 1.3  # the room that lists grow into while they are filled
TRAINING_BYTES = 10e6  # what clustering and codebooks need beside the vectors
LEXICAL_BUFFER_BYTES = 85e6  # postings that are being sorted, and the words seen last
TERM_BYTES = 200


def give_back() -> None:
    """Return freed memory to the system. Call it where much was freed at once: other threads may wait for some
    milliseconds. It does nothing without glibc, which otherwise keeps what it has to be used again."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def memory_bytes(pid: int | None = None) -> dict[str, int]:
    """Resident memory of a process (None: this one): all of it, its own, and pages of files.

    Raises OSError where the system does not tell, or the process is gone.
    """
    fields = {}
    for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "RssAnon", "RssFile"):
            fields[name] = int(value.split()[0]) * 1024
    if len(fields) < 3:
        raise ProcessLookupError(f"process {pid} has ended")
    return {"resident": fields["VmRSS"], "own": fields["RssAnon"], "mapped": fields["RssFile"]}


class Sampler:
    """Calls a function again and again, on a thread of its own, while a `with` block runs; an OSError is no matter."""

    def __init__(self, look: Callable[[], None], every_s: float = EVERY_S) -> None:
        self._look = look
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            with contextlib.suppress(OSError):
                self._look()


class PeakMemory(Sampler):
    """Notes the largest memory of this process's own in each stage of a piece of work."""

    def __init__(self) -> None:
        super().__init__(self._note)
        self.peaks: dict[str, int] = defaultdict(int)
        self.stage = "start"

    def _note(self) -> None:
        stage = self.stage
        self.peaks[stage] = max(self.peaks[stage], memory_bytes()["own"])


def graph_bytes(passages: int, dimensions: int) -> float:
    """An HNSW graph: float32 vectors, 2M links on the ground level, a label, and the sparse levels above."""
    return passages * (4 * dimensions + 8 * M + 4 + 8 + 8 + 8)


def cold_bytes(passages: int, lists: int, dimensions: int) -> float:
    """Half a byte of code for four dimensions, an id; a centre for each list, which is filled up to blocks of 32."""
    code = codes_for(dimensions) / 2
    return passages * (code + 8) + lists * (4 * dimensions + 16 * code)


def serving_bytes(hot: int, cold: int, lists: int, in_segments: int, dimensions: int) -> float:
    """The dense indexes in memory: the sum of `CollectionInfo.tier_bytes` without the delta. Files that are held
    resident come on top, at most the budget of `residency`."""
    segments = (codes_for(dimensions) / 2 + 2 * dimensions) * in_segments
    return graph_bytes(hot, dimensions) + cold_bytes(cold, lists, dimensions) + segments


def build_bytes(hot: int, cold: int, dimensions: int, terms: int) -> float:
    """Peak of a build: the largest of its stages. `terms` is the number of different words in all texts."""
    passages = hot + cold
    # The sample, the part of it that is tried, and the residuals of that.
    vectors = min(cold, SAMPLE_MAX) + 2 * min(cold, TRIAL_ROWS)
    sample = 4 * dimensions * vectors + TRAINING_BYTES if cold else 0
    dense = graph_bytes(hot, dimensions) + LIST_GROWTH * (codes_for(dimensions) / 2 + 8) * cold
    texts = LEXICAL_BUFFER_BYTES + TERM_BYTES * terms + 4 * passages
    return PROCESS_BYTES + NUMBERS_BYTES * passages + max(sample, dense, texts)
