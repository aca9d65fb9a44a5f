"""How long opening takes at 100,000 passages: with a generation, and from the log alone. Only with `make torture`.

The figures are logged (`ARGS='-o log_cli=true -o log_cli_level=INFO'` shows them) and are properties of the report.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from indexes.base.model import IndexOptions
from indexes.collection.collection import Collection
from indexes.rebuild.builder import Rebuild
from tests.support.vectors import World, fill, make_collection

logger = logging.getLogger(__name__)

PASSAGES, DIMENSIONS, WRITTEN_SINCE = 100_000, 384, 5_000
WORLD = World(dimensions=DIMENSIONS)


def opened(folder: Path, generation: int) -> float:
    """Seconds until everything is searchable."""
    started = time.monotonic()
    collection = Collection(folder, IndexOptions())
    seconds = time.monotonic() - started
    assert collection.snapshot.generation == generation
    assert collection.snapshot.live == PASSAGES + WRITTEN_SINCE
    for number in (0, PASSAGES - 1, PASSAGES + WRITTEN_SINCE - 1):
        ranking = collection.snapshot.dense(WORLD.vector(number, 0, 0), 1).ranking
        assert collection.passages(ranking.ids.tolist())[int(ranking.ids[0])].document_id == f"d{number}"
    collection.close()
    return seconds


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_recovery(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """With a generation and 5,000 passages after it, and without any generation, every passage is there."""
    folder = tmp_path / "c"
    collection = make_collection(
        folder, options=IndexOptions(segments_max=0), dimensions=DIMENSIONS, hot_capacity=PASSAGES // 2
    )
    fill(collection, WORLD, range(PASSAGES), batch=1000)
    collection.adopt(Rebuild(collection.begin_build(), timeout_s=1200).run(lambda *_: None))
    fill(collection, WORLD, range(PASSAGES, PASSAGES + WRITTEN_SINCE), batch=1000)
    collection.close()
    figures = {"with a generation": opened(folder, generation=1)}
    shutil.rmtree(folder / "generations")
    figures["from the log alone"] = opened(folder, generation=0)
    for how, seconds in figures.items():
        logger.info("recovery of %d passages %s: %.1f s", PASSAGES, how, seconds)
        record_property(f"recovery {how}, seconds", round(seconds, 1))
