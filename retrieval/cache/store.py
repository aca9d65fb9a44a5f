"""The protocol of a cache store, its keys, its counters, and the circuit breaker that a remote one needs.

A store maps opaque bytes to opaque bytes for a while. It may forget early, never answers with another key's value, and
never raises for troubles of its own: a get that fails is a miss, a put that fails does nothing, and both are counted.
Callers therefore need no error handling around a store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal, Protocol

logger = logging.getLogger(__name__)


class Store(Protocol):
    """Bytes by key, for a while. For the one event loop that created it; not for several threads."""

    async def get(self, key: bytes) -> bytes | None:
        """Return the value put under this key, or None. Raises nothing but the caller's own cancellation."""

    async def put(self, key: bytes, value: bytes, ttl_s: int) -> None:
        """Store the value for at most `ttl_s` seconds; below 1, nothing is stored. Never raises, and may return before
        the value can be found."""

    async def close(self) -> None:
        """Release connections and tasks. Afterward every get is a miss. May be called twice."""

    @property
    def health(self) -> str:
        """One line for an operator: "ok" and perhaps details, or what is wrong. No address, no secret."""

    @property
    def up(self) -> bool:
        """Whether it worked when it was last used."""

    @property
    def counts(self) -> StoreCounts:
        """Running totals since the store was made; the same object every time."""


class SharedStore(Store, Protocol):
    """A store that other processes use too, and may have written to."""

    async def run_script(self, script: str, key: bytes, *arguments: int | bytes) -> list[object] | None:
        """Return the result of a Lua script for this key, a list; None if that is not known in time. Never raises."""


@dataclass(slots=True)
class StoreCounts:
    """Totals for the metrics endpoint. Every get ends as exactly one hit or miss, whatever else it counts as.

    `failures` are operations that were tried and went wrong, `timeouts` those that took too long instead, `skipped`
    were not tried because the store is known to be unhealthy or busy, `rejected` are values found but not trusted,
    `dropped` are puts given up for lack of room, `evicted` are entries dropped for newer ones.
    """

    hits: int = 0
    misses: int = 0
    failures: int = 0
    timeouts: int = 0
    skipped: int = 0
    rejected: int = 0
    dropped: int = 0
    evicted: int = 0


@dataclass(slots=True)
class RedisWait:
    """How long one request has waited for Redis. All its operations there share one timeout."""

    waited_s: float = 0.0


REDIS_WAIT: ContextVar[RedisWait | None] = ContextVar("REDIS_WAIT", default=None)


KEY_BYTES: Final = 32
"""256 bits: two requests with one key would give one user another's answer, so collisions must be infeasible."""


def key_of(kind: bytes, *parts: str | bytes) -> bytes:
    """Hash to KEY_BYTES that differ when the kind (16 bytes at most), a part or the number of parts does."""
    digest = blake2b(digest_size=KEY_BYTES, person=kind)
    for part in parts:
        # surrogatepass: malformed Unicode has a key too, so that this never raises.
        encoded = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        # The length prefix keeps ("ab", "c") apart from ("a", "bc").
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.digest()


Ticket = Literal["ordinary", "trial"]

LATE_MAX: Final = 3


class RedisBreaker:
    """Decides whether to ask at all. Each ticket from `admit` must be passed to exactly one of the other methods.

    While closed, it admits every operation. It opens on a failure, or after LATE_MAX timeouts in a row, of which one or
    two mean little on a busy machine. Then nothing is admitted for `retry_after_s`, and after that one trial at a time,
    whose success closes it and whose failure restarts the wait. Opening and closing are logged with one line each, so
    that the log shows the outage.
    """

    def __init__(self, retry_after_s: float, clock: Callable[[], float]) -> None:
        self._retry_after_s = retry_after_s
        self._clock = clock
        self._retry_at_s: float | None = None  # None while closed
        self._opened_s = 0.0
        self._trial = False
        self._late = 0  # in a row
        self._reason = ""

    def admit(self) -> Ticket | None:
        if self._retry_at_s is None:
            return "ordinary"
        if self._trial or self._clock() < self._retry_at_s:
            return None
        self._trial = True
        return "trial"

    def succeeded(self, ticket: Ticket) -> None:
        self._late = 0
        # An ordinary operation that succeeds while open started before the failure, which is the newer fact.
        if ticket == "trial":
            self._trial = False
            self._retry_at_s = None
            logger.info("Redis answers again, after %.1f s", self._clock() - self._opened_s)

    def failed(self, ticket: Ticket, error: BaseException, refusal: str | None = None) -> None:
        """`refusal` is what Redis said, if it answered; it must hold no secret."""
        if ticket == "trial":
            self._trial = False
        elif self._retry_at_s is not None:
            return  # one of many in progress when Redis died; the first has started the wait
        elif isinstance(error, TimeoutError | asyncio.CancelledError) and self._late + 1 < LATE_MAX:
            self._late += 1
            return
        # The message of any other error may name hosts and users.
        self._reason = (
            f"refuses requests: {refusal}" if refusal else f"is unreachable: {type(error).__name__}"
        )
        if self._retry_at_s is None:
            self._opened_s = self._clock()
            logger.warning(
                "Redis %s; searches go on without it, it is tried every %g s",
                self._reason,
                self._retry_after_s,
            )
        self._retry_at_s = self._clock() + self._retry_after_s

    def abandoned(self, ticket: Ticket) -> None:
        if ticket == "trial":
            self._trial = False  # the next operation tries at once

    @property
    def closed(self) -> bool:
        return self._retry_at_s is None

    @property
    def health(self) -> str:
        if self._retry_at_s is None:
            return "ok"
        wait_s = max(0.0, self._retry_at_s - self._clock())
        return f"{self._reason.removeprefix('is ')}, next trial in {wait_s:.1f} s"
