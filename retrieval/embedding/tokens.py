"""Tokenizing: a shared tokenizer, and the tokens of a text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from indexes.base.errors import Damaged

SEGMENT_CHARS = 16_384  # tokenized at once; bounds memory and the time that one call holds a thread
CHARS_PER_TOKEN = 8  # first estimate of how much of a long text fills the window; English has four or five
WORD_CHARS = 128  # a tokenizer looks no further: a cut changes no tokens this far before it
CHARS_READ_MAX = 1 << 18  # if that does not fill the window; a megabyte of white space takes half a second


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text as the model reads it, special tokens included. `truncated` if its end was cut off."""

    ids: list[int]
    truncated: bool

    def __len__(self) -> int:
        return len(self.ids)


class TokenizerPool:
    """Lends one tokenizer, which neither pads nor truncates, to all threads, even at the same time.

    It is never changed after construction: changing it is what makes threads fail with "Already borrowed". XLM-R's
    takes 260 MB, too much for one per thread.
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
class SpecialTokens:
    """The special tokens that the tokenizer puts before and after every text."""

    head: list[int]
    tail: list[int]

    @staticmethod
    def of(tokenizer: Tokenizer) -> SpecialTokens:
        bare = tokenizer.encode("a", add_special_tokens=False).ids
        framed = tokenizer.encode("a").ids
        for at in range(len(framed) - len(bare) + 1):
            if framed[at : at + len(bare)] == bare:
                return SpecialTokens(framed[:at], framed[at + len(bare) :])
        return SpecialTokens([], [])

    def cut(self, ids: list[int], tokens_max: int, *, whole: bool = True) -> Tokens:
        """Cut a framed text to what the model reads, keeping the special tokens at its end. `whole`: the ids cover all
        of the text."""
        if len(ids) <= tokens_max:
            return Tokens(ids, not whole)
        return Tokens(ids[: tokens_max - len(self.tail)] + self.tail, True)


def read_enough(
    tokenizer: Tokenizer, texts: Sequence[str], tokens_max: int, *, special_tokens: bool = True
) -> list[tuple[Encoding, bool]]:
    """Return for each text the encoding of enough of its beginning to fill `tokens_max`, and whether that is all of it.

    The first `tokens_max` tokens equal those of the whole text. Tokenizing a whole megabyte takes a second, so a long
    text is read in steps; one with hardly any tokens in its first CHARS_READ_MAX characters is cut there.
    """
    chars = CHARS_PER_TOKEN * tokens_max + WORD_CHARS
    encodings = tokenizer.encode_batch_fast(
        [text[:chars] for text in texts], add_special_tokens=special_tokens
    )
    found = []
    for text, first in zip(texts, encodings, strict=True):
        read, encoding = chars, first
        while read < len(text) and len(encoding) < tokens_max + WORD_CHARS and read < CHARS_READ_MAX:
            read = min(4 * read, CHARS_READ_MAX)
            encoding = tokenizer.encode_batch_fast([text[:read]], add_special_tokens=special_tokens)[0]
        found.append((encoding, read >= len(text)))
    return found


def windows(
    tokenizer: Tokenizer, frame: SpecialTokens, prefix: str, text: str, tokens_max: int
) -> Iterator[Tokens]:
    """Split a text into pieces that the model can read, each with the prefix and the special tokens.

    Pieces do not overlap. Tokenizes lazily, as pieces are consumed.
    """
    before = tokenizer.encode(prefix, add_special_tokens=False).ids if prefix else []
    room = max(1, tokens_max - len(frame.head) - len(frame.tail) - len(before))
    ids: list[int] = []
    none = True
    for start, end in segments(text):
        ids.extend(tokenizer.encode_batch_fast([text[start:end]], add_special_tokens=False)[0].ids)
        full = len(ids) // room * room
        for at in range(0, full, room):
            yield Tokens([*frame.head, *before, *ids[at : at + room], *frame.tail], False)
        none = none and not full
        del ids[:full]
    if ids or none:
        yield Tokens([*frame.head, *before, *ids, *frame.tail], False)


def segments(text: str, chars_max: int = SEGMENT_CHARS) -> Iterator[tuple[int, int]]:
    """Cut `text` into pieces of at most `chars_max` characters, at white space where there is some."""
    start = 0
    while len(text) - start > chars_max:
        end = start + chars_max
        # Search a bounded stretch: a text without spaces must not be rescanned for every piece.
        space = next((at for at in range(end, end - chars_max // 8, -1) if text[at - 1].isspace()), end)
        yield start, space
        start = space
    if start < len(text):
        yield start, len(text)


def pad_id(tokenizer: Tokenizer) -> int:
    """Return the id that fills short rows. RoBERTa derives positions from it, so it must be the tokenizer's own."""
    for name in ("[PAD]", "<pad>"):
        if (found := tokenizer.token_to_id(name)) is not None:
            return int(found)
    return 0
