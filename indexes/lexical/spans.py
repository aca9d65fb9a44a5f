"""Finds the positions of words in a text, for highlighting, which must point into the original text.

`words` in `lexical.words` finds the same words faster, without positions; a test keeps the two equal.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

import regex
from icu4py.breakers import WordBreaker

from indexes.base.languages import primary
from indexes.base.normalizing import normalize
from indexes.lexical.analysis import forms, terms
from indexes.lexical.words import (
    CLITIC,
    COMPOUND,
    HUMP,
    HUMPS,
    IGNORED,
    JOINED,
    LETTER_SYMBOL,
    NUMBERED,
    SYMBOLED,
    WHOLE_CHARS_MAX,
    WORD,
)

CLUSTER = regex.compile(r"\X")
TOKEN = regex.compile(r"\S+")  # no word goes beyond white space, and the terms of most tokens are known
LONG_TOKEN_CHARS, WORD_CHARS = 32, 8
Span = tuple[int, int]


class Marks:
    """Finds the words of texts that are indexed under one of the `wanted` terms. Each distinct token between white
    space is analyzed once; `read` counts these, a long one as the words of eight characters that it would make."""

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = frozenset(wanted)
        self._known: dict[tuple[str, str], list[Span]] = {}
        self.read = 0

    def of(self, text: str, language: str, read_max: int = sys.maxsize) -> list[Span] | None:
        """The spans in a passage in this language: ascending [start, end) in characters, merged if they touch or
        overlap. None if this text and those before would need more than `read_max` tokens."""
        code = primary(language)
        found: list[Span] = []
        for token in TOKEN.finditer(text):
            known = self._known.get((token.group(), code))
            if known is None:
                self.read += words_in(token.group())
                if self.read > read_max:
                    return None
                known = self._known[token.group(), code] = self._read(token.group(), code)
            if known:
                first = token.start()
                found += [(first + start, first + end) for start, end in known]
        return join_spans(found)

    def _read(self, token: str, code: str) -> list[Span]:
        if self._wanted.isdisjoint(terms(token, code)):
            return []
        return [
            (start, end)
            for start, end, word in spans(token)
            if not self._wanted.isdisjoint(forms(word, code))
        ]


def words_in(token: str) -> int:
    """How many words a token counts as. Scripts without spaces make one token of a whole text, and a single character
    may stand for eighteen."""
    return 1 if len(token) <= LONG_TOKEN_CHARS else len(normalize("NFKC", token)) // WORD_CHARS


def mark_spans(text: str, wanted: Collection[str], language: str) -> list[Span]:
    """The spans of the wanted terms in a single text."""
    return Marks(wanted).of(text, language) or []


def join_spans(found: list[Span]) -> list[Span]:
    """Sort spans, and merge those that touch or overlap."""
    merged: list[Span] = []
    for start, end in sorted(found):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def spans(text: str) -> Iterator[tuple[int, int, str]]:
    """Each word that `words` finds, with its place [start, end) in the text. In no order, with repetitions."""
    plain, starts, ends = _plain(text)
    for start, end, word in _words(plain):
        yield starts[start], ends[end - 1], word


def _plain(text: str) -> tuple[str, Sequence[int], Sequence[int]]:
    """The text as `words` reads it, and where each of its characters starts and ends in the original."""
    plain, starts, ends = text, range(len(text)), range(1, len(text) + 1)
    if not text.isascii() and (normalize("NFKC", text) != text or IGNORED.search(text)):
        clusters = [
            (IGNORED.sub("", normalize("NFKC", match.group())), *match.span())
            for match in CLUSTER.finditer(text)
        ]
        plain = "".join(made for made, _, _ in clusters)
        starts = [start for made, start, _ in clusters for _ in made]  # type: ignore[assignment]
        ends = [end for made, _, end in clusters for _ in made]  # type: ignore[assignment]
    clitics = [match.span() for match in CLITIC.finditer(plain)]
    if clitics:
        bounds = [0, *chain.from_iterable(clitics), len(plain)]
        kept = [at for low, high in zip(bounds[::2], bounds[1::2]) for at in range(low, high)]
        return "".join(plain[at] for at in kept), [starts[at] for at in kept], [ends[at] for at in kept]
    return plain, starts, ends


def _words(text: str) -> Iterator[tuple[int, int, str]]:
    for match in LETTER_SYMBOL.finditer(text):
        yield *match.span(), match.group()
    text = LETTER_SYMBOL.sub(lambda match: " " * len(match.group()), text)
    for match in SYMBOLED.finditer(text):
        yield *match.span(), match.group().replace(",", "")
    for match in COMPOUND.finditer(text):
        if len(match.group()) <= WHOLE_CHARS_MAX and not NUMBERED.fullmatch(match.group()):
            yield *match.span(), match.group().translate(JOINED)
    yield from _plain_words(text)


def _plain_words(text: str) -> Iterator[tuple[int, int, str]]:
    for match in WORD.finditer(text):
        word, first = match.group(), match.start()
        if match.lastgroup is None or len(word) == 1:
            yield *match.span(), word
            if HUMP.search(word):
                for part in HUMPS.finditer(word):
                    if len(part.group()) > 1:
                        yield first + part.start(), first + part.end(), part.group()
        elif match.lastgroup == "hangul":
            yield from _pieces(first, word)
            yield from ((first + at, first + at + 2, word[at : at + 2]) for at in range(len(word) - 1))
        else:
            for segment in WordBreaker(word, "root"):
                yield first, first + len(segment), segment
                if match.lastgroup == "han" and len(segment) > 1:
                    yield from _pieces(first, segment)
                first += len(segment)


def _pieces(first: int, word: str) -> Iterator[tuple[int, int, str]]:
    return ((at, at + 1, character) for at, character in enumerate(word, first))
