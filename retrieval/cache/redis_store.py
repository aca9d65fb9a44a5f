"""A store in Redis, shared by services, built so that a Redis that is killed, hung, reset or lying goes unnoticed.

What an operator may rely on:

1. One request waits for Redis for at most about `timeout_ms` in total: for a free connection, connecting, sending,
   reading, however many gets there are (`RedisWait`). Concurrent gets travel together.
2. After a failure, or three timeouts in a row, nothing is sent for `retry_after_s`; then one operation tries while
   the others still miss at once. So a hung Redis costs three requests `timeout_ms`, then one each `retry_after_s`,
   apart from those already in progress.
3. A put never delays its caller: it runs in the background, at most `PUTS_PENDING_MAX` at once; more are dropped.
   Redis may refuse puts and scripts (it is full, a replica, without the right) and still answer gets. It is not `up`
   then, and the log has one line when that begins and one when it ends.
4. A value is served only if its digest proves that a holder of the secret put it under this very key. Bytes planted or
   flipped in Redis are a miss, detected before anything decodes them. There is no pickle.
5. Holders of different secrets use different keys, and so neither read nor overwrite each other's values.

    key in Redis:     prefix | ":" | hash of the secret, 16 hex digits | ":" | key
    value in Redis:   version (1 byte) | digest (16 bytes) | value
    digest:           BLAKE2b, keyed with the secret, over version | length of key (4 bytes) | key | value
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from hashlib import blake2b
from typing import Any, Final, TypeVar

from redis.exceptions import InvalidResponse, ResponseError

from retrieval.cache.redis_client import open_client, refusal_of
from retrieval.cache.store import REDIS_WAIT, RedisBreaker, RedisWait, StoreCounts, Ticket

logger = logging.getLogger(__name__)

T = TypeVar("T")

VERSION: Final = b"\x01"
DIGEST_BYTES: Final = 16
SCOPE_BYTES: Final = 8
SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 64  # the longest key BLAKE2b takes

GET_CONNECTIONS_MAX: Final = 12  # 2 cores never have more searches waiting for Redis at once
PUT_CONNECTIONS_MAX: Final = 4  # separate, so that a burst of puts cannot make gets wait
PUTS_PENDING_MAX: Final = 256
GETS_TOGETHER_MAX: Final = 64  # in one round trip
PASSES_WHEN_LATE: Final = 3  # of the event loop: one reads the bytes, the next parses the reply
FIND_S_MAX: Final = 2.0  # to look up a cluster's nodes, in the background
VALUE_BYTES_MAX: Final = 1 << 20  # a bigger one might miss the timeout and make Redis look unhealthy


class RedisStore:
    """Implements `SharedStore` on the Redis at `url` (`redis_client` lists the forms). Connects on first use.

    Raises ValueError at once for an unusable URL or secret, without quoting them, and later nothing but the caller's
    own cancellation. `secret` has 16 to 64 bytes; stores with different secrets or prefixes do not see each other's
    values. `clock` is monotonic, counts seconds, and only decides when to try again.
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
        self.breaker = RedisBreaker(retry_after_s, clock)
        self._secret = secret
        scope = blake2b(key=secret, digest_size=SCOPE_BYTES, person=b"nearline-scope").hexdigest()
        self._prefix = b"%s:%s:" % (prefix, scope.encode())
        self._timeout_s = timeout_ms / 1000
        self._url = url
        self._client = open_client(url, connections_max=GET_CONNECTIONS_MAX + PUT_CONNECTIONS_MAX)
        self._found = self._client.find is None
        self._finding: asyncio.Task[None] | None = None
        self._get_slots = asyncio.Semaphore(GET_CONNECTIONS_MAX)
        self._put_slots = asyncio.Semaphore(PUT_CONNECTIONS_MAX)
        self._refused: set[str] = set()  # commands that Redis refused when it was last sent them
        self._wanted: dict[
            bytes, asyncio.Future[bytes | None]
        ] = {}  # the batch of gets that others may still join
        self._tasks: set[asyncio.Task[None]] = set()
        self._puts: set[asyncio.Task[None]] = set()
        self._closed = False

    def full_key(self, key: bytes) -> bytes:
        return self._prefix + key

    async def get(self, key: bytes) -> bytes | None:
        full_key = self.full_key(key)
        sealed = await self._wait_for_reply(asyncio.shield(self._request_key(full_key)))
        value = None
        if sealed is not None:
            value = unseal(self._secret, full_key, sealed)
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
        self._begin(self._send(self.full_key(key), value, ttl_s), self._puts)

    async def run_script(self, script: str, key: bytes, *arguments: int | bytes) -> list[object] | None:
        """Return the result of a Lua script for this key, a list; None if Redis does not answer in time."""
        command = ("EVAL", script, 1, self.full_key(key), *arguments)
        reply = await self._wait_for_reply(
            self._read(lambda: self._client.execute(*command), refusable="EVAL")
        )
        return reply if isinstance(reply, list) else None

    async def drain(self) -> None:
        """Wait until the puts started so far have ended, successfully or not."""
        if self._puts:
            await asyncio.wait(tuple(self._puts))

    async def close(self) -> None:
        """Drop pending puts and disconnect. Takes at most about `timeout_ms`."""
        self._closed = True
        for task in self._puts | self._tasks:
            task.cancel()
        await self.drain()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.close()
        except Exception:  # noqa: BLE001 - closing fails in as many ways as any call
            self.counts.failures += 1

    @property
    def up(self) -> bool:
        return self.breaker.closed and not self._refused

    @property
    def health(self) -> str:
        if self._closed:
            return "closed"
        if self._refused and self.breaker.closed:
            return f"refuses {', '.join(sorted(self._refused))}"
        return self.breaker.health

    async def _wait_for_reply(self, asked: Awaitable[T]) -> T | None:
        """Await a reply; None once the request has waited for Redis as long as it may."""
        loop, patience = asyncio.get_running_loop(), REDIS_WAIT.get() or RedisWait()
        begun_s, waited_s = loop.time(), patience.waited_s
        try:
            # The first wait has the operation's own timeout, so that the breaker learns of its failure.
            async with asyncio.timeout(self._timeout_s - waited_s if waited_s else None):
                return await asked
        except TimeoutError:
            return None
        finally:
            patience.waited_s += loop.time() - begun_s

    def _request_key(self, full_key: bytes) -> asyncio.Future[bytes | None]:
        """Return a future of the value under this key, requested together with others."""
        if not self._wanted or len(self._wanted) >= GETS_TOGETHER_MAX:
            self._wanted = {}
            self._begin(self._fetch(self._wanted), self._tasks)
        if full_key not in self._wanted:
            self._wanted[full_key] = asyncio.get_running_loop().create_future()
        return self._wanted[full_key]

    async def _fetch(self, wanted: dict[bytes, asyncio.Future[bytes | None]]) -> None:
        """Get all of these at once. More may join as long as there is no free connection."""

        async def ask() -> list[object]:
            if self._wanted is wanted:
                self._wanted = {}
            reply = await self._client.get_many(list(wanted))
            if not isinstance(reply, list) or len(reply) != len(wanted):
                raise InvalidResponse("no answer to MGET")
            return reply

        try:
            found = await self._read(ask) or [None] * len(wanted)
            for future, sealed in zip(wanted.values(), found, strict=True):
                if not future.done():
                    future.set_result(sealed if isinstance(sealed, bytes) else None)
        finally:
            if self._wanted is wanted:
                self._wanted = {}
            for future in wanted.values():
                if not future.done():
                    future.set_result(None)

    async def _read(self, ask: Callable[[], Awaitable[T]], *, refusable: str = "") -> T | None:
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            # Half the time at most for a free connection: waiting for one says something about our load, not
            # about Redis, which must keep a fair chance to answer before the breaker judges it.
            async with asyncio.timeout(self._timeout_s / 2):
                await self._get_slots.acquire()
        except TimeoutError:
            self.counts.skipped += 1
            return None
        try:
            return await self._ask(deadline_s, ask, refusable=refusable)
        finally:
            self._get_slots.release()

    async def _send(self, full_key: bytes, value: bytes, ttl_s: int) -> None:
        async def ask() -> object:
            reply = await self._client.execute("SET", full_key, sealed, "EX", ttl_s)
            if reply is not True:
                raise InvalidResponse("no answer to SET")
            return reply

        sealed = seal(self._secret, full_key, value)
        async with self._put_slots:  # no caller waits for a put, so it may queue here as long as it takes
            deadline_s = asyncio.get_running_loop().time() + self._timeout_s
            await self._ask(deadline_s, ask, refusable="SET")

    async def _ask(self, deadline_s: float, ask: Callable[[], Awaitable[T]], *, refusable: str) -> T | None:
        """Return Redis's reply, or None if it was not asked, gave none in time, or gave nonsense. `refusable` names a
        command that a healthy Redis may refuse."""
        ticket = None if self._closed or not self._findable() else self.breaker.admit()
        if ticket is None:
            self.counts.skipped += 1
            return None
        loop, asked = asyncio.get_running_loop(), asyncio.ensure_future(ask())
        try:
            await asyncio.wait({asked}, timeout=deadline_s - loop.time())
            late = loop.time() - deadline_s > self._timeout_s / 4
            for _ in range(PASSES_WHEN_LATE if late else 0):  # the reply may have arrived unread
                if not asked.done():
                    await asyncio.sleep(0)
            if not asked.done():
                asked.cancel()
                self.counts.timeouts += 1
                if late:
                    self.breaker.abandoned(ticket)  # a busy loop says nothing about Redis
                else:
                    self._failed(ticket, TimeoutError())
                return None
            reply = asked.result()
        except Exception as error:  # noqa: BLE001 - on garbage redis-py raises ValueError and others
            self.counts.failures += 1
            if refusable and isinstance(error, ResponseError):
                # Redis answers, and refused only this: a put without room, or a script that is not permitted.
                self.breaker.succeeded(ticket)
                self._note_refusal(refusable, refusal_of(error, self._url))
            else:
                self._failed(ticket, error)
            return None
        except BaseException as gone:
            # A caller that leaves proves nothing about Redis, unless it had waited far longer than Redis takes:
            # otherwise callers with short deadlines would never reveal a hung Redis.
            asked.cancel()
            if loop.time() > deadline_s - self._timeout_s / 2:
                self.counts.timeouts += 1
                self._failed(ticket, gone)
            else:
                self.breaker.abandoned(ticket)
            raise
        self.breaker.succeeded(ticket)
        if refusable in self._refused:
            self._refused.discard(refusable)
            logger.info("Redis accepts %s again", refusable)
        return reply

    def _note_refusal(self, command: str, reason: str | None) -> None:
        if command not in self._refused:
            self._refused.add(command)
            logger.warning(
                "Redis refuses %s: %s; searches and the limits of keys go on without it", command, reason
            )

    def _failed(self, ticket: Ticket, error: BaseException) -> None:
        self.breaker.failed(ticket, error, refusal_of(error, self._url))
        self._found = self._client.find is None  # the node that failed may have been replaced

    def _findable(self) -> bool:
        """Whether the nodes are known. If not, they are looked up in the background, which takes longer than a get
        may."""
        if not self._found and (self._finding is None or self._finding.done()):
            self._finding = self._begin(self._find(), self._tasks)
        return self._found

    async def _find(self) -> None:
        ticket = self.breaker.admit()
        if ticket is None or self._client.find is None:
            return
        try:
            async with asyncio.timeout(FIND_S_MAX):
                await self._client.find()
        except Exception as error:  # noqa: BLE001 - as in _ask
            self.counts.failures += 1
            self._failed(ticket, error)
            return
        except BaseException:
            self.breaker.abandoned(ticket)
            raise
        self._found = True
        self.breaker.abandoned(ticket)  # whether the node that was found serves is seen by the next operation

    @staticmethod
    def _begin(work: Coroutine[Any, Any, None], group: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        """Start work in the background, in a context of its own: it serves all who join, not just the first request."""
        task = asyncio.create_task(work, context=Context())
        group.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(group.discard)
        return task


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
