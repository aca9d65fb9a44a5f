"""Generations that an earlier version has built: their lists hold the cold rows only."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Literal

import faiss
import msgspec
import numpy as np
import pytest

from indexes.base.durable import with_checksum
from indexes.base.errors import Damaged
from indexes.base.model import TIERS, ColdPolicy, IndexOptions, Ranking
from indexes.collection.collection import Collection
from indexes.dense.cold import ColdSettings
from indexes.parts.generation import Generation
from indexes.parts.manifest import MANIFEST, read_manifest, seal_files
from indexes.parts.query import Query
from indexes.rebuild.builder import Rebuild
from tests.support.vectors import World, fill, make_collection

WORLD = World(seed=6)
SIZE, HOT, K = 1500, 600, 10


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection whose generation is as before format 3."""
    with closing(make_collection(tmp_path / "c", hot_capacity=HOT)) as made:
        fill(made, WORLD, range(SIZE))
        rebuild(made)
        generation = served(made)
        index = faiss.read_index(str(generation.folder / "cold.ivf"))
        index.reset()
        cold = np.arange(HOT, SIZE)
        index.add_with_ids(generation.vectors.take(cold), cold)
        faiss.write_index(index, str(generation.folder / "cold.ivf"))
        reseal(generation.folder, 2)
    return made.folder


def rebuild(collection: Collection) -> None:
    collection.adopt(Rebuild(collection.begin_build(), timeout_s=120).run(lambda *_: None))


def reseal(generation: Path, version: int) -> None:
    manifest = read_manifest(generation)
    (generation / MANIFEST).unlink()
    sealed = msgspec.structs.replace(manifest, format_version=version, files=seal_files(generation))
    (generation / MANIFEST).write_bytes(with_checksum(sealed))


@pytest.mark.parametrize("mode", ["always", "calibrated", "never"])
def test_it_is_served_while_a_new_one_is_built(
    folder: Path, mode: Literal["always", "calibrated", "never"]
) -> None:
    """Searches find the hot and the cold ones, exactly as they do afterwards."""
    options = IndexOptions(delta_passages_max=256, segments_max=0, cold=ColdPolicy(mode))
    with closing(Collection(folder, options)) as collection:
        assert served(collection).manifest.format_version == 2
        before = found(collection)
        tiers = {TIERS[tier] for one in before for tier in one.tiers}
        assert tiers == ({"hot"} if mode == "never" else {"hot", "cold"})
        rebuild(collection)
        assert served(collection).manifest.format_version == 3
        for old, new in zip(before, found(collection), strict=True):
            assert old.ids.tolist() == new.ids.tolist()
            assert old.tiers.tolist() == new.tiers.tolist()


def served(collection: Collection) -> Generation:
    [generation] = [one.part for one in collection.snapshot.parts]
    assert isinstance(generation, Generation)
    return generation


def found(collection: Collection) -> list[Ranking]:
    """What thorough searches find."""
    generation = served(collection)
    generation.tune(ef=HOT, cold=ColdSettings(generation.lists, SIZE))
    queries = [Query(k=K, depth=K, vector=vector) for vector in WORLD.queries(20)]
    return [collection.snapshot.prepare(query).dense().ranking for query in queries]


def test_a_newer_one_is_not_read(folder: Path) -> None:
    """What a later version has built is not guessed at."""
    generation = folder / "generations" / "000001"
    reseal(generation, 4)
    with pytest.raises(Damaged, match="format 4; this version reads 2 and 3"):
        read_manifest(generation)
