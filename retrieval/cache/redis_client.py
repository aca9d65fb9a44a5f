"""redis-py's client for the address that an operator gives: one server, one found by Sentinels, or a cluster.

    redis://user:password@host:6379/0                            rediss:// with TLS, unix:// for a socket
    redis+sentinel://user:password@host:26379,host:26379/mymaster/0
    redis+cluster://user:password@host:6379,host:6379            one node is enough; rediss+... with TLS

Options are named as in redis-py: `?ssl_ca_certs=/etc/ca.pem&ssl_certfile=...&ssl_keyfile=...`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import AskError, AuthenticationError, BusyLoadingError, ResponseError

from indexes.base.errors import InvalidInput

SENTINEL_PORT, PORT = 26379, 6379
SENTINEL_S_MAX = 0.3  # then the next one is asked
DATABASE = re.compile(r"/?[0-9]*/?")
REPEATED_ARGUMENTS: Final = ", with args"  # what Redis was sent follows, even if that was a password
REFUSAL_CHARS_MAX: Final = 200
FORMS: Final = (
    "redis://, rediss:// or unix://, redis+sentinel://, redis+cluster://, and those two with rediss"
)


@dataclass(frozen=True, slots=True)
class RedisClient:
    """What the store needs from redis-py, much of which is untyped. `find` looks up a cluster's nodes or the master;
    None where there is nothing to look up."""

    execute: Callable[..., Awaitable[object]]
    get_many: Callable[[Sequence[bytes]], Awaitable[object]]
    close: Callable[[], Awaitable[None]]
    find: Callable[[], Awaitable[object]] | None = None


def open_client(url: str, *, connections_max: int) -> RedisClient:
    """Create a client that connects on first use. Raises InvalidInput, without quoting the URL, which may hold a
    password."""
    try:
        return _open(url, connections_max)
    except Exception:  # noqa: BLE001 - redis-py quotes parts of the url
        raise InvalidInput(
            f"redis.url is not a usable address: expected {FORMS}, with the port, the database and the options as "
            "docs/operations.md shows them",
            param="redis.url",
        ) from None


def refusal_of(error: BaseException | None, url: str) -> str | None:
    """Return what Redis said if it answered and refused, or the kind of error if that would show an address or a
    password of the URL; None for any other error."""
    while error is not None and not isinstance(error, ResponseError | AuthenticationError | BusyLoadingError):
        error = error.__cause__
    if error is None:
        return None
    words = str(error).partition(REPEATED_ARGUMENTS)[0].rstrip(".")
    parts = urlsplit(url)
    options = parse_qsl(parts.query)
    secrets = [unquote(parts.password or ""), *(value for name, value in options if "password" in name)]
    quoted = isinstance(error, AskError) or any(secret in words for secret in secrets if secret)
    return type(error).__name__ if quoted or not words else words[:REFUSAL_CHARS_MAX]


def _open(url: str, connections_max: int) -> RedisClient:
    options: dict[str, Any] = {
        "max_connections": connections_max,
        "retry": Retry(NoBackoff(), 0),
        # The store's own timeout spans the whole operation; redis-py's would add one for every step.
        "socket_timeout": None,
        "socket_connect_timeout": None,
        "protocol": 2,  # nothing to negotiate on connecting, and no push messages
    }
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    if kind != "cluster":  # which greets its nodes in its own way, and has one database
        options["redis_connect_func"] = _greet
    if kind == "cluster":
        if parts.path.strip("/"):
            raise ValueError("a cluster has one database")
        nodes = [ClusterNode(host, port) for host, port in _hosts(parts, PORT)]
        cluster = RedisCluster(startup_nodes=nodes, **{**_login(scheme, parts), **options})
        return RedisClient(
            cluster.execute_command, cluster.mget_nonatomic, cluster.aclose, cluster.initialize
        )
    if kind == "sentinel":
        name, _, database = parts.path.strip("/").partition("/")
        if not name:
            raise ValueError("no name of a master")
        login = _login(scheme, parts)
        asking = {key: value for key, value in login.items() if key.startswith("ssl")}
        for one in ("username", "password"):
            if f"sentinel_{one}" in login:
                asking[one] = login.pop(f"sentinel_{one}")
        asking |= {"socket_timeout": SENTINEL_S_MAX, "socket_connect_timeout": SENTINEL_S_MAX}
        found = Sentinel(  # type: ignore[no-untyped-call]
            _hosts(parts, SENTINEL_PORT), sentinel_kwargs={"retry": Retry(NoBackoff(), 0), **asking}
        )
        client = found.master_for(name, **{**login, "db": int(database or 0), **options})
        client.connection_pool.make_connection()  # refuses options that it does not know
        sentinels = found.sentinels

        async def close() -> None:
            await asyncio.gather(client.aclose(), *(one.aclose() for one in sentinels))

        # From then on the Sentinel that answered is asked first, on connecting too.
        return RedisClient(client.execute_command, client.mget, close, partial(found.discover_master, name))
    if kind:
        raise ValueError("neither a cluster nor a Sentinel")
    if scheme != "unix" and not DATABASE.fullmatch(parts.path):
        raise ValueError("redis-py would take the first database")
    client = Redis.from_pool(pool := ConnectionPool.from_url(url, **options))
    pool.make_connection()  # type: ignore[no-untyped-call]  # refuses options that it does not know
    return RedisClient(client.execute_command, client.mget, client.aclose)


async def _greet(connection: Any) -> None:
    """Log in and choose the database. If Redis refuses either, that is no refusal of the command that follows."""
    try:
        await connection.on_connect()
    except ResponseError as error:
        raise AuthenticationError(*error.args) from error


def _hosts(parts: SplitResult, port: int) -> list[tuple[str, int]]:
    hosts = parts.netloc.rpartition("@")[2].split(",")
    found = [urlsplit(f"//{host}") for host in hosts]
    return [(one.hostname or "localhost", one.port or port) for one in found]


def _login(scheme: str, parts: SplitResult) -> dict[str, Any]:
    """Return the user, the password and the options, as redis-py reads them from an ordinary URL."""
    login = parts.netloc.rpartition("@")[0]
    known: dict[str, Any] = dict(parse_url(f"{scheme}://{login}@host?{parts.query}"))
    for one in ("host", "port", "connection_class"):
        known.pop(one, None)
    return {**known, "ssl": True} if scheme == "rediss" else known
