"""Made-up passages with vectors that cluster, as real embeddings do, for tests that need no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from indexes.base.model import Delete, Floats, IndexOptions, Metadata, NewPassage, Settings, Upsert
from indexes.collection.collection import Collection
from indexes.parts.generation import Generation
from indexes.rebuild.builder import build

DIMENSIONS = 32
WORDS = [f"word{number}" for number in range(400)]


class World:
    """Deterministic documents: `document(7)` is always the same, `document(7, version=1)` its next version."""

    def __init__(self, seed: int = 0, dimensions: int = DIMENSIONS) -> None:
        self.seed = seed
        self.dimensions = dimensions
        self._centres = np.random.default_rng(seed).normal(size=(40, dimensions))

    def vector(self, *key: int) -> Floats:
        rng = np.random.default_rng([self.seed, *key])
        values = self._centres[rng.integers(len(self._centres))] + 0.7 * rng.normal(size=self.dimensions)
        unit: Floats = (values / np.linalg.norm(values)).astype(np.float32)
        return unit

    def text(self, *key: int) -> str:
        rng = np.random.default_rng([self.seed, 1, *key])
        return " ".join(WORDS[min(len(WORDS) - 1, int(at))] for at in rng.exponential(60, size=15))

    def metadata(self, number: int) -> Metadata:
        return {
            "number": number,
            "even": number % 2 == 0,
            "topic": f"t{number % 7}",
            "tags": [f"g{number % 3}", "all"],
        }

    def document(self, number: int, *, version: int = 0, passages: int = 1) -> Upsert:
        text = self.text(number, version)
        pieces = tuple(
            NewPassage(0, len(text), 15, self.vector(number, version, piece)) for piece in range(passages)
        )
        return Upsert(f"d{number}", text, "", self.metadata(number), pieces)

    def queries(self, count: int) -> Floats:
        return np.stack([self.vector(10_000_000 + at) for at in range(count)])


def settings(**changes: object) -> Settings:
    values: dict[str, object] = {
        "dimensions": DIMENSIONS,
        "fingerprint": "f",
        "model": "m",
        "hot_capacity": 600,
    }
    return Settings(**{**values, **changes})  # type: ignore[arg-type]


def make_collection(folder: Path, *, options: IndexOptions | None = None, **changes: object) -> Collection:
    return Collection.create(
        folder, settings(**changes), options or IndexOptions(delta_passages_max=256, segments_max=0)
    )


def fill(
    collection: Collection, world: World, numbers: Sequence[int], *, batch: int = 100, version: int = 0
) -> None:
    for start in range(0, len(numbers), batch):
        part = numbers[start : start + batch]
        collection.write([world.document(number, version=version) for number in part]).result()


def delete(collection: Collection, numbers: Iterable[int]) -> None:
    collection.write([Delete(f"d{number}") for number in numbers]).result()


def rebuild(collection: Collection, hot_capacity: int | None = None) -> Generation:
    """Build a generation in this process, where nothing has to start, and adopt it."""
    return collection.adopt(build(collection.begin_build(hot_capacity), lambda *_: None))


def found_ids(collection: Collection, query: Floats, k: int = 10) -> list[str]:
    """Document ids of a dense search, through the log as the service does it."""
    ranking = collection.snapshot.dense(query, k).ranking
    stored = collection.passages(ranking.ids.tolist())
    return [stored[passage].document_id for passage in ranking.ids.tolist() if passage in stored]
