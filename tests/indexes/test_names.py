"""Names of documents: which a query holds, and where the indexes keep them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from indexes.lexical.bm25 import LexicalPart
from indexes.lexical.building import LexicalBuilder, merge_sealed
from indexes.lexical.names import ASKED_MAX, EXACT, NAME_CHARS_MAX, asked_keys, keys_of, name_keys
from indexes.lexical.postings import LONG_CHARS, GrowingLexical, SealedLexical

TEXTS = ["one sailing boat", "two boats", "...", "word " * (LONG_CHARS // 5 + 1), "three boats"]
NAMES = [name_keys(one, "A boat", "", 0) for one in ("x.Boat", "y", "z", "long.Boat", "a boat")]


def holds(query: str, name: str) -> bool:
    return any(key in keys for key in keys_of(name) for matches in asked_keys(query) for keys in matches)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("json", "json"),
        ("  Getting   STARTED? ", "Getting started"),
        ("how do I use collections.Counter to count words?", "collections.Counter"),
        ("what does json.dumps() return", "json.dumps"),
        ("json.dumps(obj, indent=2) is slow", "json.dumps"),
        ("what is `data` for", "data"),
        ("where does 'The Whale' take place", "the whale"),
        ("the policy CMP0077, in short", "cmp0077"),
        ("is max_retries honored", "max_retries"),
        ("why is getUserName null", "getusername"),
        ("HTTPServer threads", "HTTPServer"),
        ("the fix of CVE-2024-1234.", "CVE-2024-1234"),
        ("std::vector growth", "std::vector"),
        ("what changed in docs/guide.md", "docs/guide.md"),
        ("如何用collections.Counter计数", "collections.counter"),
        ("RÉSUMÉ", "resume"),
    ],
)
def test_a_query_holds_a_name(query: str, name: str) -> None:
    """The whole query, what is in quotes, and identifiers, without case, accents and punctuation around."""
    assert holds(query, name)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("how is the data stored", "data"),
        ("the 2nd edition", "2nd"),
        ("events of 1984", "1984"),
        ("what's new in 3.12", "3.12"),
        ("don't use it, it's slow", "t use it, it"),
        ("the Counter class", "Counter"),
        ("", ""),
        ("?!", "?"),
    ],
)
def test_plain_words_of_a_question_are_no_names(query: str, name: str) -> None:
    """Nor are numbers, and nothing is the name of nothing."""
    assert not holds(query, name)


def test_only_so_many_names_are_looked_for() -> None:
    """A text of identifiers costs no more than a few, and a long text is no name."""
    assert len(asked_keys(" ".join(f"a.b{n}" for n in range(100)))) == ASKED_MAX
    assert asked_keys("x" * (NAME_CHARS_MAX + 1)) == []


def test_the_names_of_a_passage() -> None:
    """The first has the id and title exactly; each has the last part of its headings, and last parts of names."""

    def exact(*names: str) -> set[int]:
        return {key | EXACT for one in names for key in keys_of(one)}

    def part(*names: str) -> set[int]:
        return {key for one in names for key in keys_of(one)}

    found = name_keys("collections.Counter", "Counter(iterable)", "Classes > Counting", 0)
    assert set(found) == exact("collections.Counter", "Counter(iterable)", "Counter") | part("Counting")
    assert set(name_keys("x.y", "X", "Guide > Setting up", 1)) == part("Setting up")
    assert set(name_keys("docs/a.md", "", "", 0)) == exact("docs/a.md") | part("a.md")
    assert set(name_keys("a", "", "async def parse_date(text: str) -> Date:", 1)) >= part("parse_date")
    assert not set(name_keys("a", "", "The function of memory", 1)) & part("of")
    assert name_keys("", "", "", 0) == []


def index(rows: range) -> GrowingLexical:
    growing = GrowingLexical()
    for row in rows:
        growing.add(TEXTS[row], "en", NAMES[row])
    return growing


def test_every_index_finds_the_same_names(tmp_path: Path) -> None:
    """The growing, the sealed, the merged and the built one, loaded from disk; a view sees no later row."""
    whole = index(range(5))
    with LexicalBuilder(tmp_path, 5) as builder:
        builder.add(np.arange(5)[::-1], TEXTS[::-1], ["en"] * 5, NAMES[::-1])
        builder.save(tmp_path)
    halves = [index(range(2)).seal(2), index(range(2, 5)).seal(3)]
    merged = merge_sealed([(half, np.ones(half.size, bool)) for half in halves])
    for one in (whole.view(5), whole.seal(5), merged, SealedLexical.load(tmp_path)):
        assert found(one, "A boat") == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [], []]
        assert found(one, "a boat") == [[4], [0, 1, 2, 3, 4], [], []]
        assert found(one, "Boat") == [[], [], [0, 3], [0, 3]]
        assert found(one, "boat") == [[], [], [], [0, 3]]
        assert found(one, "boats") == [[], [], [], []]
    assert found(whole.view(3), "boat") == [[], [], [], [0]]
    kept = merge_sealed([(whole.seal(5), np.array([False, True, True, True, False]))])
    assert found(kept, "boat") == [[], [], [], [2]]


def found(part: LexicalPart, query: str) -> list[list[int]]:
    """The rows of each match, the best first."""
    [matches] = asked_keys(query)
    return [sorted(set(part.named(keys).tolist())) for keys in matches]


def test_a_name_takes_twelve_bytes() -> None:
    """Beside its posting no text is kept."""
    assert whole_bytes(NAMES) - whole_bytes([[]] * 5) == 12 * sum(map(len, NAMES))


def whole_bytes(names: list[list[int]]) -> int:
    growing = GrowingLexical()
    for text, keys in zip(TEXTS, names, strict=True):
        growing.add(text, "en", keys)
    return growing.seal(5).bytes
