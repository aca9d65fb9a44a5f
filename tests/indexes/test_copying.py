"""A collection is copied to another machine while it is written, and given to it; nothing is written at both places."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from indexes.base.errors import Conflict, NotReady, Unavailable
from indexes.base.model import IndexOptions
from indexes.collection.collection import Collection
from indexes.directory.catalog import Catalog
from indexes.parts.learned import SynonymSettings
from indexes.store import copying
from indexes.store.copying import catch_up, changes_to_copy, generation_to_copy, place_copy
from indexes.store.rows import LogChange
from indexes.store.slots import LogExtent
from tests.support.vectors import World, delete, fill, make_collection, rebuild

WORLD = World()
OPTIONS = IndexOptions(delta_passages_max=64, segments_max=0)


def rows_of(collection: Collection) -> list[object]:
    """Everything that a log says of documents, down to the numbers of their passages."""
    tables = ("documents", "passages", "vectors", "content", "sqlite_sequence")
    with collection.log.transaction() as db:
        return [db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in tables]


class Beside:
    """The original, written between the pieces of what is copied; it can break off."""

    def __init__(
        self, collection: Collection, writes: Iterator[int], breaks_off_after: int = 1_000_000
    ) -> None:
        self.collection, self._writes, self._left = collection, writes, breaks_off_after
        self.version = 1

    def changes(self, since: LogExtent) -> Iterator[LogChange]:
        for change in changes_to_copy(self.collection, since):
            self._step()
            yield change

    def generation(self) -> tuple[int, list[tuple[str, int]], Iterator[bytes]] | None:
        found = generation_to_copy(self.collection)
        return found and (found[0], found[1], map(self._piece, found[2]))

    def _piece(self, piece: bytes) -> bytes:
        self._step()
        return piece

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Unavailable("the other node is gone")
        if (number := next(self._writes, None)) is not None:
            fill(self.collection, WORLD, [number, number + 1000], version=self.version)
            delete(self.collection, [number + 500])
            self.version += 1


@pytest.mark.slow
@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_copy_that_is_given_is_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_rebuilt: bool
) -> None:
    """Also with what is written, replaced and deleted in between: the rows, the settings, the indexes, and the next
    numbers."""
    monkeypatch.setattr("indexes.store.rows.BLOCK_BYTES", 20_000)
    monkeypatch.setattr(copying, "LEVEL_DOCUMENTS", 5)
    original = make_collection(tmp_path / "docs", options=OPTIONS)
    fill(original, WORLD, range(900))
    if is_rebuilt:
        rebuild(original)
    original.synonyms.set(SynonymSettings.of([["word1", "word2"]], 1))
    beside = Beside(original, iter(range(40)))
    catalog = Catalog(tmp_path / "b", OPTIONS)
    place_copy(beside, catalog.folder, "docs", "a", lambda *_: None)
    catalog.open_placed("docs")
    copy = catalog.get("docs")
    while catch_up(beside, copy):
        with pytest.raises(NotReady, match="moved from a; nothing was written"):
            copy.write([WORLD.document(1)])
    given = original.give("b")
    catch_up(beside, copy)
    copy.take()
    assert given == copy.snapshot.seq == original.snapshot.seq
    assert rows_of(copy) == rows_of(original)
    assert copy.snapshot.content == original.snapshot.content
    assert copy.synonyms.current is not None
    assert copy.synonyms.current.synonyms.lists == (("word1", "word2"),)
    assert copy.uid != original.uid
    assert copy.generation == original.generation == int(is_rebuilt)
    with pytest.raises(NotReady, match="moved to b; nothing was written"):
        original.write([WORLD.document(2)])
    fill(copy, WORLD, [2], version=9)
    assert copy.snapshot.seq == given + 1
    original.close()
    catalog.close()
    reopened = Collection(tmp_path / "b" / "docs", OPTIONS)
    assert (reopened.snapshot.seq, reopened.moving, reopened.documents) == (given + 1, None, copy.documents)
    reopened.close()


def test_whatever_breaks_off_leaves_no_copy_that_is_open_to_writes(tmp_path: Path) -> None:
    original = make_collection(tmp_path / "docs", options=OPTIONS)
    fill(original, WORLD, range(300))
    rebuild(original)
    draw = random.Random(3)
    whole = Beside(original, iter(()))
    place_copy(whole, tmp_path / "steps", "docs", "a", lambda *_: None)
    steps = 1_000_000 - whole._left
    for after in sorted({0, 1, steps - 1, *draw.sample(range(steps), min(steps, 4))}):
        data = tmp_path / f"b{after}"
        catalog = Catalog(data, OPTIONS)
        beside = Beside(original, iter(()), breaks_off_after=after)
        try:
            place_copy(beside, data, "docs", "a", lambda *_: None)
        except Unavailable:
            assert [one.name for one in data.iterdir() if one.name.endswith("docs")] == []
        else:  # only its indexes are missing, which it builds again
            catalog.open_placed("docs")
            assert catalog.get("docs").moving is not None
            assert rows_of(catalog.get("docs")) == rows_of(original)
        catalog.close()
    original.close()


def test_no_write_is_kept_by_both_or_none(tmp_path: Path) -> None:
    """Those that wait when the collection is given are refused; all others are in what is copied. A collection stays
    given when it is opened again, and takes writes again if it stays after all."""
    original = make_collection(tmp_path / "docs", options=OPTIONS)
    waiting: list[Future[object]] = []
    for number in range(200):
        try:
            waiting.append(original.write([WORLD.document(number)]))  # type: ignore[arg-type]
        except NotReady:
            break
        if number == 100:
            given = original.give("b")
    kept = sum(one.exception() is None for one in waiting)
    assert kept == original.documents >= given > 0
    assert original.log.newest_seq == given
    with pytest.raises(Conflict, match="being moved already"):
        original.give("c")
    original.close()
    again = Collection(tmp_path / "docs", OPTIONS)
    with pytest.raises(NotReady, match="moved to b"):
        again.write([WORLD.document(0)])
    again.arrivals.at(given + 1).result(0)  # nothing to wait for
    again.take()
    later = again.arrivals.at(given + 1)
    assert not later.done()
    fill(again, WORLD, [500])
    later.result(5)
    again.close()


def test_a_log_that_has_dropped_what_the_copy_lacks_is_copied_again(tmp_path: Path) -> None:
    original = make_collection(tmp_path / "docs", options=IndexOptions(segments_max=0, generations_kept=1))
    fill(original, WORLD, range(100))
    catalog = Catalog(tmp_path / "b", OPTIONS)
    beside = Beside(original, iter(()))
    place_copy(beside, catalog.folder, "docs", "a", lambda *_: None)
    catalog.open_placed("docs")
    for version in (1, 2):
        fill(original, WORLD, range(100), version=version)
        rebuild(original)
    with pytest.raises(Conflict, match="move it again"):
        catch_up(beside, catalog.get("docs"))
    catalog.close()
    original.close()
