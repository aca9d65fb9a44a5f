"""Cut a text into passages of bounded length, at paragraphs, sentences or words rather than inside them.

text   |-----------------------------------------------------------|
tokens  t0 t1 t2 ...
window |<---- at most tokens_max ---->|
                      |<-- tail -->|   the cut goes to the best boundary in the last third of the window
                 |<- overlap ->|------- next window -------->|
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass

CHUNKING_VERSION = 1  # raise it when the same text may get other passages, or they other texts to embed

TAIL = (
    1 / 3
)  # of a window, in which a boundary is looked for: passages keep at least two thirds of their size
PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？।؟۔])\s*|\n\s*")
WORD = re.compile(r"\s+")

SpansOf = Callable[[str], list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` up to, not including, `end` of a text; never empty, no white space at either end."""

    start: int
    end: int


def split(text: str, spans_of: SpansOf, *, tokens_max: int, overlap_tokens: int) -> list[Span]:
    """Passages of `text`, in order: every character that is not white space lies in at least one.

    No passage, tokenised alone by `spans_of`, has more than `tokens_max` tokens; neighbours share up to
    `overlap_tokens`. A text that fits is one passage, white space alone is none. `spans_of` gives the character
    span of each token of a text.
    """
    if tokens_max < 1 or not 0 <= overlap_tokens < tokens_max:
        raise ValueError(f"need 0 <= overlap_tokens < tokens_max, not {overlap_tokens} and {tokens_max}")
    tokens = sorted(_spaces_dropped(text, spans_of(text)))
    starts = [start for start, _ in tokens]
    spans: list[Span] = []
    begin = _skip_spaces(text, 0)
    while begin < len(text):
        end = _window_end(text, begin, starts, tokens_max, beyond=spans[-1].end if spans else 0)
        end = _shrink(text, begin, end, spans_of, tokens_max)
        spans.append(Span(begin, _drop_spaces(text, begin, end)))
        rest = _skip_spaces(text, end)
        begin = rest if rest >= len(text) else _step_back(text, spans[-1], rest, starts, overlap_tokens)
    return spans


def _window_end(text: str, begin: int, starts: list[int], tokens_max: int, *, beyond: int) -> int:
    """Where to cut the window from `begin`: at a boundary in its tail, after `beyond`, else at its last token."""
    first = bisect_left(starts, begin)
    if first + tokens_max >= len(starts):
        return len(text)
    limit = max(starts[first + tokens_max], begin + 1)
    tail = first + int(tokens_max * (1 - TAIL))
    # A boundary may end right where the tail begins; its own characters lie after the token before.
    search = starts[max(first, tail - 1)]
    return _boundary(text, search, max(starts[tail], begin + 1, beyond + 1), limit)


def _boundary(text: str, search: int, tail: int, limit: int) -> int:
    """The last paragraph end in `tail`..`limit`, else the last sentence end, else the last space, else `limit`."""
    for pattern in (PARAGRAPH, SENTENCE, WORD):
        ends = [match.end() for match in pattern.finditer(text, search, limit) if match.end() >= tail]
        if ends:
            return ends[-1]
    return limit


def _shrink(text: str, begin: int, end: int, spans_of: SpansOf, tokens_max: int) -> int:
    """Tokenised alone a passage may have more tokens, where its edges cut a word: take the surplus off its end."""
    while True:
        alone = spans_of(text[begin:end])
        if len(alone) <= tokens_max:
            return end
        kept = begin + max(offset for _, offset in alone[:tokens_max])
        end = kept if begin < kept < end else max(begin + 1, end - 1)
        if end == begin + 1:
            return end


def _step_back(text: str, last: Span, rest: int, starts: list[int], overlap_tokens: int) -> int:
    """Begin of the next window: up to `overlap_tokens` before the end of the last, at a word, and always onward."""
    if overlap_tokens == 0:
        return rest
    position = max(bisect_left(starts, last.end) - overlap_tokens, bisect_right(starts, last.start))
    if position >= len(starts):
        return rest
    earliest = starts[position]
    if earliest == 0 or text[earliest - 1].isspace() or earliest >= rest:
        return min(earliest, rest)
    word = WORD.search(text, earliest, rest)
    return word.end() if word else min(earliest, rest)


def _spaces_dropped(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(start, end) for start, end in spans if end > start]


def _skip_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _drop_spaces(text: str, begin: int, end: int) -> int:
    while end > begin and text[end - 1].isspace():
        end -= 1
    return end
