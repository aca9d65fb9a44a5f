"""Compares embedding by the batcher and the service with sentence-transformers and a plain fp32 graph.

A query is one text, or a list of texts for bulk; the answer is an array of vectors.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64decode
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from indexes.base.model import Floats
from jobs.benchmark.peers import SentenceTransformers, packaged_weights
from jobs.benchmark.report import BenchResults, Row, Say
from jobs.benchmark.service import BareEmbedding, OverHttp
from jobs.benchmark.texts import Material, batches, model_folder
from jobs.benchmark.turns import Engine, figures, rotate, start, turns
from jobs.models.export.architectures import build
from jobs.models.export.graph import Graph
from jobs.models.export.recipes import FP32
from jobs.models.export.running import save, vectors
from jobs.models.export.shapes import shape
from jobs.models.export.texts import TokenizedTexts
from jobs.models.export.weights import ModelWeights
from jobs.serving.process import serving
from retrieval.base.config import load_config
from retrieval.embedding.embedders import Embedders
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import load_model
from retrieval.embedding.results import Observer

BULK_TEXTS = 400  # per turn, in one request
BATCH_TEXTS = 32  # per run of the plain graph; sentence-transformers' default too
WARM_UP = 40
TORCH = "sentence-transformers"
NOTE = f"Bulk: {BULK_TEXTS} texts at once. Ours is int8; the peers are fp32 and take all cores for a run."


class BatcherEngine(Engine):
    """The service's encoder and batcher in this process, without HTTP."""

    def open(self) -> None:
        config = load_config(None, os.environ)
        self._loop = asyncio.new_event_loop()
        self._embedders = Embedders(config, lambda name: Observer())
        self._embedder = self._loop.run_until_complete(self._embedders.get(config.models.default))

    def ask(self, query: str | list[str]) -> Floats:
        embed = self._embedder
        vectors = embed.query(query) if isinstance(query, str) else embed.documents(query)
        return self._loop.run_until_complete(vectors)

    def close(self) -> None:
        self._loop.run_until_complete(self._embedders.close())


class Service(OverHttp):
    """A running service. Vectors are requested as base64, as OpenAI's client does."""

    def ask(self, query: str | list[str]) -> Floats:
        kind = "query" if isinstance(query, str) else "document"
        wanted = {"input": query, "input_type": kind, "encoding_format": "base64"}
        data = self.post("/v1/embeddings", {"model": model_folder().name, **wanted})["data"]
        return np.stack([np.frombuffer(b64decode(one["embedding"]), "<f4") for one in data])


class PlainFp32(Engine):
    """The unquantized graph that exports are compared with, with onnxruntime's defaults and texts sorted by length."""

    def __init__(self, scratch: Path) -> None:
        self._path = scratch / "plain.onnx"

    def open(self) -> None:
        import onnxruntime

        folder = packaged_weights()
        made = shape(folder)
        save(build(Graph(ModelWeights(folder), FP32.precision), made), self._path)
        self._texts = TokenizedTexts(folder, made)
        self._session = onnxruntime.InferenceSession(str(self._path), providers=["CPUExecutionProvider"])

    def ask(self, query: str | list[str]) -> Floats:
        texts = [query] if isinstance(query, str) else query
        order = np.argsort([len(text) for text in texts])
        feeds = self._texts.feeds([texts[row] for row in order], BATCH_TEXTS)
        found: Floats = vectors(self._session, feeds)[np.argsort(order)]
        return found


def run(material: Material, scratch: Path, say: Say, *, queries: int) -> BenchResults:
    asked = turns(material.queries[:queries])
    bulks = [[material.texts[row] for row in rows] for rows in batches(len(material.texts), BULK_TEXTS)]
    encoder = Encoder(load_model(model_folder()), threads=1)
    tokens = sum(len(one.ids) for one in encoder.tokenize(material.texts, "document"))
    with ExitStack() as stack:
        server = stack.enter_context(serving(scratch / "data"))
        makers: dict[str, Any] = {
            "nearline, batcher": BatcherEngine,
            "nearline, over HTTP": partial(Service, server.url, server.pid),
            "bare graph": BareEmbedding,
            TORCH: SentenceTransformers,
            "ONNX fp32": partial(PlainFp32, scratch),
        }
        workers, notes = start(makers, stack, say)
        for worker in workers.values():
            worker.run(material.queries[-WARM_UP:])
        say(f"{len(asked)} turns of queries, {len(bulks)} of {BULK_TEXTS} texts ...")
        single, bulk = rotate(workers, asked), rotate(workers, [[texts] for texts in bulks])
        rows: list[Row] = []
        for name, runs in single.items():
            row: Row = {"engine": name, **figures(runs, single["nearline, batcher"])}
            row["bulk tokens/s"] = round(tokens / sum(run.wall_s for run in bulk[name]))
            if TORCH in bulk:
                mine, theirs = (
                    np.concatenate([run.answers[0] for run in bulk[one]]) for one in (name, TORCH)
                )
                row["cosine to fp32"] = round(float((mine * theirs).sum(axis=1).mean()), 4)
            rows.append(row | workers[name].call("memory"))
    return BenchResults({"Embedding": rows}, [*notes, NOTE])
