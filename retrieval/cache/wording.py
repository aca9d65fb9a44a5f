"""What is left of a question once everything that could be said differently is removed.

Two texts ask the same if they have the same words in the same order, apart from the few things listed here: polite
openings, contractions, articles, the position of an auxiliary, a phrase of time or place at the start or end. Any other
difference makes them two questions, and so does almost any difference in texts that are not English. No distance
between vectors decides: none separates "enable" from "disable", or 2023 from 2024.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Final

QUESTION_WORDS: Final = {"what", "who", "whom", "whose", "when", "where", "why", "how"}
PREPOSITIONS: Final = {
    "in", "on", "at", "during", "since", "until", "before", "after", "by", "for", "from", "to", "under", "with",
    "within", "of",
}  # fmt: skip
LIGHT: Final = {"the"}
"""Dropped. No verbs: "who sent" and "who is sent" the invoice differ, as do "who is" and "who was" president."""
AUXILIARIES: Final = {
    "is", "was", "were", "has", "have", "had", "can", "could", "will", "would", "shall", "should", "may", "might",
    "must",
}  # fmt: skip
BEFORE_ARTICLES: Final = (
    LIGHT | PREPOSITIONS | AUXILIARIES | QUESTION_WORDS | {"did", "not", "and", "or", "as", "than"}
) - {"the"}
NUMBERS: Final = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
]  # fmt: skip
ORDINALS: Final = {
    "first": "1st", "second": "2nd", "third": "3rd", "fourth": "4th", "fifth": "5th", "sixth": "6th",
}  # fmt: skip
ENGLISH: Final = {
    "the", "what", "who", "when", "where", "why", "how", "which", "does", "please", "with", "from", "and", "would",
    "should", "could",
}  # fmt: skip
"""In a text without any of them, only case and punctuation may differ."""
CAPITALS: Final = {
    "a", "aids", "all", "am", "as", "at", "can", "gb", "in", "is", "it", "kb", "ma", "may", "mb", "me", "mw", "no",
    "or", "pb", "so", "tb", "us", "who",
}  # fmt: skip
"""Words with another meaning in all capitals, in a text that otherwise is not."""
ALIKE: Final = {
    "which": "what", "are": "is", "does": "do", "&": "and",
    **{word: str(number) for number, word in enumerate(NUMBERS)}, **ORDINALS,
}  # fmt: skip

OPENING: Final = re.compile(
    r"""^(?:
        (?:hi|hello|hey)\s*[,!.]\s* | (?:please|kindly)[\s,]+ | (?:question|query|q)\s*:\s*
      | (?:(?:can|could|would|will)\s(?:you|anyone|anybody|someone|somebody)\s(?:please\s|kindly\s)?)?
        (?:tell|show|give|remind)\s(?:me|us)\s(?:about\s)?
      | (?:do\syou|does\s(?:anyone|anybody|someone|somebody))\s(?:happen\sto\s)?know\s
      | i\s(?:would\slike|want|need|wish)\sto\s(?:know|find\sout|ask)\s(?:about\s)?
      | i\s(?:wonder|(?:was|am)\swondering|(?:was|am)\slooking\sfor)\s
    )""",
    re.VERBOSE,
)
UNIT_CHARS_MAX = 3
PHRASES_DROPPED_MAX = 4  # at either end
CLOSING: Final = re.compile(r"(?<![\s,])[\s,]+(?:please|pls|thanks|thank you)[\s.!?]*$")
REWRITTEN: Final = [
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"[‘’]", "'"),
        (r"\s+", " "),
        (r"\bcan'?t\b|\bcannot\b", "can not"),
        (r"\bwon't\b", "will not"),
        (r"n't\b", " not"),
        (r"\b(what|who|where|when|how|why|which|it|that|there|here)'s\b", r"\1 is"),
        (r"'re\b", " are"),
        (r"\bi'm\b", "i am"),
        (r"\bi'd like\b", "i would like"),
        (r"\bi'd\b", "i would"),
        (r"'ve\b", " have"),
        (r"'ll\b", " will"),
        (r"'s\b|(?<=s)'(?=\s|$)", ""),  # of a possessive
        (r"(?<=\d),(?=\d{3}\b)", ""),
        (r"(?<=\d) ?(?:percent|per cent|%)(?=\W|$)", "%"),
        (r"(?<=[a-z])-(?=[a-z])", " "),
        (r"\bhow (?:do|can|could) (?:i|one)\b", "how to"),
    )
]


@lru_cache(maxsize=4096)
def wording(text: str) -> tuple[str, ...]:
    """Return the words that two texts must share, in order, to ask the same."""
    capitals = {
        word for word in map(strip_punctuation, text.split()) if word.isupper() and word.lower() in CAPITALS
    }
    written = [*map(strip_punctuation, text.split()), ""]
    first = written[0]
    # Case counts in units and flags: MW and mW, -R and -r.
    exact = [
        word
        for before, word in pairwise(["", *written])
        if word != word.lower()
        and (before[-1:].isdigit() or word[0].isdigit() or word[0] == "-" or is_unit(word))
    ]
    if text.isupper() or capitals == {first} == {"A"}:
        capitals = set()
    text = text.casefold().strip()
    if not ENGLISH & set(map(strip_punctuation, re.split(r"[\s'’]", text))):
        return tuple(word for word in map(strip_punctuation, text.split()) if word)
    for pattern, instead in REWRITTEN:
        text = pattern.sub(instead, text)
    direct = text
    for _ in range(PHRASES_DROPPED_MAX):  # each pass reads the whole text
        text = CLOSING.sub("", OPENING.sub("", text, count=1))
    words = [word for token in text.split() if (word := strip_punctuation(token))]
    words = [word.upper() if word.upper() in capitals else word for word in words]
    if len(words) > 1 and words[0] in {"in", "on", "at", "during"} and words[1] in {"what", "which"}:
        del words[0]  # in which year, what year
    words = [ALIKE.get(word, word) for word in words]
    words = [word for before, word in pairwise(["", *words]) if not is_light(before, word)]
    asks = next((at for at, word in enumerate(words) if word in QUESTION_WORDS), 0)
    if asks > 1 and words[0] in PREPOSITIONS:
        words = words[asks:] + words[:asks]  # in 1990, who won; who won in 1990
    # When was it built; (tell me) when it was built. What year was it built; (tell me) what year it was built.
    verb = next((at for at, word in enumerate(words) if word in AUXILIARIES), 0)
    if words and words[0] in QUESTION_WORDS and (verb < 3 or text != direct):
        words[1 : verb + 1] = [words[verb], *words[1:verb]] if verb else []
    return (
        *(words[2:] if words[:2] == ["what", "is"] else words),
        *exact,
    )  # what is the capital, the capital


def is_unit(word: str) -> bool:
    """Whether a word is written as only a unit is: mW, kWh, dB."""
    return len(word) <= UNIT_CHARS_MAX and word[0].islower()


def is_light(before: str, word: str) -> bool:
    """Whether a word is dropped. An article after a verb or a noun may be a name: vitamin A, hepatitis A, plan A."""
    return word in LIGHT or (word in {"a", "an"} and (not before or before in BEFORE_ARTICLES))


def strip_punctuation(token: str) -> str:
    """Strip surrounding quotes, brackets and sentence punctuation. Meaningful signs stay: -5, 5!, 5"."""
    if any(letter.isdigit() for letter in token):
        quoted = len(token) > 2 and token[0] == token[-1] and token[0] in "\"'"
        return (token[1:-1] if quoted else token).lstrip("“„«([{").rstrip("”»)]}.,;:?…")
    return token.lstrip("\"'“„«([{").rstrip("\"'”“»)]}.,;:!?…").strip("–—")
