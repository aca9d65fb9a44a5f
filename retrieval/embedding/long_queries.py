"""What is embedded of a query that is longer than the model reads.

Its question usually comes before or after a log, a letter or a conversation, and the vector of all that says little of
the question. So only its questions are read, or if it has none, its beginning and its end. docs/design/long-queries.md
has the measurements and what else was tried.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

PIECE_TOKENS = 32  # at the beginning, and at the end
QUESTIONS_CHARS = 600
# Not after a single letter, as in U.S. or e.g.
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b\w\.)\s+|(?<=[。！？؟])\s*|\n+")
QUESTION_MARKS = ("?", "？", "؟")


def pieces_of(text: str, starts: Sequence[int]) -> list[str]:
    """Return what to read of a long query, whose tokens start at these characters: one piece, or two to average."""
    questions = [one for one in sentences_of(text) if one.endswith(QUESTION_MARKS)]
    kept: list[str] = []
    for one in reversed(questions):  # the last ones count
        if kept and sum(map(len, kept)) + len(one) > QUESTIONS_CHARS:
            break
        kept.insert(0, one[-QUESTIONS_CHARS:])
    if kept:
        return [" ".join(kept)]
    tokens = min(PIECE_TOKENS, len(starts) // 2)
    return [text[: starts[tokens]], text[starts[-tokens] :]]


def sentences_of(text: str) -> list[str]:
    return [one for part in SENTENCE_END.split(text) if (one := part.strip())]
