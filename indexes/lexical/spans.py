"""Finds the positions of words in a text, for highlighting, which must point into the original text.

`words` in `lexical.words` finds the same words faster, without positions; a test keeps the two equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

import regex
from icu4py.breakers import WordBreaker

from indexes.base.languages import primary
from indexes.base.normalizing import normalize
from indexes.base.work import WorkBudget
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
MARK_TOKENS = 4  # a marked word costs as much as passing over so many tokens
Span = tuple[int, int]


class Marks:
    """Finds the words of texts that are indexed under one of the `wanted` terms. Each distinct token between white
    space is analyzed once, and charged as one word, a long one as the words of eight characters that it would make."""

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = frozenset(wanted)
        self._known: defaultdict[str, dict[str, list[Span]]] = defaultdict(dict)  # by language and token

    def of(self, text: str, language: str, work: WorkBudget) -> Iterator[Span]:
        """The spans in a passage in this language: ascending [start, end) in characters, merged if they touch or
        overlap. They end where `work` may highlight no more."""
        code = primary(language)
        known = self._known[code]
        for token in TOKEN.finditer(text):
            word = token.group()
            held = known.get(word)
            if held is None:
                work.highlight_words -= words_in(word)
                if work.highlight_words < 0:
                    return
                held = known[word] = self._read(word, code)
            work.highlight_tokens -= 1 + MARK_TOKENS * len(held)
            if work.highlight_tokens < 0:
                return
            if held:
                first = token.start()
                for start, end in held:
                    yield first + start, first + end

    def _read(self, token: str, code: str) -> list[Span]:
        if self._wanted.isdisjoint(terms(token, code)):
            return []
        return join_spans(
            (start, end)
            for start, end, word in spans(token)
            if not self._wanted.isdisjoint(forms(word, code))
        )


def words_in(token: str) -> int:
    """How many words a token counts as. Scripts without spaces make one token of a whole text, and a single character
    may stand for eighteen."""
    return 1 if len(token) <= LONG_TOKEN_CHARS else len(normalize("NFKC", token)) // WORD_CHARS


def join_spans(found: Iterable[Span]) -> list[Span]:
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
