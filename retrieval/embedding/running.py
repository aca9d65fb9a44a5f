"""What the batcher runs on, and one run of it such that only the text at fault fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from indexes.model import Floats
from retrieval.embedding.models import Kind
from retrieval.embedding.tokens import Tokens

logger = logging.getLogger(__name__)

Outcome = Floats | list[Floats | Exception]  # of a run: a vector a text; after a failure, what became of each


class Runner(Protocol):
    """What the batcher needs of an Encoder."""

    @property
    def dimensions(self) -> int: ...
    @property
    def tokens_max(self) -> int: ...
    @property
    def normalises(self) -> bool: ...
    def tokenise(self, texts: Sequence[str], kind: Kind) -> list[Tokens]: ...
    def windows(self, text: str, kind: Kind) -> list[Tokens]: ...
    def run(self, batch: Sequence[Tokens]) -> Floats: ...


def outcome_of(encoder: Runner, tokens: list[Tokens]) -> Outcome:
    """Vectors of a batch; if its run fails, the outcome of each text by itself. Raises nothing."""
    try:
        return encoder.run(tokens)
    except Exception as error:  # noqa: BLE001 - any error belongs to the caller whose text caused it
        if len(tokens) == 1:
            return [error]
        logger.warning("a shared run failed, its %d texts are repeated singly: %s", len(tokens), error)
        return [_outcome_of_text(encoder, each) for each in tokens]


def _outcome_of_text(encoder: Runner, tokens: Tokens) -> Floats | Exception:
    try:
        vector: Floats = encoder.run([tokens])[0]
        return vector
    except Exception as error:  # noqa: BLE001 - as above
        return error
