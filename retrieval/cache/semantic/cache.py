"""Which questions asked before may answer a query, and how reliable that has been."""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from indexes.base.model import Floats
from retrieval.base.settings import SemanticSettings
from retrieval.cache.semantic.questions import Question, Questions, Scope
from retrieval.cache.semantic.shared import SharedQuestions
from retrieval.cache.semantic.wording import wording
from retrieval.wire.search import Hit

logger = logging.getLogger(__name__)

NEAREST: Final = 8  # questions considered
CROWD: Final = 3  # how many of those that ask something else set the bar
TRIED: Final = 2  # questions whose answers are looked up
TEXT_CHARS_MAX: Final = 500  # longer ones are rarely asked twice
CHECKS_KEPT: Final = 1000
FALSE_MIN: Final = 3  # one answer may be wrong by chance
Z: Final = 3.0  # 99.9 percent confidence, because the bound is tested after every check


@dataclass(slots=True)
class SemanticCounts:
    """Totals. A `hit` was answered by another question, a `miss` was not. Of the hits that were checked by searching
    anyway, `right` had the search's best hit and half of the others; `false` had not."""

    hits: int = 0
    misses: int = 0
    right: int = 0
    false: int = 0


class SemanticCache:
    """Holds questions, not answers. Use it from one event loop."""

    def __init__(
        self,
        settings: Callable[[], SemanticSettings],
        questions: Questions,
        shared: SharedQuestions | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`settings` are read for every search, because a reload changes them. `chance` returns a number from 0 to
        1."""
        self.counts = SemanticCounts()
        self.shared = shared
        self.questions = questions
        self._settings = settings
        self._chance = chance
        self._checks: dict[str, deque[bool]] = {}  # by collection, True for a false hit
        self.off: set[str] = set()  # collections in which too many hits were false

    def serves(self, collection: str, text: str | None) -> bool:
        settings = self._settings()
        if not settings.enabled or text is None or len(text) > TEXT_CHARS_MAX or collection in self.off:
            return False
        return len(wording(text)) >= settings.words_min

    async def find_alike(self, scope: bytes, text: str, vector: Floats) -> list[Question]:
        """Find questions that ask the same, nearest first, TRIED at most. `vector` is float32, of length 1."""
        known = self.questions.of(scope)
        found = self._keep_same(text, known.near(vector, NEAREST) if known else [])
        if not found and self.shared is not None:
            found = self._keep_same(text, await self.shared.near(scope, vector, NEAREST))
        return found[:TRIED]

    def _keep_same(self, text: str, near: Sequence[Question]) -> list[Question]:
        """Keep those of the nearest that ask the same. They must be at least twice as near as the nearest ones that ask
        something else."""
        wanted = wording(text)
        others = [one.similarity for one in near if wording(one.text) != wanted][:CROWD]
        crowd = sum(others) / len(others) if others else 0.0
        least = max(self._settings().similarity_from, 1 - (1 - crowd) / 2)
        return [one for one in near if one.similarity >= least and wording(one.text) == wanted]

    def keep(self, scope: bytes, text: str, vector: Floats) -> None:
        """Record that the answer of this question can be looked up."""
        self.questions.put(scope, text, vector)
        if self.shared is not None:
            self.shared.put(scope, text, vector, self.questions.of(scope) or Scope(len(vector)))

    def forget(self, scope: bytes, question: Question) -> None:
        """Drop a question whose answer is gone."""
        self.questions.forget(scope, question.text)
        if self.shared is not None and question.member:
            self.shared.forget(scope, question.member)

    def should_check(self) -> bool:
        """Whether to check this hit by searching anyway."""
        return self._chance() < self._settings().checked_share

    def record_check(self, collection: str, given: Sequence[Hit], found: Sequence[Hit]) -> None:
        """Compare the cached hits of a query with those a search found. Too many false ones switch the cache off for
        the collection, until the configuration is reloaded or the service restarts."""
        false = is_false(given, found)
        self.counts.false += false
        self.counts.right += not false
        checks = self._checks.setdefault(collection, deque(maxlen=CHECKS_KEPT))
        checks.append(false)
        budget = self._settings().false_budget
        if sum(checks) >= FALSE_MIN and wilson_lower_bound(sum(checks), len(checks)) > budget:
            self.off.add(collection)
            logger.error(
                "the semantic cache is off for collection %s: %d of %d hits checked were false, more than "
                "semantic_cache.false_budget of %g; it is tried again after a reload (SIGHUP) or a start",
                collection,
                sum(checks),
                len(checks),
                budget,
            )

    def reset(self) -> None:
        self.off.clear()
        self._checks.clear()


def is_false(given: Sequence[Hit], found: Sequence[Hit]) -> bool:
    """Whether the hits `given` lack the best one that a search found, or more than half of all."""
    passages = [(hit.document_id, hit.passage) for hit in given]
    wanted = [(hit.document_id, hit.passage) for hit in found]
    if not wanted:
        return bool(passages)
    return wanted[0] not in passages or 2 * len(set(passages) & set(wanted)) < len(wanted)


def wilson_lower_bound(false: int, checked: int) -> float:
    """Return Wilson's lower bound (Wilson 1927) of the share of false hits."""
    share = false / checked
    center = share + Z**2 / (2 * checked)
    spread = Z * math.sqrt(share * (1 - share) / checked + Z**2 / (4 * checked**2))
    return (center - spread) / (1 + Z**2 / checked)
