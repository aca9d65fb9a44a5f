"""What is measured: passages in a log of Nearline's, their vectors in row order for everybody else, and queries.

    FOLDER/material.json    what it was made of; written last, so that a folder that has it is whole
    FOLDER/passages/        a collection with every passage in its log, and no generation
    FOLDER/vectors.npy      float32 [rows, dimensions]     in the order of passage ids
    FOLDER/ids.npy          int64   [rows]                 passage id of each row, ascending
    FOLDER/buckets.npy      int16   [rows]                 metadata "bucket" of its document, 0 to 999
    FOLDER/queries.npy      float32 [queries, dimensions]

The log is written through `Collection`, so its passages are what the service would hold; the arrays are read back
from it. All vectors have unit length.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.collection import Collection
from indexes.durable import publish
from indexes.errors import Conflict, InvalidInput
from indexes.log.reader import LogReader, decode_metadata
from indexes.model import Floats, Ids, NewPassage, Settings, Tuning, Upsert

MARKER = "material.json"
COLLECTION = "passages"
BUCKETS = 1000  # document i carries {"bucket": i % 1000}: filters of any share, unrelated to what a text says

OnProgress = Callable[[int, int], None]


class Source(Protocol):
    """Where passages and queries come from."""

    name: str
    """For readers of the report."""

    def describe(self) -> dict[str, Any]:
        """What tells this source from another: a folder made from a different one is refused."""
        ...

    def settings(self) -> Settings: ...
    def upserts(self) -> Iterator[list[Upsert]]:
        """Documents in batches, each with its bucket. Called once, before `queries`."""
        ...

    def queries(self) -> Floats:
        """Unit vectors [queries, dimensions], those that matter most first."""
        ...


class Material:
    """A whole folder of material. Arrays are memory maps, so that they cost no process memory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vectors: Floats = load(folder / "vectors.npy")
        self.ids: Ids = load(folder / "ids.npy")
        self.buckets: NDArray[np.int16] = load(folder / "buckets.npy")
        self.queries: Floats = load(folder / "queries.npy")

    @property
    def collection(self) -> Path:
        return self.folder / COLLECTION

    def __len__(self) -> int:
        return len(self.vectors)

    def texts(self, count: int) -> list[str]:
        """The texts of the first passages, at most `count`."""
        log = LogReader(self.collection / "log.db")
        try:
            found: list[str] = []
            for block in log.texts(0, log.position().last_passage):
                found += [text for _, text in block]
                if len(found) >= count:
                    break
            return found[:count]
        finally:
            log.close()


def prepare(folder: Path, source: Source, passages_max: int, progress: OnProgress) -> Material:
    """The material in `folder`, made there unless it is already. Raises Conflict if it holds something else."""
    wanted = msgspec.json.decode(msgspec.json.encode({**source.describe(), "passages_max": passages_max}))
    marker = folder / MARKER
    if marker.is_file():
        if (found := msgspec.json.decode(marker.read_bytes())) != wanted:
            raise Conflict(
                f"{folder} was made of {found}, not of {wanted}; name another folder", param="data"
            )
        return Material(folder)
    if folder.is_dir() and any(path.name not in OURS for path in folder.iterdir()):
        raise Conflict(f"{folder} holds other things; name an empty folder or a new one", param="data")
    shutil.rmtree(folder / COLLECTION, ignore_errors=True)  # of a run that was broken off
    folder.mkdir(parents=True, exist_ok=True)
    fill(folder / COLLECTION, source, passages_max, progress)
    export(folder)
    queries = source.queries()
    if not len(queries):
        raise InvalidInput("there are no queries", param="queries")
    np.save(folder / "queries.npy", unit(queries))
    publish(marker, msgspec.json.encode(wanted))
    return Material(folder)


OURS = frozenset({COLLECTION, "vectors.npy", "ids.npy", "buckets.npy", "queries.npy", f".{MARKER}.draft"})


def fill(folder: Path, source: Source, passages_max: int, progress: OnProgress) -> None:
    """Write documents until there are `passages_max` passages or no more documents."""
    # One delta for everything: this collection is never searched, so it needs no segments.
    tuning = Tuning(delta_passages_max=passages_max + 10_000, segments_max=0)
    collection = Collection.create(folder, source.settings(), tuning)
    try:
        done = 0
        for batch in source.upserts():
            taken = []
            for upsert in batch:
                if done >= passages_max:
                    break
                taken.append(upsert)
                done += len(upsert.passages)
            if taken:
                collection.write(taken).result()
            progress(done, passages_max)
            if done >= passages_max:
                break
    finally:
        collection.close()
    if not done:
        raise InvalidInput("there are no passages", param="corpus")


def export(folder: Path) -> None:
    """Vectors, ids and buckets of the log, as arrays."""
    log = LogReader(folder / COLLECTION / "log.db")
    try:
        last = log.position().last_passage
        buckets = [
            (passage, decode_metadata(text)["bucket"])
            for block in log.searchable(0, last)
            for passage, _, text in block
        ]
        shape = (len(buckets), log.settings.dimensions)
        vectors = np.lib.format.open_memmap(folder / "vectors.npy", mode="w+", dtype=np.float32, shape=shape)
        at = 0
        for _, block in log.vectors(0, last):
            vectors[at : at + len(block)] = block
            at += len(block)
        vectors.flush()
        np.save(folder / "ids.npy", np.array([passage for passage, _ in buckets], np.int64))
        np.save(folder / "buckets.npy", np.array([bucket for _, bucket in buckets], np.int16))
    finally:
        log.close()


def upsert(document_id: str, text: str, vector: Floats, bucket: int) -> Upsert:
    """A document of one passage that brings its vector."""
    return Upsert(document_id, text, "", {"bucket": bucket}, (NewPassage(0, len(text), 0, vector),))


def further(vectors: Floats, count: int, *, seed: int) -> Floats:
    """New unit vectors [count, dimensions] that lie as the present ones do: each moved a little towards another."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(len(vectors), size=(2, count))
    return unit(vectors[first] + np.float32(0.3) * vectors[second])


def unit(vectors: Floats) -> Floats:
    values = np.asarray(vectors, np.float32)
    scaled: Floats = values / np.linalg.norm(values, axis=1, keepdims=True)
    return scaled


def load(path: Path) -> Any:
    # A plain view of the map: indexing a numpy.memmap costs several times as much.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
