"""Limits of access keys: requests a second, a day and at one time, with Redis and without."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from indexes.base.errors import InvalidInput
from retrieval.access.auth import Keys
from retrieval.access.key_file import Scope
from retrieval.access.limits import DAY_S, Limiter, Limits, SharedCounts
from retrieval.cache.redis_store import RedisStore
from retrieval.clients.errors import ServiceError
from retrieval.clients.transport import Patience
from retrieval.server.routes import ROUTES
from retrieval.wire.errors import RateLimited
from tests.support.guarded import Caller, Guarded, guarded_service, key
from tests.support.redis_server import RedisServer, redis_server


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Answering(SharedCounts):
    """A Redis that answers the same to everything."""

    def __init__(self, reply: list[object] | None) -> None:
        self.reply = reply

    async def run_script(self, script: str, key: bytes, *arguments: int) -> list[object] | None:
        return self.reply


def limiter(folder: Path, clock: Clock, shared: SharedCounts | None = None) -> Limiter:
    return Limiter(folder, shared, clock=clock, now=clock)


async def taken(limiter: Limiter, limits: Limits, cost: int = 1, **options: Any) -> bool:
    try:
        await limiter.take("k", limits, cost, **options)
    except RateLimited:
        return False
    return True


@pytest.mark.parametrize("rate", [0.5, 7, 100])
@pytest.mark.parametrize(
    "shared", [None, Answering(None), Answering([b"no", "such", {}]), Answering([0, 0, -5])]
)
def test_a_rate_holds_within_five_percent(tmp_path: Path, rate: float, shared: SharedCounts | None) -> None:
    """Over two minutes of asking far too often, without Redis, with a dead one and with a lying one."""

    async def ask() -> int:
        clock = Clock()
        limited = limiter(tmp_path, clock, shared)
        passed = 0
        for _ in range(round(120 * rate * 4)):
            passed += await taken(limited, Limits(per_second=rate))
            clock.now += 1 / (rate * 4)
        return passed

    assert 120 * rate * 0.95 <= asyncio.run(ask()) <= 120 * rate * 1.05


def test_a_second_may_come_at_once(tmp_path: Path) -> None:
    """And of a rate below one a second, one request."""

    async def ask(rate: float) -> int:
        limited = limiter(tmp_path, Clock())
        return sum([await taken(limited, Limits(per_second=rate)) for _ in range(50)])

    assert [asyncio.run(ask(rate)) for rate in (10, 1, 0.1)] == [10, 1, 1]


def test_a_refusal_says_when_to_come_back(tmp_path: Path) -> None:
    """A moment before that it is refused again, then it passes."""

    async def ask() -> None:
        clock = Clock()
        limited, limits = limiter(tmp_path, clock), Limits(per_second=0.25)
        assert await taken(limited, limits)
        with pytest.raises(RateLimited, match=r"0\.25 requests a second") as refused:
            await limited.take("k", limits)
        clock.now += refused.value.retry_after_s - 0.001
        assert not await taken(limited, limits)
        clock.now += 0.002
        assert await taken(limited, limits)

    asyncio.run(ask())


def test_what_costs_more_is_paid_off(tmp_path: Path) -> None:
    """A batch passes, and the requests after it wait until the rate has caught up with it."""

    async def ask() -> None:
        clock = Clock()
        limited, limits = limiter(tmp_path, clock), Limits(per_second=10)
        assert await taken(limited, limits)
        assert await taken(limited, limits, 99, forced=True)
        clock.now += 8.9
        assert not await taken(limited, limits)
        clock.now += 0.2
        assert await taken(limited, limits)

    asyncio.run(ask())


def test_a_day_has_its_number(tmp_path: Path) -> None:
    """Also for what costs more than is left, which counts nothing; the next day begins anew."""

    async def ask() -> None:
        clock = Clock(DAY_S * 20_000 + 80_000.0)
        limited, limits = limiter(tmp_path, clock), Limits(per_day=10)
        assert sum([await taken(limited, limits) for _ in range(8)]) == 8
        assert not await taken(limited, limits, 3, forced=True)
        assert limited.used_today("k") == 8
        assert await taken(limited, limits, 2, forced=True)
        with pytest.raises(RateLimited) as refused:
            await limited.take("k", limits)
        assert refused.value.retry_after_s == 6400
        clock.now += 6400
        assert await taken(limited, limits)
        assert limited.used_today("k") == 1

    asyncio.run(ask())


def test_a_restart_forgives_nothing(tmp_path: Path) -> None:
    """The counts of the day come back; those of another day, or of a damaged file, do not."""

    async def ask() -> None:
        clock = Clock(DAY_S * 20_000.0)
        first = limiter(tmp_path, clock)
        assert [await taken(first, Limits(per_day=2)) for _ in range(3)] == [True, True, False]
        first.write()
        again = limiter(tmp_path, clock)
        assert not await taken(again, Limits(per_day=2))
        assert await taken(again, Limits(per_day=4))
        again.write()
        assert limiter(tmp_path, clock).used_today("k") == 3
        assert await taken(limiter(tmp_path, Clock(DAY_S * 20_001.0)), Limits(per_day=2))
        for damaged in (b"{", b'{"day":1,"used":{"\xff":1}}'):
            (tmp_path / "usage.json").write_bytes(damaged)
            assert await taken(limiter(tmp_path, clock), Limits(per_day=2))

    asyncio.run(ask())


@pytest.mark.parametrize(
    "reply",
    [
        [5_000_000, 1, 20_000, 1],
        [5, 7, 20_000, 1],
        [5, b"\xff", 20_000, 1],
        [0, 0, 20_000, 10**15],
        [0, 0, 10**15, 1],
        [10**15, 2, 20_000, 0],
        [0, 0, 1],
    ],
)
def test_no_reply_of_redis_breaks_a_request(tmp_path: Path, reply: list[object]) -> None:
    """One of the right shape with wrong values may refuse a request; it is not counted as more than the limit."""

    async def ask() -> None:
        clock = Clock(DAY_S * 20_000.0)
        limited, limits = limiter(tmp_path, clock, Answering(reply)), Limits(per_day=3)
        await taken(limited, limits)
        assert limited.used_today("k") <= 3
        only_rate = limiter(tmp_path, clock, Answering(reply))
        await taken(only_rate, Limits(per_second=1))
        await taken(only_rate, Limits(at_once=1))

    asyncio.run(ask())


def test_midnight_may_come_while_redis_is_asked(tmp_path: Path) -> None:
    """The new day begins with what it says."""

    async def ask() -> None:
        clock = Clock(DAY_S * 20_001.0 - 1)

        class Slow(SharedCounts):
            async def run_script(self, script: str, key: bytes, *arguments: int) -> list[object] | None:
                clock.now += 2
                return [0, 0, 20_001, 1]

        limited = limiter(tmp_path, clock, Slow())
        assert await taken(limited, Limits(per_day=5))
        assert limited.used_today("k") == 1

    asyncio.run(ask())


def test_the_clock_of_redis_may_be_late(tmp_path: Path) -> None:
    """A key that has used up its day comes back at midnight, when it is still yesterday there: it waits for those
    moments, and not for another day."""

    async def ask() -> None:
        clock = Clock(DAY_S * 20_001.0)
        redis = Answering([50_000, 2, 20_000, 10])
        limited, limits = limiter(tmp_path, clock, redis), Limits(per_day=10)
        with pytest.raises(RateLimited) as refused:
            await limited.take("k", limits)
        assert refused.value.retry_after_s == 0.05
        assert limited.used_today("k") == 0
        redis.reply = [0, 0, 20_001, 1]
        assert await taken(limited, limits)

    asyncio.run(ask())


def test_only_so_many_at_one_time(tmp_path: Path) -> None:
    """One that has ended, well or not, makes room."""
    limited, limits = limiter(tmp_path, Clock()), Limits(at_once=2)
    with limited.under_way("k", limits):
        with pytest.raises(ZeroDivisionError), limited.under_way("k", limits):
            raise ZeroDivisionError
        with limited.under_way("k", limits), pytest.raises(RateLimited, match="2 requests under way"):
            with limited.under_way("k", limits):
                pass
        with limited.under_way("other", limits):
            pass


# --- services that share a Redis --------------------------------------------------------------------------------


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


def store(server: RedisServer) -> RedisStore:
    return RedisStore(
        server.url, secret=b"s" * 32, timeout_ms=2000, retry_after_s=60, prefix=b"t", clock=time.monotonic
    )


def test_services_share_the_limits(tmp_path: Path, redis: RedisServer) -> None:
    """Two of them let pass together what one may, by the clock of Redis; what was refused there counts nowhere."""

    async def ask() -> None:
        stores = [store(redis), store(redis)]
        limiters = [Limiter(tmp_path / str(at), one) for at, one in enumerate(stores)]
        limits, passed = Limits(per_second=40), 0
        for one in itertools.islice(itertools.cycle(limiters), 100):  # the bucket
            await taken(one, limits)
        begun = time.monotonic()
        while time.monotonic() - begun < 2:
            for one in limiters:
                passed += await taken(one, limits)
            await asyncio.sleep(0.002)
        allowed = 40 * (time.monotonic() - begun)
        assert 0.9 * allowed - 1 <= passed <= 1.05 * allowed + 1
        daily = Limits(per_day=10)
        assert (
            sum([await taken(one, daily) for one in limiters * 10]) == 0
        )  # more than ten are counted already
        first, second = (one.used_today("k") for one in limiters)
        assert abs(first - second) <= 1  # the last request that passed may be known to one of them only
        for opened in stores:
            await opened.close()

    asyncio.run(ask())


@pytest.mark.parametrize("trouble", [RedisServer.kill, RedisServer.pause])
def test_without_redis_each_holds_them(
    tmp_path: Path, redis: RedisServer, trouble: Callable[[RedisServer], None]
) -> None:
    """A Redis that dies or is late forgives nothing: this process has counted too, and has heard what others used. From
    then on each lets through what is left by its own count."""

    async def ask() -> None:
        stores = [store(redis), store(redis)]
        ours, other = (Limiter(tmp_path / str(at), one) for at, one in enumerate(stores))
        limits = Limits(per_second=0.01, per_day=100)
        assert await taken(other, limits, 50, forced=True)
        assert await taken(ours, limits, 10, forced=True)
        trouble(redis)
        assert not await taken(ours, limits)
        assert ours.used_today("k") == 60
        for limiter, left in ((ours, 40), (other, 50)):
            assert await taken(limiter, limits, left, forced=True)
            assert not await taken(limiter, limits, 1, forced=True)
        for opened in stores:
            await opened.close()

    asyncio.run(ask())


def test_a_redis_that_was_emptied_forgives_nothing(tmp_path: Path, redis: RedisServer) -> None:
    """It hears from each service the count that this one was told last."""

    async def ask() -> None:
        stores = [store(redis) for _ in range(4)]
        limits = Limits(per_day=100)
        limiters = [Limiter(tmp_path / str(at), one) for at, one in enumerate(stores)]
        passed = sum(await asyncio.gather(*(taken(one, limits) for one in limiters for _ in range(10))))
        assert passed == 40  # however many are under way, none counts twice
        passed += sum([await taken(one, limits) for one in limiters])
        async with Redis.from_url(redis.url) as client:
            await client.flushall()
        passed += sum([await taken(one, limits) for one in limiters * 50])
        assert 100 <= passed <= 103  # the other three knew the newest counts only one after the other
        for opened in stores:
            await opened.close()

    asyncio.run(ask())


def test_a_redis_that_was_emptied_is_told_by_services_that_are_not_asked(
    tmp_path: Path, redis: RedisServer
) -> None:
    """Another service, which has never seen the key, lets no more through than were left."""

    async def ask() -> None:
        stores = [store(redis) for _ in range(2)]
        limits = Limits(per_day=40)
        asked, other = (Limiter(tmp_path / str(at), one) for at, one in enumerate(stores))
        await asked.tell()
        assert sum([await taken(asked, limits) for _ in range(35)]) == 35
        for _ in range(2):
            async with Redis.from_url(redis.url) as client:
                await client.flushall()
            await asked.tell()
            await asked.tell()
        assert sum([await taken(other, limits) for _ in range(40)]) == 5
        for opened in stores:
            await opened.close()

    asyncio.run(ask())


# --- over HTTP --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Guarded]:
    data, environ = (
        tmp_path_factory.mktemp("limited") / "data",
        {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)},
    )
    with guarded_service(data, environ) as found:
        admin = found.caller("admin")
        admin.ok("POST", "/v1/collections", {"name": "docs"})
        admin.write("docs", {"id": "a", "text": "Refunds within 30 days"})
        yield found


def limited(guarded: Guarded, *scopes: Scope, **limits: Any) -> Caller:
    return guarded.caller(*(scopes or ("search",)), limits=Limits(**limits))


@pytest.mark.slow
def test_a_key_has_its_limits(guarded: Guarded) -> None:
    """429 with the time to wait; other keys are not concerned. What it used is listed for who makes keys."""
    caller = limited(guarded, per_second=0.02)
    assert caller.found("docs", query="refunds") == ["a"]
    reply = caller.call("POST", "/v1/collections/docs/search", {"query": "refunds"})
    assert (reply.status, reply.body["error"]["type"]) == (429, "rate_limited")
    assert 45 <= int(reply.headers["Retry-After"]) <= 50
    assert guarded.caller("search").found("docs", query="refunds") == ["a"]
    used = {one["id"]: one["used_today"] for one in guarded.caller("admin").ok("GET", "/v1/keys")["keys"]}
    assert used[caller.token.split("_")[1]] == 1


def test_refusals_are_counted_by_the_status_that_is_sent(guarded: Guarded) -> None:
    """In every dialect, so that rules for alerts can leave them out of the answers of each status."""
    metrics, caller = guarded.caller("metrics"), limited(guarded, per_day=1)

    def counted() -> Counter[str]:
        found = text_string_to_metric_families(metrics.ok("GET", "/metrics"))
        samples = [
            one for family in found if family.name == "nearline_rate_limited" for one in family.samples
        ]
        return Counter(
            {one.labels["status"]: int(one.value) for one in samples if one.labels["limit"] == "day"}
        )

    before = counted()
    assert before.keys() == {"429", "503"}  # a missing sample would keep rules from firing
    caller.found("docs", query="refunds")
    paths = [one.path for one in ROUTES if one.load == "embed"]
    sent = Counter(str(caller.call("POST", path, {}).status) for path in paths)
    assert counted() - before == sent
    assert sent.keys() == {"429", "503"}


def test_a_batch_counts_as_its_searches(guarded: Guarded) -> None:
    """And a context as its queries; what does not fit into the day is refused whole."""
    caller = limited(guarded, per_day=10)
    search = {"query": "refunds"}
    caller.ok("POST", "/v1/collections/docs/search/batch", {"searches": [search] * 5})
    caller.ok("POST", "/v1/collections/docs/context", {"queries": ["refunds", "returns"], "token_budget": 99})
    reply = caller.call("POST", "/v1/collections/docs/search/batch", {"searches": [search] * 5})
    assert (reply.status, reply.body["error"]["type"]) == (429, "rate_limited")
    for _ in range(2):  # the refused batch was a request
        caller.ok("POST", "/v1/collections/docs/search", search)
    assert caller.call("POST", "/v1/collections/docs/search", search).status == 429


def test_what_no_day_has_room_for_is_not_put_off(guarded: Guarded) -> None:
    """Whatever has more searches than a day's number, in each way of asking for several, is too large."""
    caller = limited(guarded, per_day=2)
    bodies: dict[str, dict[str, object]] = {
        "/v1/collections/docs/search/batch": {"searches": [{"query": "refunds"}] * 3},
        "/v1/collections/docs/context": {"queries": ["refunds", "returns", "parcels"], "token_budget": 99},
    }
    for path, body in bodies.items():
        reply = caller.call("POST", path, body)
        assert (reply.status, reply.body["error"]["type"]) == (413, "too_large")
        assert "Retry-After" not in reply.headers


def test_it_is_refused_before_its_body(guarded: Guarded) -> None:
    """A client that has sent only the head of a large write hears it."""
    caller = limited(guarded, "write", per_second=0.01)
    caller.write("docs", {"id": "b", "text": "Returns"})
    host, port = guarded.server.url.removeprefix("http://").split(":")
    head = (
        f"POST /v1/collections/docs/documents HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {caller.token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 429 ")


def test_a_client_does_not_wait_for_tomorrow() -> None:
    """It tries again where the service says when, but not for longer than it is patient."""
    full = ServiceError("full", status=429, kind="rate_limited", retry_after_s=7200)
    with pytest.raises(ServiceError):
        Patience(busy_s=60, away_s=60).pause_s(full, begun=time.monotonic(), attempt=0, twice=True)


def test_limits_have_bounds(tmp_path: Path) -> None:
    """Named with the field, for commands and over HTTP."""
    with pytest.raises(InvalidInput, match="per_second"):
        Keys(tmp_path).create(key("search", limits=Limits(per_second=0)))
    with pytest.raises(InvalidInput, match="at_once"):
        Keys(tmp_path).create(key("search", limits=Limits(at_once=-1)))
