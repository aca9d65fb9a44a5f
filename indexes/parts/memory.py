"""Memory of a build and of a serving process: measured, and predicted by a formula.

Memory here means anonymous pages. The formula excludes index files loaded through `residency`: those within its
budget are copied and come on top; the others are memory-mapped, and the OS caches their pages while it has room.
docs/benchmarks/memory.md compares the formula with measurements.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Self

from indexes.dense.hot import M
from indexes.dense.training import SAMPLE_MAX, TRIAL_ROWS, codes_for

EVERY_S = 0.02
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

PROCESS_BYTES = 55e6  # Python with faiss, hnswlib and numpy, before reading anything
NUMBERS_BYTES = 48  # per passage: ids, positions and order, as 8-byte integers
LIST_GROWTH = 1.3  # over-allocation of lists while they are filled
TRAINING_BYTES = 10e6  # clustering and codebooks, excluding the vectors
LEXICAL_BUFFER_BYTES = 85e6  # the sort buffer of postings, and the cache of stemmed words
TERM_BYTES = 200
NAMES_BYTES = 128  # per passage: four names, and a sorted copy of them


def give_back() -> None:
    """Return freed memory to the OS, since glibc keeps it for reuse. Call only after freeing a lot: other threads may
    stall for some milliseconds. Does nothing without glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def memory_bytes(pid: int | None = None) -> dict[str, int]:
    """Resident memory of a process (None: this one): total, anonymous, and file-backed.

    Raises OSError if it is not available or the process has ended.
    """
    with open(f"/proc/{pid or 'self'}/statm", "rb") as file:  # noqa: PTH123 - twice as fast; a tenth of what `status` takes
        pages = file.read().split()
    resident, mapped = (int(pages[at]) * PAGE_BYTES for at in (1, 2))
    if not resident:
        raise ProcessLookupError(f"process {pid} has ended")
    return {"resident": resident, "own": resident - mapped, "mapped": mapped}


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, all of its threads included. Raises OSError if it has ended."""
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)


class Sampler:
    """Calls a function periodically, on its own thread, while a `with` block runs. Ignores OSError."""

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
    """Records this process's peak anonymous memory in each stage."""

    def __init__(self) -> None:
        super().__init__(self._note)
        self.peaks: dict[str, int] = defaultdict(int)
        self.stage = "start"

    def _note(self) -> None:
        stage = self.stage
        self.peaks[stage] = max(self.peaks[stage], memory_bytes()["own"])


def graph_bytes(passages: int, dimensions: int) -> float:
    """An HNSW graph: float32 vectors, 2M links at the base level, a label, and the sparse upper levels."""
    return passages * (4 * dimensions + 8 * M + 4 + 8 + 8 + 8)


def lists_bytes(passages: int, lists: int, dimensions: int) -> float:
    """Half a byte of code per four dimensions and an id; per list, a centroid and padding to blocks of 32."""
    code = codes_for(dimensions) / 2
    return passages * (code + 8) + lists * (4 * dimensions + 16 * code)


def serving_bytes(hot: int, cold: int, lists: int, in_segments: int, dimensions: int) -> float:
    """The dense indexes in memory: the sum of `CollectionInfo.tier_bytes` without the delta. It excludes files copied
    into memory, at most the budget of `residency`, and the graph, which is loaded if the cold tier may be skipped."""
    segments = codes_for(dimensions) / 2 * in_segments
    if not cold:
        return graph_bytes(hot, dimensions) + segments
    return lists_bytes(hot + cold, lists, dimensions) + segments


def build_bytes(hot: int, cold: int, dimensions: int, terms: int) -> float:
    """Peak memory of a build: that of its largest stage. `terms` is the number of distinct words in all texts."""
    passages = hot + cold
    # The sample, the trial subsample, and the subsample's residuals.
    vectors = min(passages, SAMPLE_MAX) + 2 * min(passages, TRIAL_ROWS)
    sample = 4 * dimensions * vectors + TRAINING_BYTES if cold else 0
    listed = (codes_for(dimensions) / 2 + 8) * passages if cold else 0
    dense = graph_bytes(hot, dimensions) + LIST_GROWTH * listed
    texts = LEXICAL_BUFFER_BYTES + TERM_BYTES * terms + (NAMES_BYTES + 4) * passages
    return PROCESS_BYTES + NUMBERS_BYTES * passages + max(sample, dense, texts)
