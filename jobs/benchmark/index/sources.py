"""Where the material comes from: corpora, embedded here as the service does it, or vectors that were made before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from indexes.errors import InvalidInput
from indexes.model import Floats, Settings, Upsert
from jobs.benchmark.index.material import BUCKETS, load, upsert
from jobs.benchmark.service import sample_queries
from jobs.docstrings import docstrings
from jobs.judgements import read_queries
from jobs.sources import SourceDocument, read_documents
from retrieval.embedders import Embedder, Embedders
from retrieval.embedding.observing import Silent
from retrieval.schemas import NewDocument
from retrieval.settings import Config
from retrieval.writing import assemble, chunk

DOCUMENTS_AT_ONCE = 512
QUERIES_MAX = 20_000
FINGERPRINT = "bench"  # of vectors whose model nobody told us


class Corpora:
    """Files of documents, each with the queries that lie beside it as queries.jsonl.gz or queries.jsonl.

    Without such a file, queries are eight words out of the middle of the corpus's own documents. No files at all:
    the docstrings of this Python.
    """

    def __init__(self, paths: Sequence[Path], config: Config) -> None:
        self.paths = list(paths)
        self.name = ", ".join(path.resolve().parent.name for path in paths) or "docstrings"
        self._config = config
        self._embedder = asyncio.run(open_embedder(config))
        self._sampled: dict[Path | None, list[SourceDocument]] = {}

    def describe(self) -> dict[str, Any]:
        return {
            "corpora": [str(path.resolve()) for path in self.paths] or ["docstrings"],
            "model": self._embedder.encoder.name,
            "fingerprint": self._embedder.fingerprint,
        }

    def settings(self) -> Settings:
        encoder = self._embedder.encoder
        return Settings(dimensions=encoder.dimensions, fingerprint=encoder.fingerprint, model=encoder.name)

    def upserts(self) -> Iterator[list[Upsert]]:
        batch: list[NewDocument] = []
        for number, (source, document) in enumerate(self._documents()):
            if queries_beside(source) is None:
                self._sampled.setdefault(source, []).append(document)
            # Ids may repeat from one corpus to the next; here every document counts.
            batch.append(
                NewDocument(
                    id=str(number),
                    text=document.text,
                    title=document.title or "",
                    metadata={"bucket": number % BUCKETS},
                )
            )
            if len(batch) == DOCUMENTS_AT_ONCE:
                yield self._embed(batch)
                batch = []
        if batch:
            yield self._embed(batch)

    def queries(self) -> Floats:
        """Those of all corpora in turn, so that the first thousand are a fair mixture."""
        pools = [self._pool(path) for path in self.paths] if self.paths else [self._pool(None)]
        mixed = [text for text in chain.from_iterable(zip_longest(*pools)) if text is not None]
        return self._embedder.encoder.encode(mixed[:QUERIES_MAX], "query")

    def _pool(self, source: Path | None) -> list[str]:
        if (beside := queries_beside(source)) is not None:
            texts = [query.text for query in read_queries(beside)]
            random.Random(0).shuffle(texts)
            return texts
        documents = self._sampled.get(source, [])
        return [query.text for query in sample_queries(documents, QUERIES_MAX, 0)]

    def _documents(self) -> Iterator[tuple[Path | None, SourceDocument]]:
        if not self.paths:
            yield from ((None, document) for document in docstrings())
        for path in self.paths:
            yield from ((path, document) for document in read_documents([path]))

    def _embed(self, documents: list[NewDocument]) -> list[Upsert]:
        pieces = [chunk(document, self._embedder, self._config) for document in documents]
        texts = [piece.embedded for own in pieces for piece in own]
        vectors = self._embedder.encoder.encode(texts, "document")
        return [upsert for upsert in assemble(documents, pieces, vectors) if upsert.passages]


class Arrays:
    """Vectors of passages [rows, dimensions] as .npy, their texts as one JSON list, vectors of queries if any."""

    def __init__(self, vectors: Path, texts: Path, queries: Path | None) -> None:
        self.name = vectors.name
        paths = {"vectors": vectors, "texts": texts, "query_vectors": queries}
        self._paths = {name: path for name, path in paths.items() if path is not None}
        self._vectors: Floats = load(vectors)
        self._texts = msgspec.json.decode(texts.read_bytes(), type=list[str])
        if self._vectors.ndim != 2 or len(self._vectors) != len(self._texts):
            raise InvalidInput(
                f"{vectors} has shape {self._vectors.shape} and {texts} {len(self._texts)} texts; expected "
                "one vector for each text",
                param="vectors",
            )
        dimensions = self._vectors.shape[1]
        self._queries: Floats = np.empty((0, dimensions), np.float32) if queries is None else load(queries)
        if self._queries.ndim != 2 or self._queries.shape[1] != dimensions:
            raise InvalidInput(
                f"{queries} has shape {self._queries.shape}, expected queries of {dimensions} dimensions",
                param="query_vectors",
            )

    def describe(self) -> dict[str, Any]:
        return {name: str(path.resolve()) for name, path in self._paths.items()}

    def settings(self) -> Settings:
        return Settings(dimensions=self._vectors.shape[1], fingerprint=FINGERPRINT, model=FINGERPRINT)

    def upserts(self) -> Iterator[list[Upsert]]:
        for start in range(0, len(self._texts), DOCUMENTS_AT_ONCE):
            rows = range(start, min(start + DOCUMENTS_AT_ONCE, len(self._texts)))
            vectors = np.asarray(self._vectors[rows.start : rows.stop], np.float32)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            yield [
                upsert(str(row), self._texts[row], vector, row % BUCKETS)
                for row, vector in zip(rows, vectors / lengths, strict=True)
            ]

    def queries(self) -> Floats:
        chosen = np.random.default_rng(0).permutation(len(self._queries))[:QUERIES_MAX]
        picked: Floats = self._queries[chosen]
        return picked


def queries_beside(corpus: Path | None) -> Path | None:
    if corpus is None:
        return None
    beside = (corpus.with_name(name) for name in ("queries.jsonl.gz", "queries.jsonl"))
    return next((path for path in beside if path.is_file()), None)


async def open_embedder(config: Config) -> Embedder:
    """The default model with its tokenizer. Its batcher is closed again: jobs run the encoder themselves."""
    embedders = Embedders(config, lambda name: Silent())
    try:
        return await embedders.get(config.models.default)
    finally:
        await embedders.close()
