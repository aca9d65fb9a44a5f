"""onnxruntime and a tokenizer in a plain loop: Nearline's int8 graph as the floor of its overhead, and plain fp32."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from indexes.model import Floats
from jobs.benchmark.embed.engine import BATCH_TEXTS, Library, Setup, in_order, service_threads, shortest_first
from retrieval.embedding.models import TOKENIZER, read_manifest
from retrieval.embedding.sessions import OUTPUT, open_session
from retrieval.embedding.tokens import pad_id

CPU = ["CPUExecutionProvider"]
RUN_CHARS_MAX = 2000  # padding included: about 500 tokens
RUNTIME = f"tokenizer and onnxruntime {version('onnxruntime')} in a plain loop"


class Graph(Library):
    """Texts in runs of 32, padded to the longest of each run."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._tokenizer: Any = None
        self._session: Any = None

    def embed(self, texts: Sequence[str]) -> Floats:
        parts = (texts[at : at + BATCH_TEXTS] for at in range(0, len(texts), BATCH_TEXTS))
        return np.concatenate([self.run(part) for part in parts])

    def run(self, texts: Sequence[str]) -> Floats:
        """Vectors of texts that share one run."""
        encodings = self._tokenizer.encode_batch(list(texts))
        ids = np.array([encoding.ids for encoding in encodings], dtype=np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64)
        return self.vectors(ids, mask)

    @abstractmethod
    def vectors(self, ids: Any, mask: Any) -> Floats:
        """Vectors [texts, dimensions] of padded token ids, int64 [texts, longest]; the mask is 1 at real ones."""

    def prepare(self, folder: Path) -> None:
        """Tokenise as the exported model does."""
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._tokenizer.enable_truncation(read_manifest(Path(self.setup.model)).tokens_max)
        self._tokenizer.enable_padding(pad_id=pad_id(self._tokenizer))


class Bare(Graph):
    """What Nearline runs, without Nearline: its graph, its session's settings; no event loop, batcher or lanes."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.what = f"Nearline's graph and session, {RUNTIME}; in bulk sorted by length, as many loops as Nearline has"

    def load(self) -> None:
        folder = Path(self.setup.model)
        self.prepare(folder)
        self._manifest = read_manifest(folder)
        graph = self._manifest.variants[0].file
        self._session = open_session(folder / graph, threads=self.setup.run_threads)
        self.threads = service_threads(self.setup)

    def ask(self, text: str) -> Floats:
        return super().ask(self._manifest.query_prefix + text)

    async def documents(self, texts: Sequence[str]) -> Floats:
        texts = [self._manifest.document_prefix + text for text in texts]
        order = shortest_first(texts)
        parts = list(small_runs([texts[at] for at in order]))
        with ThreadPoolExecutor(self.setup.runs_at_once) as pool:
            return in_order(np.concatenate(list(pool.map(self.run, parts))), order)

    def vectors(self, ids: Any, mask: Any) -> Floats:
        found: Floats = self._session.run([OUTPUT], {"input_ids": ids, "attention_mask": mask})[0]
        return found


def small_runs(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Neighbours that share a run: large ones are slower, because this session keeps no memory between runs."""
    begin = 0
    for end in range(1, len(texts) + 1):
        if end == len(texts) or (end + 1 - begin) * len(texts[end]) > RUN_CHARS_MAX:
            yield texts[begin:end]
            begin = end


class PlainFp32(Graph):
    """The export that any tutorial makes, run as it shows: onnxruntime's defaults, mean pooling in numpy."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._folder = Path(setup.needs(setup.plain))
        self.what = f"fp32, not fused by us, {RUNTIME}, {BATCH_TEXTS} texts a run in the order given"

    def load(self) -> None:
        self.prepare(self._folder)
        self._session = onnxruntime.InferenceSession(str(self._folder / "onnx" / "model.onnx"), providers=CPU)
        self.threads = "onnxruntime's own choice: one a core, spinning"

    async def documents_sorted(self, texts: Sequence[str]) -> Floats:
        order = shortest_first(texts)
        return in_order(self.embed([texts[at] for at in order]), order)

    def vectors(self, ids: Any, mask: Any) -> Floats:
        hidden = self._session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        weights = mask[:, :, None].astype(np.float32)
        pooled = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        vectors: Floats = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return vectors
