"""RedisStore against a real Redis, and against servers that only pretend to be one."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.exceptions import MovedError, ResponseError

from indexes.base.errors import InvalidInput
from retrieval.cache import store as store_module
from retrieval.cache.memory import MemoryStore
from retrieval.cache.redis_client import refusal_of
from retrieval.cache.redis_store import (
    PUT_CONNECTIONS_MAX,
    PUTS_PENDING_MAX,
    VALUE_BYTES_MAX,
    RedisStore,
    seal,
    unseal,
)
from retrieval.cache.results import ResultCache
from retrieval.cache.store import LATE_MAX, RedisBreaker
from tests.support.redis_server import RedisServer, redis_server

SECRET = b"s" * 32
RETRY_AFTER_S = 10.0
HANG_S_MAX = 5.0  # generous: tells a hang from an answer on a loaded machine, nothing finer


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests that leave it running; they use different prefixes."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may kill or stop."""
    with redis_server(tmp_path) as server:
        yield server


@contextlib.asynccontextmanager
async def opened(url: str, clock: Clock | None = None, **options: Any) -> AsyncIterator[RedisStore]:
    settings: dict[str, Any] = {"secret": SECRET, "timeout_ms": 2000, "prefix": b"test:", **options}
    store = RedisStore(url, retry_after_s=RETRY_AFTER_S, clock=clock or Clock(), **settings)
    try:
        yield store
    finally:
        await store.close()


async def put_now(store: RedisStore, key: bytes, value: bytes) -> None:
    await store.put(key, value, 60)
    await store.drain()


# --------------------------------------------------------------------------------------- a Redis that is well


@pytest.mark.redis
def test_round_trip(shared: RedisServer) -> None:
    """What was put is got, byte for byte; what was not is a miss."""

    async def story() -> None:
        async with opened(shared.url, prefix=b"round:") as store:
            value = bytes(range(256)) * 10
            await put_now(store, b"\x00key\r\n", value)
            await put_now(store, b"empty", b"")
            assert await store.get(b"\x00key\r\n") == value
            assert await store.get(b"empty") == b""
            assert await store.get(b"other") is None
            assert (store.counts.hits, store.counts.misses, store.counts.failures) == (2, 1, 0)
            assert store.health == "ok"

    asyncio.run(story())


@pytest.mark.redis
def test_two_stores_share(shared: RedisServer) -> None:
    """What one service puts another gets, given the same secret and prefix; others neither read nor overwrite it."""

    async def story() -> None:
        async with (
            opened(shared.url, prefix=b"share:") as one,
            opened(shared.url, prefix=b"share:") as two,
            opened(shared.url, prefix=b"share:", secret=b"x" * 32) as stranger,
            opened(shared.url, prefix=b"elsewhere:") as elsewhere,
        ):
            await put_now(one, b"key", b"value")
            assert await two.get(b"key") == b"value"
            assert await stranger.get(b"key") is None
            assert await elsewhere.get(b"key") is None
            await put_now(stranger, b"key", b"other")
            assert await one.get(b"key") == b"value"
            assert stranger.counts.rejected == one.counts.rejected == 0

    asyncio.run(story())


@pytest.mark.redis
def test_redis_forgets_after_the_ttl(shared: RedisServer) -> None:
    """The ttl is Redis's to keep, and a ttl below one second sends nothing."""

    async def story() -> None:
        async with opened(shared.url, prefix=b"ttl:") as store, Redis.from_url(shared.url) as redis:
            await store.put(b"key", b"value", 100)
            await store.put(b"none", b"value", 0)
            await store.drain()
            assert 1 <= await redis.ttl(store.full_key(b"key")) <= 100
            assert not await redis.exists(store.full_key(b"none"))

    asyncio.run(story())


@pytest.mark.redis
def test_many_at_once_share_few_connections(shared: RedisServer) -> None:
    """Hundreds of gets and puts at once are all served over a bounded number of connections."""

    async def story() -> None:
        async with opened(shared.url, timeout_ms=20_000) as store, Redis.from_url(shared.url) as redis:
            keys = [b"%d" % number for number in range(200)]
            await asyncio.gather(*(store.put(key, b"value " + key, 60) for key in keys))
            await store.drain()
            values = await asyncio.gather(*(store.get(key) for key in keys * 2))
            assert values == [b"value " + key for key in keys] * 2
            assert store.counts.failures == store.counts.skipped == store.counts.dropped == 0
            assert len(await redis.client_list()) <= 17  # 12 for gets, 4 for puts, and the one that asks

    asyncio.run(story())


@pytest.mark.redis
def test_cancelled_gets_leave_the_others_right(shared: RedisServer) -> None:
    """Callers that go away mid-get leave neither a stray reply for the next one nor a lost connection."""

    async def story() -> None:
        async with opened(shared.url, prefix=b"cancel:") as store:
            keys = [b"%d" % number for number in range(40)]
            for key in keys:
                await put_now(store, key, b"value " + key)
            for turns in range(60):
                gets = [asyncio.create_task(store.get(key)) for key in keys]
                for _ in range(turns % 12):
                    await asyncio.sleep(0)
                for task in gets[::2]:
                    task.cancel()
                got = await asyncio.gather(*gets, return_exceptions=True)
                assert got[1::2] == [b"value " + key for key in keys[1::2]]
            assert store.counts.failures == store.counts.rejected == 0

    asyncio.run(story())


@pytest.mark.redis
def test_a_full_redis_still_answers_gets(own: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """A put that Redis has no room for is nothing, and does not keep anybody from reading. That it refuses puts or
    scripts is two lines of the log each, and shown until it takes one of the same kind."""

    async def story() -> None:
        async with opened(own.url) as store, Redis.from_url(own.url) as redis:
            await put_now(store, b"key", b"value")
            assert await store.run_script("return {redis.call('INCR', KEYS[1])}", b"n") == [1]
            await redis.config_set("maxmemory", 1)
            for _ in range(2):
                await put_now(store, b"other", b"value")
                assert await store.run_script("return {redis.call('INCR', KEYS[1])}", b"n") is None
            assert store.counts.failures == 4
            assert await store.get(b"key") == b"value"
            assert (store.up, store.health) == (False, "refuses EVAL, SET")
            await redis.config_set("maxmemory", 0)
            await put_now(store, b"other", b"value")
            assert not store.up  # it is not known yet that scripts run again
            assert await store.run_script("return {redis.call('INCR', KEYS[1])}", b"n") == [2]
            assert (store.up, store.health) == (True, "ok")

    with caplog.at_level("INFO", "retrieval.cache.redis_store"):
        asyncio.run(story())
    lines = [line.getMessage() for line in caplog.records]
    assert [line[:20].split()[1:3] for line in lines] == [
        ["refuses", "SET:"],
        ["refuses", "EVAL:"],
        ["accepts", "SET"],
        ["accepts", "EVAL"],
    ]
    assert "command not allowed when used memory > 'maxmemory'" in lines[0]


@pytest.mark.redis
def test_what_redis_evicts_is_a_miss(own: RedisServer) -> None:
    """Of values that it has no room for some are gone, and none is another's."""

    async def story() -> None:
        async with opened(own.url) as store, Redis.from_url(own.url) as redis:
            await redis.config_set("maxmemory", (await redis.info("memory"))["used_memory"] + 1_000_000)
            await redis.config_set("maxmemory-policy", "allkeys-lru")
            for number in range(400):
                await put_now(store, b"%d" % number, b"%d" % number * 2000)
            found = [await store.get(b"%d" % number) for number in range(400)]
            assert {one for one in found if one} <= {b"%d" % number * 2000 for number in range(400)}
            assert all(one in (None, b"%d" % number * 2000) for number, one in enumerate(found))
            assert 0 < sum(one is not None for one in found) < 400
            assert store.health == "ok"

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.redis
def test_a_replica_is_read_and_refuses_puts(
    own: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As after a failover that left the address with the wrong server; once it is the master puts arrive again."""

    async def story(replica: RedisServer) -> None:
        async with (
            opened(own.url) as master,
            opened(replica.url) as store,
            Redis.from_url(replica.url) as redis,
        ):
            await put_now(master, b"key", b"value")
            await redis.execute_command("REPLICAOF", "127.0.0.1", own.port)  # type: ignore[no-untyped-call]
            give_up = time.monotonic() + 20
            while await store.get(b"key") != b"value":
                assert time.monotonic() < give_up
                await asyncio.sleep(0.1)
            failures = store.counts.failures
            await put_now(store, b"other", b"value")
            assert store.counts.failures == failures + 1
            assert await store.get(b"key") == b"value"
            await redis.execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]
            await put_now(store, b"other", b"value")
            assert await store.get(b"other") == b"value"

    with redis_server(tmp_path_factory.mktemp("replica")) as replica:
        asyncio.run(story(replica))


@pytest.mark.redis
def test_rights_that_are_withdrawn(own: RedisServer) -> None:
    """Gets are misses then, and hits again when they are given back."""

    async def story() -> None:
        clock = Clock()
        async with opened(own.url, clock) as store, Redis.from_url(own.url) as redis:
            await put_now(store, b"key", b"value")
            await redis.execute_command("ACL", "SETUSER", "default", "-mget", "-get", "-set")  # type: ignore[no-untyped-call]
            assert [await store.get(b"key") for _ in range(20)] == [None] * 20
            await put_now(store, b"key", b"other")
            await redis.execute_command("ACL", "SETUSER", "default", "+@all")  # type: ignore[no-untyped-call]
            clock.now_s += RETRY_AFTER_S
            assert await store.get(b"key") == b"value"

    asyncio.run(story())


PASSWORD = "tops3cret"


@pytest.mark.redis
@pytest.mark.parametrize(
    ("options", "login", "database", "words"),
    [
        ("--loglevel notice", ":wr0ng-one@", 0, "invalid username-password pair or user is disabled"),
        ("--loglevel notice", "", 0, "Authentication required"),
        ("--loglevel notice", f":{PASSWORD}@", 99, "DB index is out of range"),
        ("--rename-command AUTH hidden", f":{PASSWORD}@", 0, "unknown command 'AUTH'"),
    ],
)
@pytest.mark.parametrize("first", ["get", "put", "run_script"])
def test_a_refused_login_is_logged_in_redis_own_words(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    options: str,
    login: str,
    database: int,
    words: str,
    first: str,
) -> None:
    """One line for the outage, whatever is sent first, which says why and has no password. No command is said to be
    refused, and no trial is taken for an answer."""

    async def story(server: RedisServer) -> str:
        clock = Clock()
        async with opened(f"redis://{login}127.0.0.1:{server.port}/{database}", clock) as store:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "get": lambda: store.get(b"key"),
                "put": lambda: put_now(store, b"key", b"value"),
                "run_script": lambda: store.run_script("return {1}", b"n"),
            }
            for call in (first, *calls, *calls):
                assert await calls[call]() is None
                clock.now_s += RETRY_AFTER_S
            assert not store.up
            return store.health

    with redis_server(tmp_path, *options.split()) as server:
        with SyncRedis.from_url(server.url) as redis:
            redis.config_set("requirepass", PASSWORD)
        with caplog.at_level("INFO"):
            health = asyncio.run(story(server))
    [line] = [one.getMessage() for one in caplog.records if one.name.startswith("retrieval.cache")]
    assert line.replace("`", "'").startswith(f"Redis refuses requests: {words}; ")
    assert health.replace("`", "'").startswith(f"refuses requests: {words}, next trial")
    for secret in (PASSWORD, "wr0ng-one"):
        assert secret not in line + health


def test_words_of_redis_that_repeat_a_password_or_an_address_are_not_logged() -> None:
    """The kind of the error is shown instead, wherever in the URL the password is, encoded or not."""
    for url in (
        "redis://user:p%40ss@host/0",
        "redis://host/0?password=p%40ss",
        "redis+sentinel://host/name/0?sentinel_password=p%40ss",
    ):
        assert refusal_of(ResponseError("no such user p@ss"), url) == "ResponseError"
        assert refusal_of(ResponseError("DB index is out of range"), url) == "DB index is out of range"
    assert refusal_of(MovedError("42 10.0.0.7:6379"), "redis://host/0") == "MovedError"
    assert refusal_of(OSError("DB index is out of range"), "redis://host/0") is None


# --------------------------------------------------------------------------------------------- planted values


@pytest.mark.redis
def test_planted_values_are_not_served(shared: RedisServer) -> None:
    """Pickles, plain bytes, other keys' values and every flipped bit are misses, and counted."""

    async def story() -> None:
        async with opened(shared.url, prefix=b"plant:") as store, Redis.from_url(shared.url) as redis:
            await put_now(store, b"key", b"value")
            await put_now(store, b"other tenant", b"secret")
            sealed: Any = await redis.get(store.full_key(b"key"))
            planted: list[Any] = [
                b"",
                b"\x01",
                b"value",
                pickle.dumps({"hits": []}),
                sealed[:-1],
                sealed + b"\x00",
            ]
            planted.append(await redis.get(store.full_key(b"other tenant")))
            planted += [_flipped(sealed, bit) for bit in range(len(sealed) * 8)]
            for value in planted:
                await redis.set(store.full_key(b"key"), value)
                assert await store.get(b"key") is None
            assert store.counts.rejected == len(planted)
            assert store.health == "ok"

    asyncio.run(story())


@pytest.mark.redis
def test_a_planted_list_is_a_miss(shared: RedisServer) -> None:
    """A key of another Redis type is a miss and does not close the cache for other keys."""

    async def story() -> None:
        async with opened(shared.url, prefix=b"list:") as store, Redis.from_url(shared.url) as redis:
            await put_now(store, b"good", b"value")
            await redis.lpush(store.full_key(b"key"), b"a", b"b")
            assert await store.get(b"key") is None
            assert await store.get(b"good") == b"value"

    asyncio.run(story())


def _flipped(sealed: bytes, bit: int) -> bytes:
    changed = bytearray(sealed)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@given(st.binary(max_size=30), st.binary(max_size=30), st.binary(max_size=30), st.binary(max_size=30))
def test_a_seal_binds_key_and_value(key: bytes, value: bytes, other_key: bytes, other_value: bytes) -> None:
    """A sealed value opens for its own key only, and under no other value's seal."""
    sealed = seal(SECRET, key, value)
    assert unseal(SECRET, key, sealed) == value
    assert (unseal(SECRET, other_key, sealed) == value) == (key == other_key)
    assert (unseal(SECRET, key, sealed[:17] + other_value) is None) == (value != other_value)
    assert unseal(SECRET, key, other_value) is None


# ----------------------------------------------------------------------------------------- a Redis that fails


@pytest.mark.redis
def test_killed_and_restarted(own: RedisServer) -> None:
    """After a kill one get fails and no other is tried; after a restart and the wait it serves again."""

    async def story() -> None:
        clock = Clock()
        async with opened(own.url, clock) as store:
            await put_now(store, b"key", b"value")
            own.kill()
            for _ in range(50):
                assert await store.get(b"key") is None
                await put_now(store, b"key", b"value")
            assert store.counts.failures == 1
            assert store.counts.skipped == 99
            assert store.health.startswith("unreachable")

            clock.now_s += RETRY_AFTER_S  # still down: the wait starts anew after one more failure
            assert await store.get(b"key") is None
            assert await store.get(b"key") is None
            assert store.counts.failures == 2

            own.restart()
            assert await store.get(b"key") is None
            assert store.counts.failures == 2
            clock.now_s += RETRY_AFTER_S
            assert await store.get(b"key") is None  # the trial: reached, and empty
            await put_now(store, b"key", b"value")
            assert await store.get(b"key") == b"value"
            assert store.health == "ok"
            assert store.counts.failures == 2

    asyncio.run(story())


@pytest.mark.redis
def test_killed_under_load(own: RedisServer) -> None:
    """A kill among many concurrent gets and puts raises nowhere and serves only right values."""

    async def story() -> None:
        async with opened(own.url) as store:
            for number in range(20):
                await put_now(store, b"%d" % number, b"value %d" % number)

            async def reader(number: int) -> int:
                right = 0
                for _ in range(100):
                    value = await store.get(b"%d" % number)
                    assert value in {None, b"value %d" % number}
                    right += value is not None
                    await store.put(b"%d" % number, b"value %d" % number, 60)
                    await asyncio.sleep(0)
                    if store.counts.hits >= 400:
                        own.kill()
                return right

            hits = sum(await asyncio.gather(*map(reader, range(20))))
            assert 400 <= hits < 2000
            assert store.counts.failures >= 1
            assert store.counts.hits + store.counts.misses == 2000

    asyncio.run(story())


@pytest.mark.redis
def test_hung(own: RedisServer) -> None:
    """A stopped Redis costs LATE_MAX timeouts and one a wait, however many callers there are; resumed, it serves."""

    async def story() -> None:
        clock = Clock()
        async with opened(own.url) as writer, opened(own.url, clock, timeout_ms=300) as store:
            await put_now(writer, b"key", b"value")
            own.pause()
            begun_s = time.monotonic()
            for _ in range(100 + LATE_MAX):
                assert await store.get(b"key") is None
            assert (store.counts.timeouts, store.counts.skipped) == (LATE_MAX, 100)

            clock.now_s += RETRY_AFTER_S
            assert set(await asyncio.gather(*(store.get(b"key") for _ in range(20)))) == {None}
            assert (store.counts.timeouts, store.counts.skipped) == (
                LATE_MAX + 1,
                100,
            )  # they travelled together
            assert time.monotonic() - begun_s < HANG_S_MAX

            own.resume()
            clock.now_s += RETRY_AFTER_S
            store._timeout_s = 2.0  # recovery is what is tested, not the speed of this machine
            assert await store.get(b"key") == b"value"

    asyncio.run(story())


@pytest.mark.redis
def test_puts_to_a_hung_redis_delay_nobody(own: RedisServer) -> None:
    """Puts return at once when Redis hangs, and those beyond the bound are dropped."""

    async def story() -> None:
        async with opened(own.url, timeout_ms=300) as store:
            own.pause()
            for number in range(PUTS_PENDING_MAX + 50):
                await asyncio.wait_for(store.put(b"%d" % number, b"value", 60), HANG_S_MAX)
            assert store.counts.dropped == 50
            await asyncio.wait_for(store.drain(), HANG_S_MAX)
            # Those that had a connection before the breaker opened; the rest met an open one.
            assert LATE_MAX <= store.counts.timeouts <= 2 * PUT_CONNECTIONS_MAX
            assert store.counts.timeouts + store.counts.skipped == PUTS_PENDING_MAX

    asyncio.run(story())


@pytest.mark.redis
def test_a_busy_event_loop_is_not_blamed_on_redis(own: RedisServer) -> None:
    """Replies that came while the loop was held up for longer than the timeout are taken, and nothing opens."""

    async def story() -> None:
        async with opened(own.url) as store:
            await put_now(store, b"key", b"value")
            assert await store.get(b"key") == b"value"
            store._timeout_s = 0.05
            for _ in range(10):
                asked = asyncio.create_task(store.get(b"key"))
                for _ in range(4):
                    await asyncio.sleep(0)
                time.sleep(0.2)  # noqa: ASYNC251 - this is the point
                assert await asked == b"value"
            assert (store.counts.timeouts, store.up) == (0, True)

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.redis
def test_impatient_callers_open_the_breaker_too(own: RedisServer) -> None:
    """Callers that give up on a hung Redis before the timeout do not hide that it hangs."""

    async def story() -> None:
        async with opened(own.url, timeout_ms=1000) as store:
            own.pause()
            for late in range(1, LATE_MAX + 1):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(store.get(b"key"), 0.2)
                await asyncio.sleep(1)
                assert store.counts.timeouts == late
            assert store.health.startswith("unreachable")

    asyncio.run(story())


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _saying(reply: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            # redis-py sends several commands at once on connecting; each wants its reply.
            writer.write(reply * (1 + data.count(b"\r\n*")))
            await writer.drain()

    return handle


async def _silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    # With a linger time of zero, closing sends RST where it would otherwise send FIN.
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"*1\r\n" * 1000)
        await writer.drain()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def fake_server(handle: Handler) -> AsyncIterator[str]:
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await handle(reader, writer)
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in connections:
            task.cancel()


FAULTY: dict[str, Handler] = {
    "web server": _saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "binary": _saying(bytes(range(256))),
    "bad length": _saying(b"$nine\r\nvalue\r\n"),
    "negative length": _saying(b"$-7\r\n"),
    "endless length": _saying(b"$99999999999\r\nvalue\r\n"),
    "integer": _saying(b":1\r\n"),
    "array": _saying(b"*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
    "error": _saying(b"-ERR no\r\n"),
    "loading": _saying(b"-LOADING Redis is loading the dataset in memory\r\n"),
    "error of no kind": _saying(b"-\xff\xfe\r\n"),
    "half a reply": _saying(b"$5\r\nval"),
    "nesting": _babble,
    "silence": _silence,
    "reset": _reset,
}


@pytest.mark.parametrize("handle", FAULTY.values(), ids=FAULTY.keys())
def test_a_faulty_server_costs_one_failure_a_wait(handle: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nonsense, silence and resets are one counted failure; then nothing is sent until the wait is over."""
    monkeypatch.setattr(store_module, "LATE_MAX", 1)

    async def story() -> None:
        clock = Clock()
        begun_s = time.monotonic()
        async with fake_server(handle) as url, opened(url, clock, timeout_ms=300) as store:
            for waits in range(1, 3):
                for _ in range(20):
                    assert await store.get(b"key") is None
                    await put_now(store, b"key", b"value")
                assert store.counts.failures + store.counts.timeouts == waits
                clock.now_s += RETRY_AFTER_S
        assert time.monotonic() - begun_s < HANG_S_MAX

    asyncio.run(story())


@pytest.mark.parametrize(
    "reply", [b"+OK\r\n", b"$-1\r\n", b"$5\r\nvalue\r\n", b"$0\r\n\r\n", b"+OK\r\n+OK\r\n$5\r\nvalue\r\n"]
)
def test_well_formed_lies_are_misses(reply: bytes) -> None:
    """A server whose replies are well-formed and untrue never makes a hit."""

    async def story() -> None:
        async with fake_server(_saying(reply)) as url, opened(url) as store:
            for _ in range(5):
                await put_now(store, b"key", b"value")
                assert await store.get(b"key") is None
            assert store.counts.hits == 0

    asyncio.run(story())


def test_the_far_store_may_be_down() -> None:
    """With Redis unreachable the cache is as good as memory alone."""

    async def story() -> None:
        async with opened(_unreachable()) as far:
            cache = ResultCache(MemoryStore(100_000, Clock()), far, ttl_s=60, now=Clock())
            key, other = (
                cache.key("c", b"", request, content=b"", opening=b"", generation=0, tuned_ms=0)
                for request in (b"1", b"2")
            )
            await cache.put(key, b"value")
            assert await cache.get(key) == b"value"
            assert await cache.get(other) is None
            await far.drain()
            assert far.health.startswith("unreachable")

    asyncio.run(story())


# ----------------------------------------------------------------------------------------- bounds and closing


def test_a_huge_value_is_not_sent() -> None:
    """A value above the bound is dropped before anything is tried."""

    async def story() -> None:
        async with opened(_unreachable()) as store:
            await put_now(store, b"key", b"x" * (VALUE_BYTES_MAX + 1))
            assert (store.counts.dropped, store.counts.failures) == (1, 0)

    asyncio.run(story())


def test_a_closed_store_is_silent() -> None:
    """After close, gets miss and puts drop without anything being tried; closing twice is fine."""

    async def story() -> None:
        async with opened(_unreachable()) as store:
            await store.close()
            await store.put(b"key", b"value", 60)
            assert await store.get(b"key") is None
            assert (store.counts.dropped, store.counts.skipped, store.counts.failures) == (1, 1, 0)
            assert store.health == "closed"

    asyncio.run(story())


def test_close_does_not_wait_for_a_hung_redis() -> None:
    """Pending puts are given up on close."""

    async def story() -> None:
        async with fake_server(_silence) as url, opened(url, timeout_ms=60_000) as store:
            await store.put(b"key", b"value", 60)
            await asyncio.sleep(0.05)
            await asyncio.wait_for(store.close(), HANG_S_MAX)

    asyncio.run(story())


@pytest.mark.parametrize("url", ["http://user:hunter2@host", "redis://user:hunter2@host:hunter2", "hunter2"])
def test_a_bad_url_is_refused_without_quoting_it(url: str) -> None:
    """An unusable url is an error at once, and a password in it stays out of the message."""
    with pytest.raises(InvalidInput, match=r"redis\.url is not a usable address") as refused:
        RedisStore(url, secret=SECRET, timeout_ms=20, retry_after_s=1, prefix=b"", clock=Clock())
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("secret", [b"", b"short", b"x" * 65])
def test_a_weak_secret_is_refused(secret: bytes) -> None:
    """A secret too short to protect anything, or too long to be used whole, is an error at once."""
    with pytest.raises(ValueError, match="secret"):
        RedisStore(
            "redis://127.0.0.1", secret=secret, timeout_ms=20, retry_after_s=1, prefix=b"", clock=Clock()
        )


def _unreachable() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"redis://127.0.0.1:{probe.getsockname()[1]}"


# ------------------------------------------------------------------------------------------ when to try again


def test_an_abandoned_trial_lets_the_next_one_try() -> None:
    """A trial whose caller goes away neither closes the breaker nor blocks it for good."""
    clock = Clock()
    breaker = RedisBreaker(RETRY_AFTER_S, clock)
    assert breaker.admit() == "ordinary"
    breaker.failed("ordinary", OSError())
    assert breaker.admit() is None
    clock.now_s += RETRY_AFTER_S
    assert breaker.admit() == "trial"
    assert breaker.admit() is None
    breaker.abandoned("trial")
    assert breaker.admit() == "trial"
    breaker.succeeded("trial")
    assert breaker.admit() == "ordinary"


def test_a_late_answer_now_and_then_opens_nothing() -> None:
    """Several in a row do, and at once if Redis was unwell before."""
    clock = Clock()
    breaker = RedisBreaker(RETRY_AFTER_S, clock)
    for late in (LATE_MAX - 1, LATE_MAX - 1, LATE_MAX):
        breaker.succeeded("ordinary")
        assert breaker.closed
        for _ in range(late):
            breaker.failed("ordinary", TimeoutError())
    assert not breaker.closed
    clock.now_s += RETRY_AFTER_S
    assert breaker.admit() == "trial"
    breaker.failed("trial", TimeoutError())
    assert breaker.admit() is None


def test_what_was_under_way_at_the_failure_decides_nothing() -> None:
    """Late results of earlier operations neither close the breaker nor prolong the wait."""
    clock = Clock()
    breaker = RedisBreaker(RETRY_AFTER_S, clock)
    breaker.failed("ordinary", OSError())
    breaker.succeeded("ordinary")
    assert breaker.admit() is None
    clock.now_s += RETRY_AFTER_S - 1
    breaker.failed("ordinary", OSError())
    clock.now_s += 1
    assert breaker.admit() == "trial"


def test_health_names_the_reason_and_no_address() -> None:
    """The line for the operator says what kind of failure it was and when the next trial is due."""
    breaker = RedisBreaker(RETRY_AFTER_S, Clock())
    breaker.failed("ordinary", ConnectionError("redis://user:hunter2@host"))
    assert breaker.health == "unreachable: ConnectionError, next trial in 10.0 s"
