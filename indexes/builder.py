"""Builds a generation from the log, in a process of its own: `python -m indexes.builder REQUEST`.

    read the ids of live passages  ->  place them hot or cold  ->  train and fill the cold lists  ->  build the graph
    ->  lexical index  ->  filters  ->  load it all back, measure, choose settings  ->  checksums  ->  rename

Memory stays bounded: vectors and texts stream from the log in blocks, only ids, list numbers and postings are held
whole. The result appears under `generations/` complete or not at all. Progress goes to standard output, a JSON
object a line: {"stage", "done", "total"}, at last {"generation"} or {"error"}.

A passage deleted while the build runs may or may not get in. Either is right: whoever adopts the generation hides
every passage that was removed after `seq`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

import faiss
import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes import analysis
from indexes.cold import COLD_PASSAGES_MIN, TRAINING_VECTORS_PER_LIST, ColdShard, lists_for
from indexes.durable import publish_folder
from indexes.errors import NearlineError
from indexes.filters import FilterIndex
from indexes.generation import MANIFEST, Generation, Manifest, Shelf, seal_files
from indexes.hot import HotGraph
from indexes.lexical import TF_MAX, SealedLexical
from indexes.log_reader import LogReader, decode_metadata
from indexes.measuring import Measured, choose_settings
from indexes.model import Floats, Ids, Rows
from indexes.parts import find_sorted

Progress = Callable[[str, int, int], None]
FIRST_EF = 128
LIBRARIES = ("faiss-cpu", "hnswlib", "numpy")


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What to build: the log in `collection` up to `seq`, whose newest passage is `last_passage`."""

    collection: str
    number: int
    seq: int
    last_passage: int
    hot_capacity: int
    recall_target: float
    threads: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Which passages go where. Ids ascend within each tier."""

    hot: Ids
    cold: Ids


def build(request: BuildRequest, progress: Progress) -> Path:
    """Build, measure and seal one generation; returns its folder. Leaves no draft behind, whatever happens."""
    started = time.monotonic()
    faiss.omp_set_num_threads(request.threads)
    collection = Path(request.collection)
    shelf = Shelf(collection)
    draft = shelf.folder / f".draft-{request.number:06d}-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    (draft / "lexical").mkdir(parents=True)
    log = LogReader(collection / "log.db")
    try:
        placement = place(log, request.last_passage, request.hot_capacity)
        ids, lists = write_dense(draft, log, request, placement, progress)
        write_lexical(draft / "lexical", log, ids, request.last_passage, progress)
        write_filters(draft, log, ids, request.last_passage, progress)
        manifest = first_manifest(request, log, placement, lists)
        measured = measure(draft, manifest, request, progress)
        write_manifest(draft, manifest, measured, time.monotonic() - started)
        progress("publish", 0, 1)  # also the last look whether anybody still waits for this
        publish_folder(draft, shelf.path(request.number))
    finally:
        log.close()
        shutil.rmtree(draft, ignore_errors=True)
    return shelf.path(request.number)


def place(log: LogReader, last_passage: int, hot_capacity: int) -> Placement:
    """The newest passages are hot, up to the capacity. A cold remainder too small to train stays hot as well."""
    blocks = [ids for ids, _ in log.vectors(0, last_passage)]
    ids = np.concatenate(blocks) if blocks else np.empty(0, np.int64)
    cold = max(len(ids) - hot_capacity, 0)
    if cold < COLD_PASSAGES_MIN:
        cold = 0
    return Placement(hot=ids[cold:], cold=ids[:cold])


# --- dense --------------------------------------------------------------------------------------------------


def write_dense(
    draft: Path, log: LogReader, request: BuildRequest, placement: Placement, progress: Progress
) -> tuple[Ids, int]:
    """Graph, lists and vectors. Returns the passage id of each row, and the number of lists."""
    hot, cold = placement.hot, placement.cold
    index, order = None, np.empty(0, np.int64)
    if len(cold):
        index = ColdShard.train(sample_vectors(log, cold), len(cold))
        order = np.argsort(assign_lists(index, log, cold, progress), kind="stable")
    ids = np.concatenate([hot, cold[order]])
    np.save(draft / "ids.npy", ids)
    np.save(draft / "order.npy", np.argsort(ids, kind="stable").astype(np.uint32))
    rows_of_cold = np.empty(len(cold), np.int64)
    rows_of_cold[order] = np.arange(len(hot), len(ids))

    path = draft / "vectors.npy"
    shape = (len(ids), log.settings.dimensions)
    if not len(ids):
        np.save(path, np.empty(shape, np.float16))
        return ids, 0
    vectors = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    for rows, block in blocks_of(log, cold, rows_of_cold):
        vectors[rows] = block.astype(np.float16)
        assert index is not None
        index.add_with_ids(np.ascontiguousarray(block), rows)
    if index is not None:
        faiss.write_index(index, str(draft / "cold.ivfpq"))
    if len(hot):
        write_graph(draft / "hot.hnsw", log, hot, vectors, request.threads, progress)
    vectors.flush()
    return ids, index.nlist if index is not None else 0


def write_graph(
    path: Path, log: LogReader, hot: Ids, vectors: NDArray[np.float16], threads: int, progress: Progress
) -> None:
    def blocks() -> Iterator[tuple[Rows, Floats]]:
        for rows, block in blocks_of(log, hot, np.arange(len(hot))):
            progress("graph", int(rows[0]), len(hot))
            vectors[rows] = block.astype(np.float16)
            yield rows, block

    HotGraph.build(blocks(), len(hot), log.settings.dimensions, ef=FIRST_EF, threads=threads).save(path)
    progress("graph", len(hot), len(hot))


def sample_vectors(log: LogReader, ids: Ids, *, seed: int = 11) -> Floats:
    """A random sample large enough to train every list."""
    wanted = min(len(ids), TRAINING_VECTORS_PER_LIST * lists_for(len(ids)))
    chosen = np.sort(np.random.default_rng(seed).choice(ids, wanted, replace=False))
    return np.concatenate([block for _, block in blocks_of(log, chosen, np.arange(len(chosen)))])


def assign_lists(index: faiss.IndexIVF, log: LogReader, cold: Ids, progress: Progress) -> NDArray[np.int64]:
    lists = np.zeros(len(cold), np.int64)
    for at, block in blocks_of(log, cold, np.arange(len(cold))):
        progress("cold", int(at[0]), len(cold))
        _, nearest = index.quantizer.search(np.ascontiguousarray(block), 1)
        lists[at] = nearest[:, 0]
    return lists


def blocks_of(log: LogReader, ids: Ids, rows: Rows) -> Iterator[tuple[Rows, Floats]]:
    """(rows, vectors) of these passages, which ascend. One deleted meanwhile leaves zeros behind and is never found."""
    if not len(ids):
        return
    for block_ids, vectors in log.vectors(int(ids[0]) - 1, int(ids[-1])):
        at = find_sorted(ids, block_ids)
        held = at >= 0
        if held.any():
            yield rows[at[held]], vectors[held]


# --- lexical and filters ------------------------------------------------------------------------------------


def write_lexical(folder: Path, log: LogReader, ids: Ids, last_passage: int, progress: Progress) -> None:
    """Postings sorted by term, then row. Held as three integers a posting until they are sorted."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    numbers: dict[str, int] = {}
    lengths = np.zeros(len(ids), np.uint32)
    blocks: list[NDArray[np.uint32]] = []
    done = 0
    for texts in log.texts(0, last_passage):
        progress("lexical", done, len(ids))
        done += len(texts)
        found = find_sorted(sorted_ids, np.fromiter((passage for passage, _ in texts), np.int64, len(texts)))
        flat: list[tuple[int, int, int]] = []
        for at, (_, text) in zip(found, texts, strict=True):
            if at < 0:
                continue
            row = int(order[at])
            counts = Counter(analysis.terms(text))
            lengths[row] = counts.total()
            flat += [
                (numbers.setdefault(term, len(numbers)), row, min(n, TF_MAX)) for term, n in counts.items()
            ]
        blocks.append(np.array(flat, np.uint32).reshape(-1, 3))
    names = sorted(numbers, key=str.encode)
    rank = np.empty(len(names), np.uint32)
    rank[[numbers[name] for name in names]] = np.arange(len(names), dtype=np.uint32)
    postings = np.concatenate(blocks) if blocks else np.empty((0, 3), np.uint32)
    terms = rank[postings[:, 0]] if len(postings) else postings[:, 0]
    sorting = np.lexsort((postings[:, 1], terms))
    sizes = np.bincount(terms, minlength=len(names)).astype(np.int64)
    rows, frequencies = postings[sorting, 1], postings[sorting, 2].astype(np.uint16)
    SealedLexical.from_arrays(names, sizes, rows, frequencies, lengths).save(folder)


def write_filters(draft: Path, log: LogReader, ids: Ids, last_passage: int, progress: Progress) -> None:
    """The passages of one document have consecutive ids and the same metadata: index them as one range."""
    index = FilterIndex()
    for block in log.metadata(0, last_passage):
        progress("filters", len(index), len(ids))
        # By the text: Python holds {"x": 1} and {"x": True} for equal, and they are not.
        for metadata, group in groupby(block, key=lambda pair: pair[1]):
            values = decode_metadata(metadata)
            for run in consecutive([passage for passage, _ in group]):
                index.add(run, values)
    index.save(draft / "filters.msgpack")


def consecutive(ids: list[int]) -> Iterator[range]:
    """Ascending ids as ranges without gaps."""
    start = 0
    for at in range(1, len(ids) + 1):
        if at == len(ids) or ids[at] != ids[at - 1] + 1:
            yield range(ids[start], ids[at - 1] + 1)
            start = at


# --- measuring and sealing ----------------------------------------------------------------------------------


def first_manifest(request: BuildRequest, log: LogReader, placement: Placement, lists: int) -> Manifest:
    """Everything but what measuring tells."""
    return Manifest(
        number=request.number,
        seq=request.seq,
        last_passage=request.last_passage,
        fingerprint=log.settings.fingerprint,
        dimensions=log.settings.dimensions,
        analysis=analysis.VERSION,
        hot=len(placement.hot),
        cold=len(placement.cold),
        ef=FIRST_EF,
        lists=lists,
        probes=max(lists // 4, 1),
        rescored=200,
        recall={},
        built_ms=time.time_ns() // 1_000_000,
        build_s=0.0,
        versions={name: version(name) for name in ("faiss-cpu", "hnswlib", "numpy")}
        | {"python": platform.python_version()},
        files={},
    )


def measure(draft: Path, manifest: Manifest, request: BuildRequest, progress: Progress) -> Measured:
    """Load what was written, as the service will, and choose the cheapest settings that reach the recall target."""
    progress("measure", 0, 1)
    measured = choose_settings(Generation(draft, manifest), request.recall_target)
    progress("measure", 1, 1)
    return measured


def write_manifest(draft: Path, manifest: Manifest, measured: Measured, build_s: float) -> None:
    final = msgspec.structs.replace(
        manifest, **asdict(measured), build_s=round(build_s, 3), files=seal_files(draft)
    )
    (draft / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(final), indent=2) + b"\n")


def main() -> int:
    request = msgspec.json.decode(sys.argv[1], type=BuildRequest)
    parent = os.getppid()
    os.nice(10)  # searches of the service go first

    def say(**values: object) -> None:
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()

    def report(stage: str, done: int, total: int) -> None:
        if os.getppid() != parent:
            sys.exit(1)  # the service is gone; nobody would adopt the result
        say(stage=stage, done=done, total=total)

    try:
        build(request, report)
    except NearlineError as error:
        say(error=error.message)
        return 1
    say(generation=request.number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
