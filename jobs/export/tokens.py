"""The source's tokenizer, and the inputs that an export runs: for calibration, for checks, for measuring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from indexes.errors import InvalidInput, NotFound
from jobs.export import texts
from jobs.export.running import Feed
from jobs.export.shapes import Shape
from retrieval.embedding.models import TOKENIZER
from retrieval.embedding.tokens import Frame, pad_id

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH_TEXTS = 16
RANDOM_TOKENS_MAX = 128  # of one text of random ids
OWN_TEXTS_MAX = 1000  # lines of a user's file that are used, evenly spaced
OWN_CHECKED = 5  # one line in so many of it is kept for the checks,
OWN_CHECKED_MIN = 20  # if that leaves at least so many


class Texts:
    """Tokenised texts, cut at the model's window and padded on the right.

    `own`: a user's text, one a line, that takes the place of the bundled calibration texts and, where it is long
    enough, of the passages that vectors are compared on; no line serves for both.
    """

    def __init__(self, folder: Path, shape: Shape, own: Path | None = None) -> None:
        """Raises NotFound where the source has no fast tokenizer, InvalidInput for a file without text."""
        from tokenizers import Tokenizer

        self.path = folder / TOKENIZER
        if not self.path.is_file():
            raise NotFound(f"{TOKENIZER} is missing in the source: only fast tokenizers can be exported")
        self._tokens_max = shape.tokens_max
        self._document_prefix = shape.document_prefix
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(self.path))
        self.tokenizer.no_padding()
        self.pad = pad_id(self.tokenizer)
        self._frame = Frame.of(self.tokenizer)
        self.tokenizer.enable_truncation(shape.tokens_max)
        self._own = None if own is None else _lines(own)

    def feeds(self, lines: Sequence[str], batch_texts: int = BATCH_TEXTS) -> list[Feed]:
        """Padded inputs for `lines`, in order, `batch_texts` at a time."""
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(list(lines))]
        return [padded(ids[at : at + batch_texts], self.pad) for at in range(0, len(ids), batch_texts)]

    def calibration(self) -> list[Feed]:
        if self._own is not None:
            return self.feeds(sorted(self._split(self._own)[0], key=len))
        length = min(self._tokens_max // 2, RANDOM_TOKENS_MAX)
        head, tail = self._frame.head, self._frame.tail
        random = texts.random_ids(self.vocabulary(), head, tail, count=64, length=length)
        batches = [
            padded(random[at : at + BATCH_TEXTS], self.pad) for at in range(0, len(random), BATCH_TEXTS)
        ]
        return self.feeds(sorted(texts.calibration_texts(), key=len)) + batches

    def passages(self) -> list[str]:
        """What vectors are compared on: text as people search it."""
        checked = [] if self._own is None else self._split(self._own)[1]
        return checked or texts.PASSAGES

    def known(self) -> list[Feed]:
        """The texts of the known answers, each alone, as documents."""
        return self.feeds([self._document_prefix + text for text in texts.KNOWN_ANSWER_TEXTS], 1)

    def vocabulary(self) -> list[int]:
        return sorted(set(self.tokenizer.get_vocab().values()))

    def _split(self, own: Sequence[str]) -> tuple[list[str], list[str]]:
        checked = list(own[OWN_CHECKED - 1 :: OWN_CHECKED])
        if len(checked) < OWN_CHECKED_MIN:
            return list(own), []
        return [line for at, line in enumerate(own) if (at + 1) % OWN_CHECKED], checked


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


def padded(ids: Sequence[Sequence[int]], pad: int) -> Feed:
    """Inputs of a graph for rows of token ids, padded on the right to the longest."""
    longest = max(map(len, ids))
    tokens = np.full((len(ids), longest), pad, dtype=np.int64)
    mask = np.zeros((len(ids), longest), dtype=np.int64)
    for row, sequence in enumerate(ids):
        tokens[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return {"input_ids": tokens, "attention_mask": mask}
