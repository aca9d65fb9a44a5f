"""How well a model reads a text, judged by its tokenizer: words missing from the vocabulary are split into fragments.

With an English vocabulary, a token covers about five letters of an English question, three of a German one, one of a
Russian one, and Thai has no tokens at all. The similarity of the vectors of such fragments says little about meaning.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict

from tokenizers import Tokenizer

CHARS_MAX = 512  # the beginning of a text is enough
UNKNOWN = frozenset({"[UNK]", "<unk>"})
# Letters per token up to which nothing is read, and from which everything is. Measured on questions in eleven languages
# with an English and a multilingual model, see docs/evaluation.md.
LETTERS_NONE, LETTERS_ALL = 2.8, 3.8
WORD_LETTERS = 4  # minimum for a word that is a single token: it may be short, but it is known
# A Chinese or Japanese character carries as much as three letters, a Korean syllable as two.
IDEOGRAPHS = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
SYLLABLES = ((0xAC00, 0xD7A3),)


def share_read(tokenizer: Tokenizer, text: str, least: float = 0.0) -> float:
    """Return how much of the text the tokenizer knows, from 0 (next to nothing) to 1; at least `least` if it knows a
    part of a word."""
    text = text[:CHARS_MAX]
    encoding = tokenizer.encode(text, add_special_tokens=False)
    words: dict[int | None, list[int]] = defaultdict(list)  # letters of each token, 0 if unknown
    for token, word, (start, end) in zip(encoding.tokens, encoding.word_ids, encoding.offsets, strict=True):
        if letters := sum(map(letters_in, text[start:end])):
            words[word].append(0 if token in UNKNOWN else letters)
    tokens = sum(map(len, words.values()))
    if not any(map(any, words.values())):
        return 0.0
    letters = sum(
        sum(one) if len(one) > 1 or not one[0] else max(one[0], WORD_LETTERS) for one in words.values()
    )
    return min(1.0, max(least, (letters / tokens - LETTERS_NONE) / (LETTERS_ALL - LETTERS_NONE)))


def has_letters(text: str) -> bool:
    """Whether there is anything to read; nothing in emoji or punctuation."""
    return any(map(letters_in, text[:CHARS_MAX]))


def letters_in(character: str) -> int:
    """Return how many letters a character counts for: none if it is neither a letter, a mark nor a digit."""
    if character.isascii():
        return int(character.isalnum())
    code = ord(character)
    if any(first <= code <= last for first, last in IDEOGRAPHS):
        return 3
    if any(first <= code <= last for first, last in SYLLABLES):
        return 2
    return int(character.isalnum() or unicodedata.category(character).startswith("M"))
