"""How much each access key may use: requests per second, per day, and at one time.

    meters in this process              enforce the limits alone, even while Redis is down
    prefix:scope:limits:<key> in Redis  counts for all services that share one, a hash with a token bucket and a day
    prefix:scope:told:<service>         is there if Redis was not emptied since the service told it all its counts
    data/usage.json                     the counts of the day, so that a restart does not reset them

A request counts as one, a batch as its searches, a context as its queries. The bucket holds what a second allows. What
a request turns out to cost beyond one is always taken, and later requests wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from indexes.base.durable import publish
from indexes.base.errors import NearlineError, message_of
from retrieval.base.settings import Positive
from retrieval.wire.decoding import Doc
from retrieval.wire.errors import RateLimited

logger = logging.getLogger(__name__)

FILE = "usage.json"
WRITE_EVERY_S = 5.0
DAY_S = 86_400
BURST_S = 1.0
ROUNDING_S = 1e-6  # rounding error of sums of times
WAIT_S = 1.0  # asked of a key with too many requests in progress

# Uses the clock of Redis, so the clocks of the services need not agree. Returns the wait in microseconds, 0 if the
# request may proceed; the limit that it waits for, 1 for the rate and 2 for the day; the day; and its count. ARGV:
# microseconds per request, the microseconds' worth that the bucket holds, requests per day (-1: no limit), cost, 1 to
# take it even from an empty bucket, and the day and count of an earlier reply: Redis may have been emptied since.
SCRIPT = """
local t = redis.call('TIME')
local now, day = t[1] * 1000000 + t[2], math.floor(t[1] / 86400)
local held = redis.call('HMGET', KEYS[1], 'full_at', 'day', 'used')
local a_request, burst, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local cost, forced = tonumber(ARGV[4]), ARGV[5] == '1'
local full_at = math.max(tonumber(held[1]) or 0, now)
local used = tonumber(held[2]) == day and tonumber(held[3]) or 0
if tonumber(ARGV[6]) == day then
  used = math.max(used, tonumber(ARGV[7]))
end
if most >= 0 and used + cost > most then
  return {(day + 1) * 86400000000 - now, 2, day, used}
end
local wait = full_at + a_request - burst - now
if wait > 0 and not forced then
  return {math.ceil(wait), 1, day, used}
end
full_at = string.format('%.0f', full_at + cost * a_request)
redis.call('HSET', KEYS[1], 'full_at', full_at, 'day', day, 'used', used + cost)
redis.call('EXPIRE', KEYS[1], 172800)
return {0, 0, day, used + cost}
"""


# Raises a count of the day to one that a service knows, unless its clock is in another day. ARGV: day and count.
TELL = """
local t = redis.call('TIME')
local day = math.floor(t[1] / 86400)
local held = redis.call('HMGET', KEYS[1], 'day', 'used')
local used = tonumber(held[1]) == day and tonumber(held[2]) or 0
if tonumber(ARGV[1]) == day and tonumber(ARGV[2]) > used then
  redis.call('HSET', KEYS[1], 'day', day, 'used', ARGV[2])
  redis.call('EXPIRE', KEYS[1], 172800)
end
return {}
"""
# Whether a service has told all its counts. ARGV: 1 to note that it has.
TOLD = """
if ARGV[1] == '1' then
  redis.call('SET', KEYS[1], '1')
end
return {redis.call('EXPIRE', KEYS[1], 172800)}
"""


Rate = Annotated[float, Meta(ge=0.001, le=1_000_000)]


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The limits of one key; null is no limit."""

    per_second: Annotated[
        Rate | None, Doc("Requests per second on average; a second's worth may come at once")
    ] = None
    per_day: Annotated[Positive | None, Doc("Requests per day, from midnight to midnight UTC")] = None
    at_once: Annotated[Positive | None, Doc("Requests in progress at one time")] = None


Natural = Annotated[int, Meta(ge=0)]
Reply = tuple[Natural, Literal[0, 1, 2], Natural, Natural]  # of SCRIPT


class SharedCounts(Protocol):
    """What the limits need from Redis."""

    async def run_script(self, script: str, key: bytes, *arguments: int) -> list[object] | None:
        """Return the reply; None if there is none in time."""


class Usage(msgspec.Struct):
    """As stored: requests by key id, on one day since 1970."""

    day: int = 0
    used: dict[str, int] = msgspec.field(default_factory=dict)

    def copy(self) -> Usage:
        return Usage(self.day, dict(self.used))


class Meter:
    """A token bucket, represented by the time at which it is full again; the number of requests in progress; and the
    day and the count that Redis replied last."""

    __slots__ = ("full_at", "shared", "under_way")

    def __init__(self) -> None:
        self.full_at = -math.inf
        self.shared = (0, 0)
        self.under_way = 0


class Limiter:
    """Enforces the limits of all keys. Use from one event loop."""

    def __init__(
        self,
        folder: Path,
        shared: SharedCounts | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is monotonic, `now` tells which day it is; both in seconds."""
        self.shared = shared
        self._path = folder / FILE
        self._clock = clock
        self._now = now
        self._meters: dict[str, Meter] = {}
        self._usage = read_usage(folder)
        self._written = self._usage.copy()
        self._told = b"told:" + secrets.token_hex(8).encode()

    @contextmanager
    def under_way(self, key: str, limits: Limits | None) -> Iterator[None]:
        """Count one request as in progress within the block. Raises RateLimited for one too many."""
        if limits is None:
            yield
            return
        meter = self._meter(key)
        if limits.at_once is not None and meter.under_way >= limits.at_once:
            raise RateLimited(
                f"this key has {meter.under_way} requests under way, and may have {limits.at_once} at one time",
                limit="at_once",
                retry_after_s=WAIT_S,
            )
        meter.under_way += 1
        try:
            yield
        finally:
            meter.under_way -= 1

    async def take(self, key: str, limits: Limits | None, cost: int = 1, *, forced: bool = False) -> None:
        """Count a request, or what it costs beyond one (`forced`: even from an empty bucket).

        Raises RateLimited, saying when to come back; then nothing was counted.
        """
        if limits is None:
            return
        meter, used = self._meter(key), self._today().used
        if limits.per_day is not None and used.get(key, 0) + cost > limits.per_day:
            raise self._refusal(limits, "day", DAY_S - self._now() % DAY_S)
        interval, burst = interval_s(limits)
        now = self._clock()
        full_at = max(meter.full_at, now)
        if not forced and (wait_s := full_at + interval - burst - now) > ROUNDING_S:
            raise self._refusal(limits, "second", wait_s)
        meter.full_at = full_at + cost * interval
        used[key] = used.get(key, 0) + cost
        if self.shared is not None:
            await self._take_shared(self.shared, key, limits, cost, forced=forced)

    async def _take_shared(
        self, shared: SharedCounts, key: str, limits: Limits, cost: int, *, forced: bool
    ) -> None:
        meter = self._meter(key)
        interval, burst = (round(one * 1e6) for one in interval_s(limits))
        most = -1 if limits.per_day is None else limits.per_day
        reply = await shared.run_script(
            SCRIPT, b"limits:" + key.encode(), interval, burst, most, cost, int(forced), *meter.shared
        )
        try:
            wait_us, limit, day, used = msgspec.convert(reply, Reply)
        except msgspec.ValidationError:
            return  # no Redis, or a reply that makes no sense: the limits of this process apply
        known_day, known = meter.shared
        meter.shared = day, max(used, known) if day == known_day else used
        usage = self._today()  # a new day may have begun
        refused = wait_us > 0 and (limits.per_second if limit == 1 else limits.per_day)
        own = max(0, usage.used.get(key, 0) - (cost if refused else 0))
        if day != usage.day:
            used = 0  # the clocks differ: the count of yesterday must not begin the new day
        usage.used[key] = max(own, used if limits.per_day is None else min(used, limits.per_day))
        if refused:
            meter.full_at -= cost * interval / 1e6
            raise self._refusal(limits, "second" if limit == 1 else "day", min(wait_us / 1e6, DAY_S))

    def used_today(self, key: str) -> int:
        """Return the requests of this key since midnight UTC; with a Redis, of all services that share it."""
        return self._today().used.get(key, 0)

    async def keep_writing(self) -> None:
        """Store the counts, and tell Redis, every WRITE_EVERY_S until cancelled."""
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            await asyncio.to_thread(self.write)
            await self.tell()

    async def tell(self) -> None:
        """Tell Redis the counts of the day, if it was emptied: another service may ask for a key before this one."""
        if (shared := self.shared) is None or await shared.run_script(TOLD, self._told, 0) != [0]:
            return
        usage = self._today().copy()
        for key, used in usage.used.items():
            if await shared.run_script(TELL, b"limits:" + key.encode(), usage.day, used) is None:
                return  # next time
        await shared.run_script(TOLD, self._told, 1)

    def write(self) -> None:
        """Store the counts of the day, if they changed. A failure is logged, and limits work without."""
        usage = self._usage.copy()
        if usage == self._written:
            return
        try:
            publish(self._path, msgspec.json.encode(usage), mode=0o600)
            self._written = usage
        except (NearlineError, OSError) as error:
            logger.error("the counts of requests cannot be written: %s", error)

    def _meter(self, key: str) -> Meter:
        return self._meters.setdefault(key, Meter())

    def _today(self) -> Usage:
        day = today(self._now())
        if self._usage.day != day:
            self._usage = Usage(day)
        return self._usage

    def _refusal(self, limits: Limits, limit: str, wait_s: float) -> RateLimited:
        most = (
            f"{limits.per_day} requests a day"
            if limit == "day"
            else f"{limits.per_second:g} requests a second"
        )
        return RateLimited(f"this key may send {most}", limit=limit, retry_after_s=wait_s)


def today(now: float | None = None) -> int:
    """Return the days since 1970, UTC."""
    return int((time.time() if now is None else now) // DAY_S)


def interval_s(limits: Limits) -> tuple[float, float]:
    """Return the seconds between two requests, and how many seconds' worth may come at once."""
    interval = 1 / limits.per_second if limits.per_second else 0.0
    return interval, max(interval, BURST_S)


def read_usage(folder: Path) -> Usage:
    """Read the counts stored last; nothing if they cannot be read."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Usage)
    except FileNotFoundError:
        return Usage()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.warning("the counts of requests cannot be read, and start at 0: %s", message_of(error))
        return Usage()
