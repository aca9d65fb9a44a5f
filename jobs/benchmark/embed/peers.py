"""sentence-transformers as its users call it, on PyTorch and on its ONNX backend. Needs the `bench` extra."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from indexes.model import Floats
from jobs.benchmark.embed.engine import Library, Setup


class SentenceTransformers(Library):
    """fp32 on PyTorch. Sorts by length by itself, and runs 32 texts at a time unless told otherwise."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._folder = setup.needs(setup.weights)
        self._model: Any = None
        self.what = f"fp32, sentence-transformers {version('sentence-transformers')}, {self.backend()}"

    def backend(self) -> str:
        return f"PyTorch {version('torch')}, transformers {version('transformers')}"

    def load(self) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(self._folder, device="cpu", local_files_only=True)
        self.threads = f"{torch.get_num_threads()} a run, PyTorch's own choice"

    def embed(self, texts: Sequence[str]) -> Floats:
        return np.asarray(self._model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False))


class SentenceTransformersOnnx(SentenceTransformers):
    """fp32 on onnxruntime, through optimum."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._folder = setup.needs(setup.plain)

    def backend(self) -> str:
        # Asked first, because sentence-transformers reports its absence by a plain Exception.
        importlib.import_module("optimum.onnxruntime")
        return f"optimum-onnx {version('optimum-onnx')}, onnxruntime {version('onnxruntime')}"

    def load(self) -> None:
        from sentence_transformers import SentenceTransformer

        # Without a provider it takes the first that onnxruntime lists, which need not be the CPU.
        self._model = SentenceTransformer(
            self._folder,
            device="cpu",
            backend="onnx",
            local_files_only=True,
            model_kwargs={"provider": "CPUExecutionProvider", "file_name": "onnx/model.onnx"},
        )
        self.threads = "onnxruntime's own choice: one a core, spinning"
