"""A replica is searched as the collection that it follows, whatever was written, rebuilt or erased there."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import random
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.base.errors import Damaged
from indexes.base.model import IndexOptions, NewPassage, Upsert
from indexes.collection.collection import Collection
from indexes.collection.replica import Loaded, Replica
from indexes.filters.grammar import parse_filter
from indexes.lexical.analysis import STEP_TERMS
from indexes.lexical.postings import LONG_CHARS
from indexes.parts.query import Query
from indexes.upkeep.erasing import Erasure
from tests.support.histories import take_step
from tests.support.vectors import World, delete, fill, make_collection, rebuild

WORLD = World()
# Segments are too small to be coded, so that every ranking is exact.
OPTIONS = IndexOptions(delta_passages_max=32, segments_max=0)
EVEN = parse_filter({"type": "eq", "key": "even", "value": True}, conditions_max=1)
QUERIES = WORLD.queries(3)
WORDS = [WORLD.text(number, 0) for number in (3, 57, 140)]
LOADED_S = 20.0
ROUNDED = 2e-4  # as 16-bit vectors of different parts are


class Counted:
    def __init__(self) -> None:
        self.ids: list[int] = []

    def count(self, passages: Iterable[int]) -> None:
        self.ids += passages


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    made = make_collection(tmp_path / "c", options=OPTIONS)
    yield made
    made.close()


@contextlib.contextmanager
def follow(collection: Collection) -> Iterator[Replica]:
    with contextlib.closing(Replica(collection.folder, OPTIONS, Counted())) as replica:
        yield replica


def load_generation(replica: Replica) -> None:
    until = time.monotonic() + LOADED_S
    replica.look()
    while replica.generation != replica.shelf.current() and time.monotonic() < until:
        replica.catch_up()
        time.sleep(0.01)
    assert replica.generation == replica.shelf.current()


def assert_alike(replica: Replica, collection: Collection) -> None:
    """The same passages with the same scores, by meaning and by words, with a filter and without."""
    own, other = replica.snapshot, collection.snapshot
    assert (own.seq, own.content, own.live) == (other.seq, other.content, other.live)
    assert own.languages() == other.languages()
    for condition in (None, EVEN):
        for vector in QUERIES:
            query = Query(20, 20, vector=vector, condition=condition)
            found, expected = own.prepare(query).dense().ranking, other.prepare(query).dense().ranking
            assert np.allclose(found.scores, expected.scores, atol=ROUNDED)
            # Near the last place, parts of another kind round differently.
            assert len(set(found.ids.tolist()) - set(expected.ids.tolist())) <= 1
        for text in WORDS:
            found, expected = own.lexical(text, 20, condition), other.lexical(text, 20, condition)
            assert found.ids.tolist() == expected.ids.tolist()
            assert found.scores.tolist() == expected.scores.tolist()


@pytest.mark.slow
def test_it_follows_whatever_is_done(collection: Collection) -> None:
    """Random steps: writes, replacements and deletions of many documents, sealed segments, rebuilds and
    rollbacks. One replica catches up after each, another after every fifth unless the log has forgotten too much, and
    one is opened then."""
    chance = random.Random(7)
    fill(collection, WORLD, range(40))
    with contextlib.ExitStack() as replicas:
        near, far = (replicas.enter_context(follow(collection)) for _ in range(2))
        for step in range(25):
            take_step(collection, WORLD, chance, step)
            near.look()
            near.catch_up()
            assert_alike(near, collection)
            if step % 5 == 4:
                if near.generation != collection.generation:
                    load_generation(near)
                try:
                    far.catch_up()
                except Damaged:
                    far = replicas.enter_context(follow(collection))
                with follow(collection) as late:
                    for one in (near, far, late):
                        assert_alike(one, collection)


@pytest.mark.slow
def test_more_than_a_block_at_once(collection: Collection) -> None:
    """What fell behind by more than one transaction reads catches up, deletions in between included."""
    with follow(collection) as replica:
        fill(collection, WORLD, range(2500))
        delete(collection, range(0, 2500, 3))
        replica.catch_up()
        assert_alike(replica, collection)


def test_one_long_text_is_followed_in_steps(collection: Collection) -> None:
    """A search process answers between them: half a megabyte without spaces takes seconds."""
    text = "".join(chr(0xAC00 + number * 37 % 11_000) for number in range(LONG_CHARS))
    fill(collection, WORLD, range(2))
    with follow(collection) as replica:
        passage = NewPassage(0, len(text), 1, WORLD.vector(1))
        collection.write([Upsert("long", text, "", {}, (passage,), language="ko")]).result()
        steps: list[int] = []
        replica.catch_up(lambda: steps.append(replica.snapshot.live))
        assert len(steps) >= LONG_CHARS // STEP_TERMS
        assert set(steps) == {2}
        assert_alike(replica, collection)


def test_an_erased_log_is_another_file(collection: Collection) -> None:
    """Erasing replaces the log once no replica has it open; one that was left open sees that its file is gone."""
    fill(collection, WORLD, range(50))
    with follow(collection) as replica:
        assert replica.is_current()
        replica.log.close()
        delete(collection, range(10))
        Erasure(collection).run(lambda *_: None)
        assert not replica.is_current()
    with follow(collection) as again:
        assert_alike(again, collection)


def test_a_forgotten_history_is_noticed(collection: Collection) -> None:
    """A replica that is older than all kept generations refuses to catch up instead of missing deletions."""
    fill(collection, WORLD, range(50))
    with follow(collection) as replica:
        delete(collection, range(10))
        rebuild(collection)
        collection.forget_generations()
        with pytest.raises(Damaged, match="forgotten"):
            replica.catch_up()


def test_a_rebuild_ends_while_indexes_are_loaded(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the log has forgotten since loading began cannot be read after it: indexes are loaded again then."""
    fill(collection, WORLD, range(40))
    with follow(collection) as replica:
        load, begun, may_end = replica._load_segments, threading.Event(), threading.Event()

        def load_slowly(*arguments: Any) -> Any:
            begun.set()
            assert may_end.wait(LOADED_S)
            return load(*arguments)

        monkeypatch.setattr(replica, "_load_segments", load_slowly)
        fill(collection, WORLD, range(40, 80))
        collection.settle()
        replica.look()
        replica.catch_up()
        assert begun.wait(LOADED_S)
        delete(collection, range(10))
        replica.catch_up()
        rebuild(collection)
        collection.forget_generations()
        may_end.set()
        assert replica._loading is not None
        concurrent.futures.wait([replica._loading])
        load_generation(replica)
        assert_alike(replica, collection)


def test_what_was_being_loaded_leaves_memory_too(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica may be closed while it loads a generation, and stay in a frozen reference cycle."""
    fill(collection, WORLD, range(40))
    with follow(collection) as replica:
        load, begun = replica._load_segments, threading.Event()

        def load_slowly(*arguments: Any) -> Any:
            begun.set()
            time.sleep(0.2)
            return load(*arguments)

        monkeypatch.setattr(replica, "_load_segments", load_slowly)
        rebuild(collection)
        replica.look()
        replica.catch_up()
        assert begun.wait(LOADED_S)
        replica.close()
        held = [one for one in gc.get_objects() if isinstance(one, Loaded)]
        assert held == []


def test_it_writes_nothing(collection: Collection) -> None:
    """Hits go to the counter that its owner gave it."""
    fill(collection, WORLD, range(5))
    counted = Counted()
    with contextlib.closing(Replica(collection.folder, OPTIONS, counted)) as replica:
        replica.hits.count([1, 2])
    assert counted.ids == [1, 2]
