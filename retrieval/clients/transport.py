"""Sends requests to a service: errors, retries, deadlines and the circuit breaker of the Python client.

    429, 503                     wait for Retry-After(-Ms), then retry
    refused connections          retry after a pause that doubles up to PAUSE_S_MAX
    broken connections, 502, 504 the same, for requests that may be sent twice (`expected.may_repeat`)
    anything else                raise an error at once: a retry would fail the same way

A streamed answer is retried until its first event. Pauses have jitter, so that clients refused together do not come
back together. No try begins after the request's time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from retrieval.clients.errors import DISCONNECTED, OPEN, UNREACHABLE, UNREADABLE, ServiceError
from retrieval.clients.expected import explain_foreign, may_repeat
from retrieval.clients.replies import EVENT_STREAM, JSON, decode_answer, error_from, events_in

T = TypeVar("T")

TIMEOUT_S = 300.0
CONNECT_S = 30.0
RETRY_S = 10.0
PAUSE_S, PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 0.05, 2.0  # the minimum applies if Retry-After is 0
# The service's own answer about a missed deadline says more than ours, so wait this much longer for it.
GRACE_S = 0.25
SHOWN_CHARS = 200  # of the address that a server redirects to

BUSY = {429, 503}
AWAY = {0, 408, 502, 504}  # 0: unreachable or disconnected; the others come from proxies in front of it
FINAL = {"quarantined", "deadline_exceeded", UNREADABLE}  # waiting does not help


def encode_json(body: object) -> bytes:
    """Encode a body as JSON; arrays and numbers of numpy, torch and their like as lists and numbers."""
    return msgspec.json.encode(body, enc_hook=_unwrapped)


def _unwrapped(value: Any) -> object:
    try:
        return value.tolist()
    except AttributeError:
        raise TypeError(f"{type(value).__name__} cannot be sent as JSON") from None


class Patience:
    """Decides whether and when a failed request is sent again.

    Gives up if the service was unreachable for `away_s`, or busy for `busy_s` without acknowledging anything.
    Requests may share one object, as those of a bulk ingestion do: while one of them is in flight or acknowledged,
    the others keep waiting for a busy service; and they wait for an open circuit breaker as they do for an
    unreachable service.
    """

    def __init__(self, *, busy_s: float, away_s: float, try_s: float | None = None) -> None:
        """`try_s` is the time limit of each try, for shared objects; with None, all tries of a request share its
        time."""
        self.waits_because = ""
        """Why the last request that failed is tried again; "" once one was answered."""
        self.try_s = try_s
        self._busy_s = busy_s
        self._away_s = away_s
        self._under_way = 0
        self._acknowledged_at = time.monotonic()
        self._away_since: float | None = None

    @contextlib.contextmanager
    def one_try(self) -> Iterator[None]:
        self._under_way += 1
        try:
            yield
            self._acknowledged_at = time.monotonic()
            self._away_since, self.waits_because = None, ""
        finally:
            self._under_way -= 1

    def pause_s(self, failure: ServiceError, *, begun: float, attempt: int, twice: bool) -> float:
        """Return the seconds to wait before the next try. Raises `failure` if there should be none. `begun` is when
        the request was first sent; `twice` is whether the service may receive it twice."""
        now = time.monotonic()
        busy = failure.status in BUSY
        away = failure.kind == UNREACHABLE or (twice and failure.status in AWAY)
        if failure.kind in FINAL or not (busy or away) or (failure.kind == OPEN and self.try_s is None):
            raise failure
        if busy:
            self._away_since = None
            stuck = now - max(begun, self._acknowledged_at) >= self._busy_s and not self._under_way
            stuck = stuck or (failure.retry_after_s or 0) > self._busy_s  # for example a daily quota
        else:
            self._away_since = self._away_since or now
            stuck = now - self._away_since >= self._away_s
        if stuck:
            raise failure
        self.waits_because = failure.message
        if failure.retry_after_s is not None:
            return max(failure.retry_after_s, PAUSE_S_MIN) * random.uniform(1.0, 1.25)
        return min(PAUSE_S_MAX, PAUSE_S * 2.0 ** min(attempt, 10)) * random.uniform(0.5, 1.0)


class CircuitBreaker:
    """Fails at once for `open_s` after `failures_max` failures in a row, then lets one request probe the service.

    A failure is a service that is unreachable, too slow or unavailable. A refusal is not one, because the service
    answers.
    """

    def __init__(self, failures_max: int, open_s: float) -> None:
        """Create a closed breaker. It never opens if `failures_max` is 0."""
        self._failures_max = failures_max
        self._open_s = open_s
        self._failures = 0
        self._open_until = 0.0
        self._last = ""
        self._probing = False

    @contextlib.contextmanager
    def one_try(self, url: str, *, again: bool = False) -> Iterator[None]:
        """Wrap each try. Raises ServiceError of the kind `circuit_open` instead of letting a request begin. What is
        tried `again` is a request that has begun: it goes on, and counts once."""
        probing = not again and self._enter(url)
        try:
            yield
            self._failures = 0
        except ServiceError as error:
            sick = error.kind not in FINAL and error.status in AWAY | {503}
            self._failures = self._failures + (not again) if sick else 0
            self._last = error.message
            if self._failures >= self._failures_max:
                self._open_until = time.monotonic() + self._open_s
            raise
        finally:
            if probing:
                self._probing = False

    def _enter(self, url: str) -> bool:
        """Return whether this try is the probe."""
        if not self._failures_max or self._failures < self._failures_max:
            return False
        left_s = self._open_until - time.monotonic()
        if left_s > 0 or self._probing:
            message = f"{url} failed {self._failures} times in a row, most recently: {self._last}"
            raise ServiceError(message, kind=OPEN, retry_after_s=max(left_s, 0.0))
        self._probing = True
        return True


class ServiceConnection:
    """A pool of connections to one service. Use it on one event loop; it opens with the first request."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None,
        timeout_s: float,
        retry_s: float,
        failures_max: int,
        open_s: float,
    ) -> None:
        """Raises ServiceError for a url without http or with more than a path, for times that are none, and for a key
        that cannot be sent."""
        if not is_address(url):
            raise ServiceError(f"{url!r} is not the address of a service; expected http://HOST:PORT")
        if not (0 < timeout_s < math.inf and 0 <= retry_s < math.inf):
            raise ServiceError(
                f"timeout_s is {timeout_s}, and retry_s {retry_s}; expected seconds above 0, and from 0 on"
            )
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        # Fingerprints of the models that this service embedded with, by requested name.
        self.fingerprints: dict[str | None, str] = {}
        self._options: dict[str, Any] = {
            "key": key,
            "timeout_s": timeout_s,
            "retry_s": retry_s,
            "failures_max": failures_max,
            "open_s": open_s,
        }
        # The default for requests without their own.
        self.patience: Callable[[], Patience] = partial(Patience, busy_s=retry_s, away_s=retry_s)
        self.chars_per_s: float | None = None  # the recent pace of writing
        key = (key or "").strip()  # a file with a key ends in a newline
        if not (key.isascii() and key.isprintable()):
            raise ServiceError(
                "the access key, which NEARLINE_KEY may set, holds a character that no key has"
            )
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._breaker = CircuitBreaker(failures_max, open_s)
        self._session: aiohttp.ClientSession | None = None

    def to(self, url: str) -> ServiceConnection:
        """Return a connection to another service with the same settings."""
        return ServiceConnection(url, **self._options)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def answer(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        twice: bool | None = None,
        patience: Patience | None = None,
    ) -> Any:
        """Return the decoded answer, None if it is empty. Raises ServiceError, of the kind `unreadable`, for one that
        no Nearline service gives."""
        content = await self.content(method, path, body, twice=twice, patience=patience)
        answer = decode_answer(content) if content else None
        if why := explain_foreign(method, path, answer):
            raise self.foreign(why)
        return answer

    def foreign(self, why: str) -> ServiceError:
        return ServiceError(f"{self.url} is not a Nearline service: {why}", kind=UNREADABLE)

    async def content(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        twice: bool | None = None,
        patience: Patience | None = None,
    ) -> bytes:
        """Return the body of the answer. `twice` is whether the service may receive the request twice if a
        connection breaks; with None, `may_repeat` decides.

        A `deadline_ms` in the body limits all tries together, and each try tells the service what is left of it.
        """

        async def once(body: object, limit_s: float) -> bytes:
            async with self._answer(method, path, body, limit_s) as answer:
                return await answer.read()

        return await self._repeat(once, body, may_repeat(method, path) if twice is None else twice, patience)

    async def events(self, method: str, path: str, body: object) -> AsyncGenerator[JSON, None]:
        """Yield the events of a streamed answer as they arrive. The request is sent as others are, repeatedly if need
        be, until the first event is here; each later one may take `timeout_s`."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self.timeout_s)
        async with contextlib.AsyncExitStack() as open_answer:

            async def begin(body: object, limit_s: float) -> tuple[JSON, AsyncIterator[JSON]]:
                try:
                    async with asyncio.timeout(limit_s), contextlib.AsyncExitStack() as opening:
                        answer = await opening.enter_async_context(self._answer(method, path, body, timeout))
                        if answer.content_type != EVENT_STREAM:
                            sent = answer.content_type
                            raise self.foreign(f"its answer to {method} {path} is {sent}, not {EVENT_STREAM}")
                        events = events_in(answer.content)
                        first = await anext(events)
                        open_answer.push_async_exit(opening.pop_all())
                        return first, events
                except TimeoutError:
                    raise self._late() from None

            first, events = await self._repeat(begin, body, may_repeat(method, path))
            yield first
            async for event in events:
                yield event

    async def _repeat(
        self,
        once: Callable[[object, float], Awaitable[T]],
        body: object,
        twice: bool,
        patience: Patience | None = None,
    ) -> T:
        """Call `once`, with the body and the seconds that a try may take, until it succeeds or should not be called
        again."""
        patience = patience or self.patience()
        begun = time.monotonic()
        deadline_s = deadline_of(body)
        ends = begun + (self.timeout_s if deadline_s is None else deadline_s)
        refused = False  # by the circuit breaker
        for attempt in itertools.count():
            left_s = patience.try_s or ends - time.monotonic()
            try:
                with patience.one_try(), self._breaker.one_try(self.url, again=attempt > 0 and not refused):
                    if deadline_s is None:
                        return await once(body, left_s)
                    return await once(with_deadline(body, left_s), left_s + GRACE_S)
            except ServiceError as error:
                failure, refused = error, error.kind == OPEN
            pause_s = patience.pause_s(failure, begun=begun, attempt=attempt, twice=twice)
            if patience.try_s is None and time.monotonic() + pause_s >= ends:
                raise failure
            await asyncio.sleep(pause_s)
        raise AssertionError

    @contextlib.asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: object, timeout: float | aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open an answer with a status below 300. Raises ServiceError, also for errors while it is read."""
        if not path.startswith("/"):
            raise ValueError(f"a path begins with a slash, found {path!r}")
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers)
            self._session._retry_connection = False  # it would repeat a DELETE on its own
        try:
            data = None if body is None else encode_json(body)
        except UnicodeEncodeError as error:
            raise no_unicode(error) from None
        headers = {"Content-Type": "application/json"} if data is not None else None
        if not isinstance(timeout, aiohttp.ClientTimeout):
            timeout = aiohttp.ClientTimeout(total=max(timeout, 0.001), sock_connect=CONNECT_S)
        try:
            async with self._session.request(
                method,
                self.url + path,
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,  # a POST would arrive as a GET, and the key at another server
            ) as answer:
                if 300 <= answer.status < 400:
                    raise self._redirected(answer)
                if answer.status >= 400:
                    raise error_from(answer.status, await answer.read(), answer.headers)
                yield answer
        except TimeoutError:
            raise self._late() from None
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or error.os_error
            raise ServiceError(
                f"{self.url} cannot be reached ({reason}); is the service running there?"
            ) from None
        except aiohttp.ClientError as error:
            raise ServiceError(f"{self.url} cannot be reached: {error}", kind=DISCONNECTED) from None

    def _redirected(self, answer: aiohttp.ClientResponse) -> ServiceError:
        to = answer.headers.get("Location", "")[:SHOWN_CHARS]
        message = f"{self.url} answers with {answer.status} to {to}, and redirects are not followed"
        return ServiceError(message, status=answer.status, kind=UNREADABLE)

    def _late(self) -> ServiceError:
        return ServiceError(f"{self.url} did not answer in time", kind="timeout")


def is_address(url: str) -> bool:
    """Whether a service can be at this URL: http, a host, maybe a port and a path."""
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.port != 0
    except ValueError:  # brackets around what is no address, or a port that is none
        return False
    return bool(parts.scheme in {"http", "https"} and named and not parts.query and not parts.fragment)


def deadline_of(body: object) -> float | None:
    """Return the deadline in the body in seconds, or None."""
    deadline_ms = body.get("deadline_ms") if isinstance(body, Mapping) else None
    return deadline_ms / 1000 if isinstance(deadline_ms, int | float) else None


def with_deadline(body: object, left_s: float) -> JSON:
    """Return the body with the rest of its deadline."""
    assert isinstance(body, Mapping)
    return {**body, "deadline_ms": max(1, round(left_s * 1000))}


def path_of(collection: str, *below: str) -> str:
    """Raises ServiceError for a name or an id that no service can have."""
    try:
        return "/v1/collections/" + "/".join(quote(part, safe="") for part in (collection, *below))
    except UnicodeEncodeError as error:
        raise no_unicode(error) from None


def no_unicode(error: UnicodeEncodeError) -> ServiceError:
    message = f"the request has text that is not valid Unicode: {error.reason}"
    return ServiceError(message, status=422, kind="invalid_input")
