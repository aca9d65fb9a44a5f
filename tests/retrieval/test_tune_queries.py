"""The texts that a tuning brings with it are embedded beside everybody else's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest

from retrieval.base.settings import Config, EmbeddingSection, ModelsSection
from retrieval.embedding.embedders import Embedders
from retrieval.embedding.results import Lane, Observer


class Refusals(Observer):
    """Counts the texts that were refused."""

    def __init__(self) -> None:
        self.texts = 0

    def left(self, lane: Lane, texts: int, reason: str) -> None:
        self.texts += texts if reason == "refused" else 0


@pytest.mark.slow
@pytest.mark.model
def test_a_busy_lane_is_waited_for(model_folder: Path) -> None:
    """Refused because documents fill the queue, the texts come again later, and none is lost."""
    texts = [f"where is the lantern of entry {number}?" for number in range(100)]
    config = msgspec.structs.replace(
        Config(),
        models=ModelsSection(folder=str(model_folder.parent)),
        embedding=EmbeddingSection(queue_tokens_max=1024),
    )
    refusals = Refusals()

    async def story() -> None:
        embedders = Embedders(config, lambda name: refusals)
        try:
            embedder = await embedders.get(model_folder.name)
            # Each is just small enough not to wait for its turn; the last quarter of the queue is for smaller ones.
            flood = [asyncio.create_task(embedder.documents(texts[:20])) for _ in range(3)]
            await asyncio.sleep(0)
            vectors = await embedder.queries(texts)
            assert refusals.texts > 0
            await asyncio.gather(*flood)
            alone = [(await embedder.embed([text], "query")).vectors[0] for text in texts]
            np.testing.assert_allclose(vectors, alone, atol=1e-4)
        finally:
            await embedders.close()

    asyncio.run(story())
