"""The questions that a rebuild measures with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from indexes.base.model import NewPassage, Upsert
from retrieval.upkeep.questions import QUESTIONS_MIN, TITLES_MAX, questions_of
from tests.support.vectors import World, make_collection

WORLD = World()


@pytest.mark.parametrize(
    ("logged", "judged", "titles", "source", "count"),
    [
        (250, 0, 0, "logged queries", 250),
        (150, 100, 900, "logged queries and feedback", 250),
        (0, 220, 900, "logged queries and feedback", 220),
        (50, 50, 300, "titles", 300),
        (0, 0, 1900, "titles", TITLES_MAX),
        (0, 0, 199, None, 0),
    ],
)
def test_what_users_asked_comes_first(
    tmp_path: Path, logged: int, judged: int, titles: int, source: str | None, count: int
) -> None:
    """Then titles, each once; and nothing if these are too few."""
    made = make_collection(tmp_path / "c")
    numbers = range(max(titles, 1))
    passage = (NewPassage(0, 1, 1, WORLD.vector(1, 0, 0)),)
    made.write([Upsert(f"d{n}", "x", f"title {n}" if titles else "", {}, passage) for n in numbers]).result()
    made.write([Upsert(f"copy{n}", "x", "title 1", {}, passage) for n in range(100)]).result()
    log: Any = SimpleNamespace(texts=lambda collection, most: [f"logged {n}" for n in range(logged)][:most])
    entries = [SimpleNamespace(query=f"judged {n}") for n in range(judged)]
    feedback: Any = SimpleNamespace(read=lambda collection: entries)
    found = questions_of(made, log, feedback)
    if source is None:
        assert found is None
    else:
        assert found is not None
        assert found.source == source
        assert len(set(found.texts)) == len(found.texts)
        assert QUESTIONS_MIN <= len(found.texts) <= count
        assert len(found.texts) > 0.6 * count
    made.close()
