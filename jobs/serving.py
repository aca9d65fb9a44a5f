"""Runs the service in this process until SIGTERM or SIGINT: stop being ready, finish what was accepted, close.

A storage that fails ends it the same way, but with exit code 1: only a new process can tell what the disk holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

from aiohttp import web

from indexes.courtesy import keep_turns_short
from retrieval.app import create_app
from retrieval.config import Config
from retrieval.keys import FAILED, READY
from retrieval.request_log import RequestLog

READY_LINE = "nearline listens on "
HEAPS_MAX = 2
M_ARENA_MAX = -8  # of glibc's mallopt
DRAIN_S = 0.2  # between failing readiness and closing the socket, for a load balancer to notice


def run(config: Config, data: Path) -> None:
    """Blocks until the service has ended. Raises what opening the data directory raises, and SystemExit as above."""
    share_heaps()
    if not asyncio.run(serve(config, data)):
        sys.exit(1)


def share_heaps() -> None:
    """Let threads take memory from a few heaps. Call it before there are threads; it does nothing without glibc.

    glibc gives every thread a heap of its own, and what a run of the model has freed in one, no other thread takes.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return  # somebody has decided
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS_MAX)


async def serve(config: Config, data: Path) -> bool:
    """Whether the service ended because it was asked to, not because its storage failed."""
    app = create_app(config, data)
    runner = web.AppRunner(
        app,
        access_log_class=RequestLog,
        handler_cancellation=True,
        auto_decompress=False,  # compressed bodies are refused; nothing may unpack them before
        keepalive_timeout=config.server.keepalive_timeout_s,
        shutdown_timeout=config.server.shutdown_grace_s,
    )
    stop = asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, stop.set)
    await runner.setup()
    try:
        site = web.TCPSite(runner, config.server.host, config.server.port)
        await site.start()
        keep_turns_short()
        print(f"{READY_LINE}{url_of(runner)}", flush=True)  # noqa: T201 - other programs wait for this line
        await first_of(stop, app[FAILED])
        app[READY]["ready"] = False
        await asyncio.sleep(DRAIN_S)
    finally:
        await runner.cleanup()
    return not app[FAILED].is_set()


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


def url_of(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
