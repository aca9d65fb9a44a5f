"""A service for one evaluation: over a data directory that nobody serves, on a free port of this machine alone.

It takes the directory's lock, as every service does, so it is refused beside a running one. It starts no rebuild,
keeps no log of queries, and uses no shared cache. Opening recovers what a crash may have left, like any start.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
from aiohttp import web

from indexes.catalog import MARKER
from indexes.errors import Locked, NotADataDirectory
from retrieval.app import create_app
from retrieval.config import Config, load_config


@contextlib.asynccontextmanager
async def private_service(data: Path, config: Config) -> AsyncIterator[str]:
    """Its address. Raises NotADataDirectory, Locked with what to do, or Damaged."""
    if not (data / MARKER).is_file():
        raise NotADataDirectory(f"{data} is not a nearline data directory")
    runner = web.AppRunner(create_app(config, data), access_log=None, handler_cancellation=True)
    try:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    except Locked as error:
        raise Locked(f"{error.message}; evaluate that service with --url, or stop it") from error
    finally:
        await runner.cleanup()


def private_config(file: Path | None, environ: Mapping[str, str]) -> Config:
    """The settings a service here would have, but for what changes the directory or is shared with others."""
    config = load_config(file, environ)
    replace = msgspec.structs.replace
    return replace(
        config,
        index=replace(config.index, segments_max=0, dead_fraction_max=1.0),
        query_log=replace(config.query_log, enabled=False),
        redis=replace(config.redis, url=""),
    )
