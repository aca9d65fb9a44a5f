"""How well a model reads a text, judged by its tokenizer: text that a vocabulary was not made for falls into fragments.

An English vocabulary has about four letters in a token of an English question, 2.5 of a German one, one of a Russian
one, and no token at all for Thai. How close the vectors of such fragments are says little about what they mean.
"""

from __future__ import annotations

from tokenizers import Tokenizer

CHARS_MAX = 512  # of a text; its beginning is enough
UNKNOWN = frozenset({"[UNK]", "<unk>"})
# Letters per token from which on nothing, and all, is read. Measured on questions in eleven languages with an English
# and a multilingual model, see docs/evaluation.md.
LETTERS_NONE, LETTERS_ALL = 2.2, 3.2
# A Chinese or Japanese character says as much as three letters, a Korean syllable as two.
IDEOGRAPHS = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
SYLLABLES = ((0xAC00, 0xD7A3),)


def share_read(tokenizer: Tokenizer, text: str) -> float:
    """From 0, where the tokenizer knows next to nothing of the text, to 1."""
    text = text[:CHARS_MAX]
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if not encoding.tokens:
        return 0.0
    known: set[int] = set()
    for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        if token not in UNKNOWN:
            known.update(range(start, end))
    letters = sum(letters_in(text[at]) for at in known) / len(encoding.tokens)
    return min(1.0, max(0.0, (letters - LETTERS_NONE) / (LETTERS_ALL - LETTERS_NONE)))


def letters_in(character: str) -> int:
    """Letters that a character counts for: none if it is white space or punctuation."""
    if character.isascii():
        return int(character.isalnum())
    code = ord(character)
    if any(first <= code <= last for first, last in IDEOGRAPHS):
        return 3
    if any(first <= code <= last for first, last in SYLLABLES):
        return 2
    return int(not character.isspace())
