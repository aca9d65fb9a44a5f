"""The questions that a rebuild measures its recall with: what users asked, else titles of documents.

Mixtures of stored vectors, which a build makes for itself, can be easier than what people ask.
"""

from __future__ import annotations

from typing import NamedTuple

from indexes.collection.collection import Collection
from retrieval.upkeep.feedback import Feedback
from retrieval.upkeep.query_log import QueryLog

QUESTIONS_MIN, ASKED_MAX, TITLES_MAX = 200, 1000, 800


class Questions(NamedTuple):
    """Different texts, and where they are from."""

    source: str
    texts: list[str]


def questions_of(collection: Collection, log: QueryLog, feedback: Feedback) -> Questions | None:
    """Return the newest questions of users, or titles if these are too few, or None if those are. Run it on a
    thread."""
    logged = log.texts(collection, ASKED_MAX)
    judged = [entry.query for entry in reversed(feedback.read(collection))]
    asked = list(dict.fromkeys([*logged, *judged]))[:ASKED_MAX]
    if len(asked) >= QUESTIONS_MIN:
        return Questions(
            "logged queries" if len(asked) == len(logged) else "logged queries and feedback", asked
        )
    titles = collection.log.titles(TITLES_MAX)
    return Questions("titles", titles) if len(titles) >= QUESTIONS_MIN else None
