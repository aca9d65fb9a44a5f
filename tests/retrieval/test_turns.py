"""Whose turn it is: each key's part, in order, and the newest first once the oldest has waited too long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from indexes.base.errors import Overloaded
from jobs.benchmark.callers import Reply, connect, exchange, post
from jobs.serving.process import ServerProcess, serving
from retrieval.admission.turns import Flow, Turns
from retrieval.base.settings import AdmissionSection
from tests.support.http import Http

TARGET_S = 0.25


class Scene:
    """Turns by a clock that the test moves; `begun` has who had one, in order."""

    def __init__(self, places: int, queue_ms_max: float = 60_000.0) -> None:
        self.now = 0.0
        settings = AdmissionSection(queue_ms_target=TARGET_S * 1000, queue_ms_max=queue_ms_max)
        self.crowded = False
        self.turns = Turns(places, lambda: settings, lambda _: self.crowded, lambda: self.now)
        self.begun: list[str] = []
        self._over: dict[str, asyncio.Event] = {}

    async def asks(self, name: str, key: str = "", *, patient: bool = False) -> asyncio.Task[None]:
        over = self._over[name] = asyncio.Event()

        async def work() -> None:
            async with self.turns.turn(Flow(key, patient)):
                self.begun.append(name)
                await over.wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        return task

    async def ends(self, *names: str) -> None:
        for name in names:
            self._over[name].set()
            for _ in range(4):
                await asyncio.sleep(0)


def played(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(scenario())


@pytest.mark.parametrize(("crowded", "waited_s"), [(True, TARGET_S), (False, 10 * TARGET_S)])
def test_in_order_while_none_has_waited_long_or_all_are_let_in(crowded: bool, waited_s: float) -> None:
    async def scenario() -> None:
        scene = Scene(1)
        scene.crowded = crowded
        for name in "abc":
            await scene.asks(name)
        scene.now = waited_s
        await scene.ends("a", "b")
        assert scene.begun == ["a", "b", "c"]

    played(scenario)


def test_the_newest_first_while_the_oldest_has_waited_for_longer() -> None:
    """Served in order all would be late; and in order again when the late ones are gone."""

    async def scenario() -> None:
        scene = Scene(1)
        scene.crowded = True
        tasks = [await scene.asks(name) for name in ("a", "b", "c")]
        scene.now = TARGET_S + 0.01
        await scene.asks("new")
        await scene.ends("a", "new", "c")
        assert scene.begun == ["a", "new", "c", "b"]
        await asyncio.gather(tasks[0], tasks[2])
        for name in "de":
            await scene.asks(name)
        await scene.ends("b", "d")
        assert scene.begun[-2:] == ["d", "e"]

    played(scenario)


def test_the_newest_first_where_callers_leave_before_their_turn() -> None:
    """However few are let in: so many hang up that there is always room."""

    async def scenario() -> None:
        scene = Scene(1)
        await scene.asks("a")
        for name in "bc":
            await scene.asks(name)
        (await scene.asks("leaving")).cancel()
        scene.now = TARGET_S + 0.01
        await scene.asks("new")
        await scene.ends("a")
        assert scene.begun == ["a", "new"]

    played(scenario)


def test_what_waited_too_long_is_refused_and_gone() -> None:
    """With the seconds after which to come back; who is patient waits on, and the place goes to those that remain."""

    async def scenario() -> None:
        scene = Scene(1, queue_ms_max=1.0)
        await scene.asks("a")
        late = [await scene.asks(name) for name in "bc"]
        patient = await scene.asks("patient", patient=True)
        for one in late:
            with pytest.raises(Overloaded) as refused:
                await one
            assert refused.value.retry_after_s >= 1
        await scene.ends("a", "patient")
        await patient
        assert scene.begun == ["a", "patient"]

    played(scenario)


def test_keys_take_turns_however_many_requests_each_has() -> None:
    async def scenario() -> None:
        scene = Scene(2)
        for at in range(6):
            await scene.asks(f"many-{at}", "many")
        assert scene.begun == ["many-0"]  # the last free place is for another key
        await scene.asks("one", "one")
        assert scene.begun == ["many-0", "one"]
        await scene.asks("two", "two")
        await scene.ends("many-0", "one")
        assert scene.begun[2:] == ["many-1", "two"]

    played(scenario)


@pytest.mark.parametrize("at_the_same_moment", [True, False])
def test_a_caller_that_leaves_takes_no_turn(at_the_same_moment: bool) -> None:
    """Also if its turn comes just then: the next one has it."""

    async def scenario() -> None:
        scene = Scene(1)
        await scene.asks("a")
        leaving, last = await scene.asks("leaving"), await scene.asks("last")
        if at_the_same_moment:
            scene._over["a"].set()
            await asyncio.sleep(0)
        leaving.cancel()
        await scene.ends("a")
        await scene.ends("last")
        await last
        assert scene.begun == ["a", "last"]
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(scene.turns.turn(Flow("")))  # the place is free again

    played(scenario)


# --- the service ----------------------------------------------------------------------------------------------

AT_ONCE = 40  # more than have a turn


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[ServerProcess]:
    """A service in which no search waits for its turn."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_SEARCH_THREADS": "1",
        "NEARLINE_ADMISSION_QUEUE_MS_TARGET": "0.1",
        "NEARLINE_ADMISSION_QUEUE_MS_MAX": "1",
    }
    with serving(tmp_path_factory.mktemp("hasty") / "data", environ) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": "docs"})
        http.write("docs", *({"id": str(at), "text": f"iron {at}"} for at in range(500)))
        yield server


@pytest.mark.slow
def test_a_search_that_waited_too_long_is_refused_and_told_when_to_come_back(hasty: ServerProcess) -> None:
    """Of many at once those that get a turn are answered, and all others refused; afterwards all is as before."""

    async def ask(at: int) -> Reply:
        body = json.dumps({"query": f"iron {at}", "cache": False, "k": 100}).encode()
        reader, writer = await connect(hasty.url)
        reply, _ = await exchange(reader, writer, post("/v1/collections/docs/search", body))
        writer.close()
        return reply

    async def asked() -> list[Reply]:
        return await asyncio.gather(*(ask(at) for at in range(AT_ONCE)))

    replies = asyncio.run(asked())
    assert {reply.status for reply in replies} == {200, 429}
    refused = [reply for reply in replies if reply.status == 429]
    assert all(reply.retry_after and b"waited" in reply.body for reply in refused)
    assert Http(hasty.url).metric("nearline_searches_under_way") == 0
    assert Http(hasty.url).search("docs", query="iron", cache=False)["hits"]


def test_searches_of_a_batch_wait_for_each_other(hasty: ServerProcess) -> None:
    searches = [{"query": f"iron {at}", "cache": False} for at in range(AT_ONCE)]
    found = Http(hasty.url).ok("POST", "/v1/collections/docs/search/batch", {"searches": searches})
    assert all(one.get("hits") for one in found["results"])
