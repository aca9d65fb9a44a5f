"""Who hears what the batcher does: metrics, for example."""

from __future__ import annotations

from typing import Literal, Protocol

from retrieval.embedding.results import Lane


class Observer(Protocol):
    """Hears what happens, always on the event loop's thread; should return at once."""

    def tokenised(self, lane: Lane, texts: int, seconds: float) -> None:
        """Texts were made into tokens."""

    def ran(
        self, lane: Lane, *, texts: int, tokens: int, padded_tokens: int, wait_s: float, run_s: float
    ) -> None:
        """One run ended. `wait_s`: from the arrival of its oldest text to its start."""

    def queued(self, lane: Lane, tokens: int) -> None:
        """Tokens that wait in a lane now."""

    def left(self, lane: Lane, texts: int, reason: Literal["cancelled", "deadline", "refused"]) -> None:
        """Texts that will not be embedded."""


class Silent:
    """An observer that does not listen."""

    def tokenised(self, lane: Lane, texts: int, seconds: float) -> None:
        pass

    def ran(
        self, lane: Lane, *, texts: int, tokens: int, padded_tokens: int, wait_s: float, run_s: float
    ) -> None:
        pass

    def queued(self, lane: Lane, tokens: int) -> None:
        pass

    def left(self, lane: Lane, texts: int, reason: Literal["cancelled", "deadline", "refused"]) -> None:
        pass
