"""Predicts the cost of a run, learned from earlier runs: seconds = c + a * tokens + b * texts * longest^2.

`tokens` counts padding. The first term is the fixed cost of a run, the second is matrix products, the third attention.
Least squares over runs that fade with age, shrunk toward a first guess where they tell nothing (ridge regression, Hoerl
and Kennard 1970): thousands of runs of one shape determine the cost of that shape and leave the rest at the guess.

Runs are learned in groups, because solving after each one would keep the next query waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

FORGETTING = 0.99
RUNS_TOGETHER = 16  # learned at a time; a model's first runs one by one
SURPRISE_MAX = 3.0  # a run longer than this many times its estimate was delayed by something else
PRIOR = (0.0003, 0.00004, 0.00000005)  # seconds: a small encoder on a laptop, until the first runs
PRIOR_RUNS = 0.1  # the first guess weighs as much as this many runs
SHORTEST_S = 1e-5
PASSAGE_TOKENS = 200  # length of the typical text that the pace is quoted for
BYTES_PER_TOKEN, TOKENS_KEPT = 4.0, 16_384  # until documents were read; how many recent tokens count
SCALE = np.array([1.0, 100.0, 10_000.0])  # brings the three terms to similar size


@dataclass(slots=True)
class TextLoad:
    """Waiting texts as the cost model sees them: their number, their tokens, and the sum of their squared lengths."""

    texts: int = 0
    tokens: int = 0
    squares: int = 0

    def add(self, length: int, sign: int = 1) -> None:
        self.texts += sign
        self.tokens += sign * length
        self.squares += sign * length * length


class CostModel:
    """Predicts runs. Call `learn` from one thread at a time, `seconds` from any."""

    def __init__(self) -> None:
        self._prior: Vector = np.array(PRIOR) * SCALE
        self._certainty = np.diag(PRIOR_RUNS / self._prior**2)
        self._products = np.zeros((3, 3))
        self._sums: Vector = np.zeros(3)
        # Runs not learned yet: their three terms, and their time.
        self._new: list[tuple[float, float, float, float]] = []
        self.base, self.per_token, self.per_square = PRIOR
        self.runs = 0
        self._read = [BYTES_PER_TOKEN, 1.0]  # bytes of documents, and their tokens

    def seconds(self, texts: int, longest: int) -> float:
        """Predict one run of this many texts, all padded to `longest` tokens."""
        return self.base + self.per_token * texts * longest + self.per_square * texts * longest * longest

    def seconds_of(self, load: TextLoad) -> float:
        """Predict everything in `load` on one core, as if each text ran alone: an upper bound."""
        return self.base * load.texts + self.per_token * load.tokens + self.per_square * load.squares

    @property
    def bytes_per_s(self) -> float:
        """How fast one core embeds passages of documents."""
        text_bytes, tokens = self._read
        return PASSAGE_TOKENS * text_bytes / tokens / self.seconds(1, PASSAGE_TOKENS)

    def read(self, text_bytes: float, tokens: int) -> None:
        """Record how much text a run had."""
        faded = max(0.0, 1 - tokens / TOKENS_KEPT)
        self._read = [faded * self._read[0] + text_bytes, faded * self._read[1] + tokens]

    def learn(self, texts: int, longest: int, seconds: float) -> None:
        """Record how long a run took. A delayed run counts as no longer than SURPRISE_MAX times its estimate."""
        expected = max(self.seconds(texts, longest), SHORTEST_S)
        if self.runs:
            seconds = min(seconds, SURPRISE_MAX * expected)
        tokens = texts * longest
        # Relative to the estimate: otherwise the noise of long runs would drown the short ones.
        self._new.append((1 / expected, tokens / expected, tokens * longest / expected, seconds / expected))
        self.runs += 1
        if len(self._new) == RUNS_TOGETHER or self.runs <= RUNS_TOGETHER:
            self._take_in()

    def _take_in(self) -> None:
        found = np.array(self._new)
        self._new.clear()
        terms, times = found[:, :3] / SCALE, found[:, 3]
        weights = FORGETTING ** np.arange(len(found))[::-1]
        faded = FORGETTING ** len(found)
        self._products = faded * self._products + (terms * weights[:, None]).T @ terms
        self._sums = faded * self._sums + (times * weights) @ terms
        fitted = np.linalg.solve(self._products + self._certainty, self._sums + self._certainty @ self._prior)
        base, per_token, per_square = np.maximum(fitted, 0.0) / SCALE
        self.base, self.per_token, self.per_square = float(base), float(per_token), float(per_square)
