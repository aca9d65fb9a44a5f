"""Memory foretold before a collection is loaded: what does not fit is not loaded, and everything else serves on."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from indexes.base.errors import Quarantined, Unavailable
from indexes.base.model import ColdPolicy, IndexOptions
from indexes.base.residency import Budget
from indexes.collection.collection import Collection
from indexes.directory.catalog import Catalog
from indexes.parts.manifest import read_manifest
from indexes.rebuild.builder import build
from indexes.rebuild.foretelling import delta_bytes, generation_bytes
from tests.support.vectors import DIMENSIONS, World, fill, settings

OPTIONS = IndexOptions(delta_passages_max=512, segments_max=0)


def with_room(room: float) -> IndexOptions:
    return replace(OPTIONS, room=lambda wanted: room)


def rebuilt(collection: Collection) -> int:
    request = collection.begin_build()
    build(request, lambda *_: None)
    return request.number


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A small collection in front of a large one behind which 300 passages are in no generation yet."""
    folder = tmp_path / "data"
    with closing(Catalog(folder, OPTIONS)) as catalog:
        fill(catalog.create("a-small", settings(language="en")), World(), range(10))
        large = catalog.create("large", settings(language="en"))
        fill(large, World(), range(1000))
        large.adopt(rebuilt(large))
        fill(large, World(), range(1000, 1300))
    return folder


@pytest.mark.slow
def test_a_collection_that_does_not_fit_keeps_out_no_other(data: Path) -> None:
    """It answers with the reason and both numbers, can be deleted, and opens once there is room."""
    with closing(Catalog(data, with_room(100_000))) as catalog:
        assert list(catalog.collections) == ["a-small"]
        with pytest.raises(Quarantined, match=r"needs about \d+ MB, and 0 MB are left") as refused:
            catalog.get("large")
        assert "nothing is wrong with its files" in refused.value.message
        assert "nearline verify" not in refused.value.message
    with closing(Catalog(data, with_room(20_000_000))) as catalog:
        assert catalog.get("large").snapshot.live == 1300
    with closing(Catalog(data, with_room(100_000))) as catalog:
        catalog.delete("large")
        assert catalog.quarantined == {}


@pytest.mark.slow
def test_a_generation_that_does_not_fit_is_not_adopted(data: Path) -> None:
    """The old one stays live, and a later attempt with room succeeds."""
    room = [1e9]
    options = replace(OPTIONS, room=lambda wanted: room[0])
    with closing(Collection(data / "large", options)) as collection:
        number = rebuilt(collection)
        room[0] = 1000.0
        with pytest.raises(
            Unavailable, match=r"needs about \d+ MB, and 0 MB are left of server.memory_bytes_max"
        ):
            collection.adopt(number)
        assert (collection.snapshot.generation, collection.snapshot.live) == (number - 1, 1300)
        room[0] = 1e9
        assert collection.adopt(number).number == number


def test_a_collection_is_not_made_where_there_is_no_room(tmp_path: Path) -> None:
    """Nothing is left of it, and its name stays free."""
    with closing(Catalog(tmp_path / "data", with_room(1000))) as catalog:
        with pytest.raises(Unavailable, match="are left"):
            catalog.create("docs", settings())
        assert not (tmp_path / "data" / "docs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "walked"), [(ColdPolicy(), 0), (ColdPolicy("never"), 600)])
def test_the_foretold_is_what_the_parts_hold(data: Path, policy: ColdPolicy, walked: int) -> None:
    """Lists and a graph that is walked, to a tenth, and of other files what the budget of copies takes; a delta its
    vectors and texts."""
    manifest = read_manifest(data / "large" / "generations" / "000001")
    with closing(Collection(data / "large", replace(OPTIONS, cold=policy))) as collection:
        generation = collection.snapshot.parts[0].part
        assert (generation.tier_bytes()["hot"] > 0) == (walked > 0)
        assert generation_bytes(manifest, Budget(0), policy) == pytest.approx(
            sum(generation.tier_bytes().values()) + 18_000 + 80 * walked, rel=0.1
        )
        count, text_bytes = collection.log.passages_between(manifest.last_passage, 1 << 62)
        assert count == 300
        assert text_bytes == sum(len(World().text(number, 0)) for number in range(1000, 1300))
        assert delta_bytes(count, text_bytes, DIMENSIONS) > 300 * 4 * DIMENSIONS
    files = sum(file.bytes for name, file in manifest.files.items() if walked or name != "hot.hnsw")
    assert generation_bytes(manifest, Budget(1 << 30), policy) == files + 18_000 + 80 * walked
