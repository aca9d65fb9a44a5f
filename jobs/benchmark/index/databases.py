"""Engines that keep a folder on disk and run in the process that uses them: qdrant-edge and lancedb.

Both may use more than one thread for one search; nothing here forbids it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from indexes.model import Floats
from jobs.benchmark.index.engine import EFS, HNSW_EF_CONSTRUCTION, HNSW_M, Found, Peer, Setting, lists_for

UPSERT_POINTS = 1000
TABLE = "passages"


class QdrantEdge(Peer):
    def __init__(self) -> None:
        import qdrant_edge

        self._library = qdrant_edge
        self._shard: Any = None
        self._parameters: Any = None
        self.what = (
            f"qdrant-edge {version('qdrant-edge-py')}, m {HNSW_M}, ef_construct {HNSW_EF_CONSTRUCTION}"
        )

    def build(self, vectors: Floats, folder: Path, threads: int) -> None:
        q = self._library
        graph = q.HnswIndexConfig(
            m=HNSW_M,
            ef_construct=HNSW_EF_CONSTRUCTION,
            full_scan_threshold=1000,
            max_indexing_threads=threads,
        )
        # One segment, and a graph for it however small it is: several are slower to search.
        optimizers = q.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=1)
        shard = q.EdgeShard.create(
            str(folder),
            q.EdgeConfig(
                vectors=q.EdgeVectorParams(size=vectors.shape[1], distance=q.Distance.Dot),
                hnsw_config=graph,
                optimizers=optimizers,
            ),
        )
        for start in range(0, len(vectors), UPSERT_POINTS):
            rows = range(start, min(start + UPSERT_POINTS, len(vectors)))
            shard.update(q.UpdateOperation.upsert_points([self._point(row, vectors[row]) for row in rows]))
        shard.optimize()
        shard.flush()
        shard.close()

    def open(self, folder: Path, vectors: Floats) -> None:
        self._shard = self._library.EdgeShard.load(str(folder))

    def settings(self) -> Sequence[Setting]:
        return [{"hnsw_ef": ef} for ef in EFS]

    def use(self, setting: Setting) -> None:
        self._parameters = self._library.SearchParams(hnsw_ef=setting["hnsw_ef"])

    def search(self, query: Floats, k: int) -> Found:
        request = self._library.SearchRequest(
            query=self._library.Query.Nearest(query), limit=k, params=self._parameters
        )
        return [point.id for point in self._shard.search(request)]

    def insert(self, row: int, vector: Floats) -> None:
        self._shard.update(self._library.UpdateOperation.upsert_points([self._point(row, vector)]))

    def _point(self, row: int, vector: Floats) -> Any:
        return self._library.Point(row, vector.tolist(), None)

    def close(self) -> None:
        self._shard.close()


class Lancedb(Peer):
    """What its two kinds of index share."""

    def __init__(self) -> None:
        import lancedb
        import lancedb.index
        import pyarrow as pa

        self._library = lancedb
        self._arrow = pa
        self._table: Any = None
        self._setting: Setting = {}
        self.what = f"lancedb {version('lancedb')}, {self.kind}"

    kind: str

    def build(self, vectors: Floats, folder: Path, threads: int) -> None:
        # It takes all cores of its own accord.
        rows = self._rows(0, vectors)
        table = self._library.connect(str(folder)).create_table(TABLE, rows)
        table.create_index("vector", config=self._index(vectors))

    def open(self, folder: Path, vectors: Floats) -> None:
        self._table = self._library.connect(str(folder)).open_table(TABLE)

    def use(self, setting: Setting) -> None:
        self._setting = setting

    def search(self, query: Floats, k: int) -> Found:
        search = self._table.search(query).distance_type("dot").limit(k).select(["id", "_distance"])
        for knob, value in self._setting.items():
            search = getattr(search, knob)(value)
        found: list[int] = search.to_arrow()["id"].to_pylist()
        return found

    def insert(self, row: int, vector: Floats) -> None:
        self._table.add(self._rows(row, vector[None, :]))

    def close(self) -> None:
        self._table = None

    @abstractmethod
    def _index(self, vectors: Floats) -> Any:
        """The description of the index to build."""

    def _rows(self, first: int, vectors: Floats) -> Any:
        pa = self._arrow
        values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        return pa.table({"id": pa.array(np.arange(first, first + len(vectors))), "vector": values})


class LancedbHnswSq(Lancedb):
    kind = f"IVF_HNSW_SQ, one partition, m {HNSW_M}, ef_construction {HNSW_EF_CONSTRUCTION}"

    def settings(self) -> Sequence[Setting]:
        # It refuses an `ef` below the candidates that refining asks for, ten for each of ten results.
        pairs = product((32, 64, 128, 256, 512), (1, 2, 4, 8))
        return [{"ef": ef, "refine_factor": factor} for ef, factor in pairs if ef >= 10 * factor]

    def _index(self, vectors: Floats) -> Any:
        return self._library.index.HnswSq(
            distance_type="dot", num_partitions=1, m=HNSW_M, ef_construction=HNSW_EF_CONSTRUCTION
        )


class LancedbIvfPq(Lancedb):
    kind = "IVF_PQ, eight dimensions to a code"

    def settings(self) -> Sequence[Setting]:
        partitions = [one for one in (16, 64, 128, 256) if one <= self._partitions(self._table.count_rows())]
        return [{"nprobes": n, "refine_factor": f} for n, f in product(partitions, (4, 10, 20, 40))]

    def _index(self, vectors: Floats) -> Any:
        return self._library.index.IvfPq(
            distance_type="dot",
            num_partitions=self._partitions(len(vectors)),
            num_sub_vectors=max(vectors.shape[1] // 8, 1),
        )

    @staticmethod
    def _partitions(rows: int) -> int:
        return lists_for(rows) // 2  # about the square root, which is also its own choice
