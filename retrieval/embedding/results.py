"""What embedding returns, how texts longer than the model's window are treated, and who observes it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from indexes.base.errors import InvalidInput
from indexes.base.model import Floats
from retrieval.embedding.tokens import Tokens

Long = Literal["cut", "windows", "refuse"]
Lane = Literal["query", "bulk"]
WhyLeft = Literal["cancelled", "deadline", "refused"]
Outcome = Floats | list[Floats | Exception]  # of a run: a vector per text, or after a failure each text's own

logger = logging.getLogger(__name__)


class TooLong(InvalidInput):
    """A text has more tokens than the `tokens_max` the model reads, and its caller asked not to cut it."""

    def __init__(self, message: str, tokens_max: int) -> None:
        super().__init__(message)
        self.tokens_max = tokens_max


@dataclass(frozen=True, slots=True)
class EmbeddedTexts:
    """Vectors of some texts, in order, and what was read of each.

    vectors     float32 [texts, dimensions]
    tokens      read of each text, special ones included
    truncated   whether the end of the text was left out
    windows     runs that the text was spread over, 1 unless windows were asked for
    tokenize_s, queue_s, run_s    seconds: tokenizing; waiting for the first run; from its start to the last one's end
    """

    vectors: Floats
    tokens: list[int]
    truncated: list[bool]
    windows: list[int]
    tokenize_s: float = 0.0
    queue_s: float = 0.0
    run_s: float = 0.0

    @staticmethod
    def concatenate(parts: Sequence[EmbeddedTexts]) -> EmbeddedTexts:
        """Concatenate the parts of one request that ran one after another."""
        return EmbeddedTexts(
            np.concatenate([part.vectors for part in parts]),
            [tokens for part in parts for tokens in part.tokens],
            [cut for part in parts for cut in part.truncated],
            [windows for part in parts for windows in part.windows],
            sum(part.tokenize_s for part in parts),
            sum(part.queue_s for part in parts),
            sum(part.run_s for part in parts),
        )


class Observer:
    """Is told what the batcher does, on the event loop's thread, and should return at once. This one ignores
    everything."""

    def tokenized(self, lane: Lane, texts: int, seconds: float) -> None:
        """Texts were tokenized."""

    def ran(
        self, lane: Lane, *, texts: int, tokens: int, padded_tokens: int, wait_s: float, run_s: float
    ) -> None:
        """A run ended. `wait_s` is the time from the arrival of its oldest text to its start."""

    def queued(self, lane: Lane, tokens: int) -> None:
        """A lane now holds this many waiting tokens."""

    def left(self, lane: Lane, texts: int, reason: WhyLeft) -> None:
        """These texts will not be embedded."""


def outcome_of(run: Callable[[Sequence[Tokens]], Floats], tokens: list[Tokens]) -> Outcome:
    """Run a batch and return its vectors; if the run fails, the outcome of each text separately. Raises nothing."""
    try:
        return run(tokens)
    except Exception as error:  # noqa: BLE001 - any error belongs to the caller whose text caused it
        if len(tokens) == 1:
            return [error]
        logger.warning("a shared run failed, its %d texts are repeated singly: %s", len(tokens), error)
        return [outcome for each in tokens for outcome in outcome_of(run, [each])]


def refuse_truncated(found: Sequence[Tokens], at: int, tokens_max: int) -> None:
    """Raise TooLong naming the first text, numbered from `at`, that did not fit whole."""
    for number, tokens in enumerate(found, at):
        if tokens.truncated:
            raise TooLong(f"text {number} is longer than the {tokens_max} tokens the model reads", tokens_max)


def join_windows(
    vectors: Floats, lengths: Sequence[int], windows: Sequence[int], *, normalize: bool
) -> Floats:
    """Average the vectors of each text's windows, weighted by their tokens. Returns float32 [texts, dimensions].

    `windows` is how many rows each text has, at least 1, in the order of the texts. With `normalize` the mean is scaled
    to length 1.
    """
    weights, starts = np.asarray(lengths, dtype=np.float32), first_rows(windows)
    sums = np.add.reduceat(vectors * weights[:, None], starts, axis=0)
    totals = np.add.reduceat(weights, starts)
    means = (sums / np.maximum(totals, 1)[:, None]).astype(np.float32)
    return shorten(means, means.shape[1]) if normalize else means


def first_rows(counts: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the row at which each group starts, for consecutive groups of these sizes, at least 1."""
    ends = np.cumsum(np.array(counts, dtype=np.int64))
    return np.concatenate(([0], ends[:-1]))


def shorten(vectors: Floats, dimensions: int) -> Floats:
    """Keep the first `dimensions` of each vector, rescaled to length 1: float32 [texts, dimensions].

    Only models trained for it (Matryoshka representations, Kusupati et al. 2022) keep most of their quality.
    """
    kept = vectors[:, :dimensions]
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    return np.ascontiguousarray(kept / np.maximum(lengths, np.float32(1e-12)), dtype=np.float32)
