"""A builder that dies, wherever it is: serving is untouched, nothing is half published, the next build succeeds."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from indexes.base.errors import NotReady, StorageError
from indexes.base.failpoints import VARIABLE
from indexes.collection.collection import Collection
from indexes.rebuild.builder import Rebuild
from tests.faults.test_failpoints import NAMES
from tests.support.inspection import consistent
from tests.support.vectors import make_collection
from tests.support.versions import WORLD, document
from tests.support.workload import TUNING

STAGES = [name for name in NAMES if name.startswith(("build.", "publish_folder."))]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Served from generation 1; the next builds would have a cold tier and a hot one too."""
    collection = make_collection(tmp_path_factory.mktemp("served") / "c", options=TUNING, hot_capacity=100)
    for start in range(1, 250, 50):
        collection.write([document(number, 1) for number in range(start, start + 50)]).result()
    collection.adopt(Rebuild(collection.begin_build(), timeout_s=60).run(lambda *_: None))
    yield collection
    collection.close()


def state(collection: Collection) -> tuple[int, list[int], dict[int, tuple[int, int]]]:
    return collection.snapshot.generation, collection.shelf.numbers(), consistent(collection)


@pytest.mark.parametrize("name", STAGES)
def test_a_builder_killed_at_each_stage(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The collection is as it was, and says that the build failed; a generation is there whole or not at all."""
    before = state(collection)
    request = collection.begin_build()
    monkeypatch.setenv(VARIABLE, f"{name}=kill")
    with pytest.raises(StorageError, match=f"build of generation {request.number} failed"):
        Rebuild(request, timeout_s=60).run(lambda *_: None)
    after = state(collection)
    assert (after[0], after[2]) == (before[0], before[2])
    if after[1] != before[1]:
        # Killed when the folder had its name already: it may be adopted like any other.
        assert after[1] == [*before[1], request.number]
        collection.adopt(request.number)
        assert consistent(collection) == before[2]


@pytest.mark.slow
def test_a_builder_killed_amid_its_work(collection: Collection) -> None:
    """SIGKILL from outside at each progress it reports, while a search and a write go on; then a build succeeds."""
    stages: set[str] = set()
    for kill_at in itertools.count():
        generation, numbers, documents = state(collection)
        rebuild = Rebuild(collection.begin_build(), timeout_s=60)
        reports = itertools.count()

        def progress(stage: str, done: int, total: int) -> None:
            if next(reports) == kill_at:  # noqa: B023 - called in this round only
                stages.add(stage)
                os.kill(rebuild.child.pid, signal.SIGKILL)  # type: ignore[arg-type] # noqa: B023
                assert len(collection.snapshot.dense(WORLD.vector(1, 1, 0), 10).ranking) == 10
                collection.write([document(1000 + kill_at, 1)]).result()  # noqa: B023

        try:
            number = rebuild.run(progress)
        except StorageError:
            after = state(collection)
            assert after[0] == generation
            # At its last report the builder may be quicker than the signal: then the generation has its name already.
            assert after[1] in (numbers, [*numbers, rebuild.request.number])
            assert after[2].keys() == {*documents, 1000 + kill_at}
            continue
        break
    assert len(stages) > 3
    assert collection.adopt(number).number == collection.snapshot.generation
    assert consistent(collection).keys() >= documents.keys()


def test_a_cancelled_build(collection: Collection) -> None:
    """Cancelled by the service that closes, the child is gone when `run` ends, and left nothing."""
    before = state(collection)
    rebuild = Rebuild(collection.begin_build(), timeout_s=60)

    def progress(stage: str, done: int, total: int) -> None:
        threading.Thread(target=rebuild.cancel).start()

    with pytest.raises(NotReady):
        rebuild.run(progress)
    assert rebuild.child.pid is not None
    assert not Path(f"/proc/{rebuild.child.pid}").exists()
    assert state(collection) == before


def test_queries_lie_where_they_are_swept(collection: Collection) -> None:
    """Vectors of users' queries lie in the collection's folder; what a killed service leaves goes when it opens."""
    queries = WORLD.queries(20)
    rebuild = Rebuild(collection.begin_build(), timeout_s=60, questions=("given", queries))
    seen: list[Path] = []

    def progress(stage: str, done: int, total: int) -> None:
        if not seen:
            seen.extend(collection.shelf.folder.glob(".draft-*/queries.npy"))
            collection.shelf.sweep()  # as opening does
            rebuild.cancel()

    with pytest.raises(NotReady):
        rebuild.run(progress)
    assert len(seen) == 1
    assert not seen[0].parent.exists()
    assert not list(collection.shelf.folder.glob(".draft-*"))


@pytest.mark.slow
def test_a_killed_builder_leaves_its_room(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had written is removed when its death is noticed: on a full disk the next build needs the room."""
    monkeypatch.setenv(VARIABLE, "build.measured=kill")
    with pytest.raises(StorageError):
        Rebuild(collection.begin_build(), timeout_s=60).run(lambda *_: None)
    assert not list(collection.shelf.folder.glob(".draft-*"))
