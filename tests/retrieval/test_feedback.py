"""Judgments and clicks: kept durably, bounded, refused by name, forgotten with their collection."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from indexes.base import durable
from indexes.base.errors import StorageError, TooLarge
from indexes.collection.collection import Collection
from jobs.serving.process import ServerProcess, serving
from retrieval.base.settings import FeedbackSection as Settings
from retrieval.handlers.feedback import chars_of
from retrieval.upkeep.feedback import DAY_MS, FILE, Feedback, FeedbackEntry
from tests.support.http import Http
from tests.support.vectors import make_collection

NOW_MS = 1_790_000_000_000


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[Collection]:
    made = make_collection(tmp_path / "c")
    yield made
    made.close()


def store(**settings: int) -> Feedback:
    return Feedback(Settings(**settings), now=lambda: NOW_MS / 1000)


def entry(number: int, days_ago: float = 0) -> FeedbackEntry:
    return FeedbackEntry(NOW_MS - int(days_ago * DAY_MS), f"query {number}", f"d{number}", number % 4)


def test_what_is_kept_is_read(collection: Collection) -> None:
    """In the order of arrival, by another process too; the file is readable by its owner alone."""
    sent = [entry(1), FeedbackEntry(NOW_MS, "lost\r\nparcel", "d2", None, ["d9", "d1"])]
    store().keep(collection, sent)
    store().keep(collection, [entry(3)])
    assert store().read(collection) == [*sent, entry(3)]
    assert stat.S_IMODE((collection.folder / FILE).stat().st_mode) == 0o600


def test_a_torn_line_is_dropped(collection: Collection) -> None:
    """What a crash left of an append is not read, and the next one takes its place."""
    store().keep(collection, [entry(1)])
    with (collection.folder / FILE).open("ab") as file:
        file.write(b'{"time_ms": 179')
    assert store().read(collection) == [entry(1)]
    store().keep(collection, [entry(2)])
    assert store().read(collection) == [entry(1), entry(2)]


def test_the_file_is_bounded(collection: Collection) -> None:
    """Beyond `file_bytes_max` the older half goes; what would not fit by itself is refused, and nothing of it kept."""
    feedback = store(file_bytes_max=4000)
    for number in range(200):
        feedback.keep(collection, [entry(number)])
        assert (collection.folder / FILE).stat().st_size <= 4000
        assert feedback.read(collection)[-1] == entry(number)
    numbers = [int(one.document_id[1:]) for one in feedback.read(collection)]
    assert numbers == list(range(numbers[0], 200))
    assert len(numbers) >= 15
    with pytest.raises(TooLarge):
        feedback.keep(collection, [entry(number) for number in range(100)])
    assert len(feedback.read(collection)) == len(numbers)


def test_old_feedback_is_forgotten(collection: Collection) -> None:
    """At once by readers, and from the file when its time comes; with `days = 0` it stays."""
    feedback = store(days=30)
    feedback.keep(collection, [entry(1, days_ago=31), entry(2, days_ago=29)])
    assert feedback.read(collection) == [entry(2, days_ago=29)]
    assert len(store(days=0).read(collection)) == 2
    feedback.forget_old(collection)
    assert b"query 1" not in (collection.folder / FILE).read_bytes()
    assert store(days=0).read(collection) == [entry(2, days_ago=29)]


def test_another_collections_file_is_not_taken_over(collection: Collection) -> None:
    """Feedback belongs to the collection that it was sent to, not to one that has its folder later."""
    store().keep(collection, [entry(1)])
    path = collection.folder / FILE
    path.write_bytes(path.read_bytes().replace(collection.uid.encode(), b"0" * 32))
    assert store().read(collection) == []
    store().keep(collection, [entry(2)])
    assert store().read(collection) == [entry(2)]


def test_an_append_does_not_read_the_file(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known how far the file is whole, until the file is not as it was left."""
    feedback = store()
    feedback.keep(collection, [entry(1)])
    path = collection.folder / FILE
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", None)
        for number in range(2, 5):
            feedback.keep(collection, [entry(number)])
    with path.open("ab") as file:
        file.write(b'{"time_ms": 179')
    feedback.keep(collection, [entry(5)])
    assert feedback.read(collection) == [entry(number) for number in range(1, 6)]
    feedback.forget(collection)
    feedback.keep(collection, [entry(6)])
    assert feedback.read(collection) == [entry(6)]


def test_changes_take_turns_on_a_thread_of_their_own() -> None:
    """However many wait for the disk, they use one thread, and none of those that all requests share."""

    async def story() -> None:
        feedback = store()
        seen = await asyncio.gather(*(feedback.on_thread(threading.current_thread) for _ in range(20)))
        feedback.close()
        assert {one.name for one in seen} == {"feedback_0"}

    asyncio.run(story())


def test_forgetting_is_durable(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is synced once the file is gone, and so is what a kill left of replacing the file."""
    store().keep(collection, [entry(1)])
    path = collection.folder / FILE
    durable.draft_of(path).write_bytes(path.read_bytes())
    left: list[list[str]] = []
    monkeypatch.setattr(
        durable.disk, "sync", lambda descriptor, path: left.append([one.name for one in path.iterdir()])
    )
    store().forget(collection)
    [names] = left
    assert not [name for name in names if FILE in name]
    assert store().read(collection) == []


@pytest.mark.parametrize("act", [Feedback.read, Feedback.forget, Feedback.forget_old])
def test_what_the_disk_refuses_is_a_storage_error(
    collection: Collection, act: Callable[[Feedback, Collection], object]
) -> None:
    """It names the file."""
    (collection.folder / FILE).mkdir()
    with pytest.raises(StorageError, match=FILE):
        act(store(), collection)


def test_old_feedback_is_forgotten_at_the_start(collection: Collection) -> None:
    """A service that never runs for an hour drops it too, and what a kill left of replacing the file."""
    store(days=0).keep(collection, [entry(1, days_ago=31), entry(2)])
    path = collection.folder / FILE
    draft = durable.draft_of(path)
    draft.write_bytes(path.read_bytes())

    async def story() -> None:
        feedback = store(days=30)
        forgetting = asyncio.create_task(feedback.keep_forgetting(lambda: [collection]))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                while b"query 1" in path.read_bytes():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
        forgetting.cancel()
        feedback.close()

    asyncio.run(story())
    assert store(days=0).read(collection) == [entry(2)]
    assert not draft.exists()


def test_what_was_passed_over_counts_as_memory() -> None:
    """An entry with a hundred ids is foretold to take what they take."""
    assert chars_of(FeedbackEntry(NOW_MS, "query", "d1", None, ["x" * 512] * 100)) == 51_207


@pytest.mark.slow
def test_feedback_survives_a_kill(tmp_path: Path, model_folder: Path) -> None:
    """Feedback and ranking settings that were answered are there after kill -9 and a restart; feedback moves with a
    renamed collection."""
    data, environ = tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    server = ServerProcess(data, environ)
    http = Http(server.url)
    http.ok("POST", "/v1/collections", {"name": "docs"})
    http.write("docs", {"id": "a", "text": "Refunds take 14 days."}, {"id": "b", "text": "We ship."})
    sent = [
        {"query": " refunds ", "document_id": "a", "grade": 3},
        {"query": "parcel", "document_id": "b", "shown": ["a", "b"]},
        {"query": "refunds", "document_id": "gone", "grade": 1},
    ]
    http.write("docs", {"id": "gone", "text": "Soon gone."})
    assert http.ok("POST", "/v1/collections/docs/feedback", {"feedback": sent}) == {"kept": 3, "unknown": []}
    http.ok("DELETE", "/v1/collections/docs/documents/gone")
    ranking = {"method": "rrf", "coefficients": {"relevance.dense": [-4.0, 3.0, 0.0, 8.0, 0.0, 0.1, 0.5]}}
    learned = http.ok("PUT", "/v1/collections/docs/ranking", ranking)["ranking"]
    server.kill()
    with serving(data, environ) as again:
        http = Http(again.url)
        assert http.ok("GET", "/v1/collections/docs")["ranking"] == learned
        http.ok("POST", "/v1/collections/docs/rename", {"name": "handbook"})
        found = http.ok("GET", "/v1/collections/handbook/feedback")["feedback"]
        assert [(one["query"], one["document_id"], one["grade"], one["passed"]) for one in found] == [
            ("refunds", "a", 3, []),
            ("parcel", "b", None, ["a"]),
        ]
        http.ok("DELETE", "/v1/collections/handbook/feedback")
        assert http.ok("GET", "/v1/collections/handbook/feedback") == {"feedback": []}
        assert not (data / "handbook" / FILE).exists()


@pytest.mark.model
def test_feedback_about_unknown_documents_is_not_kept(http: Http) -> None:
    """The answer lists their ids, once each, also those of expired documents; no other entry names them as passed."""
    name = http.new_collection()
    soon = datetime.now(UTC) + timedelta(seconds=1)
    http.write(
        name, {"id": "a", "text": "Refunds."}, {"id": "old", "text": "x", "expires_at": soon.isoformat()}
    )
    while http.call("GET", f"/v1/collections/{name}/documents/old").status == 200:
        time.sleep(0.05)
    graded = [{"query": "x", "document_id": one, "grade": 1} for one in ("none", "old", "none")]
    opened = {"query": "x", "document_id": "a", "shown": ["none", "a"]}
    path = f"/v1/collections/{name}/feedback"
    assert http.ok("POST", path, {"feedback": [*graded, opened]}) == {"kept": 1, "unknown": ["none", "old"]}
    assert http.ok("POST", path, {"feedback": graded}) == {"kept": 0, "unknown": ["none", "old"]}
    http.write(name, {"id": "none", "text": "Now it exists."})
    assert [(one["document_id"], one["passed"]) for one in http.ok("GET", path)["feedback"]] == [("a", [])]


GOOD = {"query": "x", "document_id": "a", "grade": 1}
BAD: list[tuple[Any, int, str]] = [
    ({}, 422, "feedback"),
    ({"feedback": []}, 422, "feedback"),
    ({"feedback": [GOOD] * 1001}, 413, "feedback"),
    ({"feedback": [GOOD, {"query": "x"}]}, 422, "feedback[1].document_id"),
    ({"feedback": [GOOD, {**GOOD, "query": " "}]}, 422, "feedback[1].query"),
    ({"feedback": [GOOD, {**GOOD, "query": "x" * 9000}]}, 413, "feedback[1].query"),
    ({"feedback": [GOOD, {**GOOD, "grade": 4}]}, 422, "feedback[1].grade"),
    ({"feedback": [GOOD, {**GOOD, "document_id": "x" * 600}]}, 413, "feedback[1].document_id"),
    ({"feedback": [GOOD, {**GOOD, "shown": ["a"]}]}, 422, "feedback[1].shown"),
    ({"feedback": [{"query": "x", "document_id": "a", "shown": ["b", "b", "a"]}]}, 422, "feedback[0].shown"),
    ({"feedback": [{"query": "x", "document_id": "a", "shown": ["b"]}]}, 422, "feedback[0].shown"),
    ({"feedback": [{"query": "x", "document_id": "a", "clicked": True}]}, 422, "feedback[0].clicked"),
]


@pytest.mark.model
@pytest.mark.parametrize(("body", "status", "param"), BAD, ids=lambda value: str(value)[:40])
def test_bad_feedback_names_the_field(http: Http, body: Any, status: int, param: str) -> None:
    """All of a request is refused, and nothing of it kept."""
    name = http.new_collection()
    reply = http.call("POST", f"/v1/collections/{name}/feedback", body)
    assert (reply.status, reply.body["error"]["param"]) == (status, param)
    assert http.ok("GET", f"/v1/collections/{name}/feedback") == {"feedback": []}


@pytest.mark.model
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "method"),
        ({"method": "best"}, "method"),
        ({"weight_dense": 1.5}, "weight_dense"),
        ({"weight_dense": -0.1}, "weight_dense"),
        ({"weight_dense": 0.5, "queries": -1}, "queries"),
        ({"method": "rrf", "weight_dense": 0.5}, "weight_dense"),
        ({"weights": {"dense": 1}}, "weights"),
        ({"coefficients": {"relevence.hybrid": [-4.0, 1.6, 2.1, 3.7, 5.8, 0.1]}}, "coefficients"),
        ({"coefficients": {"relevance": [1.0]}}, "coefficients"),
    ],
)
def test_bad_ranking_names_the_field(http: Http, body: Any, param: str) -> None:
    """Nothing changes."""
    name = http.new_collection()
    reply = http.call("PUT", f"/v1/collections/{name}/ranking", body)
    assert (reply.status, reply.body["error"]["param"]) == (422, param)
    assert http.ok("GET", f"/v1/collections/{name}")["ranking"] is None
