"""Opening is repeatable: the same log gives the same state each time, and a write that is sent twice counts once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from indexes.base.model import Delete, Operation
from indexes.collection.collection import Collection
from tests.support.inspection import consistent, state_hash
from tests.support.vectors import make_collection, rebuild
from tests.support.versions import WORLD, document
from tests.support.workload import TUNING


def eventful(folder: Path) -> None:
    """A collection with a generation of two tiers, segments and a delta, and removed documents in all of them."""
    collection = make_collection(folder, options=TUNING, hot_capacity=100)
    for start in range(1, 400, 50):
        collection.write([document(number, 1) for number in range(start, start + 50)]).result()
    rebuild(collection)
    collection.write([document(number, 2) for number in range(1, 400, 7)]).result()
    collection.write([Delete(f"d{number}") for number in range(1, 400, 5)]).result()
    collection.write([document(number, 3) for number in range(400, 450)]).result()
    collection.settle()
    assert all(collection.snapshot.counts().values()), "every tier holds something"
    collection.close()


def opened(folder: Path) -> tuple[str, dict[int, tuple[int, int]]]:
    """State hash, and version and seq of every document."""
    collection = Collection(folder, TUNING)
    collection.settle()
    try:
        return state_hash(collection, WORLD), consistent(collection)
    finally:
        collection.close()


@pytest.mark.parametrize("with_generation", [True, False])
def test_three_openings_give_one_state(tmp_path: Path, with_generation: bool) -> None:
    """Replayed three times, beside a generation or alone, the log gives the same documents, hits and scores."""
    eventful(tmp_path / "c")
    if not with_generation:
        shutil.rmtree(tmp_path / "c" / "generations")
    states = [opened(tmp_path / "c") for _ in range(3)]
    assert states[0] == states[1] == states[2]


@pytest.mark.slow
def test_the_hash_tells_states_apart(tmp_path: Path) -> None:
    """One document replaced by its next version makes another hash."""
    eventful(tmp_path / "c")
    before, _ = opened(tmp_path / "c")
    collection = Collection(tmp_path / "c", TUNING)
    collection.write([document(2, 2)]).result()
    collection.close()
    assert opened(tmp_path / "c")[0] != before


def test_a_write_sent_twice_has_one_effect(tmp_path: Path) -> None:
    """Sent again, as by a client that got no answer, a write leaves the documents as they were and each once."""
    collection = make_collection(tmp_path / "c", options=TUNING)
    write: list[Operation] = [document(1, 1), document(2, 1), Delete("d3")]
    for _ in range(2):
        collection.write([document(3, 1)]).result()
        collection.write(write).result()
    once = collection.write(write).result().seq
    again = collection.write(write).result().seq
    assert again == once + 2, "what is deleted already leaves no operation"
    assert {number: version for number, (version, _) in consistent(collection).items()} == {1: 1, 2: 1}
    collection.close()
    _, documents = opened(tmp_path / "c")
    assert {number: version for number, (version, _) in documents.items()} == {1: 1, 2: 1}
