"""Runs a service for one job over a data directory that no service uses, on a free loopback port.

Like every service, it takes the directory's lock, so it is refused while another one runs, and recovers from a crash
when it opens. It starts no rebuild, keeps no query log, deletes no feedback, and uses no shared cache.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from aiohttp import web

from indexes.base.errors import Locked, NotADataDirectory
from indexes.directory.marker import MARKER
from retrieval.base.config import load_config
from retrieval.server.app import create_app


@contextlib.asynccontextmanager
async def open_service(url: str, data: Path | None, config_file: Path | None) -> AsyncIterator[str]:
    """Yield the URL to use: `url`, or the URL of a private service over `data`.

    Raises NotADataDirectory, Locked with a remedy, or Damaged.
    """
    if data is None:
        yield url
        return
    if not (data / MARKER).is_file():
        raise NotADataDirectory(f"{data} is not a nearline data directory")
    config, replace = load_config(config_file, os.environ), msgspec.structs.replace
    config = replace(
        config,
        index=replace(config.index, segments_max=0, dead_fraction_max=1.0),
        query_log=replace(config.query_log, enabled=False),
        feedback=replace(config.feedback, days=0),
        redis=replace(config.redis, url=""),
    )
    app = create_app(config, data)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    try:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    except Locked as error:
        raise Locked(f"{error.message}; use that service with --url, or stop it") from error
    finally:
        await runner.cleanup()
