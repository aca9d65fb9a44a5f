"""Makes pairs of questions from real ones by rules: paraphrases, and questions that only look alike.

A rule returns another wording of a question, or None if it does not apply. Rules for paraphrases keep the meaning, and
those for hard negatives change one thing that matters.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

Rule = Callable[[str, random.Random], str | None]


class Words(msgspec.Struct, frozen=True):
    """The content of wordings.json: words with their replacements, and names grouped by kind."""

    polite: list[str]
    calendar: list[str]
    ordinals: list[str]
    opposites: dict[str, str]  # one way
    units: dict[str, str]
    synonyms: dict[str, str]
    british: dict[str, str]
    names_by_kind: list[list[str]]


WORDS: Final = msgspec.json.decode(Path(__file__).with_name("wordings.json").read_bytes(), type=Words)
OPPOSITES: Final = WORDS.opposites | {other: one for one, other in WORDS.opposites.items()}
OF_ITS_KIND: Final = {
    name: [one for one in kind if one != name] for kind in WORDS.names_by_kind for name in kind
}
WHEN: Final = r"(?:in|during|since|after|before) (?:the )?(?:\w+ )?\d{4}s?"
ASKS: Final = "what|who|where|why|how|which"
VERBS: Final = "did|does|do|was|were|is|are|can|could|has|have|had|would|will|should"


@dataclass(frozen=True, slots=True)
class Pair:
    """`kept` was asked earlier, `asked` is asked next. `same`: both mean the same. `kind`: the rule's name."""

    kept: str
    asked: str
    kind: str
    same: bool


def pairs(questions: Sequence[str], *, each: int, seed: int) -> list[Pair]:
    """Make up to `each` pairs of every kind from questions in random order, without duplicates."""
    made: list[Pair] = []
    for kind, rule in {**PARAPHRASES, **HARD_NEGATIVES}.items():
        rng = random.Random(f"{seed} {kind}")
        found = 0
        for kept in rng.sample(list(dict.fromkeys(questions)), len(set(questions))):
            if found == each:
                break
            asked = rule(kept, rng)
            if asked is not None and asked.strip() and asked != kept:
                made.append(Pair(kept, asked, kind, kind in PARAPHRASES))
                found += 1
    return made


def change_match(
    pattern: str, change: Callable[[re.Match[str], random.Random], str | None], *, first: bool = False
) -> Rule:
    """A rule that changes one match of the pattern, the first or a random one."""
    compiled = re.compile(pattern)

    def rule(question: str, rng: random.Random) -> str | None:
        places = list(compiled.finditer(question))
        if not places:
            return None
        place = places[0] if first else rng.choice(places)
        instead = change(place, rng)
        return None if instead is None else question[: place.start()] + instead + question[place.end() :]

    return rule


def rewrite_first(pattern: str, template: str) -> Rule:
    """A rule that rewrites the first match of the pattern."""
    return change_match(pattern, lambda place, _: place.expand(template), first=True)


def replace_word(table: dict[str, str]) -> Rule:
    """A rule that replaces one word by its entry in the table."""
    return change_match(rf"(?<![\w-])(?:{'|'.join(table)})(?![\w-])", lambda place, _: table[place[0]])


def map_following(names: Sequence[str], by: int) -> dict[str, str]:
    """Map each name to the one `by` places after it, wrapping around."""
    return {name: names[(at + by) % len(names)] for at, name in enumerate(names)}


def strip_end(question: str) -> str:
    return question.rstrip(" ?.!")


def ask_politely(question: str, rng: random.Random) -> str | None:
    return rng.choice(WORDS.polite).format(strip_end(question))


def change_punctuation(question: str, rng: random.Random) -> str | None:
    way = rng.randrange(4)
    bare = strip_end(question)
    return [bare.upper(), bare.title() + "?", f'"{bare}"', bare + " ??"][way]


def swap_letters(place: re.Match[str], rng: random.Random) -> str | None:
    word = place[0]
    at = rng.randrange(2, len(word) - 3)
    other = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return None if other == word else other


def make_plural(place: re.Match[str], rng: random.Random) -> str:
    many = {"country": "countries", "city": "cities", "company": "companies"}
    return f"{place[1]} {many.get(place[2], place[2] + 's')}"


def next_ordinal(question: str, rng: random.Random) -> str | None:
    digits = change_match(r"\b(\d+)(?:st|nd|rd|th)\b", lambda place, _: f"{int(place[1]) + 10}th", first=True)
    return digits(question, rng) or replace_word(map_following(WORDS.ordinals, 1))(question, rng)


def swap_names(question: str, rng: random.Random) -> str | None:
    """Swap "from A to B", or two names of known kinds."""
    found = re.search(r"\bfrom ([\w-]+) to ([\w-]+)", question)
    spans = [found.span(1), found.span(2)] if found else []
    if not found:
        named = [one for one in re.finditer(r"[a-z]+", question) if one[0] in OF_ITS_KIND]
        spans = [one.span() for one in (named[0], named[-1])] if len(named) > 1 else []
    if not spans:
        return None
    (a, b), (c, d) = spans
    return question[:a] + question[c:d] + question[b:c] + question[a:b] + question[d:]


def change_question_word(place: re.Match[str], rng: random.Random) -> str:
    return rng.choice([one for one in ("who", "where", "when", "why") if one != place[0]])


def add_one_of(*numbers: int) -> Callable[[re.Match[str], random.Random], str]:
    return lambda place, rng: str(int(place[0]) + rng.choice(numbers))


PARAPHRASES: Final[dict[str, Rule]] = {
    "polite": ask_politely,
    "case and punctuation": change_punctuation,
    "contraction": rewrite_first(r"\b(what|who|where|when|how) is\b", r"\1's"),
    "negative contraction": rewrite_first(r"\b(did|does|do|was|were|is|are|could|would) not\b", r"\1n't"),
    "article": change_match(r"\b(?:the|an|a) (?=[a-z]{3})", lambda *_: ""),
    "which for what": rewrite_first(
        r"\bwhat(?= (?:year|city|country|state|type|kind|group|company|language|part|day)\b)", "which"
    ),
    "in which year": rewrite_first(r"^(?:in )?what year\b", "in which year"),
    "time first": rewrite_first(rf"^((?:{ASKS}|when)\b.*?) ({WHEN})[ ?.!]*$", r"\2, \1?"),
    "time last": rewrite_first(rf"^({WHEN}),? ((?:{ASKS})\b.*?)[ ?.!]*$", r"\2 \1?"),
    "keywords": rewrite_first(r"^(?:what is|what are|what's) (?:the |a |an )?(?=\w+ \w+ \w+)", ""),
    "indirect": rewrite_first(r"^(who|what|where|when) (was|is) the ([\w ]+?)\??$", r"tell me \1 the \3 \2"),
    "plural": change_match(
        r"^(what|which) (kind|type|country|city|organization|company|language|group)(?= )",
        make_plural,
        first=True,
    ),
    "British spelling": replace_word(WORDS.british),
    "synonym": replace_word(WORDS.synonyms),
    "typo": change_match(r"[a-z]{8,}", swap_letters),
}
HARD_NEGATIVES: Final[dict[str, Rule]] = {
    "negation": rewrite_first(rf"^(?!.* not |.*n't)(.*?\b(?:{VERBS})) (?!not\b)(?=[\w-])", r"\1 not "),
    "contracted negation": rewrite_first(
        r"\b(did|does|do|was|were|is|are|could|would|has|had)\b(?! not)", r"\1n't"
    ),
    "opposite": replace_word(OPPOSITES),
    "number": change_match(r"(?<![\w.,])\d{1,3}(?![\w.,])", add_one_of(1, 2, 10)),
    "year": change_match(r"(?<!\d)(?:1\d|20)\d\d(?!\d)", add_one_of(-10, -1, 1, 2), first=True),
    "ordinal": next_ordinal,
    "month or day": replace_word(map_following(WORDS.calendar, 3)),
    "unit": replace_word(WORDS.units),
    "name": change_match(
        rf"\b(?:{'|'.join(OF_ITS_KIND)})\b", lambda place, rng: rng.choice(OF_ITS_KIND[place[0]])
    ),
    "swapped": swap_names,
    "question word": change_match(r"^(?:who|where|when|why)\b", change_question_word, first=True),
    "tense": rewrite_first(r"\b(who|what|where) is\b", r"\1 was"),
    "qualifier dropped": rewrite_first(
        r"\b(?:only|former|current|annual|total|average|official|original|national|international) ", ""
    ),
}
