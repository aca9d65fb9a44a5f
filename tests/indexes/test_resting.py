"""Graphs and lists that leave memory while no search uses them."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from indexes.dense.cold import ColdSettings
from tests.support.vectors import World, fill, make_collection, rebuild

WORLD = World(seed=7)


def test_indexes_leave_memory_between_searches_and_during_them(tmp_path: Path) -> None:
    """Whatever is read again answers as before, also while several threads search. What was tuned stays."""
    collection = make_collection(tmp_path / "c", hot_capacity=100)
    fill(collection, WORLD, range(800))
    generation = rebuild(collection)
    queries = WORLD.queries(20)
    generation.tune(cold=ColdSettings(probes=generation.lists, rescored=60))

    def answers() -> list[Any]:
        found = [generation.nearest(query, 10, None, 0) for query in queries]
        found += [generation.nearest_warm(query, 10, None, 0) for query in queries]
        return [(rows.tolist(), scores.tolist()) for rows, scores in found]

    before, settings_before = answers(), generation.search_settings
    assert not generation.rest(60)  # they were just used
    assert generation.rest(0)
    assert not generation.rest(0)
    assert sum(generation.tier_bytes().values()) == 0
    assert (generation.search_settings, generation.lists) == (settings_before, generation.lists)
    with ThreadPoolExecutor() as pool:
        searching = [pool.submit(answers) for _ in range(8)]
        rests = 0
        while not all(one.done() for one in searching):
            rests += generation.rest(0)
        assert rests
        assert all(one.result() == before for one in searching)
    generation.rest(0)
    shutil.rmtree(generation.folder)  # as when newer generations have taken its place
    exact = [generation.vectors.best(np.arange(generation.size), query, 10)[0].tolist() for query in queries]
    assert [generation.nearest(query, 10, None, 0)[0].tolist() for query in queries] == exact
    collection.close()
