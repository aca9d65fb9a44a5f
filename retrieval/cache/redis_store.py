"""A store in Redis, shared by services, built so that a Redis killed, hung, reset or lying is not noticed.

What an operator may rely on:

1. A get takes at most about `timeout_ms`, all in all: waiting for a free connection, connecting, sending,
   reading.
2. After a failure nothing is sent for `retry_after_s`; then one operation tries while the others still miss
   at once. A dead Redis so costs one request `timeout_ms` each `retry_after_s`, apart from those already
   under way when it died.
3. A put never delays its caller: it runs in the background, at most `PUTS_PENDING_MAX` at once, more are
   dropped.
4. A value is served only when its digest proves that a holder of the secret put it under this very key. Bytes
   planted or flipped in Redis are a miss, checked before anybody decodes them. There is no pickle.
5. Holders of different secrets use different keys, and so neither read nor overwrite each other's values.

    key in Redis:     prefix | ":" | hash of the secret, 16 hex digits | ":" | key
    value in Redis:   version (1 byte) | digest (16 bytes) | value
    digest:           BLAKE2b, keyed with the secret, over version | length of key (4 bytes) | key | value
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Final

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import InvalidResponse, ResponseError

from retrieval.cache.store import Breaker, StoreCounts

VERSION: Final = b"\x01"
DIGEST_BYTES: Final = 16
SCOPE_BYTES: Final = 8
SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 64  # the longest key BLAKE2b takes

GET_CONNECTIONS_MAX: Final = 12  # 2 cores never have more searches than this waiting for Redis at one moment
PUT_CONNECTIONS_MAX: Final = 4  # apart from the above, so that a burst of puts cannot make the gets wait
PUTS_PENDING_MAX: Final = 256
READS: Final[dict[str, tuple[type, ...]]] = {"GET": (bytes, type(None)), "EVAL": (list,)}  # what they return
VALUE_BYTES_MAX: Final = 1 << 20  # a bigger one might miss the timeout and make Redis look sick


class RedisStore:
    """Implements `Store` on Redis at `url` (redis://, rediss:// or unix://). Connects when first used.

    Raises ValueError at once for an unusable url or secret (its text does not quote them), and later nothing
    but the caller's own cancellation. `secret` has 16 to 64 bytes; stores with different secrets do not see
    each other's values, nor do those with different prefixes. `clock` is monotonic and counts seconds; it
    only decides when to try again.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: bytes,
        timeout_ms: float,
        retry_after_s: float,
        prefix: bytes,
        clock: Callable[[], float],
    ) -> None:
        if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
            raise ValueError(f"secret: {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, got {len(secret)}")
        self.counts = StoreCounts()
        self.breaker = Breaker(retry_after_s, clock)
        self._secret = secret
        scope = blake2b(key=secret, digest_size=SCOPE_BYTES, person=b"nearline-scope").hexdigest()
        self._prefix = b"%s:%s:" % (prefix, scope.encode())
        self._timeout_s = timeout_ms / 1000
        client = _client(url)
        self._disconnect: Callable[[], Awaitable[None]] = client.aclose
        self._execute: Callable[..., Awaitable[object]] = client.execute_command  # untyped in redis-py
        self._get_slots = asyncio.Semaphore(GET_CONNECTIONS_MAX)
        self._put_slots = asyncio.Semaphore(PUT_CONNECTIONS_MAX)
        self._puts: set[asyncio.Task[None]] = set()
        self._closed = False

    def full_key(self, key: bytes) -> bytes:
        """What Redis knows the key by."""
        return self._prefix + key

    async def get(self, key: bytes) -> bytes | None:
        full_key = self.full_key(key)
        reply = await self._read("GET", full_key)
        value = None
        if isinstance(reply, bytes):
            value = unseal(self._secret, full_key, reply)
            self.counts.rejected += value is None
        if value is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
        return value

    async def put(self, key: bytes, value: bytes, ttl_s: int) -> None:
        if ttl_s < 1:
            return
        if self._closed or len(self._puts) >= PUTS_PENDING_MAX or len(value) > VALUE_BYTES_MAX:
            self.counts.dropped += 1
            return
        task = asyncio.create_task(self._send(self.full_key(key), value, ttl_s))
        self._puts.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._puts.discard)

    async def run_script(self, script: str, key: bytes, *arguments: int) -> list[object] | None:
        """What a Lua script returns for this key, a list; None where Redis does not say in time."""
        reply = await self._read("EVAL", script, 1, self.full_key(key), *arguments)
        return reply if isinstance(reply, list) else None

    async def drain(self) -> None:
        """Wait until the puts begun so far have ended, well or not."""
        if self._puts:
            await asyncio.wait(tuple(self._puts))

    async def close(self) -> None:
        """Gives up pending puts. Takes at most about `timeout_ms`."""
        self._closed = True
        for task in self._puts:
            task.cancel()
        await self.drain()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._disconnect()
        except Exception:  # noqa: BLE001 - parting from a dead server fails in as many ways as talking to it
            self.counts.failures += 1

    @property
    def up(self) -> bool:
        return self.breaker.closed

    @property
    def health(self) -> str:
        return "closed" if self._closed else self.breaker.health

    async def _read(self, *command: bytes | str | int) -> object:
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            # Half the time at most for a free connection: that one is missing says something about our load
            # and nothing about Redis, which must keep a fair chance to answer before the breaker judges it.
            async with asyncio.timeout(self._timeout_s / 2):
                await self._get_slots.acquire()
        except TimeoutError:
            self.counts.skipped += 1
            return None
        try:
            return await self._ask(deadline_s, *command)
        finally:
            self._get_slots.release()

    async def _send(self, full_key: bytes, value: bytes, ttl_s: int) -> None:
        async with self._put_slots:  # nobody waits for a put, so it may queue here for as long as it takes
            deadline_s = asyncio.get_running_loop().time() + self._timeout_s
            await self._ask(deadline_s, "SET", full_key, seal(self._secret, full_key, value), "EX", ttl_s)

    async def _ask(self, deadline_s: float, *command: bytes | str | int) -> object:
        """Redis's reply, or None when it was not asked, gave none in time, or gave nonsense."""
        ticket = None if self._closed else self.breaker.admit()
        if ticket is None:
            self.counts.skipped += 1
            return None
        try:
            async with asyncio.timeout_at(deadline_s):
                reply = await self._execute(*command)
            if not (reply is True if command[0] == "SET" else isinstance(reply, READS[str(command[0])])):
                raise InvalidResponse(f"a {type(reply).__name__} is no answer to {command[0]!r}")
        except TimeoutError as error:
            self.counts.timeouts += 1
            self.breaker.failed(ticket, error)
            return None
        except Exception as error:  # noqa: BLE001 - on garbage redis-py lets ValueError and others escape
            self.counts.failures += 1
            if _concerns_one_command(error, command):
                self.breaker.succeeded(ticket)
            else:
                self.breaker.failed(ticket, error)
            return None
        except BaseException as gone:
            # A caller that has gone proves nothing about Redis, unless it had waited far longer than Redis
            # takes: else callers with short deadlines would leave a hung Redis one by one and unnoticed.
            if asyncio.get_running_loop().time() > deadline_s - self._timeout_s / 2:
                self.counts.timeouts += 1
                self.breaker.failed(ticket, gone)
            else:
                self.breaker.abandoned(ticket)
            raise
        self.breaker.succeeded(ticket)
        return reply


def _concerns_one_command(error: Exception, command: tuple[bytes | str | int, ...]) -> bool:
    """Whether Redis is well and only refused this: a put it has no room for, a script its user may not run, or a get of
    a planted list."""
    return isinstance(error, ResponseError) and (command[0] != "GET" or str(error).startswith("WRONGTYPE"))


def seal(secret: bytes, full_key: bytes, value: bytes) -> bytes:
    """The bytes that go to Redis, laid out as drawn above."""
    return VERSION + _digest(secret, full_key, value) + value


def unseal(secret: bytes, full_key: bytes, sealed: bytes) -> bytes | None:
    """The value, or None when it was not sealed with this secret for this key, or has been touched since."""
    header_bytes = len(VERSION) + DIGEST_BYTES
    value = sealed[header_bytes:]
    expected = VERSION + _digest(secret, full_key, value)
    return value if hmac.compare_digest(sealed[:header_bytes], expected) else None


def _digest(secret: bytes, full_key: bytes, value: bytes) -> bytes:
    digest = blake2b(VERSION, digest_size=DIGEST_BYTES, key=secret, person=b"nearline-cache")
    digest.update(len(full_key).to_bytes(4, "big"))
    digest.update(full_key)
    digest.update(value)
    return digest.digest()


def _client(url: str) -> Redis:
    try:
        pool = ConnectionPool.from_url(
            url,
            max_connections=GET_CONNECTIONS_MAX + PUT_CONNECTIONS_MAX,
            retry=Retry(NoBackoff(), 0),
            # Our own timeout spans the whole operation; redis-py's would add one for every step.
            socket_timeout=None,
            socket_connect_timeout=None,
            protocol=2,  # nothing to negotiate on connecting, and no messages that nobody asked for
        )
    except Exception:  # noqa: BLE001 - redis-py quotes parts of the url, and a url may hold a password
        raise ValueError("not a usable Redis url: expected redis://, rediss:// or unix://") from None
    return Redis.from_pool(pool)
