"""Following all documents while they change, and counting them at one seq."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.base.errors import InvalidInput, NotFound
from indexes.base.model import NewPassage, Upsert
from indexes.collection.collection import Collection
from indexes.filters.grammar import Comparison, Filter
from indexes.reading import scrolling
from indexes.reading.scrolling import Counted, ScrolledDocument, count, page
from tests.support.vectors import World, delete, fill, make_collection, rebuild

WORLD = World()
EVEN = Comparison("eq", "even", True)


def scrolled(
    collection: Collection, limit: int, condition: Filter | None = None, **options: Any
) -> list[ScrolledDocument]:
    """All pages, each of at most `limit`."""
    found: list[ScrolledDocument] = []
    after: int | None = 0
    while after is not None:
        one = page(collection, after, limit, condition=condition, **options)
        assert len(one.documents) <= limit
        found += one.documents
        after = one.following
    return found


def ids_of(documents: list[ScrolledDocument]) -> list[str]:
    return [one.document.id for one in documents]


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    """300 documents in generation, segment and delta; the first 50 replaced, 20 deleted."""
    collection = make_collection(tmp_path / "c")
    fill(collection, WORLD, range(200))
    rebuild(collection)
    fill(collection, WORLD, range(200, 300))
    fill(collection, WORLD, range(50), version=1)
    delete(collection, range(100, 120))
    return collection


def test_a_page_counts_bytes(tmp_path: Path) -> None:
    """A letter of most scripts takes two or three of them in an answer."""
    collection = make_collection(tmp_path / "c")
    passage = NewPassage(0, 1000, 1, WORLD.vector(1))
    collection.write([Upsert(f"d{at}", "한" * 1000, "", {}, (passage,)) for at in range(9)]).result()
    assert len(page(collection, 0, 9, bytes_max=10_000).documents) == 3
    collection.close()


EXPECTED = [*range(50, 100), *range(120, 300), *range(50)]


@pytest.mark.parametrize("limit", [1, 7, 280, 1000])
def test_every_document_once_in_the_order_of_writing(collection: Collection, limit: int) -> None:
    """With and without a filter, a replaced document where its last version was written."""
    assert ids_of(scrolled(collection, limit)) == [f"d{number}" for number in EXPECTED]
    even = [f"d{number}" for number in EXPECTED if number % 2 == 0]
    assert ids_of(scrolled(collection, limit, EVEN)) == even
    seqs = [one.document.seq for one in scrolled(collection, limit)]
    assert seqs == sorted(seqs)


@pytest.mark.slow
def test_what_lives_throughout_comes_exactly_once(collection: Collection) -> None:
    """Between the pages documents are replaced, deleted, added and rebuilt: the others are seen once, none is lost."""
    rng = random.Random(5)
    for condition in (None, EVEN):
        touched: set[str] = set()
        seen: list[str] = []
        before = (
            {f"d{number}" for number in EXPECTED}
            if condition is None
            else set(ids_of(scrolled(collection, 50, EVEN)))
        )
        after: int | None = 0
        version = 10
        while after is not None:
            one = page(collection, after, 20, condition=condition)
            seen += ids_of(one.documents)
            after = one.following
            version += 1
            if version < 22:
                for number in rng.sample(range(300), 4):
                    fill(collection, WORLD, range(number, number + 1), version=version)
                    touched.add(f"d{number}")
                gone = rng.randrange(300)
                delete(collection, range(gone, gone + 1))
                touched.add(f"d{gone}")
            if version == 15:
                rebuild(collection)
        counted = Counter(seen)
        assert all(counted[one] == 1 for one in before - touched)
        now = set(ids_of(scrolled(collection, 1000, condition)))
        assert now <= set(seen)  # also what was written meanwhile came, at the end
        fill(collection, WORLD, range(300))
        delete(collection, range(100, 120))


def test_no_reader_ends_early_beside_writes(collection: Collection) -> None:
    """While all documents are replaced over and over, each of three readers sees every one in each of its rounds."""
    stop, lacking = threading.Event(), list[set[str]]()
    everything = set(ids_of(scrolled(collection, 1000)))
    even = set(ids_of(scrolled(collection, 1000, EVEN)))

    def read(condition: Filter | None) -> None:
        while not stop.is_set():
            seen = set(ids_of(scrolled(collection, 7, condition)))
            lacking.append((everything if condition is None else even) - seen)

    readers = [threading.Thread(target=read, args=(one,)) for one in (None, EVEN, EVEN)]
    for reader in readers:
        reader.start()
    try:
        for version in range(30, 70):
            fill(collection, WORLD, [one for one in EXPECTED if one % 4 == version % 4], version=version)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert len(lacking) > len(readers)
    assert not set().union(*lacking)


def test_a_reader_that_is_lent_reads_the_last_commit(collection: Collection) -> None:
    """Also one whose last borrower kept a cursor with rows left. A page leaves none, and its reader is lent again."""
    with collection.log.transaction() as first:
        rows = first.execute("SELECT id FROM documents")
        next(rows)
    fill(collection, WORLD, range(400, 401))
    with collection.log.transaction() as second:
        assert second.execute("SELECT count(*) FROM documents WHERE id = 'd400'").get == 1
    page(collection, 0, 7)
    with collection.log.transaction() as third:
        assert third is second


def test_text_and_vectors_if_wanted(collection: Collection) -> None:
    """Passages come with place, tokens and the very vector that was written; text may be left out."""
    pieces = tuple(type(WORLD.document(1).passages[0])(at, at + 3, 2, WORLD.vector(at)) for at in (0, 4))
    collection.write([Upsert("two", "one two", "T", {"x": 1}, pieces)]).result()
    last = scrolled(collection, 50, vectors=True)[-1]
    assert (last.document.id, last.document.text, last.document.title) == ("two", "one two", "T")
    assert last.passages is not None
    assert [(one.ordinal, one.start, one.end, one.tokens) for one in last.passages] == [
        (0, 0, 3, 2),
        (1, 4, 7, 2),
    ]
    for passage, piece in zip(last.passages, pieces, strict=True):
        assert np.array_equal(passage.vector, piece.vector)
    [bare] = [one for one in scrolled(collection, 50, text=False) if one.document.id == "two"]
    assert (bare.document.text, bare.document.metadata, bare.passages) == ("", {"x": 1}, None)
    alone = scrolling.document(collection, "two", vectors=True)
    assert alone.passages is not None
    assert np.array_equal(alone.passages[1].vector, pieces[1].vector)
    with pytest.raises(NotFound):
        scrolling.document(collection, "nobody")


def test_a_page_is_bounded_in_bytes(collection: Collection) -> None:
    """Long documents make short pages, at least one on each; none is left out."""
    first = page(collection, 0, 100, bytes_max=400)
    assert 1 < len(first.documents) < 10
    assert sum(len(one.document.text) for one in first.documents) <= 400
    assert len(page(collection, 0, 100, bytes_max=1).documents) == 1
    assert ids_of(scrolled(collection, 100, bytes_max=1)) == [f"d{number}" for number in EXPECTED]


def test_an_unknown_key_is_an_error(collection: Collection) -> None:
    """For pages and counts, as for searches."""
    for call in (
        lambda condition: page(collection, 0, 5, condition=condition),
        lambda condition: count(collection, condition),
    ):
        with pytest.raises(InvalidInput, match="nobody"):
            call(Comparison("eq", "nobody", 1))


def test_counts(collection: Collection) -> None:
    """Documents and passages, all or those that match, and the seq they are of."""
    pieces = WORLD.document(1, passages=3)
    collection.write([Upsert("three", pieces.text, "", {"even": True}, pieces.passages)]).result()
    seq = collection.snapshot.seq
    everything, even = count(collection), count(collection, EVEN)
    assert (everything.documents, everything.passages, everything.seq) == (281, 283, seq)
    assert (even.documents, even.passages, even.seq) == (141, 143, seq)
    nothing = count(collection, Comparison("eq", "topic", "t99"))
    assert (nothing.documents, nothing.passages) == (0, 0)


def test_a_count_is_of_its_seq(tmp_path: Path) -> None:
    """While documents are added two by two, the count always fits the seq beside it."""
    collection = make_collection(tmp_path / "c")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            collection.write([WORLD.document(number, passages=2), WORLD.document(number + 1)]).result()
            number += 2

    collection.write([WORLD.document(10**6)]).result()
    writing = threading.Thread(target=write)
    writing.start()
    counted: list[Counted] = []
    try:
        while len({one.seq for one in counted}) < 20:
            counted += [count(collection), count(collection, EVEN)]
    finally:
        stop.set()
        writing.join()
    for everything, even in zip(counted[::2], counted[1::2], strict=True):
        assert everything.documents == everything.seq
        assert everything.passages == 1 + (everything.seq - 1) // 2 * 3
        assert even.documents == 1 + (even.seq - 1) // 2
        assert even.passages == 1 + (even.seq - 1) // 2 * 2
    collection.close()
