"""The callback between the steps of long work, the budget of work for the searches of one request, and when that
began."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

# When the request began that this context works for, in monotonic seconds; 0: it is no request.
BEGAN: ContextVar[float] = ContextVar("BEGAN", default=0.0)

OnStep = Callable[[], None]  # long work calls it between steps; it may raise to cancel the work


def do_nothing() -> None:
    """The `OnStep` of work that cannot be cancelled."""


@dataclass(slots=True)
class WorkBudget:
    """The work that the searches of one request may still do; a number below 0 is used up.

    Each limit costs about a tenth of a second of CPU. Searches on several threads share the budget, and each may exceed
    it by one step.
    """

    searches: int = 0  # counts up: searches that have started
    comparisons: int = 300_000  # of query words that occur nowhere with terms of the dictionary
    prefix_terms: int = 16_384  # that the prefixes expand to
    phrase_chars: int = 6_000_000  # of candidates, scanned for phrases
    highlight_words: int = 10_000  # distinct words of one search's hits, compared with its query
    highlight_tokens: int = 200_000  # of hits, passed over; a marked word counts as several
    copies: int = 4096  # of hits, read to find others to show
    ranked: int = 300_000  # candidates of deeper searches; the values under one key count as three
    near_words: int = 100_000  # of explained passages, compared with words that these lack
    facet_counts: int = 2_000_000  # documents and values that facets count

    @property
    def may_highlight(self) -> bool:
        return self.highlight_words >= 0 and self.highlight_tokens >= 0
