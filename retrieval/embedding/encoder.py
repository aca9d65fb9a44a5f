"""One ONNX session: texts to tokens, tokens to vectors, the same vector for a text whatever shares its run.

That invariance is the exporter's promise (`jobs/quantise.py`: no scale depends on the batch, no value on
padding), and what allows shared runs, cached vectors and stored vectors to be mixed. A known-answer test at
construction proves that this machine's kernels compute what the exporter's did.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from tokenizers import Tokenizer

from indexes.errors import Damaged
from retrieval.embedding.models import Kind, Model
from retrieval.embedding.tokens import TokenizerPool, Tokens, pad_id

Floats = npt.NDArray[np.float32]

KNOWN_ANSWER_COSINE_MIN = 0.99  # rounding differs a little between CPUs; saturating kernels fall far below
CHARS_PER_TOKEN = 32  # first guess of how much of a huge text fills the window
BATCH_TOKENS_MAX = 1024  # of one run in `encode`; more is not faster, and memory grows with it
OUTPUT = "embeddings"


class Encoder:
    """A model ready to run. Every method may be called from any thread; runs of several threads go side by side."""

    def __init__(self, model: Model, *, threads: int) -> None:
        """Load the session with `threads` threads a run. Raises Damaged where known texts get strange vectors."""
        self._manifest = model.manifest
        self._prefixes: dict[Kind, str] = {
            "query": model.manifest.query_prefix,
            "document": model.manifest.document_prefix,
        }
        self._pool = TokenizerPool(model.tokenizer_path, self._truncate)
        with self._pool.borrow() as tokenizer:
            self._pad = pad_id(tokenizer)
        self._session = _session(model.model_path, threads)
        self._check_known_answers(model.model_path)

    @property
    def name(self) -> str:
        return self._manifest.name

    @property
    def fingerprint(self) -> str:
        return self._manifest.fingerprint

    @property
    def dimensions(self) -> int:
        return self._manifest.dimensions

    @property
    def tokens_max(self) -> int:
        """Tokens of one text, special ones included; the rest of a longer text is not seen."""
        return self._manifest.tokens_max

    def tokenise(self, texts: Sequence[str], kind: Kind) -> list[Tokens]:
        """One Tokens a text, in order, with the model's prefix for `kind`. Long texts are cut, never refused."""
        prefix = self._prefixes[kind]
        chars = CHARS_PER_TOKEN * self.tokens_max
        with self._pool.borrow() as tokenizer:
            encodings = tokenizer.encode_batch_fast([prefix + text[:chars] for text in texts])
            return [
                _tokens(encoding)
                if len(text) <= chars
                else self._tokens_of_long(tokenizer, prefix + text, chars)
                for text, encoding in zip(texts, encodings)
            ]

    def _tokens_of_long(self, tokenizer: Tokenizer, text: str, chars: int) -> Tokens:
        """Read no more of a huge text than fills the window: tokenising all of a megabyte takes a second."""
        while True:
            tokens = _tokens(tokenizer.encode_batch_fast([text[:chars]])[0])
            if tokens.truncated or chars >= len(text):
                return tokens
            chars *= 2

    def run(self, batch: Sequence[Tokens]) -> Floats:
        """Vectors float32 [texts, dimensions], in order, in one run of at most (texts x longest) padded tokens."""
        if not batch:
            return np.empty((0, self.dimensions), dtype=np.float32)
        longest = max(map(len, batch))
        ids = np.full((len(batch), longest), self._pad, dtype=np.int64)
        mask = np.zeros((len(batch), longest), dtype=np.int64)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens.ids
            mask[row, : len(tokens)] = 1
        vectors: Floats = self._session.run([OUTPUT], {"input_ids": ids, "attention_mask": mask})[0]
        return vectors

    def encode(self, texts: Sequence[str], kind: Kind, *, batch_tokens_max: int = BATCH_TOKENS_MAX) -> Floats:
        """Vectors float32 [texts, dimensions] of any number of texts, in order. Blocks: for jobs and tests."""
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        tokens = self.tokenise(texts, kind)
        for members in by_length([len(each) for each in tokens], batch_tokens_max):
            vectors[members] = self.run([tokens[member] for member in members])
        return vectors

    def _truncate(self, tokenizer: Tokenizer) -> None:
        tokenizer.enable_truncation(self.tokens_max)

    def _check_known_answers(self, path: Path) -> None:
        known = self._manifest.known_answers
        found = self.run(self.tokenise([answer.text for answer in known], "document"))
        for answer, vector in zip(known, found):
            expected = np.asarray(answer.vector, dtype=np.float32)
            cosine = float(vector @ expected / (np.linalg.norm(vector) * np.linalg.norm(expected)))
            if not cosine >= KNOWN_ANSWER_COSINE_MIN:  # written so that NaN fails too
                raise Damaged(
                    f"{path} computes another vector here than where it was exported: cosine {cosine:.3f} for "
                    f"{answer.text[:40]!r}, expected at least {KNOWN_ANSWER_COSINE_MIN}; export it on this machine"
                )


def by_length(lengths: Sequence[int], tokens_max: int, texts_max: int = 256) -> Iterator[list[int]]:
    """Batches of positions, similar lengths together, each at most `tokens_max` padded tokens.

    A text longer than `tokens_max` makes a batch of its own. Longest first, so memory reaches its peak at once.
    """
    batch: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
        # The first member is the longest: its length is what every member is padded to.
        if batch and (lengths[batch[0]] * (len(batch) + 1) > tokens_max or len(batch) == texts_max):
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch


def _tokens(encoding: Any) -> Tokens:
    return Tokens(encoding.ids, bool(encoding.overflowing))


def _session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    # The runtime ignores CPU quotas and would start a thread for each core it can see.
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning threads answer faster and take the core from whoever else wants it: here, the searches.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Plans are kept per shape, and nearly every batch has a shape of its own.
    options.enable_mem_pattern = False
    # The arena keeps the largest run's memory for ever; without it runs measured just as fast.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise Damaged(f"{path} cannot be loaded: {error}") from error


def available_threads() -> int:
    """Cores this process may use: the smaller of its CPU affinity and its control group's quota, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cores(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def cgroup_cores(root: Path, membership: Path) -> float | None:
    """Cores granted by the tightest quota from our control group up to `root`, or None where there is no limit."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas: list[float | None] = []
    for line in lines:
        _, controllers, path = line.split(":", maxsplit=2)
        if controllers == "":
            base = root  # version 2
        elif "cpu" in controllers.split(","):
            base = root / "cpu"
        else:
            continue
        folder = base / path.lstrip("/")
        # Inside a container the path may be the host's; the root is then our own group.
        quotas.extend(_quota(each) for each in (folder, *folder.parents) if each.is_relative_to(base))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(folder: Path) -> float | None:
    try:
        if (file := folder / "cpu.max").is_file():
            allowed, period = file.read_text().split()
        else:
            allowed = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if allowed in {"max", "-1"} else int(allowed) / int(period)
    except (OSError, ValueError):
        return None
