"""Writers give way to searches, and only for so long."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from indexes.base import yielding
from indexes.base.model import IndexOptions, Ranking
from indexes.base.yielding import as_search, yield_to_searches
from indexes.collection.collection import Collection
from indexes.log import log
from indexes.parts import assembly, sealing
from tests.support.vectors import World, settings

WORLD = World()

LONG_S = 60.0


class Search:
    """A search on a thread of its own that goes on until it is told to end."""

    def __init__(self) -> None:
        self._begun, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._search, daemon=True)
        self._thread.start()
        assert self._begun.wait(LONG_S)

    @as_search
    def _search(self) -> None:
        self._begun.set()
        self._end.wait(LONG_S)

    def end(self) -> None:
        self._end.set()
        self._thread.join()


@pytest.fixture
def search() -> Iterator[Search]:
    search = Search()
    yield search
    search.end()


class Writer:
    """Gives way once, on a thread of its own."""

    def __init__(self, at_most_s: float = LONG_S) -> None:
        self._thread = threading.Thread(target=yield_to_searches, args=(at_most_s,), daemon=True)
        self._thread.start()

    def waits(self) -> bool:
        self._thread.join(0.05)
        return self._thread.is_alive()

    def goes_on(self) -> bool:
        self._thread.join(LONG_S / 2)
        return not self._thread.is_alive()


def test_a_writer_waits_for_the_search_to_end(search: Search) -> None:
    """It goes on when the search has ended, not before."""
    writer = Writer()
    assert writer.waits()
    search.end()
    assert writer.goes_on()


def test_a_writer_waits_for_all_searches(search: Search) -> None:
    """One of two that ends is not enough."""
    other = Search()
    writer = Writer()
    other.end()
    assert writer.waits()
    search.end()
    assert writer.goes_on()


def test_a_search_without_end_does_not_stop_a_writer(search: Search) -> None:
    """It goes on while the search is still under way, and leaves nothing for the search to open."""
    assert Writer(0.001).goes_on()
    assert not yielding._gates


def test_a_search_that_fails_is_over() -> None:
    """Nobody waits for it, and the error reaches whoever searched."""

    @as_search
    def fail() -> None:
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        fail()
    assert Writer().goes_on()


def test_searches_of_a_collection_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search by meaning and one by words are under way while they run, and over afterwards."""
    collection = filled(tmp_path)
    seen: list[bool] = []

    def looked(rankings: list[Ranking], depth: int) -> Ranking:
        seen.append(threading.get_ident() in yielding._searching)
        return merge(rankings, depth)

    merge = Ranking.merge
    monkeypatch.setattr(Ranking, "merge", staticmethod(looked))
    collection.snapshot.dense(WORLD.vector(1), 3)
    collection.snapshot.lexical(WORLD.text(1, 0), 3)
    assert seen == [True, True]
    assert not yielding._searching
    collection.close()


def test_writing_and_sealing_yield(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each document gives way before it goes to the log and to the delta, and so does the sealing of a segment."""
    waits: Counter[str] = Counter()
    for module in (log, assembly, sealing):
        monkeypatch.setattr(module, "yield_to_searches", lambda name=module.__name__: waits.update([name]))
    collection = filled(tmp_path, documents=8, options=IndexOptions(delta_passages_max=4))
    collection._sealing.wait()
    passages = sum(collection.info().passages.values())
    assert waits[log.__name__] == 8
    assert waits[assembly.__name__] == passages
    assert collection.info().segments
    assert waits[sealing.__name__]
    collection.close()


def filled(folder: Path, documents: int = 3, options: IndexOptions | None = None) -> Collection:
    collection = Collection.create(folder / "c", settings(), options or IndexOptions())
    collection.write([WORLD.document(number) for number in range(documents)]).result()
    return collection


def test_turns_get_short() -> None:
    """The process switches threads sooner, and what is there now is left out of garbage collection."""
    before, frozen = sys.getswitchinterval(), gc.get_freeze_count()
    try:
        yielding.tune_interpreter()
        assert sys.getswitchinterval() == pytest.approx(yielding.SWITCH_INTERVAL_S)
        assert gc.get_freeze_count() > frozen
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()
