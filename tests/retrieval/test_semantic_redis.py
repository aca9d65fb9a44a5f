"""The questions that services share, in the vector sets of a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis import Redis

from jobs.serving.process import serving
from retrieval.cache.redis_store import RedisStore
from retrieval.cache.semantic import SharedQuestions
from retrieval.cache.semantic import shared as shared_module
from retrieval.cache.semantic.questions import Scope
from tests.retrieval.test_semantic import ALIKE, ASKED, ENABLED, LIGHTS, outcome
from tests.support.http import Http
from tests.support.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.redis
DIMENSIONS = 32
SCOPE, OTHER = b"s" * 32, b"o" * 32


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        with Redis.from_url(server.url) as client:
            if int(client.info()["redis_version"].split(".")[0]) < 8:
                pytest.skip("vector sets came with Redis 8")
        yield server


@asynccontextmanager
async def opened(url: str, secret: bytes = b"s" * 32) -> AsyncIterator[SharedQuestions]:
    """With more patience than a service has: a loaded machine must not turn a hit into a miss."""
    store = RedisStore(
        url, secret=secret, timeout_ms=3000, retry_after_s=0.05, prefix=b"nearline", clock=time.monotonic
    )
    questions = SharedQuestions(store, ttl_s=60)
    try:
        yield questions
    finally:
        await questions.close()
        await store.close()


def vector(seed: int) -> Any:
    made = np.random.default_rng(seed).standard_normal(DIMENSIONS).astype(np.float32)
    return made / np.linalg.norm(made)


def scope(count: int) -> Scope:
    made = Scope(DIMENSIONS)
    for number in range(count):
        made.put(f"question {number}", vector(number))
    return made


async def put(questions: SharedQuestions, count: int, known: Scope | None = None) -> None:
    for number in range(count):
        questions.put(SCOPE, f"question {number}", vector(number), known or Scope(DIMENSIONS))
        await questions.drain()


async def texts(questions: SharedQuestions, seed: int, key: bytes = SCOPE) -> list[str]:
    return [one.text for one in await questions.near(key, vector(seed), 3)]


def run(url: str, work: Callable[[SharedQuestions], Awaitable[None]]) -> None:
    async def opened_and_run() -> None:
        async with opened(url) as questions:
            await work(questions)

    asyncio.run(opened_and_run())


def key_in(client: Any) -> bytes:
    [key] = client.keys("nearline:*")
    return bytes(key)


def test_the_nearest_are_found_by_who_has_the_secret(redis: RedisServer) -> None:
    """With their own similarity; in their scope alone; and the set ages out."""

    async def work(questions: SharedQuestions) -> None:
        await put(questions, 40)
        for number in range(40):
            first, *_ = await questions.near(SCOPE, vector(number), 3)
            assert first.text == f"question {number}"
            assert first.similarity == pytest.approx(1, abs=2e-3)
        assert await texts(questions, 3, OTHER) == []
        async with opened(redis.url, secret=b"t" * 32) as others:
            assert await texts(others, 3) == []
        questions.forget(SCOPE, (await questions.near(SCOPE, vector(3), 1))[0].member)
        await questions.drain()
        assert "question 3" not in await texts(questions, 3)

    run(redis.url, work)
    with Redis.from_url(redis.url) as client:
        assert 50 < client.ttl(key_in(client)) <= 60


def test_a_scope_has_its_bound(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_module, "MEMBERS_MAX", 10)
    run(redis.url, lambda questions: put(questions, 25))
    with Redis.from_url(redis.url) as client:
        assert client.execute_command("VCARD", key_in(client)) == 10


def test_questions_survive_a_restart_of_redis(tmp_path: Path) -> None:
    """Where Redis keeps its data. Killed, not ended."""
    with redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        run(server.url, lambda questions: put(questions, 20))
        server.restart()

        async def again(questions: SharedQuestions) -> None:
            assert (await texts(questions, 7))[0] == "question 7"

        run(server.url, again)


def test_what_redis_lost_is_put_back(redis: RedisServer) -> None:
    """From the questions of this process, at the next one that it keeps."""

    async def work(questions: SharedQuestions) -> None:
        known = scope(20)
        await put(questions, 20)
        assert questions.put_back == 0
        redis.restart()
        deadline = time.monotonic() + 20
        while not questions.put_back:  # the breaker leaves a dead Redis alone for a moment
            assert time.monotonic() < deadline
            questions.put(SCOPE, "question 0", vector(0), known)
            await questions.drain()
        for number in range(20):
            assert (await texts(questions, number))[0] == f"question {number}"

    run(redis.url, work)


@pytest.mark.parametrize("damage", ["another type", "other dimensions"])
def test_a_damaged_set_is_begun_anew(redis: RedisServer, damage: str) -> None:
    """Until then nothing is found; nothing fails, and the breaker stays closed."""

    async def work(questions: SharedQuestions) -> None:
        known = scope(20)
        await put(questions, 20)
        with Redis.from_url(redis.url) as client:
            key = key_in(client)
            client.delete(key)
            if damage == "another type":
                client.set(key, b"nonsense")
            else:
                client.execute_command("VADD", key, "VALUES", 2, 1.0, 0.5, b"nonsense")
        assert await texts(questions, 7) == []
        questions.put(SCOPE, "question 0", vector(0), known)
        await questions.drain()
        assert (await texts(questions, 7))[0] == "question 7"
        assert questions.put_back == 1

    run(redis.url, work)


def test_planted_members_are_refused_and_removed(redis: RedisServer) -> None:
    """Nonsense, a member of another scope, one with a flipped bit: none is a question, and none stays."""

    async def work(questions: SharedQuestions) -> None:
        await put(questions, 1)
        questions.put(OTHER, "a question of another caller", vector(7), Scope(DIMENSIONS))
        await questions.drain()
        with Redis.from_url(redis.url) as client:
            own, other = (questions._store.full_key(key) for key in (SCOPE, OTHER))  # type: ignore[attr-defined]
            [foreign] = client.execute_command("VSIM", other, "FP32", vector(7).tobytes(), "COUNT", 1)
            [member] = client.execute_command("VSIM", own, "FP32", vector(0).tobytes(), "COUNT", 1)
            flipped = member[:-1] + bytes([member[-1] ^ 1])
            for planted in (b"nonsense", b"", foreign, flipped):
                client.execute_command("VADD", own, "FP32", vector(7).tobytes(), planted)
            found = await questions.near(SCOPE, vector(7), 8)
            assert [one.text for one in found] == ["question 0"]
            assert questions.rejected == 4
            await questions.drain()
            assert client.execute_command("VCARD", own) == 1

    run(redis.url, work)


def test_a_redis_without_vector_sets_costs_nothing(redis: RedisServer) -> None:
    """As one before version 8, or a user without the rights: nothing is shared, and the other caches go on."""

    async def work(questions: SharedQuestions) -> None:
        await put(questions, 3)
        assert await texts(questions, 1) == []
        assert questions._store.up

    with Redis.from_url(redis.url) as admin:
        admin.execute_command("ACL", "SETUSER", "old", "on", ">secret", "~*", "+@all", "-vadd", "-vsim")
    run(f"redis://old:secret@127.0.0.1:{redis.port}/0", work)


def test_services_answer_from_each_other_s_questions(
    tmp_path: Path, redis: RedisServer, model_folder: Path
) -> None:
    """Two services of one secret and the same documents, and one after a restart."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_REDIS_URL": redis.url,
        "NEARLINE_REDIS_SECRET": "sixteen characters",
        "NEARLINE_REDIS_TIMEOUT_MS": "3000",
        **ENABLED,
    }
    with serving(tmp_path / "one", environ) as one, serving(tmp_path / "two", environ) as two:
        first, second = Http(one.url), Http(two.url)
        for http in (first, second):
            http.ok("POST", "/v1/collections", {"name": "docs"})
            http.write("docs", *LIGHTS)
        assert outcome(first, ASKED) == "miss"
        with Redis.from_url(redis.url) as client:
            deadline = time.monotonic() + 20
            while b"vectorset" not in [client.type(key) for key in client.keys("nearline:*")]:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        answer = second.search("docs", query=ALIKE)
        assert answer["receipt"]["cache"] == "semantic"
        assert answer["hits"] == first.search("docs", query=ASKED)["hits"]
    with serving(tmp_path / "two", environ) as two:
        assert outcome(Http(two.url), "Please tell me when the red lighthouse was built?") == "semantic"
