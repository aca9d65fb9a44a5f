"""One ONNX session: texts to tokens, tokens to vectors. A text gets the same vector whatever shares its run.

That invariance is guaranteed by the exporter (`jobs/models/export/recipes.py`: no scale depends on the batch, no value
on padding), and allows shared runs, cached vectors and stored vectors to be mixed. A known-answer test at construction
proves that this machine's kernels compute what the exporter's did.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from indexes.base.model import Floats
from retrieval.base.cgroups import cgroup_cores
from retrieval.embedding.models import Kind, KnownAnswer, Model
from retrieval.embedding.pairs import pairs, read_query
from retrieval.embedding.sessions import CPU, OUTPUT, ExecutionProvider, open_model
from retrieval.embedding.tokens import SpecialTokens, TokenizerPool, Tokens, pad_id, read_enough, windows

BATCH_TOKENS_MAX = 1024  # per run in `encode`; more is not faster, and memory grows with it


class Encoder:
    """A model ready to run. Every method may be called from any thread; several threads run in parallel."""

    def __init__(self, model: Model, *, threads: int, provider: ExecutionProvider = CPU) -> None:
        """Load the session with `threads` threads per run, on this provider if it can be used. Raises Damaged if known
        texts get wrong vectors."""
        manifest = model.manifest
        self.name = manifest.name
        self.fingerprint = manifest.fingerprint  # the same for all graphs of a model
        self.dimensions = manifest.dimensions
        self.tokens_max = manifest.tokens_max  # of one text, special ones included; the model sees no more
        self.normalizes = manifest.normalise  # vectors have length 1
        self._prefixes: dict[Kind, str] = {
            "query": manifest.query_prefix,
            "document": manifest.document_prefix,
        }
        self.tokenizers = TokenizerPool(model.tokenizer_path)
        with self.tokenizers.borrow() as tokenizer:
            self._pad = pad_id(tokenizer)
            self._frame = SpecialTokens.of(tokenizer)
            self._room = {
                kind: self.tokens_max - len(tokenizer.encode(prefix).ids)
                for kind, prefix in self._prefixes.items()
            }
        self.makes = manifest.makes
        known = [self._known(answer) for answer in manifest.known_answers]
        opened = open_model(model, self._feed(known) if known else None, threads=threads, provider=provider)
        self._session = opened.session
        self.variant = opened.variant  # the graph that runs here
        self.refused = opened.refused  # graphs tried before it that gave known texts wrong vectors here

    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[Tokens]:
        """Return one Tokens per text, in order, with the model's prefix for `kind`. Long texts are cut, never
        refused."""
        prefix = self._prefixes[kind]
        with self.tokenizers.borrow() as tokenizer:
            read = read_enough(tokenizer, [prefix + text for text in texts], self.tokens_max)
        return [self._frame.cut(encoding.ids, self.tokens_max, whole=whole) for encoding, whole in read]

    def room(self, kind: Kind) -> int:
        """Return how many tokens of a text the model reads, beside the prefix and special tokens."""
        return self._room[kind]

    def _known(self, answer: KnownAnswer) -> Tokens:
        if answer.query is None:
            return self.tokenize([answer.text], "document")[0]
        return self.pairs(self.read_query(answer.query), [answer.text])[0]

    def read_query(self, query: str) -> Encoding:
        """Return the tokens of a query for a reranker, read once for all its texts. A long one is cut."""
        with self.tokenizers.borrow() as tokenizer:
            return read_query(tokenizer, query, self.tokens_max)

    def pairs(self, query: Encoding, texts: Sequence[str]) -> list[Tokens]:
        """Return a reranker's Tokens for each text, in order, with the query before it. Long texts are cut."""
        with self.tokenizers.borrow() as tokenizer:
            return pairs(tokenizer, self._frame, query, texts, self.tokens_max)

    def windows(self, text: str, kind: Kind) -> Iterator[Tokens]:
        """Split a text into pieces that fit the model, in order; a text that fits is one piece. Tokenizes lazily, as
        pieces are consumed."""
        whole = self.tokenize([text], kind)[0]
        if not whole.truncated:
            yield whole
            return
        with self.tokenizers.borrow() as tokenizer:
            yield from windows(tokenizer, self._frame, self._prefixes[kind], text, self.tokens_max)

    def run(self, batch: Sequence[Tokens]) -> Floats:
        """Return vectors float32 [texts, dimensions], in order, from one run of at most (texts x longest) padded
        tokens."""
        if not batch:
            return np.empty((0, self.dimensions), dtype=np.float32)
        vectors: Floats = self._session.run([OUTPUT], self._feed(batch))[0]
        return vectors

    def _feed(self, batch: Sequence[Tokens]) -> dict[str, npt.NDArray[np.int64]]:
        if len(batch) == 1:
            only = np.array([batch[0].ids], dtype=np.int64)
            return {"input_ids": only, "attention_mask": np.ones_like(only)}
        longest = max(map(len, batch))
        ids = np.full((len(batch), longest), self._pad, dtype=np.int64)
        mask = np.zeros((len(batch), longest), dtype=np.int64)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens.ids
            mask[row, : len(tokens)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def encode(self, texts: Sequence[str], kind: Kind, *, batch_tokens_max: int = BATCH_TOKENS_MAX) -> Floats:
        """Return vectors float32 [texts, dimensions] of any number of texts, in order. Blocks: for jobs and tests."""
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        tokens = self.tokenize(texts, kind)
        for members in by_length(
            [len(each) for each in tokens], lambda count, longest: count * longest <= batch_tokens_max
        ):
            vectors[members] = self.run([tokens[member] for member in members])
        return vectors


def by_length(
    lengths: Sequence[int], room: Callable[[int, int], bool], texts_max: int = 256
) -> Iterator[list[int]]:
    """Yield batches of positions with similar lengths, each such that `room(texts, longest)` holds.

    A text without room makes a batch of its own. The longest come first, so that memory peaks at once.
    """
    batch: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
        # The first member is the longest: its length is what every member is padded to.
        if batch and (len(batch) == texts_max or not room(len(batch) + 1, lengths[batch[0]])):
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch


def available_threads() -> int:
    """Return the number of cores this process may use: the smaller of its CPU affinity and its control group's quota,
    at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cores()
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))
