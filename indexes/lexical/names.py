"""Names: the ids, titles and headings of documents, for queries that hold one exactly.

A name is kept as keys of 64 bits, hashes of the name as it is written and of its folded form. Their lowest bits say
whether it is EXACT, an id or a title, or only a heading or the last part of a name; and whether it is WRITTEN so, or
folded. The first passage of a document has its id and title, each passage its heading. A key takes 12 bytes, and a
lookup in each part finds the passages of a name.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import regex
from numpy.typing import NDArray

from indexes.lexical.words import fold

Keys = NDArray[np.uint64]
NameRows = NDArray[np.uint32]
NO_KEYS: Keys = np.empty(0, np.uint64)

EXACT, WRITTEN = 2, 1
NAME_CHARS_MAX = 256
ASKED_MAX = 8  # names in one query
ASKED_CHARS_MAX = 4096  # of a query, among which they are looked for

OPENING, CLOSING = "\"'`“”‘’«([{<", "\"'`“”‘’»()]}>.,;:!?…"
CALL = regex.compile(r"(?<=\w)\(.*", regex.DOTALL)
LAST_PART = regex.compile(r"\w(?:\.|\#|::?|->)(\p{L}[\w$-]*)$")
DEFINITION = regex.compile(
    r"(?:(?:abstract|async|default|export|private|protected|pub|public|static)\s+)*"
    r"(?:class|def|enum|fn|func|function|interface|struct|trait)\s+(\w+)"
)
QUOTED = regex.compile(r"`([^`]+)`|\"([^\"]+)\"|“([^”]+)”|«([^»]+)»|(?<!\w)['‘]([^'’]+)['’](?!\w)")
# In a token that has a letter.
IDENTIFIER = regex.compile(r"\p{Nd}|\w(?:[./\#]|::|->)\w|_\w|\w_|\p{Ll}\p{Lu}|\p{Lu}{2}\p{Ll}{2}|\w\(")
COUNTED = regex.compile(r"\p{Nd}+\p{L}{1,2}")  # 2nd, 90s, 10mg
ASCII_RUN = regex.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/#-]*(?:\()?")  # within scripts without spaces


def name_keys(document_id: str, title: str, heading: str, ordinal: int) -> list[int]:
    """Return the keys under which a passage is found by name, without duplicates."""
    heading = heading.rpartition(" > ")[2]
    defined = DEFINITION.match(heading) if heading else None
    exact = [] if ordinal else [one for one in (document_id, title, CALL.sub("", title)) if one]
    parts = [last_part(CALL.sub("", one)) for one in (*exact, heading) if one]
    parts += [heading, CALL.sub("", heading), *(defined.groups() if defined else ())]
    keys = dict.fromkeys(key | EXACT for one in exact for key in keys_of(one))
    keys |= dict.fromkeys(key for one in parts if one for key in keys_of(one) if key | EXACT not in keys)
    return list(keys)


def keys_of(name: str) -> tuple[int, ...]:
    return _keys_of(name) if len(name) <= NAME_CHARS_MAX else ()


@lru_cache(maxsize=256)  # the passages of a document share its title, and often a heading
def _keys_of(name: str) -> tuple[int, ...]:
    written, folded = forms_of(name)
    return (hash_of(written) | WRITTEN, hash_of(folded) | WRITTEN * (written == folded)) if folded else ()


def asked_keys(text: str) -> list[tuple[range, ...]]:
    """Return the keys to look up for each possible name in a query, best match first: those that are EXACT and WRITTEN
    like it, those that are EXACT, and then the same for parts of names.

    Possible names are the whole query, what is in quotes, and identifiers, which have dots, underscores, letters with
    digits, capitals after small letters, or parentheses behind them. A plain word of a question is no name.
    """
    names = dict.fromkeys(map(forms_of, _asked(text[:ASKED_CHARS_MAX])))
    names.pop(("", ""), None)
    found = []
    for written, folded in list(names)[:ASKED_MAX]:
        so, folds = hash_of(written) | WRITTEN, hash_of(folded)
        found.append(
            tuple(
                keys
                for exact in (EXACT, 0)
                for keys in (range(so + exact, so + exact + 1), range(folds + exact, folds + exact + 2))
            )
        )
    return found


def _asked(text: str) -> Iterator[str]:
    yield text
    for quoted in QUOTED.findall(text):
        yield from quoted
    for token in text.split():
        plain = token.strip(".,;:!?")
        if plain.isalpha() and plain[1:].islower():
            continue  # in a fraction of the time of the pattern
        for one in (token,) if token.isascii() else (token, *ASCII_RUN.findall(token)):
            name = one.lstrip(OPENING)
            if len(name) <= NAME_CHARS_MAX and any(map(str.isalpha, name)) and IDENTIFIER.search(name):
                name = name.rstrip(CLOSING)
                if not COUNTED.fullmatch(name):
                    yield name
                    yield CALL.sub("", name)


def last_part(name: str) -> str:
    """The last part of a qualified name or of a path, empty if it has one part."""
    if "/" in name:
        return name.rpartition("/")[2]
    found = LAST_PART.search(name)
    return found[1] if found else ""


def forms_of(name: str) -> tuple[str, str]:
    """A name without quotes around it and punctuation behind, and its folded form; both empty if it is too long."""
    written = " ".join(name.split()).lstrip(OPENING).rstrip(CLOSING) if len(name) <= NAME_CHARS_MAX else ""
    return written, fold(written)


def hash_of(form: str) -> int:
    return int.from_bytes(blake2b(form.encode(), digest_size=8).digest(), "big") & ~(EXACT | WRITTEN)


def sort_names(keys: Keys, rows: NameRows) -> tuple[Keys, NameRows]:
    """Sort by key, then by row."""
    order = np.lexsort((rows, keys))
    return keys[order], rows[order]
