"""Writes of many documents at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from indexes.base.errors import DiskFull, NotFound, TooLarge
from indexes.base.model import Delete, IndexOptions, Metadata, Operation, WriteResult
from indexes.collection.collection import Collection
from indexes.filters.grammar import Comparison, Filter
from indexes.reading.choosing import ChosenDocuments, matching, named
from retrieval.base.settings import Config
from retrieval.documents.writing import delete_matching, naming_document, patcher, write_in_parts
from tests.support.vectors import World, fill, make_collection

WORLD = World()
EVEN = Comparison("eq", "even", True)


class Commits:
    """The sizes of a collection's commits. The one numbered `fails` finds the disk full."""

    def __init__(self, collection: Collection) -> None:
        self.sizes: list[int] = []
        self.fails = 0
        self._commit = collection.log.commit

    def __call__(self, writes: Sequence[Sequence[Operation]]) -> Any:
        if len(self.sizes) + 1 == self.fails:
            raise DiskFull("no space left")
        self.sizes.append(sum(map(len, writes)))
        return self._commit(writes)


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    made = make_collection(tmp_path / "c", options=IndexOptions(commit_ops_max=16))
    fill(made, WORLD, range(100))
    yield made
    made.close()


@pytest.fixture
def commits(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> Commits:
    commits = Commits(collection)
    monkeypatch.setattr(collection.log, "commit", commits)
    return commits


def test_a_deletion_by_filter_is_many_commits(collection: Collection, commits: Commits) -> None:
    """None is larger than a commit may be; the answer has the total, and the seq of the last one."""
    result = asyncio.run(delete_matching(collection, EVEN))
    assert commits.sizes == [16, 16, 16, 2]
    assert (result.deleted, result.seq) == (50, 150)
    assert collection.snapshot.seq == 150
    assert not len(collection.snapshot.matching(EVEN))
    assert collection.snapshot.live == 50


def test_a_deletion_by_filter_that_fails_says_what_is_gone(collection: Collection, commits: Commits) -> None:
    """What was committed before stays deleted, and the error is of the same kind, with the number in it."""
    commits.fails = 3
    with pytest.raises(DiskFull) as failed:
        asyncio.run(delete_matching(collection, EVEN))
    assert failed.value.message == "no space left; 32 documents were already deleted, up to seq 132"
    assert collection.snapshot.live == 68
    commits.fails = 0
    assert asyncio.run(delete_matching(collection, EVEN)).deleted == 18


def patch(
    collection: Collection, condition: Comparison, chars_max: int, metadata: Metadata | None = None
) -> WriteResult:
    change = naming_document(patcher(metadata or {"groups": ["new"]}, Config()))
    write = partial(collection.change_among, condition=condition, change=change, chars_max=chars_max)
    return asyncio.run(write_in_parts(collection, matching(collection, condition), write, "changed"))


def test_a_patch_by_filter_is_many_commits(collection: Collection, commits: Commits) -> None:
    """None has more passages, or more text, than a commit may have; each document is changed once, and not again."""
    chars = len(WORLD.document(0).text)
    result = patch(collection, EVEN, chars_max=9 * chars)
    assert max(commits.sizes) <= 10
    assert (result.documents, sum(commits.sizes)) == (50, 50)
    new = collection.snapshot.matching(Comparison("eq", "groups", "new"))
    assert collection.snapshot.matching(EVEN).tolist() == new.tolist()
    assert collection.snapshot.live == 100
    commits.sizes.clear()
    assert patch(collection, EVEN, chars_max=9 * chars).documents == 0
    assert not any(commits.sizes)


def test_a_patch_that_fails_says_what_is_changed_and_where(collection: Collection, commits: Commits) -> None:
    commits.fails = 3
    with pytest.raises(DiskFull) as failed:
        patch(collection, EVEN, chars_max=10**6)
    assert failed.value.message == "no space left; 32 documents were already changed, up to seq 132"
    commits.fails = 0
    long = naming_document(patcher({"note": "x" * 100_000}, Config()))
    with pytest.raises(TooLarge) as refused:
        collection.change_among({"d1": 2}, None, long).result()
    assert refused.value.message.startswith("document 'd1': ")


def test_documents_replaced_before_their_turn_are_written_if_they_match(collection: Collection) -> None:
    """A document that was replaced in between is changed and deleted in its new version, whether a filter or its id
    chose it, unless the new version does not match any more."""
    change, ids = patcher({"seen": True}, Config()), [f"d{number}" for number in range(6)]
    found, by_id = matching(collection, EVEN), named(collection, ids)
    collection.write(
        [WORLD.document(2, version=1), replace(WORLD.document(4), metadata={"even": False})]
    ).result()
    collection.write([Delete("d5")]).result()

    def seen(condition: Filter | None, chosen: ChosenDocuments) -> set[str]:
        write = partial(collection.change_among, condition=condition, change=change)
        asyncio.run(write_in_parts(collection, chosen, write, "changed"))
        return set(collection.log.documents_of(collection.snapshot.matching(Comparison("eq", "seen", True))))

    assert seen(None, by_id) == {"d0", "d1", "d2", "d3", "d4"}
    assert seen(EVEN, found) == {"d1", "d3", "d4", *(f"d{number}" for number in range(0, 100, 2))}
    found = matching(collection, EVEN)
    collection.write([WORLD.document(2, version=2), replace(WORLD.document(6), metadata={})]).result()
    write = partial(collection.delete_among, condition=EVEN)
    assert asyncio.run(write_in_parts(collection, found, write, "deleted")).deleted == 48
    assert collection.log.known(f"d{number}" for number in range(0, 100, 2)) == {"d4", "d6"}


def test_writes_by_filter_leave_nothing_out_beside_others(collection: Collection) -> None:
    """While others change its documents all the time, a patch by filter changes each of them, and a deletion leaves
    none."""
    stop = threading.Event()

    def meddle() -> None:
        for turn in count():
            if stop.is_set():
                return
            with suppress(NotFound):
                collection.change(f"d{turn % 100}", patcher({"at": turn}, Config())).result()

    meddling = threading.Thread(target=meddle)
    meddling.start()
    try:
        for turn in range(5):
            assert patch(collection, EVEN, chars_max=10**6, metadata={"turn": turn}).documents == 50
        assert asyncio.run(delete_matching(collection, EVEN)).deleted == 50
    finally:
        stop.set()
        meddling.join()
    assert not len(collection.snapshot.matching(EVEN))


def test_nothing_that_matches_is_no_error(collection: Collection, commits: Commits) -> None:
    """The answer has the present seq, and nothing is committed."""
    result = asyncio.run(delete_matching(collection, Comparison("eq", "number", 1000)))
    assert (result.deleted, result.seq, commits.sizes) == (0, 100, [])
