"""Engines that are one object in memory: hnswlib, faiss, usearch. Their files are read whole when they are opened."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from indexes.model import Floats
from jobs.benchmark.index.engine import (
    EFS,
    HNSW_EF_CONSTRUCTION,
    HNSW_M,
    SPARE,
    Found,
    Peer,
    Setting,
    lists_for,
)

FILE = "index"
TRAINING_PER_LIST = 64


class InMemory(Peer):
    """What the libraries share: one object, which holds nothing that must be closed."""

    _index: Any = None

    def close(self) -> None:
        self._index = None


class Hnswlib(InMemory):
    def __init__(self) -> None:
        import hnswlib

        self._library = hnswlib
        self.what = f"hnswlib {version('hnswlib')}, M {HNSW_M}, ef_construction {HNSW_EF_CONSTRUCTION}"

    def build(self, vectors: Floats, folder: Path, threads: int) -> None:
        index = self._library.Index(space="ip", dim=vectors.shape[1])
        index.init_index(len(vectors), M=HNSW_M, ef_construction=HNSW_EF_CONSTRUCTION)
        index.add_items(vectors, np.arange(len(vectors)), num_threads=threads)
        index.save_index(str(folder / FILE))

    def open(self, folder: Path, vectors: Floats) -> None:
        self._index = self._library.Index(space="ip", dim=vectors.shape[1])
        self._index.load_index(str(folder / FILE), max_elements=len(vectors) + SPARE)
        self._index.set_num_threads(1)

    def settings(self) -> Sequence[Setting]:
        return [{"ef": ef} for ef in EFS]

    def use(self, setting: Setting) -> None:
        self._index.set_ef(setting["ef"])

    def search(self, query: Floats, k: int) -> Found:
        labels, _ = self._index.knn_query(query[None, :], k=k, num_threads=1)
        found: Found = labels[0]
        return found

    def insert(self, row: int, vector: Floats) -> None:
        self._index.add_items(vector[None, :], np.array([row]))


class FaissHnsw(InMemory):
    def __init__(self) -> None:
        import faiss

        self._faiss = faiss
        self.what = (
            f"faiss {version('faiss-cpu')}, IndexHNSWFlat {HNSW_M}, efConstruction {HNSW_EF_CONSTRUCTION}"
        )

    def build(self, vectors: Floats, folder: Path, threads: int) -> None:
        self._faiss.omp_set_num_threads(threads)
        index = self._faiss.IndexHNSWFlat(vectors.shape[1], HNSW_M, self._faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = HNSW_EF_CONSTRUCTION
        index.add(vectors)
        self._faiss.write_index(index, str(folder / FILE))

    def open(self, folder: Path, vectors: Floats) -> None:
        self._index = self._faiss.read_index(str(folder / FILE))

    def settings(self) -> Sequence[Setting]:
        return [{"efSearch": ef} for ef in EFS]

    def use(self, setting: Setting) -> None:
        self._index.hnsw.efSearch = setting["efSearch"]

    def search(self, query: Floats, k: int) -> Found:
        _, rows = self._index.search(query[None, :], k)
        found: Found = rows[0][rows[0] >= 0]
        return found

    def insert(self, row: int, vector: Floats) -> None:
        self._index.add(vector[None, :])


class FaissIvfPq(InMemory):
    extra = True

    def __init__(self) -> None:
        import faiss

        self._faiss = faiss
        self._parameters: Any = None
        self.what = (
            f"faiss {version('faiss-cpu')}, IVF, PQ 4-bit FastScan of residuals, float32 vectors in memory"
        )

    def build(self, vectors: Floats, folder: Path, threads: int) -> None:
        self._faiss.omp_set_num_threads(threads)
        lists, dimensions = lists_for(len(vectors)), vectors.shape[1]
        description = f"IVF{lists},PQ{dimensions // 4}x4fsr,RFlat"
        index = self._faiss.index_factory(dimensions, description, self._faiss.METRIC_INNER_PRODUCT)
        wanted = min(len(vectors), TRAINING_PER_LIST * lists)
        index.train(vectors[np.sort(np.random.default_rng(0).permutation(len(vectors))[:wanted])])
        index.add(vectors)
        self._faiss.write_index(index, str(folder / FILE))

    def open(self, folder: Path, vectors: Floats) -> None:
        self._index = self._faiss.read_index(str(folder / FILE))

    def settings(self) -> Sequence[Setting]:
        lists = self._faiss.extract_index_ivf(self._index).nlist
        probes = [probes for probes in (16, 32, 64, 128, 256, 512) if probes <= lists]
        return [{"nprobe": one, "k_factor": factor} for one in probes for factor in (4, 8, 16, 32)]

    def use(self, setting: Setting) -> None:
        self._parameters = self._faiss.IndexRefineSearchParameters(
            k_factor=setting["k_factor"],
            base_index_params=self._faiss.SearchParametersIVF(nprobe=setting["nprobe"]),
        )

    def search(self, query: Floats, k: int) -> Found:
        _, rows = self._index.search(query[None, :], k, params=self._parameters)
        found: Found = rows[0][rows[0] >= 0]
        return found

    def insert(self, row: int, vector: Floats) -> None:
        self._index.add(vector[None, :])


class Usearch(InMemory):
    def __init__(self, dtype: str) -> None:
        import usearch.index

        self._make = usearch.index.Index
        self._dtype = dtype
        self.what = (
            f"usearch {version('usearch')}, {dtype}, connectivity {HNSW_M}, "
            f"expansion_add {HNSW_EF_CONSTRUCTION}"
        )

    def build(self, vectors: Floats, folder: Path, threads: int) -> None:
        index = self._empty(vectors.shape[1])
        index.add(np.arange(len(vectors)), vectors, threads=threads)
        index.save(str(folder / FILE))

    def open(self, folder: Path, vectors: Floats) -> None:
        self._index = self._empty(vectors.shape[1])
        self._index.load(str(folder / FILE))

    def settings(self) -> Sequence[Setting]:
        return [{"expansion_search": ef} for ef in EFS]

    def use(self, setting: Setting) -> None:
        self._index.expansion_search = setting["expansion_search"]

    def search(self, query: Floats, k: int) -> Found:
        found: Found = self._index.search(query, k, threads=1).keys
        return found

    def insert(self, row: int, vector: Floats) -> None:
        self._index.add(row, vector, threads=1)

    def _empty(self, dimensions: int) -> Any:
        return self._make(
            ndim=dimensions,
            metric="ip",
            dtype=self._dtype,
            connectivity=HNSW_M,
            expansion_add=HNSW_EF_CONSTRUCTION,
        )
