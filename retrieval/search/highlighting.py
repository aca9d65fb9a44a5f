"""Highlights: where a hit has words of the query, and the stretch of its text that has most of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import UNSET, UnsetType

from indexes.base.work import WorkBudget
from indexes.lexical.spans import Marks
from retrieval.wire.search import Hit

Span = tuple[int, int]

HITS_READ, CHARS_READ = 3, 4000  # to find out how a word is spelled
LEAD = 4  # a snippet's first word is preceded by one part in LEAD of its spare room


def snippet(text: str, marks: Sequence[Span], chars_max: int) -> Span:
    """Return the stretch of at most `chars_max` characters with the most distinct marked words, the first among equals.

    It starts and ends between words where white space allows.
    """
    if len(text) <= chars_max:
        return 0, len(text)
    words = [text[start:end].casefold() for start, end in marks]
    distinct = len(set(words))
    first, last, most = 0, 0, 0
    until = 0
    counts: Counter[str] = Counter()  # of words[at:until]
    for at, (start, end) in enumerate(marks):
        while until < len(marks) and marks[until][1] <= start + chars_max:
            counts[words[until]] += 1
            until += 1
        if len(counts) > most:
            first, last, most = start, max(marks[until - 1][1], end), len(counts)
            if most == distinct:
                break
        if until > at:
            counts[words[at]] -= 1
            if not counts[words[at]]:
                del counts[words[at]]
        else:
            until = at + 1  # a word that is longer than the snippet
    start = max(first - max(chars_max - (last - first), 0) // LEAD, 0)
    start = max(min(start, len(text) - chars_max), 0)
    if start and not text[start - 1].isspace():
        start = next((at + 1 for at in range(start, first) if text[at].isspace()), first)
    end = min(start + chars_max, len(text))
    if end < len(text) and not text[end].isspace():
        end = next((at for at in range(end, max(last, start), -1) if text[at - 1].isspace()), end)
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def surface_form(term: str, hits: Sequence[Hit], work: WorkBudget) -> str:
    """Return the word of this term in the first hit that has it; the term itself if none of the first few hits does, as
    far as `work` allows to read their beginnings."""
    marks = Marks([term])
    for hit in hits[:HITS_READ]:
        for text in (hit.text[:CHARS_READ], hit.title):
            for start, end in marks.of(text, hit.language, work):
                return text[start:end]
    return term


def corrected_words(
    corrected: Mapping[str, str], hits: list[Hit], work: WorkBudget
) -> dict[str, str] | UnsetType:
    """Map each corrected word to its replacement as the first hit spells it, or else to the term, a stem."""
    if not corrected:
        return UNSET
    return {word: surface_form(term, hits, work) for word, term in corrected.items()}
