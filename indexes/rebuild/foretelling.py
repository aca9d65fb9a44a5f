"""Predicts the memory that loading takes from the files on disk, and refuses to load what does not fit.

a generation   the size of its list files and, if searches walk it, its graph file; other files as far as the budget of
               resident copies has room; 18 bytes a passage for the order of ids and its list, and 80 for a label in the
               graph
the delta      for each passage written since: its vector, and 2.4 bytes for each byte of its text
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from indexes.base.errors import Unavailable
from indexes.base.model import ColdPolicy, IndexOptions
from indexes.base.residency import Budget
from indexes.log.reader import LogReader
from indexes.parts.manifest import Manifest, read_manifest

GRAPH, LISTS = "hot.hnsw", "cold.ivf"
ORDER_BYTES = 18
LABEL_BYTES = 80  # of a passage in a graph: hnswlib's table of labels, and a list of levels
WORDS_FACTOR = 2.4  # bytes per byte of text, for its words; docs/operations.md has the measurement
TEXT_BYTES = 640  # of a passage of usual length


def generation_bytes(manifest: Manifest, budget: Budget, policy: ColdPolicy) -> int:
    sizes = {name: file.bytes for name, file in manifest.files.items()}
    graph, lists = (sizes.pop(name, 0) for name in (GRAPH, LISTS))
    walked = graph + LABEL_BYTES * manifest.hot if manifest.walked(policy) else 0
    copied = min(sum(sizes.values()), max(0, budget.bytes_max - budget.held))
    passages = manifest.hot + manifest.cold
    return walked + lists + copied + ORDER_BYTES * passages


def delta_bytes(passages: int, text_bytes: int, dimensions: int) -> int:
    return int(4 * dimensions * passages + WORDS_FACTOR * text_bytes)


def require_generation_room(folder: Path, options: IndexOptions) -> None:
    """Require room for a generation. Raises like `read_manifest` and `require_room`."""
    require_room(generation_bytes(read_manifest(folder), options.resident, options.cold), options.room)


def require_delta_room(log: LogReader, gaps: Iterable[tuple[int, int]], options: IndexOptions) -> None:
    """Require room for the passages in these gaps (after one, up to another), which are read back from the log. Raises
    like `require_room`."""
    dimensions = log.settings.dimensions
    size = sum(delta_bytes(*log.passages_between(*gap), dimensions) for gap in gaps)
    require_room(size, options.room)


def require_empty_room(dimensions: int, options: IndexOptions) -> None:
    """Require room for a full delta of a new collection. Raises like `require_room`."""
    passages = options.delta_passages_max
    require_room(delta_bytes(passages, TEXT_BYTES * passages, dimensions), options.room)


def require_room(size: int, room: Callable[[int], float]) -> None:
    """Raise Unavailable, with both numbers, if `size` more bytes do not fit."""
    if size > (left := room(size)):
        raise Unavailable(
            f"it needs about {size / 1e6:.0f} MB, and {max(0.0, left) / 1e6:.0f} MB are left of server.memory_bytes_max"
        )
