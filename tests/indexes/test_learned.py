"""Ranking settings of one collection: durable, checked, copied with it, and nothing to fail over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from indexes.base.durable import append
from indexes.base.model import IndexOptions
from indexes.collection.collection import Collection
from indexes.directory.backup.backup import back_up
from indexes.directory.backup.restoring import restore
from indexes.directory.backup.verifying import verify_data
from indexes.directory.catalog import Catalog
from indexes.lexical.synonyms import Synonyms
from indexes.parts.learned import RANKING as FILE
from indexes.parts.learned import SYNONYMS, RankingSettings, SynonymSettings
from tests.support.vectors import make_collection, settings

OPTIONS = IndexOptions()
LEARNED = RankingSettings(
    method="weighted",
    weight_dense=0.9,
    coefficients={"relevance": [0.5, -1.25]},
    queries=120,
    gain=0.03,
    gain_low=0.01,
    gain_high=0.05,
    set_ms=1_790_000_000_000,
)
MEANT = SynonymSettings(synonyms=Synonyms((("k8s", "kubernetes"),)), set_ms=1)


def quiet(stage: str, done: int, total: int) -> None:
    pass


def reopened(collection: Collection) -> Collection:
    collection.close()
    return Collection(collection.folder, OPTIONS)


def test_settings_last(tmp_path: Path) -> None:
    """They are there again after reopening; what replaces them is whole; cleared, they are gone for good."""
    collection = make_collection(tmp_path / "c")
    assert collection.ranking.current is None
    collection.ranking.set(LEARNED)
    other = RankingSettings(method="rrf", set_ms=1)
    collection = reopened(collection)
    assert collection.ranking.current is not None
    assert collection.ranking.current.weight_dense == 0.9
    assert collection.ranking.current.coefficients == {"relevance": [0.5, -1.25]}
    collection.ranking.set(other)
    assert reopened(collection).ranking.current is not None
    collection = reopened(collection)
    assert collection.ranking.current is not None
    assert (collection.ranking.current.method, collection.ranking.current.weight_dense) == ("rrf", None)
    collection.ranking.clear()
    collection.ranking.clear()
    collection = reopened(collection)
    assert collection.ranking.current is None
    collection.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.replace(b"0.9", b"0.1"),
        lambda content: content[: len(content) // 2],
        lambda content: b"\xff" + content,
        lambda content: content.replace(b'"format": 1', b'"format": 2'),
    ],
    ids=["changed", "cut", "no text", "newer"],
)
def test_damage_costs_only_the_settings(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """The collection opens and ranks as configured, the file stays for inspection, and `verify` names it."""
    catalog = Catalog(tmp_path / "data", OPTIONS)
    docs = catalog.create("docs", settings())
    docs.ranking.set(LEARNED)
    assert [check.ok for check in verify_data(catalog.folder, [], quiet) if check.name == FILE] == [True]
    path = docs.folder / FILE
    catalog.close()
    path.write_bytes(damaged := damage(path.read_bytes()))
    catalog = Catalog(tmp_path / "data", OPTIONS)
    assert catalog.get("docs").ranking.current is None
    catalog.close()
    assert path.read_bytes() == damaged
    [found] = [check for check in verify_data(catalog.folder, [], quiet) if not check.ok]
    assert found.name == FILE
    assert "the configuration ranks instead" in found.advice
    path.rename(path.with_name(SYNONYMS))
    [found] = [check for check in verify_data(catalog.folder, [], quiet) if not check.ok]
    assert (found.name, "no synonyms" in found.advice) == (SYNONYMS, True)


@pytest.mark.parametrize("indexes", [True, False])
def test_a_backup_takes_them_along(tmp_path: Path, indexes: bool) -> None:
    """A restored collection, under whatever name, ranks as the one that was backed up; another one as configured."""
    catalog = Catalog(tmp_path / "data", OPTIONS)
    docs = catalog.create("docs", settings())
    catalog.create("plain", settings())
    docs.ranking.set(LEARNED)
    docs.synonyms.set(MEANT)
    expected = docs.ranking.current
    catalog.close()
    back_up(catalog.folder, tmp_path / "copy", indexes=indexes, progress=quiet)
    restore(tmp_path / "copy", tmp_path / "restored", ["plain"], progress=quiet)
    restore(tmp_path / "copy", tmp_path / "restored", ["docs"], new_name="clone", progress=quiet)
    restored = Catalog(tmp_path / "restored", OPTIONS)
    found, meant = restored.get("clone").ranking.current, restored.get("clone").synonyms.current
    assert found is not None
    assert expected is not None
    assert (found.weight_dense, found.gain, found.set_ms) == (0.9, 0.03, expected.set_ms)
    assert meant is not None
    assert meant.synonyms == MEANT.synonyms
    assert restored.get("plain").ranking.current is None
    assert restored.get("plain").synonyms.current is None
    restored.close()


def test_appending_begins_where_it_is_told(tmp_path: Path) -> None:
    """What is behind that byte, such as a torn line, is dropped; what is before it stays."""
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\nthr")
    append(path, b"four\n", 8)
    assert path.read_bytes() == b"one\ntwo\nfour\n"
