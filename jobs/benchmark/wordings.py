"""Pairs of questions made by rules from real ones: the same in other words, and others that only look alike.

A rule gives another wording of a question, or None where it does not apply. Rules for paraphrases change nothing that
is asked; those for hard negatives change one thing that matters.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

Rule = Callable[[str, random.Random], str | None]

MONTHS: Final = [
    "january", "february", "march", "april", "june", "july", "august", "september", "october", "november",
    "december", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday",
]  # fmt: skip
OPPOSITES: Final = {
    "first": "last", "largest": "smallest", "highest": "lowest", "longest": "shortest", "oldest": "youngest",
    "most": "least", "more": "fewer", "before": "after", "increase": "decrease", "increased": "decreased", "north":
    "south", "northern": "southern", "east": "west", "eastern": "western", "win": "lose", "won": "lost", "minimum":
    "maximum", "import": "export", "accept": "reject", "above": "below", "inside": "outside", "male": "female",
    "best": "worst", "early": "late", "upper": "lower", "larger": "smaller", "better": "worse", "with": "without",
    "always": "never", "all": "some", "start": "end", "started": "ended", "open": "close", "opened": "closed",
    "enable": "disable", "support": "oppose", "supported": "opposed", "arrive": "leave", "arrived": "left", "buy":
    "sell", "bought": "sold", "allow": "forbid", "allowed": "forbidden", "positive": "negative", "winter": "summer",
    "modern": "ancient", "public": "private", "internal": "external", "new": "old", "rise": "fall", "success":
    "failure", "legal": "illegal", "possible": "impossible",
}  # fmt: skip
OPPOSITES.update({other: one for one, other in tuple(OPPOSITES.items())})
UNITS: Final = {
    "miles": "kilometers", "kilometers": "miles", "feet": "meters", "meters": "feet", "pounds": "kilograms",
    "kilograms": "pounds", "days": "hours", "hours": "minutes", "minutes": "seconds", "years": "months", "months":
    "weeks", "weeks": "days", "million": "billion", "billion": "million", "percent": "per mille", "percentage":
    "number", "dollars": "pounds", "century": "decade", "decade": "century", "degrees": "radians", "km": "miles",
    "acres": "hectares",
}  # fmt: skip
SYNONYMS: Final = {
    "movie": "film", "film": "movie", "begin": "start", "located": "situated", "situated": "located", "large":
    "big", "biggest": "largest", "started": "began", "began": "started", "ended": "finished", "city": "town",
    "country": "nation", "nation": "country", "main": "primary", "primary": "main", "created": "made", "built":
    "constructed", "constructed": "built", "established": "founded", "founded": "established", "famous":
    "well-known", "type": "kind", "kind": "type", "called": "named", "area": "region", "important": "significant",
    "author": "writer", "received": "got", "happened": "occurred", "occurred": "happened", "buy": "purchase",
}  # fmt: skip
BRITISH: Final = {
    "color": "colour", "center": "centre", "theater": "theatre", "organization": "organisation", "honor": "honour",
    "labor": "labour", "harbor": "harbour", "favor": "favour", "behavior": "behaviour", "neighbor": "neighbour",
    "recognize": "recognise", "organize": "organise", "fiber": "fibre", "meter": "metre", "realize": "realise",
    "civilization": "civilisation",
}  # fmt: skip
NAMES: Final = [  # of one kind
    [
        "france", "germany", "italy", "spain", "england", "russia", "china", "japan", "india", "poland", "egypt",
        "greece", "portugal", "brazil", "canada", "australia", "mexico", "kenya", "iran", "turkey",
    ],
    [
        "french", "german", "italian", "spanish", "english", "russian", "chinese", "japanese", "indian", "polish",
        "british", "american", "roman", "greek", "dutch", "turkish", "arab",
    ],
    [
        "paris", "berlin", "london", "rome", "madrid", "moscow", "beijing", "tokyo", "warsaw", "vienna", "chicago",
        "boston", "houston", "new york", "los angeles",
    ],
    [
        "john", "william", "henry", "charles", "george", "james", "thomas", "robert", "edward", "richard", "louis",
        "martin", "david",
    ],
    [
        "christian", "muslim", "jewish", "buddhist", "hindu", "catholic", "protestant",
    ],
    [
        "apollo", "microsoft", "google", "apple", "ibm", "nasa", "harvard", "yale", "stanford", "oxford", "cambridge",
        "bbc", "abc",
    ],
    [
        "oxygen", "hydrogen", "carbon", "nitrogen", "iron", "copper", "gold", "silver", "uranium",
    ],
    [
        "rhine", "danube", "amazon", "nile", "thames",
    ],
    [
        "dna", "rna",
    ],
]  # fmt: skip
OF_ITS_KIND: Final = {name: [one for one in names if one != name] for names in NAMES for name in names}
POLITE: Final = [
    "please tell me {}", "do you know {}?", "i would like to know {}", "{}, please", "question: {}", "hi, {}?",
    "can you tell me {}?", "could you please tell me {}, thanks", "i was wondering {}", "tell me {}",
]  # fmt: skip
WHEN: Final = r"(?:in|during|since|after|before) (?:the )?(?:\w+ )?\d{4}s?"
ASKS: Final = "what|who|when|where|why|how|which"
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
    for same, rules in ((True, PARAPHRASES), (False, HARD_NEGATIVES)):
        for kind, rule in rules.items():
            rng = random.Random(f"{seed} {kind}")
            found = 0
            for kept in rng.sample(list(dict.fromkeys(questions)), len(set(questions))):
                if found == each:
                    break
                asked = rule(kept, rng)
                if asked is not None and " ".join(asked.split()) and asked != kept:
                    made.append(Pair(kept, asked, kind, same))
                    found += 1
    return made


def stripped(question: str) -> str:
    return question.rstrip(" ?.!")


def replaced(table: dict[str, str]) -> Rule:
    """One word, by the table."""

    def rule(question: str, rng: random.Random) -> str | None:
        places = [one for one in re.finditer(r"[\w-]+", question) if one[0] in table]
        if not places:
            return None
        place = rng.choice(places)
        return question[: place.start()] + table[place[0]] + question[place.end() :]

    return rule


def rewritten(pattern: str, instead: str) -> Rule:
    """The first place that the pattern matches."""
    compiled = re.compile(pattern)

    def rule(question: str, rng: random.Random) -> str | None:
        other = compiled.sub(instead, question, count=1)
        return None if other == question else other

    return rule


def polite(question: str, rng: random.Random) -> str | None:
    wordings = [
        "please tell me {}",
        "do you know {}?",
        "i would like to know {}",
        "{}, please",
        "question: {}",
        "hi, {}?",
    ]
    wordings += [
        "can you tell me {}?",
        "could you please tell me {}, thanks",
        "i was wondering {}",
        "tell me {}",
    ]
    return rng.choice(wordings).format(stripped(question))


def punctuated(question: str, rng: random.Random) -> str | None:
    way = rng.randrange(4)
    bare = stripped(question)
    return [bare.upper(), bare.title() + "?", f'"{bare}"', bare + " ??"][way]


def article(question: str, rng: random.Random) -> str | None:
    places = list(re.finditer(r"\b(?:the|an|a) (?=[a-z]{3})", question))
    if not places:
        return None
    place = rng.choice(places)
    return question[: place.start()] + question[place.end() :]


def time_first(question: str, rng: random.Random) -> str | None:
    """Who won the cup in 1990? In 1990, who won the cup?"""
    found = re.fullmatch(
        r"((?:what|who|when|where|why|how|which)\b.*?) ((?:in|during|since|after|before) (?:the )?(?:\w+ )?\d{4}s?)",
        stripped(question),
    )
    return found and f"{found[2]}, {found[1]}?"


def time_last(question: str, rng: random.Random) -> str | None:
    found = re.fullmatch(
        r"((?:in|during|since|after|before) (?:the )?(?:\w+ )?\d{4}s?),? ((?:what|who|where|why|how|which)\b.*)",
        stripped(question),
    )
    return found and f"{found[2]} {found[1]}?"


def plural(question: str, rng: random.Random) -> str | None:
    found = re.match(
        r"(what|which) (kind|type|country|city|organization|company|language|group)\b( .*)",
        question,
    )
    many = {"country": "countries", "city": "cities", "company": "companies"}
    return found and f"{found[1]} {many.get(found[2], found[2] + 's')}{found[3]}"


def typo(question: str, rng: random.Random) -> str | None:
    """Two letters of a long word change places."""
    places = list(re.finditer(r"[a-z]{8,}", question))
    if not places:
        return None
    place = rng.choice(places)
    at = place.start() + rng.randrange(2, len(place[0]) - 3)
    if question[at] == question[at + 1]:
        return None
    return question[:at] + question[at + 1] + question[at] + question[at + 2 :]


def negated(question: str, rng: random.Random) -> str | None:
    found = re.search(rf"\b({VERBS}) (?!not\b)((?:the |a |an )?[\w-]+)", question)
    if not found or " not " in question or "n't" in question:
        return None
    return question[: found.end(1)] + " not" + question[found.end(1) :]


def contracted_negation(question: str, rng: random.Random) -> str | None:
    return rewritten(r"\b(did|does|do|was|were|is|are|could|would|has|had)\b(?! not)", r"\1n't")(
        question, rng
    )


def number(question: str, rng: random.Random) -> str | None:
    places = list(re.finditer(r"(?<![\w.,])\d{1,3}(?![\w.,])", question))
    if not places:
        return None
    place = rng.choice(places)
    return question[: place.start()] + str(int(place[0]) + rng.choice([1, 2, 10])) + question[place.end() :]


def year(question: str, rng: random.Random) -> str | None:
    found = re.search(r"(?<!\d)(1\d|20)\d\d(?!\d)", question)
    if not found:
        return None
    return (
        question[: found.start()] + str(int(found[0]) + rng.choice([-10, -1, 1, 2])) + question[found.end() :]
    )


def ordinal(question: str, rng: random.Random) -> str | None:
    words = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"]
    table = {one: words[(at + 1) % len(words)] for at, one in enumerate(words)}
    digits = re.search(r"\b(\d+)(?:st|nd|rd|th)\b", question)
    if digits:
        return question[: digits.start()] + f"{int(digits[1]) + 10}th" + question[digits.end() :]
    return replaced(table)(question, rng)


def name(question: str, rng: random.Random) -> str | None:
    places = [one for one in re.finditer(r"\b[a-z]+(?: york| angeles)?\b", question) if one[0] in OF_ITS_KIND]
    if not places:
        return None
    place = rng.choice(places)
    return question[: place.start()] + rng.choice(OF_ITS_KIND[place[0]]) + question[place.end() :]


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
    other = question[:a] + question[c:d] + question[b:c] + question[a:b] + question[d:]
    return None if other == question else other


def asks_else(question: str, rng: random.Random) -> str | None:
    """Who, where, when: another of them."""
    found = re.match(r"(who|where|when|why)\b", question)
    if not found:
        return None
    return (
        rng.choice([one for one in ("who", "where", "when", "why") if one != found[0]])
        + question[found.end() :]
    )


def month(question: str, rng: random.Random) -> str | None:
    return replaced({one: MONTHS[(at + 3) % len(MONTHS)] for at, one in enumerate(MONTHS)})(question, rng)


def dropped(question: str, rng: random.Random) -> str | None:
    """A qualifying word left out that narrows the question."""
    return rewritten(
        r"\b(?:only|former|current|annual|total|average|official|original|national|international) ", ""
    )(question, rng)


PARAPHRASES: Final[dict[str, Rule]] = {
    "polite": polite,
    "case and punctuation": punctuated,
    "contraction": rewritten(r"\b(what|who|where|when|how) is\b", r"\1's"),
    "negative contraction": rewritten(r"\b(did|does|do|was|were|is|are|could|would) not\b", r"\1n't"),
    "article": article,
    "which for what": rewritten(
        r"\bwhat(?= (?:year|city|country|state|type|kind|group|company|language|part|day)\b)", "which"
    ),
    "in which year": rewritten(r"^(?:in )?what year\b", "in which year"),
    "time first": time_first,
    "time last": time_last,
    "keywords": rewritten(r"^(?:what is|what are|what's) (?:the |a |an )?(?=\w+ \w+ \w+)", ""),
    "indirect": rewritten(r"^(who|what|where|when) (was|is) the ([\w ]+?)\??$", r"tell me \1 the \3 \2"),
    "plural": plural,
    "British spelling": replaced(BRITISH),
    "synonym": replaced(SYNONYMS),
    "typo": typo,
}
HARD_NEGATIVES: Final[dict[str, Rule]] = {
    "negation": negated,
    "contracted negation": contracted_negation,
    "opposite": replaced(OPPOSITES),
    "number": number,
    "year": year,
    "ordinal": ordinal,
    "month or day": month,
    "unit": replaced(UNITS),
    "name": name,
    "swapped": swapped,
    "question word": asks_else,
    "tense": rewritten(r"\b(who|what|where) is\b", r"\1 was"),
    "qualifier dropped": dropped,
}
