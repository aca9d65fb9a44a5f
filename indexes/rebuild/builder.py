"""Builds a generation from the log, in a child process: `python -m indexes.rebuild.builder REQUEST`.

    ids of live passages -> place them hot or cold -> dense indexes -> lexical index and filters
    -> load everything back, measure, choose settings -> checksums -> rename

Vectors and texts stream from the log in blocks; docs/design/memory.md has the formula for a build's memory. The result
appears under `generations/` atomically. The outcome is the number of the generation.

A passage deleted during the build may or may not be included. Either is correct: adoption hides every passage that was
removed after `seq`.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

import faiss
import msgspec
import numpy as np

from indexes.base import failpoints
from indexes.base.arrays import find_sorted
from indexes.base.child import Child, answer
from indexes.base.durable import publish_folder, with_checksum
from indexes.base.errors import Damaged, NotFound
from indexes.base.model import Floats, Ids, Progress, now_ms
from indexes.base.residency import Files
from indexes.dense.cold import ColdSettings
from indexes.filters.index import FiltersBuilder
from indexes.lexical import analysis
from indexes.lexical.building import LexicalBuilder
from indexes.lexical.names import name_keys
from indexes.log.reader import LogReader, decode_metadata
from indexes.parts.generation import Generation
from indexes.parts.manifest import MANIFEST, Manifest, Moves, read_manifest, seal_files
from indexes.parts.memory import PeakMemory
from indexes.parts.shelf import Shelf
from indexes.rebuild.dense import FIRST_EF, DenseRows, write_dense
from indexes.rebuild.hits import Hits
from indexes.rebuild.optimizer import Measured, choose_settings
from indexes.rebuild.placement import Placement, place


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What to build: the log of `collection` up to `seq`, where the newest passage is `last_passage`. `queries` is the
    path of a .npy file of float32 unit vectors [n, dimensions] to measure with, and `source` says what they are; empty:
    measure with synthetic ones."""

    collection: str
    number: int
    seq: int
    last_passage: int
    hot_capacity: int
    recall_target: float
    threads: int
    recall_floor: float = 0.0
    queries: str = ""
    source: str = ""


class Rebuild:
    """One build in a child process. `run` blocks until it ends, so not on the event loop; `cancel` kills the child."""

    def __init__(
        self, request: BuildRequest, *, timeout_s: float, questions: tuple[str, Floats] | None = None
    ) -> None:
        """`questions`: the source and the vectors of BuildRequest."""
        self.request = request
        self._questions = questions
        what = f"build of generation {request.number}"
        self.child = Child("indexes.rebuild.builder", int, what=what, timeout_s=timeout_s)
        self.cancel = self.child.cancel

    def run(self, progress: Progress) -> int:
        """Returns the number of the sealed generation. Raises like `Child.run`."""
        request, shelf = self.request, Shelf(Path(self.request.collection))
        with nullcontext("") if self._questions is None else shelf.scratch() as folder:
            if self._questions is not None:
                source, vectors = self._questions
                path = Path(folder) / "queries.npy"
                np.save(path, vectors)
                request = replace(request, queries=str(path), source=source)
            try:
                return self.child.run(request, progress)
            finally:
                # A killed builder cannot clean up after itself, and the next one may need the disk space.
                if self.child.pid is not None:
                    shelf.sweep(builder=self.child.pid)


def build(request: BuildRequest, progress: Progress) -> int:
    """Build, measure and seal one generation; returns its number. Removes its draft even if it fails."""
    with PeakMemory() as memory:

        def watched(stage: str, done: int, total: int) -> None:
            memory.stage = stage
            progress(stage, done, total)

        build_watched(request, watched, memory.peaks)
    return request.number


def build_watched(request: BuildRequest, progress: Progress, peaks: dict[str, int]) -> None:
    """Build as `build` does. Another thread fills `peaks` with the peak memory of each stage."""
    started = time.monotonic()
    faiss.omp_set_num_threads(request.threads)
    collection = Path(request.collection)
    shelf = Shelf(collection)
    draft = shelf.folder / f".draft-{request.number:06d}-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    shelf.folder.mkdir(exist_ok=True)  # of the collection, which may have been deleted
    for name in (".", "lexical", "filters"):
        (draft / name).mkdir()
    log = LogReader(collection / "log.db")
    try:
        hits = Hits(collection / "hits.msgpack", hot_capacity=request.hot_capacity)
        placement = place(log.passage_ids(request.last_passage), request.hot_capacity, *hits.most())
        failpoints.reach("build.placed")
        moves = placement.moves(*tiers_before(shelf, placement))
        rows = write_dense(
            draft,
            log,
            placement,
            last_passage=request.last_passage,
            recall_target=request.recall_target,
            threads=request.threads,
            progress=progress,
        )
        failpoints.reach("build.dense_written")
        write_texts(draft, log, rows.ids, request.last_passage, progress)
        failpoints.reach("build.texts_written")
        manifest = first_manifest(request, log, rows, moves)
        progress("measure", 0, 1)
        asked = np.load(request.queries) if request.queries else None
        measured = choose_settings(
            Generation(draft, manifest), request.recall_target, request.recall_floor, asked, request.source
        )
        failpoints.reach("build.measured")
        write_manifest(draft, manifest, measured, time.monotonic() - started, dict(peaks))
        failpoints.reach("build.manifest_written")
        progress("publish", 0, 1)  # last chance to exit if the parent is gone
        publish_folder(draft, shelf.path(request.number))
        failpoints.reach("build.published")
    finally:
        log.close()
        shutil.rmtree(draft, ignore_errors=True)


def tiers_before(shelf: Shelf, placement: Placement) -> tuple[Ids, Ids]:
    """Passages that were hot and cold before this build. Those newer than the live generation count as hot."""
    everything = np.sort(np.concatenate([placement.hot, placement.cold]))
    folder = shelf.path(shelf.current())
    try:
        manifest = read_manifest(folder)
        before = np.asarray(Files().array(folder / "ids.npy"), np.int64)
    except (NotFound, Damaged, OSError, ValueError):
        return everything, np.empty(0, np.int64)
    was_cold = np.sort(before[manifest.hot :])
    return np.setdiff1d(everything, was_cold, assume_unique=True), was_cold


def write_texts(draft: Path, log: LogReader, ids: Ids, last_passage: int, progress: Progress) -> None:
    """Write the lexical index and the filters in one pass over texts and metadata."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    filters = FiltersBuilder(len(ids))
    done = 0
    with LexicalBuilder(draft, len(ids)) as lexical:
        for block in log.searchable(0, last_passage):
            progress("texts", done, len(ids))
            done += len(block)
            found = find_sorted(sorted_ids, np.fromiter((one[0] for one in block), np.int64, len(block)))
            rows = np.where(found >= 0, order[found], -1)
            held = np.flatnonzero(rows >= 0)
            lexical.add(
                rows[held],
                [block[at][1] for at in held],
                [block[at][2] for at in held],
                [name_keys(*block[at][4]) for at in held],
            )
            # A document's passages are adjacent and share its metadata. Compare the JSON text: in Python, {"x": 1} and
            # {"x": True} are equal.
            for metadata, group in groupby(held, key=lambda at: block[at][3]):
                filters.add(rows[list(group)], decode_metadata(metadata))
        lexical.save(draft / "lexical")
    progress("filters", 0, 1)
    filters.finish().save(draft / "filters")


# --- measuring and sealing ----------------------------------------------------------------------------------


def first_manifest(request: BuildRequest, log: LogReader, rows: DenseRows, moves: Moves) -> Manifest:
    """The manifest without the measured values."""
    return Manifest(
        number=request.number,
        seq=request.seq,
        last_passage=request.last_passage,
        fingerprint=log.settings.fingerprint,
        dimensions=log.settings.dimensions,
        analysis=analysis.ANALYSIS_VERSION,
        hot=rows.hot,
        cold=len(rows.ids) - rows.hot,
        moves=moves,
        ef=FIRST_EF,
        training=rows.training,
        search=ColdSettings(),
        recall={},
        built_ms=now_ms(),
        build_s=0.0,
        peak_bytes={},
        versions={name: version(name) for name in ("faiss-cpu", "hnswlib", "numpy")}
        | {"python": platform.python_version()},
        files={},
    )


def write_manifest(
    draft: Path, manifest: Manifest, measured: Measured, build_s: float, peaks: dict[str, int]
) -> None:
    final = msgspec.structs.replace(
        manifest,
        **{field.name: getattr(measured, field.name) for field in fields(measured)},
        build_s=round(build_s, 3),
        peak_bytes=peaks,
        files=seal_files(draft),
    )
    (draft / MANIFEST).write_bytes(with_checksum(final))


if __name__ == "__main__":
    sys.exit(answer(BuildRequest, build))
