"""The search processes of a service, with a program in their place that dies of some searches."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from indexes.base.child import child_environment
from indexes.base.errors import InvalidInput, NearlineError, Unavailable
from indexes.base.model import IndexOptions, NewPassage, Upsert
from indexes.base.work import WorkBudget
from indexes.collection.collection import Collection
from indexes.collection.replica import Replica
from retrieval.admission.ceiling import AnswerBudget
from retrieval.base.settings import Config
from retrieval.processes import pool, process
from retrieval.processes import worker as worker_module
from retrieval.processes.asking import InProcesses
from retrieval.processes.frames import (
    REPLIES,
    Alive,
    Arriving,
    AskSearch,
    FollowCollection,
    Following,
    Forget,
    Opened,
    Reached,
    SearchFailure,
    SearchReply,
    encode_frame,
)
from retrieval.processes.pool import SearchProcesses
from retrieval.processes.process import SearchProcess
from retrieval.processes.spending import Spending
from retrieval.processes.worker import (
    FollowedCollection,
    HitList,
    NotFollowed,
    Overtaken,
    PlannedSearch,
    SearchWorker,
)
from retrieval.search.calls import CallRefused
from retrieval.search.plan import make_plan
from retrieval.search.stages import CachedAnswer
from retrieval.search.stopwatch import Stopwatch
from retrieval.wire.errors import SearchCrashed
from retrieval.wire.search import SearchRequest
from tests.support.vectors import World, fill, make_collection

# Says that it follows what it is told to, dies of "kill", cannot answer "other", never answers "wait".
PROGRAM = """
import os, socket, sys, time
from retrieval.processes.frames import *
from retrieval.search.stages import CachedAnswer
connection = socket.socket(fileno=int(sys.argv[1]))
arriving = Arriving(ORDERS)
while data := connection.recv(65536):
    for order in arriving.feed(data):
        reply = None
        match order:
            case FollowCollection():
                reply = Following(order.collection.name, order.collection)
            case Forget():
                reply = Forgotten(order.name)
            case AskSearch(request=b"kill"):
                os._exit(1)
            case AskSearch(request=b"kill as another"):
                connection.sendall(encode_frame(Begun(order.id)))
                os._exit(1)
            case AskSearch(request=b"hang"):
                time.sleep(1000)
            case AskSearch(request=b"other"):
                reply = SearchFailure(order.id, "not here")
            case AskSearch(request=b"bad"):
                reply = SearchFailure(order.id, "bad", CallRefused("invalid_input", "bad", "query"))
            case AskSearch(request=b"fine"):
                answer = CachedAnswer([], [], None, None, None, None, None)
                reply = SearchReply(order.id, answer, False, b"", 0, 1, b"", [], 0.0, None, order.work, 0, [], None)
        if reply is not None:
            connection.sendall(encode_frame(reply))
"""
UP_S = 30.0


def ask(what: bytes) -> AskSearch:
    return AskSearch(
        0, "c", what, 0, 0, None, None, ("", "", None), False, True, None, None, None, WorkBudget(), 0, 100, "k"
    )  # fmt: skip


def with_processes(
    tmp_path: Path, story: Callable[[SearchProcesses, Collection], Awaitable[None]], count: int = 2
) -> None:
    """Run a story with processes that have a collection open."""

    async def run() -> None:
        processes = SearchProcesses((sys.executable, "-c", PROGRAM), count, Config(), tmp_path)
        await processes.start()
        try:
            await until_up(processes, collection)
            await story(processes, collection)
        finally:
            await processes.close()

    collection = make_collection(tmp_path / "c")
    fill(collection, World(), range(3))
    try:
        asyncio.run(run())
    finally:
        collection.close()


async def until_up(processes: SearchProcesses, collection: Collection) -> None:
    until = time.monotonic() + UP_S
    while len(processes.usage()) < processes.count or not processes.takes(collection):
        assert time.monotonic() < until
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("count", [1, 2])
def test_a_search_that_kills_is_refused(tmp_path: Path, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """It is tried twice, then refused for a while without being tried; the service never tries it itself. The log has
    no query unless it is to have them."""

    async def story(processes: SearchProcesses, collection: Collection) -> None:
        with pytest.raises(SearchCrashed):
            await processes.answer(collection, ask(b"kill"))
        died = processes.restarts
        assert died == 2
        assert "refused for 60 s" in caplog.text
        assert "kill'" not in caplog.text
        with pytest.raises(SearchCrashed, match="refused"):
            await processes.answer(collection, ask(b"kill"))
        assert processes.restarts == died
        await until_up(processes, collection)
        assert await processes.answer(collection, ask(b"fine")) is not None

    with_processes(tmp_path, story, count)


def test_searches_beside_one_that_kills_are_asked_again(tmp_path: Path) -> None:
    """All that a process had under way but the first one is no suspect."""

    async def story(processes: SearchProcesses, collection: Collection) -> None:
        await asyncio.gather(
            processes.answer(collection, ask(b"kill")),
            *(processes.answer(collection, ask(b"fine")) for _ in range(20)),
            return_exceptions=True,
        )
        await until_up(processes, collection)
        found = [await processes.answer(collection, ask(b"fine")) for _ in range(5)]
        assert all(one is not None for one in found)

    with_processes(tmp_path, story)


def test_what_a_process_cannot_answer_is_left_to_the_service(tmp_path: Path) -> None:
    """None tells so. An error of the search itself is raised, with its class and field."""

    async def story(processes: SearchProcesses, collection: Collection) -> None:
        assert await processes.answer(collection, ask(b"other")) is None
        await asyncio.sleep(process.TOLD_AGAIN_S)
        await until_up(processes, collection)
        with pytest.raises(InvalidInput) as raised:
            await processes.answer(collection, ask(b"bad"))
        assert raised.value.param == "query"

    with_processes(tmp_path, story)


def test_no_process_has_a_released_collection(tmp_path: Path) -> None:
    """Inside the block none takes a search of it; afterwards they open it again."""

    async def story(processes: SearchProcesses, collection: Collection) -> None:
        async with processes.released("c"):
            assert not processes.takes(collection)
            assert await processes.answer(collection, ask(b"fine")) is None
        await until_up(processes, collection)
        assert await processes.answer(collection, ask(b"fine")) is not None

    with_processes(tmp_path, story)


def test_a_caller_that_leaves_is_told(tmp_path: Path) -> None:
    """A cancelled search is no longer waited for."""

    async def story(processes: SearchProcesses, collection: Collection) -> None:
        waiting = asyncio.create_task(processes.answer(collection, ask(b"wait")))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not any(one.waiting for one in processes._processes)

    with_processes(tmp_path, story)


@pytest.mark.parametrize(
    "error",
    [InvalidInput("no", param="k"), Unavailable("later", retry_after_s=7.0), SearchCrashed("it ended two")],
    ids=lambda error: type(error).__name__,
)
def test_every_error_travels(error: NearlineError) -> None:
    """It keeps its class, its message, its field and when to try again, also if another module defines the class."""
    sent = encode_frame(SearchFailure(1, error.message, CallRefused.of(error)))
    (arrived,) = Arriving(REPLIES).feed(sent)
    found = arrived.refusal.error
    assert (type(found), found.message, found.param) == (type(error), error.message, error.param)
    assert getattr(found, "retry_after_s", None) == getattr(error, "retry_after_s", None)


def test_the_search_that_was_begun_is_the_suspect(tmp_path: Path) -> None:
    """Where it is not the oldest one, that one is not refused."""

    async def story(processes: SearchProcesses, collection: Collection) -> None:
        oldest = asyncio.create_task(processes.answer(collection, ask(b"wait")))
        await asyncio.sleep(0)
        with pytest.raises(SearchCrashed):
            await processes.answer(collection, ask(b"kill as another"))
        oldest.cancel()

    with_processes(tmp_path, story, 1)


def test_beside_dear_searches_of_one_key_the_cheap_ones_of_another_come_first() -> None:
    """Keys get equal time, not equal numbers; and one that pauses has saved nothing up."""
    spending = Spending()

    def order(costs: dict[str, float], count: int) -> list[str]:
        waiting = [SimpleNamespace(key=key) for key in costs for _ in range(count)]
        for one in waiting:
            spending.arrive(one.key)
        done = list[str]()
        while waiting:
            waiting.remove(search := spending.next(waiting))
            spending.add(search.key, costs[search.key])
            done.append(search.key)
        return done

    assert order({"dear": 1.0, "cheap": 0.1}, 10)[:11].count("cheap") == 10
    assert order({"cheap": 1.0, "dear": 1.0}, 4)[:4].count("cheap") in (2, 3)


@pytest.mark.slow
def test_a_process_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets no more searches, the ones it had are asked elsewhere, and it is killed."""
    for name, seconds in {"SILENT_S": 0.2, "GIVE_UP_S": 0.5, "HUNG_S": 3.0, "WATCH_S": 0.1}.items():
        monkeypatch.setattr(pool if name == "WATCH_S" else process, name, seconds)

    async def story(processes: SearchProcesses, collection: Collection) -> None:
        hanging = asyncio.create_task(processes.answer(collection, ask(b"hang")))
        await asyncio.sleep(0)
        found = await asyncio.gather(*(processes.answer(collection, ask(b"fine")) for _ in range(6)))
        assert len(found) == 6  # an answer, or None: the service may search itself
        with pytest.raises(SearchCrashed):
            await hanging
        until = time.monotonic() + UP_S
        while processes.restarts < 2:
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        await until_up(processes, collection)
        assert await processes.answer(collection, ask(b"fine")) is not None

    with_processes(tmp_path, story)


def test_a_crash_leaves_none_of_its_searches_to_the_service(tmp_path: Path) -> None:
    """Any of them may have been in the run of the model that crashed."""

    async def story(processes: SearchProcesses, collection: Collection) -> None:
        found = await asyncio.gather(
            *(processes.answer(collection, ask(b"kill")) for _ in range(4)),
            return_exceptions=True,
        )
        assert all(isinstance(one, (SearchCrashed, Unavailable)) for one in found), found

    with_processes(tmp_path, story, 1)


def test_children_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """A folder `jobs`, or a module with the name of one of Python's, changes nothing and is not executed."""
    (tmp_path / "jobs").mkdir()
    for name in ("jobs/__init__.py", "queue.py"):
        (tmp_path / name).write_text("raise SystemExit('imported')")
    run = subprocess.run(
        [sys.executable, "-m", "jobs.serving.search_process", "0", "1"],
        cwd=tmp_path,
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (1, "")  # this process is not its parent


def test_a_program_that_cannot_be_started_leaves_the_service_to_search(tmp_path: Path) -> None:
    """It starts all the same, and stops without waiting for them."""

    async def story() -> None:
        processes = SearchProcesses((str(tmp_path / "nothing"),), 2, Config(), tmp_path)
        await processes.start()
        assert not processes.takes(collection)
        assert await processes.answer(collection, ask(b"fine")) is None
        await processes.close()

    collection = make_collection(tmp_path / "c")
    try:
        asyncio.run(story())
    finally:
        collection.close()


def test_what_a_process_cannot_open_it_is_told_to_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it says that it cannot, the pause doubles; once it could, it starts over."""
    now, told = [1000.0], list[float]()
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now[0]))
    one = SearchProcess(cast(Any, None), lambda ended: None, lambda name: None)
    wanted = Opened("c", b"", 0, 0)

    def send(order: object) -> None:
        told.append(now[0])
        one._take(Following("c", None))

    monkeypatch.setattr(one, "send", send)
    for _ in range(200):
        one.follow(wanted)
        now[0] += 0.5
    pauses = [later - earlier for earlier, later in pairwise(told)]
    assert pauses == [1.5, 2.5, 4.5, 8.5, 16.5, 32.5]
    one._take(Following("c", wanted))
    del told[:]
    for _ in range(4):
        one.follow(wanted)
        now[0] += 2
    assert len(told) > 1


def test_a_collection_is_closed_though_it_was_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is slow to open one may say that it follows it after it was told to close it: then it is told
    again. What it was never told to open it is not told to close."""
    sent: list[object] = []
    one, opened = (
        SearchProcess(cast(Any, None), lambda ended: None, lambda name: None),
        Opened("c", b"", 0, 0),
    )
    monkeypatch.setattr(one, "send", sent.append)
    one.rest("c")
    assert not sent
    one.follow(opened)
    one.rest("c")
    one._take(Following("c", opened))
    assert sent == [FollowCollection(opened), *[Forget("c", withheld=False)] * 2]
    assert not one.followed
    one.follow(opened)
    one._take(Following("c", opened))
    assert one.followed == {"c": opened}
    one.rest("c")
    assert not one.followed


def test_no_answer_is_ahead_of_the_service(tmp_path: Path) -> None:
    """It waits until the service can search the same state, or an exact search would go back in time."""

    class Ahead:
        count = 1

        def takes(self, collection: Collection) -> bool:
            return True

        async def answer(self, collection: Collection, asked: AskSearch) -> SearchReply:
            answer = CachedAnswer([], [], None, None, None, None, None)
            return SearchReply(
                0, answer, False, b"", 0, asked.seq + 1, b"", [], 0.0, None, asked.work, 0, [], None
            )  # fmt: skip

    async def story() -> None:
        inside = InProcesses(cast(Any, Ahead()), cast(Any, None), Config(), lambda key: False)
        plan = make_plan(SearchRequest(query="x", mode="lexical"), 384, Config())
        search = asyncio.create_task(inside.search(collection, plan, Stopwatch(), AnswerBudget(1000)))
        await asyncio.sleep(0.1)
        assert not search.done()
        fill(collection, World(), [3])
        answered = await asyncio.wait_for(search, UP_S)
        assert answered is not None
        assert answered.state.seq == collection.snapshot.seq

    collection = make_collection(tmp_path / "c")
    fill(collection, World(), range(3))
    try:
        asyncio.run(story())
    finally:
        collection.close()


@pytest.mark.parametrize("often", [False, True])
def test_searches_are_answered_while_a_collection_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, often: bool
) -> None:
    """Between two steps a search is answered from the state before, if it needs no more than that. A search that meets
    what is gone since waits for the end, and while one waits, others are answered now and then. The service can tell
    which one is at work."""
    monkeypatch.setattr(worker_module, "BETWEEN_S", 0.0 if often else math.inf)
    collection = make_collection(tmp_path / "c")
    fill(collection, World(), range(3))
    near, far = socket.socketpair()
    with closing(collection), closing(near), closing(far):
        worker = SearchWorker(near, lambda _: None)
        replica = Replica(collection.folder, IndexOptions(), HitList())
        followed = FollowedCollection(replica, Opened("c", b"", 0, 0), HitList(), None, behind=True)
        monkeypatch.setattr(worker, "_followed", {"c": followed})
        fill(collection, World(), range(3, 200))
        before, after = replica.snapshot.seq, collection.snapshot.seq
        answered: list[tuple[int, int]] = []

        def receive(*asks: AskSearch) -> None:
            worker._waiting.extend(asks)
            worker._under_way.update(one.id for one in asks)

        def answer(search: PlannedSearch) -> SearchFailure:
            if search.ask.id == 2 and replica.snapshot.seq == before:
                raise Overtaken
            answered.append((search.ask.id, replica.snapshot.seq))
            return SearchFailure(search.ask.id, "not here")

        def plan(ask: AskSearch) -> PlannedSearch:
            worker._spending.arrive("")
            return PlannedSearch(ask, cast("Any", None), followed, Stopwatch(), None)

        monkeypatch.setattr(worker, "_plan", plan)
        monkeypatch.setattr(worker, "_answer", answer)
        receive(*(replace(ask(b""), id=number, seq=before) for number in (1, 2, 3)))
        worker._catch_up()
        early, late = ([(1, before), (3, before)], []) if often else ([(1, before)], [(3, after)])
        assert answered == early
        receive(replace(ask(b""), id=4, seq=after))
        while worker._waiting or worker._planned:
            if (behind := worker._first_behind()) is not None:
                worker._catch_up_for(behind)
            worker._answer_next()
        assert answered == [*early, *late, (2, after), (4, after)]
        # Without a word of the worker, the service takes the oldest for the one at work.
        sent = [one for one in Arriving(REPLIES).feed(far.recv(65536)) if not isinstance(one, Reached)]
        said = [(type(one).__name__, one.id) for one in sent if not isinstance(one, Alive)]
        assert [number for kind, number in said if kind == "SearchFailure"] == [1, 3, 2, 4]
        assert said[:2] == [("SearchFailure", 1), ("Begun", 3)]
        replica.close()


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[tuple[SearchWorker, Collection, socket.socket]]:
    """A process that follows an empty collection, and the service's end of its socket."""
    collection = make_collection(tmp_path / "docs")
    near, far = socket.socketpair()
    with closing(near), closing(far), closing(collection):
        worker = SearchWorker(near, lambda _: None)
        worker._data = collection.folder.parent
        replica = Replica(collection.folder, IndexOptions(), HitList())
        opened = Opened(collection.name, b"", 0, 0)
        worker._followed[collection.name] = FollowedCollection(replica, opened, HitList(), None)
        yield worker, collection, far


def test_a_collection_that_is_deleted_is_not_read_to_its_end(
    follower: tuple[SearchWorker, Collection, socket.socket],
) -> None:
    """A process closes it at once, whether it follows it or is just opening it: else it would be killed."""
    worker, collection, far = follower
    name, followed = collection.name, worker._followed[collection.name]
    text = "".join(chr(0xAC00 + number * 37 % 11_000) for number in range(60_000))
    passage = NewPassage(0, len(text), 1, World().vector(1))
    collection.write([Upsert("l", text, "", {}, (passage,), language="ko")]).result()
    followed.behind = True
    far.sendall(encode_frame(Forget(name)))
    worker._catch_up()
    assert followed.replica.snapshot.seq < collection.snapshot.seq
    assert name not in worker._followed
    worker._obey(worker._orders.popleft())
    worker._being_opened[name] = True  # it was to be forgotten while it waited to be opened
    with pytest.raises(NotFollowed):
        worker._open(followed.opened)


@pytest.mark.parametrize("frozen", [False, True])
def test_what_a_search_left_in_a_cycle_leaves_memory(
    follower: tuple[SearchWorker, Collection, socket.socket], frozen: bool
) -> None:
    """A process that is at rest allocates nothing, so its garbage collector does not run by itself."""
    worker, collection, _ = follower
    cycle: list[Any] = [worker._followed[collection.name].replica.snapshot]
    cycle.append(cycle)
    held = weakref.ref(cycle[0])
    if frozen:
        gc.freeze()
    del cycle
    worker._obey(Forget(collection.name, withheld=False))
    assert worker._let_go
    worker._give_back()
    assert held() is None
    assert not worker._let_go


def test_a_search_waits_for_no_collection_but_its_own(tmp_path: Path) -> None:
    """While a long text is read for a search that needs it, and orders about its collection wait, those of others are
    answered; and an operation that never comes is not waited for."""
    collections = {name: make_collection(tmp_path / name) for name in ("long", "other")}
    near, far = socket.socketpair()
    with ExitStack() as stack:
        stack.callback(near.close)
        stack.callback(far.close)
        worker = SearchWorker(near, lambda _: None)
        for name, collection in collections.items():
            stack.callback(collection.close)
            fill(collection, World(), range(3))
            replica = Replica(collection.folder, IndexOptions(), HitList())
            stack.callback(replica.close)
            worker._followed[name] = FollowedCollection(replica, Opened(name, b"", 0, 0), HitList(), None)
        text = "".join(chr(0xAC00 + number * 37 % 11_000) for number in range(60_000))
        passage = NewPassage(0, len(text), 1, World().vector(1))
        collections["long"].write([Upsert("l", text, "", {}, (passage,), language="ko")]).result()
        request = msgspec.json.encode({"query": "word1", "mode": "lexical"})
        seqs = {name: one.snapshot.seq for name, one in collections.items()}
        for number, name, seq in ((1, "long", seqs["long"] + 1), (2, "other", seqs["other"])):
            worker._waiting.append(replace(ask(request), id=number, collection=name, seq=seq))
            worker._under_way.add(number)
        worker._orders.append(FollowCollection(worker._followed["long"].opened))
        worker._answer_between("long")
        assert worker._under_way == {1}
        worker._orders.clear()
        behind = worker._first_behind()
        assert behind is worker._followed["long"]
        worker._catch_up_for(behind)
        assert worker._first_behind() is None
        worker._answer_next()
        assert worker._under_way == set()
