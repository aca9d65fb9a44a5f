"""Pairs of questions made by rules from real ones: the same in other words, and others that only look alike.

A rule gives another wording of a question, or None where it does not apply. Rules for paraphrases change nothing that
is asked; those for hard negatives change one thing that matters.
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
    """What wordings.json holds: each word with what takes its place, names with others of their kind."""

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
    """`kept` was asked before, `asked` is asked then. `same`: they ask the same. `kind`: the rule's name."""

    kept: str
    asked: str
    kind: str
    same: bool


def pairs(questions: Sequence[str], *, each: int, seed: int) -> list[Pair]:
    """Up to `each` pairs of every kind, of questions in random order. No pair comes twice."""
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


def changed(
    pattern: str, change: Callable[[re.Match[str], random.Random], str | None], *, first: bool = False
) -> Rule:
    """One of the places that the pattern matches, at random or the first."""
    compiled = re.compile(pattern)

    def rule(question: str, rng: random.Random) -> str | None:
        places = list(compiled.finditer(question))
        if not places:
            return None
        place = places[0] if first else rng.choice(places)
        instead = change(place, rng)
        return None if instead is None else question[: place.start()] + instead + question[place.end() :]

    return rule


def rewritten(pattern: str, template: str) -> Rule:
    """The first place that the pattern matches."""
    return changed(pattern, lambda place, _: place.expand(template), first=True)


def replaced(table: dict[str, str]) -> Rule:
    """One word, by the table."""
    return changed(rf"(?<![\w-])(?:{'|'.join(table)})(?![\w-])", lambda place, _: table[place[0]])


def following(names: Sequence[str], by: int) -> dict[str, str]:
    """Each with the one `by` places after it, around the end."""
    return {name: names[(at + by) % len(names)] for at, name in enumerate(names)}


def stripped(question: str) -> str:
    return question.rstrip(" ?.!")


def polite(question: str, rng: random.Random) -> str | None:
    return rng.choice(WORDS.polite).format(stripped(question))


def punctuated(question: str, rng: random.Random) -> str | None:
    way = rng.randrange(4)
    bare = stripped(question)
    return [bare.upper(), bare.title() + "?", f'"{bare}"', bare + " ??"][way]


def letters_swapped(place: re.Match[str], rng: random.Random) -> str | None:
    word = place[0]
    at = rng.randrange(2, len(word) - 3)
    other = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return None if other == word else other


def plural(place: re.Match[str], rng: random.Random) -> str:
    many = {"country": "countries", "city": "cities", "company": "companies"}
    return f"{place[1]} {many.get(place[2], place[2] + 's')}"


def ordinal(question: str, rng: random.Random) -> str | None:
    digits = changed(r"\b(\d+)(?:st|nd|rd|th)\b", lambda place, _: f"{int(place[1]) + 10}th", first=True)
    return digits(question, rng) or replaced(following(WORDS.ordinals, 1))(question, rng)


def swapped(question: str, rng: random.Random) -> str | None:
    """From one to the other, from the other to one; or two names in each other's place."""
    found = re.search(r"\bfrom ([\w-]+) to ([\w-]+)", question)
    spans = [found.span(1), found.span(2)] if found else []
    if not found:
        named = [one for one in re.finditer(r"[a-z]+", question) if one[0] in OF_ITS_KIND]
        spans = [one.span() for one in (named[0], named[-1])] if len(named) > 1 else []
    if not spans:
        return None
    (a, b), (c, d) = spans
    return question[:a] + question[c:d] + question[b:c] + question[a:b] + question[d:]


def asks_else(place: re.Match[str], rng: random.Random) -> str:
    return rng.choice([one for one in ("who", "where", "when", "why") if one != place[0]])


def added(*numbers: int) -> Callable[[re.Match[str], random.Random], str]:
    return lambda place, rng: str(int(place[0]) + rng.choice(numbers))


PARAPHRASES: Final[dict[str, Rule]] = {
    "polite": polite,
    "case and punctuation": punctuated,
    "contraction": rewritten(r"\b(what|who|where|when|how) is\b", r"\1's"),
    "negative contraction": rewritten(r"\b(did|does|do|was|were|is|are|could|would) not\b", r"\1n't"),
    "article": changed(r"\b(?:the|an|a) (?=[a-z]{3})", lambda *_: ""),
    "which for what": rewritten(
        r"\bwhat(?= (?:year|city|country|state|type|kind|group|company|language|part|day)\b)", "which"
    ),
    "in which year": rewritten(r"^(?:in )?what year\b", "in which year"),
    "time first": rewritten(rf"^((?:{ASKS}|when)\b.*?) ({WHEN})[ ?.!]*$", r"\2, \1?"),
    "time last": rewritten(rf"^({WHEN}),? ((?:{ASKS})\b.*?)[ ?.!]*$", r"\2 \1?"),
    "keywords": rewritten(r"^(?:what is|what are|what's) (?:the |a |an )?(?=\w+ \w+ \w+)", ""),
    "indirect": rewritten(r"^(who|what|where|when) (was|is) the ([\w ]+?)\??$", r"tell me \1 the \3 \2"),
    "plural": changed(
        r"^(what|which) (kind|type|country|city|organization|company|language|group)(?= )", plural, first=True
    ),
    "British spelling": replaced(WORDS.british),
    "synonym": replaced(WORDS.synonyms),
    "typo": changed(r"[a-z]{8,}", letters_swapped),
}
HARD_NEGATIVES: Final[dict[str, Rule]] = {
    "negation": rewritten(rf"^(?!.* not |.*n't)(.*?\b(?:{VERBS})) (?!not\b)(?=[\w-])", r"\1 not "),
    "contracted negation": rewritten(
        r"\b(did|does|do|was|were|is|are|could|would|has|had)\b(?! not)", r"\1n't"
    ),
    "opposite": replaced(OPPOSITES),
    "number": changed(r"(?<![\w.,])\d{1,3}(?![\w.,])", added(1, 2, 10)),
    "year": changed(r"(?<!\d)(?:1\d|20)\d\d(?!\d)", added(-10, -1, 1, 2), first=True),
    "ordinal": ordinal,
    "month or day": replaced(following(WORDS.calendar, 3)),
    "unit": replaced(WORDS.units),
    "name": changed(
        rf"\b(?:{'|'.join(OF_ITS_KIND)})\b", lambda place, rng: rng.choice(OF_ITS_KIND[place[0]])
    ),
    "swapped": swapped,
    "question word": changed(r"^(?:who|where|when|why)\b", asks_else, first=True),
    "tense": rewritten(r"\b(who|what|where) is\b", r"\1 was"),
    "qualifier dropped": rewritten(
        r"\b(?:only|former|current|annual|total|average|official|original|national|international) ", ""
    ),
}
