"""Query operators: words in double quotes must appear as a phrase, and `inst*` stands for words with that prefix."""

from __future__ import annotations

import re
from dataclasses import dataclass

import regex

from indexes.base.errors import InvalidInput
from indexes.base.model import StoredPassage
from indexes.base.work import WorkBudget
from indexes.lexical.operators import plain_words

QUOTED = re.compile(r'["\u201c\u201d\u201e]([^"\u201c\u201d\u201e]*)["\u201c\u201d\u201e]')
STARRED = regex.compile(r"(?<!\S)(\w++)\*(?!\S)")  # unlike that of `re`, its \w has vowels that are marks
OPERATORS_MAX = 16
PREFIX_CHARS_MIN = 2
# Fetching a passage costs as much as searching PASSAGE_CHARS characters for phrases. A character costs as much as
# FOLDED_CHARS if the passage is not all ASCII.
PASSAGE_CHARS, FOLDED_CHARS = 1000, 24


@dataclass(frozen=True, slots=True)
class Operators:
    """A parsed query. `words` are for BM25, without prefixes; `text` is for the model, without the operators' marks."""

    words: str
    text: str
    phrases: tuple[str, ...]
    prefixes: tuple[str, ...]

    wanted: tuple[str, ...]  # all of them normalized by `plain_words`, a prefix without its trailing space

    def hold_in(self, passage: StoredPassage, work: WorkBudget) -> bool:
        """Whether the passage, as far as `work` allows to read it, or its title has everything that the query
        requires."""
        text, title = passage.text, passage.title
        each = 1 if text.isascii() and title.isascii() else FOLDED_CHARS
        room = max(work.phrase_chars, 0) // each
        texts = plain_words(text, room), plain_words(title, room)
        # A character may stand for several.
        read = max(len(text), len(texts[0])) + max(len(title), len(texts[1]))
        work.phrase_chars -= PASSAGE_CHARS + each * read
        return all(any(one in text for text in texts) for one in self.wanted)


def parse_operators(query: str) -> Operators:
    """Parse the operators of a query. Raises InvalidInput naming the query."""
    phrases = [phrase.strip() for phrase in QUOTED.findall(query)]
    outside = QUOTED.sub(" ", query)
    prefixes = STARRED.findall(outside)
    for prefix in prefixes:
        if len(prefix) < PREFIX_CHARS_MIN:
            raise InvalidInput(f"{prefix}* needs at least {PREFIX_CHARS_MIN} letters", param="query")
    if len(phrases) + len(prefixes) > OPERATORS_MAX:
        raise InvalidInput(f"query has more than {OPERATORS_MAX} phrases and prefixes", param="query")
    unquoted = QUOTED.sub(r" \1 ", query)
    text = STARRED.sub(r"\1", unquoted).strip()
    if not plain_words(text).strip():
        raise InvalidInput("query has no words", param="query")
    words = " ".join((STARRED.sub(" ", outside), *phrases))
    kept = tuple(phrase for phrase in phrases if plain_words(phrase).strip())
    wanted = [*map(plain_words, kept), *(plain_words(prefix)[:-1] for prefix in prefixes)]
    return Operators(words, text, kept, tuple(prefixes), tuple(dict.fromkeys(wanted)))
