"""Which files of a generation are held in memory, and which are mapped."""

from __future__ import annotations

import gc
from mmap import mmap
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from indexes.base.model import IndexOptions
from indexes.base.residency import SMALL_BYTES, Budget, Files
from indexes.collection.collection import Collection
from retrieval.base.index_options import options_of
from retrieval.base.settings import Config, IndexSection
from tests.support.vectors import World, fill, found_ids, make_collection, rebuild

WORLD = World(dimensions=128)
PASSAGES = 2000
LARGE = 1 << 30


def is_mapped(array: NDArray[np.generic]) -> bool:
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection whose vectors take 512 KB and no other file of it more than SMALL_BYTES."""
    options = IndexOptions(delta_passages_max=PASSAGES, segments_max=0)
    collection = make_collection(tmp_path_factory.mktemp("c") / "c", options=options, dimensions=128)
    fill(collection, WORLD, range(PASSAGES))
    rebuild(collection)
    collection.close()
    return collection.folder


def test_over_the_budget_files_are_mapped(tmp_path: Path) -> None:
    """Files are copied while they fit; a smaller one may fit where a larger one did not; small ones cost nothing."""
    sizes = {"a": 3 * SMALL_BYTES, "b": 2 * SMALL_BYTES, "c": SMALL_BYTES, "small": 100}
    for name, size in sizes.items():
        np.save(tmp_path / f"{name}.npy", np.ones(size, np.uint8))
    budget = Budget(int(4.5 * SMALL_BYTES))
    files = Files(budget)
    arrays = {name: files.array(tmp_path / f"{name}.npy") for name in sizes}
    assert {name: is_mapped(array) for name, array in arrays.items()} == {
        "a": False,
        "b": True,
        "c": False,
        "small": False,
    }
    assert all(array.sum() == sizes[name] for name, array in arrays.items())
    assert budget.held == files.copied <= budget.bytes_max
    assert files.mapped == (tmp_path / "b.npy").stat().st_size


def test_what_is_dropped_gives_its_bytes_back(tmp_path: Path) -> None:
    """Others may then take them."""
    np.save(tmp_path / "a.npy", np.ones(2 * SMALL_BYTES, np.uint8))
    budget = Budget(3 * SMALL_BYTES)
    first, second = Files(budget), Files(budget)
    assert not is_mapped(first.array(tmp_path / "a.npy"))
    assert is_mapped(second.array(tmp_path / "a.npy"))
    del first
    assert budget.held == 0
    assert not is_mapped(second.array(tmp_path / "a.npy"))


@pytest.mark.parametrize("resident", [0, LARGE])
def test_searches_find_the_same(folder: Path, resident: int) -> None:
    """Copied or mapped, a generation answers alike, and the collection says which it is."""
    collection = Collection(folder, IndexOptions(segments_max=0, resident=Budget(resident)))
    vectors = collection.snapshot.parts[0].part.vectors.halves
    assert is_mapped(vectors) == (resident == 0)
    info = collection.info()
    assert (info.resident_bytes >= vectors.nbytes) == (resident > 0)
    assert (info.mapped_bytes >= vectors.nbytes) == (resident == 0)
    for number in range(0, PASSAGES, 97):
        assert found_ids(collection, WORLD.vector(number, 0, 0), 1) == [f"d{number}"]
    collection.close()


@pytest.mark.slow
def test_a_new_generation_takes_the_place_of_the_old_one(folder: Path) -> None:
    """Where the budget is enough for one, the new one is resident too, and the old one's bytes come back."""
    size = (folder / "generations" / "000001" / "vectors.f16").stat().st_size
    budget = Budget(size + size // 2)
    collection = Collection(folder, IndexOptions(segments_max=0, resident=budget))
    for _ in range(2):
        generation = rebuild(collection)
        assert not is_mapped(generation.vectors.halves)
        del generation
        gc.collect()
        assert size <= budget.held <= budget.bytes_max
    collection.close()
    del collection
    gc.collect()
    assert budget.held == 0


def test_collections_share_one_budget(folder: Path) -> None:
    """What the first one holds, the second one does not get."""
    budget = Budget(1 << 20)
    first = Collection(folder, IndexOptions(segments_max=0, resident=budget))
    taken = first.info().resident_bytes
    assert taken > 0
    assert not budget.take(budget.bytes_max - taken + 1, 0)
    first.close()


@pytest.mark.parametrize(("setting", "expected"), [(0, 250), (1, 1), (300, 300), (5000, 1000)])
def test_the_default_is_a_quarter_of_the_ceiling(setting: int, expected: int) -> None:
    """A service that may hold 1,000 bytes; what is set counts up to all of them."""
    config = Config(index=IndexSection(resident_bytes=setting))
    assert options_of(config, memory_bytes_max=1000).resident.bytes_max == expected
