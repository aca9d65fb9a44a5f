"""Nearline as one of the engines: a collection searched through its snapshot, as the service searches it.

A build here is a whole rebuild: a child process that reads the log and makes the lists, the graph, the lexical index
and the filters, and measures its own recall.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.build.builder import Rebuild
from indexes.collection import Collection
from indexes.dense.cold import ColdSettings
from indexes.memory import build_bytes, serving_bytes
from indexes.model import Floats, Ids, Tuning
from indexes.parts.generation import Generation, Shelf
from indexes.parts.snapshot import Snapshot
from jobs.benchmark.index.engine import Engine, Found, Setting
from jobs.benchmark.index.material import COLLECTION, load, upsert
from jobs.benchmark.index.process import Watch, child_of
from jobs.benchmark.service import percentiles

EFS = (48, 96, 192)
PROBED_SHARES = (1 / 32, 1 / 16, 3 / 32, 1 / 8)
REACHES = (20, 24, 28, 30, 32, 34, 36, 40)  # hundredths
RESCORED = (70, 100, 140, 200)
BUILD_TIMEOUT_S = 7200


def rebuild(
    collection: Path, hot_capacity: int, recall_target: float, threads: int, say: Any
) -> dict[str, Any]:
    """Build a generation and make it the live one. Leaves the collection closed."""
    tuning = Tuning(recall_target=recall_target, build_threads=threads)
    open_collection = Collection(collection, tuning)
    try:
        last = [""]

        def progress(stage: str, done: int, total: int) -> None:
            if stage != last[0]:
                last[0] = stage
                say(f"  {stage} ...")

        begun = time.perf_counter()
        with Watch(child_of("indexes.build.builder")) as watch:
            build = Rebuild(open_collection.begin_build(hot_capacity), timeout_s=BUILD_TIMEOUT_S)
            number = build.run(progress)
        seconds = time.perf_counter() - begun
        generation = open_collection.adopt(number)
        manifest = msgspec.to_builtins(generation.manifest)
        return {
            "build_s": round(seconds, 1),
            "foretold_peak_bytes": round(foretold(generation)),
            **watch.peaks(),
            "manifest": {
                name: value for name, value in manifest.items() if name not in ("files", "versions")
            },
            "files": {name: sealed["bytes"] for name, sealed in manifest["files"].items()},
        }
    finally:
        open_collection.close()


def foretold(generation: Generation) -> float:
    """What the formula says the builder would need at most, of its own."""
    manifest = generation.manifest
    words = len(generation.lexical.names)
    return build_bytes(manifest.hot, manifest.cold, manifest.dimensions, words)


def foretold_index(generation: Generation) -> float:
    """What the formula says the dense indexes of a generation take."""
    manifest = generation.manifest
    return serving_bytes(manifest.hot, manifest.cold, manifest.training.lists, 0, manifest.dimensions)


class Nearline(Engine):
    """Opens a copy of the collection, because measuring writes into it."""

    what = "snapshot.dense of a collection: every tier, merged by exact scores; writes are synced to disk"
    tuned = True

    def __init__(self) -> None:
        self._rows = 0
        self._last = 0

    def open(self, folder: Path, vectors: Floats) -> None:
        self.collection = Collection(folder / COLLECTION, Tuning())
        self._ids: Ids = load(folder / "ids.npy")
        self._rows, self._last = len(self._ids), int(self._ids[-1])

    def settings(self) -> Sequence[Setting]:
        """Pairs of a graph's `ef` and a setting of the lists, for the tiers there are."""
        generation = self.generation
        probes = sorted({max(1, round(share * generation.lists)) for share in PROBED_SHARES})
        colds: list[Setting] = [
            {"probes": first, "reach_percent": reach, "rescored": rescored}
            for first, reach, rescored in product(probes, REACHES, RESCORED)
        ]
        graphs: list[Setting] = [{"ef": ef} for ef in EFS]
        return [
            {**graph, **cold}
            for graph in (graphs if generation.manifest.hot else [{}])
            for cold in (colds if generation.manifest.cold else [{}])
        ]

    def use(self, setting: Setting) -> None:
        cold = (
            ColdSettings(setting["probes"], setting["rescored"], reach=setting["reach_percent"] / 100)
            if "probes" in setting
            else None
        )
        self.generation.tune(ef=setting.get("ef"), cold=cold)

    def search(self, query: Floats, k: int) -> Found:
        return self.search_in(self.collection.snapshot, query, k)

    def search_in(self, snapshot: Snapshot, query: Floats, k: int) -> Found:
        return self.rows_of(snapshot.dense(query, k).ranking.ids)

    def insert(self, row: int, vector: Floats) -> None:
        self.collection.write([upsert(f"bench-{row}", f"inserted number {row}", vector, 0)]).result()

    def details(self, queries: Floats, k: int) -> dict[str, Any]:
        """Each tier alone, and what the collection says of its memory."""
        info, generation = self.collection.info(), self.generation
        tiers = {
            "hot": generation.nearest_warm if generation.manifest.hot else None,
            "cold": generation.nearest_cold if generation.manifest.cold else None,
        }
        times: dict[str, Any] = {}
        for tier, nearest in tiers.items():
            if nearest is None:
                continue
            taken = []
            for query in queries:
                begun = time.perf_counter()
                nearest(query, k, None, 0)
                taken.append((time.perf_counter() - begun) * 1000)
            times[tier] = percentiles(taken)
        return {
            "tiers_alone": times,
            "passages": info.passages,
            "index_bytes_per_vector": round(info.memory_bytes / self._rows, 1),
            "foretold_index_bytes_per_vector": round(foretold_index(generation) / self._rows, 1),
        }

    @property
    def generation(self) -> Generation:
        for visible in self.collection.snapshot.parts:
            if isinstance(visible.part, Generation):
                return visible.part
        raise AssertionError("the collection has no generation")

    def rows_of(self, ids: Ids) -> NDArray[np.int64]:
        """Rows of passages; those written since the material was made follow in order."""
        return np.where(ids <= self._last, np.searchsorted(self._ids, ids), self._rows + ids - self._last - 1)

    def close(self) -> None:
        self.collection.close()


def copy_collection(material: Path, folder: Path) -> None:
    """A closed collection with its live generation alone, and the ids of its rows, in a new folder."""
    collection = material / COLLECTION
    shelf = Shelf(collection)
    older = {shelf.path(number).name for number in shelf.numbers()} - {shelf.path(shelf.current()).name}

    def left_out(parent: str, names: list[str]) -> set[str]:
        return older.intersection(names) if Path(parent) == shelf.folder else set()

    folder.mkdir(parents=True)
    shutil.copytree(collection, folder / COLLECTION, ignore=left_out)
    shutil.copyfile(material / "ids.npy", folder / "ids.npy")
