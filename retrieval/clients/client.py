"""`AsyncClient` and `Client`: the endpoints with and without an event loop."""

from __future__ import annotations

import os
from functools import partial
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from retrieval.clients.blocking import Blocking
from retrieval.clients.endpoints import Endpoints
from retrieval.clients.transport import RETRY_S, TIMEOUT_S, ServiceConnection

URL = "http://127.0.0.1:8080"
FAILURES_MAX = 5
OPEN_S = 5.0


class ClientOptions(TypedDict, total=False):
    key: str | None
    timeout_s: float
    retry_s: float
    failures_max: int
    open_s: float


def without_key(options: ClientOptions) -> ClientOptions:
    options = options.copy()
    options.pop("key", None)
    return options


class AsyncClient(Endpoints):
    """The client for one event loop."""

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        timeout_s: float = TIMEOUT_S,
        retry_s: float = RETRY_S,
        failures_max: int = FAILURES_MAX,
        open_s: float = OPEN_S,
    ) -> None:
        """`url` defaults to NEARLINE_URL, else port 8080 of this machine; `key` defaults to NEARLINE_KEY and is sent
        as a bearer token.

        `timeout_s` limits a whole request, including retries and the answer; failures are retried for `retry_s` (0:
        never). After `failures_max` failures in a row (0: no limit), requests fail at once for `open_s`. Raises
        ServiceError for a url without http.
        """
        self.connection = ServiceConnection(
            url or os.environ.get("NEARLINE_URL") or URL,
            key=key or os.environ.get("NEARLINE_KEY"),
            timeout_s=timeout_s,
            retry_s=retry_s,
            failures_max=failures_max,
            open_s=open_s,
        )

    @property
    def url(self) -> str:
        return self.connection.url

    async def close(self) -> None:
        """Close all connections."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Client(Blocking, Endpoints):
    """The client for code without an event loop. Threads may share it. Callbacks run on the client's own thread,
    except those of `ingest` about documents that were not sent. Copies are the same client. A pickle holds no access
    key: NEARLINE_KEY is read where it is loaded."""

    def __init__(self, url: str | None = None, **options: Unpack[ClientOptions]) -> None:
        """Takes the same options as AsyncClient."""
        super().__init__(lambda: AsyncClient(url, **options))
        self._options = options

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Client, self.url, **without_key(self._options)), ()

    @property
    def url(self) -> str:
        return self.connection.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
