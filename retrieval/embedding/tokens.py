"""Tokenising: a pool of tokenizers, and what one text became."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from indexes.base.errors import Damaged

SEGMENT_CHARS = 16_384  # tokenised at once; bounds memory, and the time that one call holds a thread


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text as the model reads it, special tokens included. `truncated`: its end was cut off."""

    ids: list[int]
    truncated: bool

    def __len__(self) -> int:
        return len(self.ids)


class TokenizerPool:
    """Lends one tokenizer, which neither pads nor truncates, to every thread that asks, also at the same time.

    Nothing changes it once it is made: only that made threads meet "Already borrowed". XLM-R's takes 260 MB, too much
    for one each.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokenizer = self._create()

    @property
    def content(self) -> bytes:
        """The tokenizer's file, which is JSON."""
        return self._path.read_bytes()

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Tokenizer]:
        yield self._tokenizer

    def _create(self) -> Tokenizer:
        try:
            tokenizer = Tokenizer.from_buffer(self.content)
        except Exception as error:
            raise Damaged(f"{self._path} is not a tokenizer: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens that the tokenizer puts before and after every text."""

    head: list[int]
    tail: list[int]

    @staticmethod
    def of(tokenizer: Tokenizer) -> Frame:
        bare = tokenizer.encode("a", add_special_tokens=False).ids
        framed = tokenizer.encode("a").ids
        for at in range(len(framed) - len(bare) + 1):
            if framed[at : at + len(bare)] == bare:
                return Frame(framed[:at], framed[at + len(bare) :])
        return Frame([], [])

    def cut(self, ids: list[int], tokens_max: int) -> Tokens:
        """As much of a framed text as the model reads; what stands at its end stays there."""
        if len(ids) <= tokens_max:
            return Tokens(ids, False)
        return Tokens(ids[: tokens_max - len(self.tail)] + self.tail, True)


def windows(tokenizer: Tokenizer, frame: Frame, prefix: str, text: str, tokens_max: int) -> list[Tokens]:
    """All of a text, in pieces that the model can read, each with the prefix and the special tokens.

    Pieces do not overlap.
    """
    before = tokenizer.encode(prefix, add_special_tokens=False).ids if prefix else []
    room = max(1, tokens_max - len(frame.head) - len(frame.tail) - len(before))
    ids: list[int] = []
    for start, end in segments(text):
        ids.extend(tokenizer.encode_batch_fast([text[start:end]], add_special_tokens=False)[0].ids)
    starts = range(0, max(1, len(ids)), room)
    return [Tokens([*frame.head, *before, *ids[at : at + room], *frame.tail], False) for at in starts]


def segments(text: str, chars_max: int = SEGMENT_CHARS) -> Iterator[tuple[int, int]]:
    """Cut `text` into pieces of at most `chars_max` characters, at white space where there is some."""
    start = 0
    while len(text) - start > chars_max:
        end = start + chars_max
        # Search a bounded stretch: a text without spaces must not be scanned again for every piece.
        space = next((at for at in range(end, end - chars_max // 8, -1) if text[at - 1].isspace()), end)
        yield start, space
        start = space
    if start < len(text):
        yield start, len(text)


def pad_id(tokenizer: Tokenizer) -> int:
    """The id that fills short rows. RoBERTa derives positions from it, so it must be the tokenizer's own."""
    for name in ("[PAD]", "<pad>"):
        if (found := tokenizer.token_to_id(name)) is not None:
            return int(found)
    return 0
