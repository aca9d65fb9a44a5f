"""The texts that calibrate and check an export, the same on every machine, and their tokens.

Calibration mixes registers (prose, questions, logs, code, numbers, other scripts), lengths (one word to a full
window), and random tokens of the vocabulary, which reach extremes that prose rarely does.

There are two kinds of checks. Hard texts, reversed or joined from unrelated sentences, show the worst case. Natural
passages show what search will see, where quantized vectors are closer to fp32's (all-MiniLM-L6-v2: .9948 on average
on 13,447 sentences of an encyclopedia, .9931 on the hard ones).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indexes.base.errors import InvalidInput, NotFound
from jobs.models.export.shapes import Shape
from retrieval.embedding.models import TOKENIZER
from retrieval.embedding.tokens import SpecialTokens, pad_id

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SEED = 20_240_601
HARD_PARAGRAPHS = 30  # about 5,000 tokens, run by every candidate
BATCH_TEXTS = 16
RANDOM_TEXTS, RANDOM_TOKENS_MAX = 64, 128
ASKED_WORDS = 8
OWN_TEXTS_MAX = 1000  # lines sampled from a user's file, evenly spaced
OWN_CHECKED = 5  # every fifth of them is held out for checks,
OWN_CHECKED_MIN = 20  # if that makes at least this many

Feed = dict[str, npt.NDArray[np.int64]]


def _bundled(name: str) -> list[str]:
    return Path(__file__).with_name(name).read_text("utf-8").splitlines()


SENTENCES = _bundled("sentences.txt")
PASSAGES = _bundled("passages.txt")  # not used for calibration
KNOWN_ANSWER_TEXTS = [SENTENCES[3], SENTENCES[14], SENTENCES[42], SENTENCES[62]]


def calibration_texts() -> list[str]:
    """Every bundled sentence, and sixty paragraphs of two to fourteen of them in a fixed random order."""
    return [*SENTENCES, *_paragraphs(60, SEED)]


def hard_texts() -> list[str]:
    """Sentences with their words reversed, if that changes them, and paragraphs that calibration does not use."""
    backwards = [" ".join(reversed(sentence.split())) for sentence in SENTENCES]
    changed = [text for text, sentence in zip(backwards, SENTENCES) if text != sentence]
    return [*changed, *_paragraphs(HARD_PARAGRAPHS, SEED + 1)]


def _paragraphs(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.sample(SENTENCES, chance.randint(2, 14))) for _ in range(count)]


def query_for(text: str) -> str:
    """A query to check a reranker on a text: words of its own for every other text, else an unrelated query."""
    return first_words(text) if len(text) % 2 == 0 else SENTENCES[len(text) % len(SENTENCES)]


def first_words(text: str) -> str:
    return " ".join(text.split()[:ASKED_WORDS])


class TokenizedTexts:
    """Tokenized texts, truncated to the model's window and padded on the right.

    `own`: a user's texts, one per line, that replace the bundled calibration texts and, if there are enough, the
    passages for comparing vectors; no line is used for both.
    """

    def __init__(self, folder: Path, shape: Shape, own: Path | None = None) -> None:
        """Raises NotFound if the source has no fast tokenizer, InvalidInput for a file without text."""
        from tokenizers import Tokenizer

        self.path = folder / TOKENIZER
        if not self.path.is_file():
            raise NotFound(f"{TOKENIZER} is missing in the source: only fast tokenizers can be exported")
        self._shape = shape
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(self.path))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(shape.tokens_max)
        self.pad = pad_id(self.tokenizer)
        self.vocabulary = sorted(set(self.tokenizer.get_vocab().values()))
        self.passages = PASSAGES  # for comparing vectors: text as people search it
        self._calibration = calibration_texts()
        self._random = own is None
        if own is not None:
            self._calibration = lines = _lines(own)
            if len(checked := lines[OWN_CHECKED - 1 :: OWN_CHECKED]) >= OWN_CHECKED_MIN:
                self.passages = checked
                self._calibration = [line for at, line in enumerate(lines) if (at + 1) % OWN_CHECKED]

    def feeds(self, lines: Sequence[str], batch_texts: int = BATCH_TEXTS) -> list[Feed]:
        """Padded inputs for `lines`, in order, `batch_texts` at a time; for a reranker, each with a query."""
        if self._shape.makes == "scores":
            return self._encode([(query_for(line), line) for line in lines], batch_texts)
        return self._encode(list(lines), batch_texts)

    def calibration(self) -> list[Feed]:
        feeds = self.feeds(sorted(self._calibration, key=len))
        return feeds + self._batches(self._random_ids(), BATCH_TEXTS) if self._random else feeds

    def known(self) -> list[Feed]:
        """The known-answer texts as documents, one per batch; for a reranker, with their queries."""
        if self._shape.makes == "scores":
            return self._encode(list(zip(KNOWN_ANSWER_QUERIES, KNOWN_ANSWER_TEXTS, strict=True)), 1)
        return self.feeds([self._shape.document_prefix + text for text in KNOWN_ANSWER_TEXTS], 1)

    @property
    def known_queries(self) -> Sequence[str | None]:
        return KNOWN_ANSWER_QUERIES if self._shape.makes == "scores" else [None] * len(KNOWN_ANSWER_TEXTS)

    def both_sides(self, lines: Sequence[str]) -> tuple[list[Feed], list[Feed]]:
        """`lines` as queries and as documents, each with its prefix."""
        queries = self.feeds([self._shape.query_prefix + line for line in lines])
        return queries, self.feeds([self._shape.document_prefix + line for line in lines])

    def noise(self, rows: int, length: int) -> Feed:
        """Random tokens for timing."""
        return pad_rows(np.random.default_rng(SEED).choice(self.vocabulary, (rows, length)).tolist(), self.pad)

    def _encode(self, texts: Sequence[str | tuple[str, str]], batch_texts: int) -> list[Feed]:
        return self._batches([each.ids for each in self.tokenizer.encode_batch(texts)], batch_texts)

    def _batches(self, ids: Sequence[Sequence[int]], batch_texts: int) -> list[Feed]:
        return [pad_rows(ids[at : at + batch_texts], self.pad) for at in range(0, len(ids), batch_texts)]

    def _random_ids(self) -> list[list[int]]:
        """Texts of random tokens, at least one each, between the tokenizer's special tokens."""
        chance, frame = random.Random(SEED + 2), SpecialTokens.of(self.tokenizer)
        longest = min(self._shape.tokens_max // 2, RANDOM_TOKENS_MAX)
        room = max(1, longest - len(frame.head) - len(frame.tail))
        lengths = (chance.randint(min(3, room), room) for _ in range(RANDOM_TEXTS))
        bodies = ([chance.choice(self.vocabulary) for _ in range(length)] for length in lengths)
        return [[*frame.head, *body, *frame.tail] for body in bodies]


def _lines(file: Path) -> list[str]:
    try:
        lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise NotFound(f"{file.name} cannot be read: {error.strerror}", param="calibrate") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file.name} is not UTF-8 text", param="calibrate") from error
    if not lines:
        raise InvalidInput(f"{file.name} holds no calibration text", param="calibrate")
    return lines[:: -(-len(lines) // OWN_TEXTS_MAX)]


def pad_rows(ids: Sequence[Sequence[int]], pad: int) -> Feed:
    """Graph inputs for rows of token ids, padded on the right to the longest."""
    longest = max(map(len, ids))
    tokens = np.full((len(ids), longest), pad, dtype=np.int64)
    mask = np.zeros((len(ids), longest), dtype=np.int64)
    for row, sequence in enumerate(ids):
        tokens[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return {"input_ids": tokens, "attention_mask": mask}


# For rerankers, every other known answer is the score of a text that does not answer its query.
KNOWN_ANSWER_QUERIES = [first_words(KNOWN_ANSWER_TEXTS[at - at % 2]) for at in range(len(KNOWN_ANSWER_TEXTS))]
