"""Cuts a text into passages of bounded length: at headings, around code blocks, at paragraphs, sentences, words; and
source code between functions.

text   |-----------------------------------------------------------|
tokens  t0 t1 t2 ...
window |<---- at most tokens_max ---->|
             |<--- the strongest break in here, the last among equals; a weak one only near the end
                 |<- overlap ->|------- next window -------->|     where a sentence had to be cut
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from indexes.base.work import OnStep, do_nothing
from retrieval.documents.outline import PARAGRAPH, Outline, code_outline, outline

CHUNKING_VERSION = 4  # of the rules below; a document cut by other rules is rewritten
HEADING_FILL, PARAGRAPH_FILL, TEXT_FILL = 1 / 4, 1 / 2, 2 / 3  # to fill before such a break
SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？।؟۔])\s*|\n\s*")
WORD = re.compile(r"\s+")

StartsOf = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `end` (exclusive) of a text, without white space at either end. `split` makes no empty
    spans.

    It has `tokens` tokens; `heading` joins its headings (`Outline.path_of`) with " > ", outermost first.
    """

    start: int
    end: int
    tokens: int = 0
    heading: str = ""


def split(
    text: str,
    starts_of: StartsOf,
    *,
    tokens_max: int,
    overlap_tokens: int,
    code: bool = False,
    on_step: OnStep = do_nothing,
) -> list[Span]:
    """Return passages of `text` in order. Every character that is not white space is in at least one.

    No passage has more than `tokens_max` tokens, and none ends with a heading whose text is in the next. Neighbors
    share up to `overlap_tokens` where a cut falls inside a sentence. A text that fits is one passage; white space
    alone is none. `starts_of` returns the character at which each token of a text begins, ascending; it is called
    once for the whole text, and again only for a passage whose edge cuts a word.

    With `code`, the text is source code and is cut before functions, whose first lines are the headings. `on_step` is
    called every few milliseconds.
    """
    if tokens_max < 1 or not 0 <= overlap_tokens < tokens_max:
        raise ValueError(f"need 0 <= overlap_tokens < tokens_max, not {overlap_tokens} and {tokens_max}")
    starts = starts_of(text)
    structure = code_outline(text, on_step) if code else outline(text, on_step)
    spans: list[Span] = []
    begin = _skip_spaces(text, 0)
    while begin < len(text):
        on_step()
        beyond = spans[-1].end if spans else 0
        cut, whole = _window_end(text, begin, starts, structure, tokens_max, beyond=beyond)
        end, tokens = _fit(text, begin, cut, starts, starts_of, tokens_max)
        last = _drop_spaces(text, begin, end)
        spans.append(Span(begin, last, tokens, structure.path_of(begin, last)))
        rest = _skip_spaces(text, end)
        if rest < len(text) and not (whole and end == cut):
            rest = _step_back(text, spans[-1], rest, starts, overlap_tokens)
        begin = rest
    return spans


def _window_end(
    text: str, begin: int, starts: Sequence[int], structure: Outline, tokens_max: int, *, beyond: int
) -> tuple[int, bool]:
    """Return where to cut the window that starts at `begin`, after `beyond`, and whether a whole sentence ends
    there."""
    first = bisect_left(starts, begin)
    if first + tokens_max >= len(starts):
        return len(text), True
    limit = max(starts[first + tokens_max], begin + 1)

    def after(fill: float) -> int:
        return max(starts[first + int(tokens_max * fill)], begin + 1, beyond + 1)

    best = max(
        (
            (strength, at)
            for at, strength in structure.within(after(HEADING_FILL), limit)
            if strength > PARAGRAPH or at >= after(PARAGRAPH_FILL)
        ),
        default=None,
    )
    if best is not None:
        return best[1], True
    tail = after(TEXT_FILL)
    # A boundary may end exactly where the tail begins; its characters then follow the previous token.
    search = starts[max(first, first + int(tokens_max * TEXT_FILL) - 1)]
    for pattern in (SENTENCE, WORD):
        ends = [match.end() for match in pattern.finditer(text, search, limit) if match.end() >= tail]
        if whole := [end for end in ends if not structure.splits_heading(end)]:
            return whole[-1], pattern is SENTENCE
    return limit, False


def _fit(
    text: str, begin: int, end: int, starts: Sequence[int], starts_of: StartsOf, tokens_max: int
) -> tuple[int, int]:
    """Return the end and the token count. Pieces of a word cut at an edge may have more tokens than the word."""
    tokens = bisect_left(starts, end) - bisect_left(starts, begin)
    if _at_word(text, begin) and _at_word(text, end):
        return end, tokens
    while len(alone := starts_of(text[begin:end])) > tokens_max and end > begin + 1:
        end = max(begin + 1, min(begin + alone[tokens_max], end - 1))
    return end, len(alone)


def _at_word(text: str, at: int) -> bool:
    return at in (0, len(text)) or text[at - 1].isspace() or text[at].isspace()


def _step_back(text: str, last: Span, rest: int, starts: Sequence[int], overlap_tokens: int) -> int:
    """Return the start of the next window: up to `overlap_tokens` before the last end, at a word, always past the
    last start."""
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


def _skip_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _drop_spaces(text: str, begin: int, end: int) -> int:
    while end > begin and text[end - 1].isspace():
        end -= 1
    return end
