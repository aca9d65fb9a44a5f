"""Alternative libraries: vector indexes, BM25, and sentence-transformers in front of them.

Each function builds an index on all cores, in the process that searches it, and returns its search function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from indexes.base.model import Bm25, Floats
from indexes.lexical.analysis import query_terms, terms
from jobs.benchmark.texts import Material, batches, map_array
from jobs.benchmark.turns import Engine
from jobs.models.export.known import MODELS
from jobs.models.export.sources import DEFAULT_NAME, find_installed
from retrieval.embedding.encoder import available_threads

M, EF_CONSTRUCTION = 16, 200
EFS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
EF = 128  # unless chosen for a target recall
REFINE = 2  # lancedb: candidates rescored exactly per result
UPSERT_POINTS = 1000
CANDIDATES, RRF_K = 100, 10  # per ranking before fusion; the service's defaults
NOTE = f"""Peers: M {M}, ef_construction {EF_CONSTRUCTION}; usearch in float16; lancedb IVF_HNSW_SQ in one partition, \
refine factor {REFINE}, all cores for a search; BM25 engines get our terms."""

Nearest = Callable[[Floats, int, int], Any]  # (unit vector, k, ef) -> rows
Best = Callable[[list[str], int], Any]  # (terms, k) -> rows


def hnswlib(vectors: Floats) -> Nearest:
    import hnswlib

    index = hnswlib.Index(space="ip", dim=vectors.shape[1])
    index.init_index(len(vectors), M=M, ef_construction=EF_CONSTRUCTION)
    index.add_items(vectors, num_threads=available_threads())

    def nearest(vector: Floats, k: int, ef: int) -> Any:
        if index.ef != max(ef, k):  # ef is index-wide and must be at least k
            index.set_ef(max(ef, k))
        return index.knn_query(vector, k=k, num_threads=1)[0][0]

    return nearest


def faiss(vectors: Floats) -> Nearest:
    import faiss

    faiss.omp_set_num_threads(available_threads())
    index = faiss.IndexHNSWFlat(vectors.shape[1], M, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = EF_CONSTRUCTION
    index.add(vectors)
    faiss.omp_set_num_threads(1)
    parameters = {ef: faiss.SearchParametersHNSW(efSearch=ef) for ef in EFS}
    return lambda vector, k, ef: index.search(vector[None, :], k, params=parameters[ef])[1][0]


def usearch(vectors: Floats) -> Nearest:
    from usearch.index import Index

    settings = {"metric": "ip", "dtype": "f16", "connectivity": M, "expansion_add": EF_CONSTRUCTION}
    index = Index(ndim=vectors.shape[1], **settings)
    index.add(np.arange(len(vectors)), vectors, threads=available_threads())

    def nearest(vector: Floats, k: int, ef: int) -> Any:
        if index.expansion_search != ef:
            index.expansion_search = ef
        return index.search(vector, k, threads=1).keys

    return nearest


def qdrant_edge(vectors: Floats) -> Nearest:
    import qdrant_edge as q

    folder = TemporaryDirectory(prefix="nearline-bench-")
    threads = {"full_scan_threshold": 1000, "max_indexing_threads": available_threads()}
    config = q.EdgeConfig(
        vectors=q.EdgeVectorParams(size=vectors.shape[1], distance=q.Distance.Dot),
        hnsw_config=q.HnswIndexConfig(m=M, ef_construct=EF_CONSTRUCTION, **threads),
        # A single segment, because several are slower to search, with a graph at any size.
        optimizers=q.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=1),
    )
    shard = q.EdgeShard.create(folder.name, config)
    for rows in batches(len(vectors), UPSERT_POINTS):
        points = [q.Point(row, vectors[row].tolist(), None) for row in rows]
        shard.update(q.UpdateOperation.upsert_points(points))
    shard.optimize()

    def nearest(vector: Floats, k: int, ef: int, _kept: Any = folder) -> Any:
        params = q.SearchParams(hnsw_ef=ef)
        found = shard.search(q.SearchRequest(query=q.Query.Nearest(vector), limit=k, params=params))
        return [point.id for point in found]

    return nearest


def lancedb(vectors: Floats) -> Nearest:
    import lancedb
    import pyarrow as pa
    from lancedb.index import HnswSq

    folder = TemporaryDirectory(prefix="nearline-bench-")
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    rows = pa.table({"id": pa.array(np.arange(len(vectors))), "vector": values})
    table = lancedb.connect(folder.name).create_table("passages", rows)
    config = HnswSq(distance_type="dot", num_partitions=1, m=M, ef_construction=EF_CONSTRUCTION)
    table.create_index("vector", config=config)

    def nearest(vector: Floats, k: int, ef: int, _kept: Any = folder) -> Any:
        search = table.search(vector).distance_type("dot").limit(k).select(["id", "_distance"])
        return search.ef(max(ef, k * REFINE)).refine_factor(REFINE).to_arrow()["id"].to_pylist()

    return nearest


def tantivy(texts: Iterable[list[str]]) -> Best:
    import tantivy

    builder = tantivy.SchemaBuilder().add_text_field("body", stored=False, tokenizer_name="whitespace")
    schema = builder.add_integer_field("row", fast=True).build()
    index = tantivy.Index(schema)
    writer = index.writer(heap_size=1_000_000_000, num_threads=1)
    for row, words in enumerate(texts):
        writer.add_document(tantivy.Document(body=" ".join(words), row=row))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher, query = index.searcher(), tantivy.Query

    def best(words: list[str], k: int) -> Any:
        parts = [(tantivy.Occur.Should, query.term_query(schema, "body", word)) for word in words]
        hits = searcher.search(query.boolean_query(parts), k).hits
        return searcher.fast_field_values("row", [address for _, address in hits])

    return best


def bm25s(texts: Iterable[list[str]]) -> Best:
    import bm25s

    index = bm25s.BM25(k1=Bm25().k1, b=Bm25().b)
    index.index(list(texts), show_progress=False)

    def best(words: list[str], k: int) -> Any:
        known = [word for word in words if word in index.vocab_dict]
        return index.retrieve([known], k=k, show_progress=False, n_threads=0)[0][0] if known else []

    return best


def rank_bm25(texts: Iterable[list[str]]) -> Best:
    from rank_bm25 import BM25Okapi

    index = BM25Okapi(list(texts), k1=Bm25().k1, b=Bm25().b)
    return lambda words, k: np.argsort(-index.get_scores(words))[:k]


class VectorIndex(Engine):
    """A peer's vector index. A query is a unit vector and k."""

    def __init__(self, folder: Path, build: Callable[[Floats], Nearest]) -> None:
        self._material, self._build = folder, build
        self._ef: dict[int, int] = {}

    def open(self) -> None:
        self._nearest = self._build(map_array(self._material / "vectors.npy"))

    def choose(self, k: int, ef: int) -> None:
        """Use `ef` for searches of depth `k`."""
        self._ef[k] = ef

    def ask(self, query: tuple[Floats, int]) -> list[int]:
        vector, k = query
        return [int(row) for row in self._nearest(vector, k, self._ef.get(k, EF)) if row >= 0]


class Bm25Index(Engine):
    """BM25 over the first `rows` texts. A query is a text and k."""

    def __init__(self, folder: Path, build: Callable[[Iterable[list[str]]], Best], rows: int) -> None:
        self._material, self._build, self._rows = folder, build, rows

    def open(self) -> None:
        self._best = self._build(terms(text) for text in Material(self._material).texts[: self._rows])

    def ask(self, query: tuple[str, int]) -> list[int]:
        return [int(row) for row in self._best(list(query_terms(query[0])), query[1])]


class SentenceTransformers(Engine):
    """The usual stack from text to rows: sentence-transformers, a vector index, optionally BM25 fused by rank.

    Without an index it only embeds one text or a list.
    """

    def __init__(self, index: VectorIndex | None = None, bm25: Bm25Index | None = None, k: int = 10) -> None:
        self._index, self._bm25, self._k = index, bm25, k

    def open(self) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(packaged_weights()), device="cpu", local_files_only=True)
        self._set_threads = torch.set_num_threads
        for part in (self._index, self._bm25):
            if part:
                part.open()

    def expect(self, clients: int) -> None:
        """A single client uses all cores per run, PyTorch's default; several clients use one thread each."""
        self._set_threads(available_threads() if clients == 1 else 1)

    def embed(self, texts: list[str]) -> Floats:
        found: Floats = self._model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        return found

    def ask(self, query: Any) -> Any:
        vectors = self.embed([query] if isinstance(query, str) else query)
        if self._index is None:
            return vectors
        if self._bm25 is None:
            return self._index.ask((vectors[0], self._k))
        rankings = self._index.ask((vectors[0], CANDIDATES)), self._bm25.ask((query, CANDIDATES))
        return fuse(rankings)[: self._k]


def fuse(rankings: Sequence[Sequence[int]]) -> list[int]:
    """Fuse rankings by reciprocal rank."""
    scores: dict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            scores[row] += 1 / (RRF_K + rank)
    return sorted(scores, key=lambda row: -scores[row])


def packaged_weights() -> Path:
    """The folder of all-MiniLM-L6-v2 in an installed package."""
    if (found := find_installed(MODELS[DEFAULT_NAME])) is None:
        raise ImportError(f"no installed package carries the weights of {DEFAULT_NAME}")
    return found.weights.parent
