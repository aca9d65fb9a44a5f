"""The connection of a command to a running service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nearline import AsyncClient
from retrieval.clients.transport import TIMEOUT_S, Patience

T = TypeVar("T")


def ask(
    url: str,
    work: Callable[[AsyncClient], Awaitable[T]],
    *,
    timeout_s: float = TIMEOUT_S,
    patience: Callable[[], Patience] | None = None,
) -> T:
    """Run `work` with a client of the service and return its result. Requests fail at once unless `patience`, called
    for each, allows waiting for a busy service."""

    async def run() -> T:
        async with AsyncClient(url, timeout_s=timeout_s, retry_s=0) as client:
            client.connection.patience = patience or client.connection.patience
            return await work(client)

    return asyncio.run(run())
