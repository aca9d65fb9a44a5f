"""Where the tokens of a text start, for code that cuts texts into passages.

BERT's tokenizer reads each word separately, and texts repeat their words, so the tokens of a word are computed once and
cached. Other tokenizers read the whole text.
"""

from __future__ import annotations

import re
import string
from array import array
from bisect import bisect_left
from itertools import accumulate

import msgspec
from tokenizers import Tokenizer

from indexes.base.work import OnStep, do_nothing
from retrieval.embedding.tokens import TokenizerPool, segments

LONG_TOKEN_CHARS = 32  # no vocabulary has a longer entry
KNOWN_CHARS_MAX = 524_288  # about 75,000 English words and 15 MB; no language has that many frequent ones
# BERT makes a token of each ASCII punctuation mark. Other white space stays inside words, where the tokenizer may or
# may not split: some of it counts as control characters, which it drops.
SPACE, PUNCTUATION = " \t\n\r", re.escape(string.punctuation)
WORD = re.compile(rf"(?:[^{SPACE}{PUNCTUATION}]+|[{PUNCTUATION}])[{SPACE}]*")
FIRST_WORD = re.compile(rf"[{SPACE}]*")


class TokenCounter:
    """Finds where tokens start, without special tokens and without truncation. Thread-safe."""

    def __init__(self, pool: TokenizerPool) -> None:
        self._pool = pool
        self._whole = words_to_read_whole(pool.content)
        # For a word with its trailing space: where its tokens start.
        self._known: dict[str, tuple[int, ...]] = {}
        self._known_chars = 0

    def starts(self, text: str, on_step: OnStep = do_nothing) -> array[int]:
        """Return the character at which each token of `text` starts, ascending. Empty tokens are left out.

        Exact up to SEGMENT_CHARS characters; beyond, a cut inside a word may add a few. A very long word, which the
        model reads as a single unknown token, counts once for every LONG_TOKEN_CHARS, so that a megabyte without spaces
        does not pass for one token. `on_step` is called before each SEGMENT_CHARS.
        """
        found = array("q")
        with self._pool.borrow() as tokenizer:
            for begin, stop in segments(text):
                on_step()
                segment = text[begin:stop]
                if self._whole is None or any(special in segment for special in self._whole):
                    starts = read_whole(tokenizer, segment)
                else:
                    starts = self._read_by_word(tokenizer, segment)
                found.extend([begin + start for start in starts] if begin else starts)
        return found

    def _read_by_word(self, tokenizer: Tokenizer, text: str) -> list[int]:
        if self._known_chars > KNOWN_CHARS_MAX:
            self._known, self._known_chars = {}, 0
        known = self._known  # another thread may replace it, but never removes entries
        words = WORD.findall(text)
        unknown = [word for word in set(words) if word not in known]
        known.update(zip(unknown, read_each(tokenizer, unknown), strict=True))
        self._known_chars += sum(map(len, unknown))
        first = FIRST_WORD.match(text)
        assert first is not None, "it matches the empty string too"
        positions = accumulate(map(len, words), initial=first.end())
        return [at + start for at, word in zip(positions, words) for start in known[word]]


def words_to_read_whole(tokenizer: bytes) -> list[str] | None:
    """Return the special tokens, which are recognized before a text is split into words. Texts that contain one are
    read whole.

    None if every text must be read whole, because this is not BERT's kind of tokenizer.
    """
    found = msgspec.json.decode(tokenizer, type=TokenizerFile)
    kinds = tuple(
        part.type if part else None for part in (found.normalizer, found.pre_tokenizer, found.model)
    )
    if kinds != ("BertNormalizer", "BertPreTokenizer", "WordPiece"):
        return None
    # A normalized one is recognized in other spellings too.
    return (
        None
        if any(one.normalized for one in found.added_tokens)
        else [one.content for one in found.added_tokens]
    )


class TokenizerPart(msgspec.Struct):
    type: str | None = None


class AddedToken(msgspec.Struct):
    content: str
    normalized: bool = True


class TokenizerFile(msgspec.Struct):
    """The parts of a `tokenizers` file that determine how it splits words."""

    normalizer: TokenizerPart | None = None
    pre_tokenizer: TokenizerPart | None = None
    model: TokenizerPart | None = None
    added_tokens: list[AddedToken] = []


def read_whole(tokenizer: Tokenizer, text: str) -> list[int]:
    offsets = tokenizer.encode_batch([text], add_special_tokens=False)[0].offsets
    starts = [start for start, end in offsets if 0 < end - start <= LONG_TOKEN_CHARS]
    if len(starts) == len(offsets):  # usually: it takes half as long
        return starts
    return [at for start, end in offsets for at in range(start, end, LONG_TOKEN_CHARS)]


def read_each(tokenizer: Tokenizer, words: list[str]) -> list[tuple[int, ...]]:
    """Return for each word where its tokens start in it."""
    starts = read_whole(tokenizer, "\n".join(words))
    found, begin, at = [], 0, 0
    for word in words:
        end = bisect_left(starts, begin + len(word), at)
        found.append(tuple([start - begin for start in starts[at:end]]))
        begin, at = begin + len(word) + 1, end
    return found
