"""Runs the service in this process until SIGTERM or SIGINT: stop being ready, finish what was accepted, close.

What is not finished within `server.shutdown_grace_s` is answered with 503 (`retrieval/cancellation.py`).

A storage that fails ends it the same way, but with exit code 1: only a new process can tell what the disk holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import faulthandler
import ipaddress
import logging
import os
import resource
import signal
import sys
from pathlib import Path

from aiohttp import web

from indexes.courtesy import keep_turns_short
from indexes.durable import keep_private
from indexes.errors import Conflict, InvalidInput
from jobs.connections import AcceptErrors, Connections
from retrieval.app import create_app
from retrieval.browsers import is_address
from retrieval.config import Config
from retrieval.door import DOOR
from retrieval.keys import CEILING, FAILED, READY, STOPPING
from retrieval.settings import Server

logger = logging.getLogger(__name__)

READY_LINE = "nearline listens on "
HEAPS_MAX = 2
M_ARENA_MAX = -8  # of glibc's mallopt
DRAIN_S = 0.2  # between failing readiness and closing the socket, for a load balancer to notice
LAST_ANSWERS_S = 1.0  # after the grace, for those it was too short for
CLOSING_S = 4.5  # after the grace, until the process ends whatever it is doing


def run(config: Config, data: Path) -> None:
    """Blocks until the service has ended. Raises what opening the data directory raises, and SystemExit as above.

    Raises InvalidInput for an address that other machines reach, unless the settings allow it.
    """
    require_private(config.server)
    keep_private()
    share_heaps()
    allow_all_descriptors()
    if not asyncio.run(serve(config, data)):
        sys.exit(1)


def require_private(server: Server) -> None:
    """There are no keys: who reaches the service may do everything."""
    host = server.host
    private = ipaddress.ip_address(host).is_loopback if is_address(host) else host == "localhost"
    if not private and not server.insecure:
        raise InvalidInput(
            f"server.host: other machines reach {host!r}, and whoever does may read, write and delete; "
            "listen on 127.0.0.1, or allow it with --insecure (server.insecure)",
            param="server.host",
        )


def share_heaps() -> None:
    """Let threads take memory from a few heaps. Call it before there are threads; it does nothing without glibc.

    glibc gives every thread a heap of its own, and what a run of the model has freed in one, no other thread takes.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return  # somebody has decided
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS_MAX)


def allow_all_descriptors() -> None:
    """Raise the soft limit to the hard one. It is low only for the sake of programs that use select, as we do not."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def serve(config: Config, data: Path) -> bool:
    """Whether the service ended because it was asked to, not because its storage failed."""
    app = create_app(config, data)
    grace_s = config.server.shutdown_grace_s
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=grace_s + LAST_ANSWERS_S)
    connections = Connections(config.server, app[DOOR], app[CEILING].bytes_max // 4)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(AcceptErrors())
    stop = asyncio.Event()

    def begin_to_stop() -> None:
        if not stop.is_set():  # a second signal does not prolong it
            leave_within(grace_s + CLOSING_S)
        stop.set()

    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, begin_to_stop)
    await runner.setup()
    try:
        await Site(runner, connections).start()
        watch = loop.create_task(connections.watch())
        keep_turns_short()
        print(f"{READY_LINE}{url_of(runner)}", flush=True)  # noqa: T201 - other programs wait for this line
        await first_of(stop, app[FAILED])
        app[READY]["ready"] = False
        logger.info("stopping: requests under way have %g s to finish", grace_s)
        if not stop.is_set():
            leave_within(grace_s + CLOSING_S)
        loop.call_later(grace_s, app[STOPPING].end_grace)
        await asyncio.sleep(DRAIN_S)
    finally:
        await runner.cleanup()
    watch.cancel()
    return not app[FAILED].is_set()


def leave_within(seconds: float) -> None:
    """End the process by then, with every thread's stack in the log, if it has not ended by itself.

    Threads in compiled code cannot be stopped, and Python waits for them. What was acknowledged is on disk already.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)


class Site(web.BaseSite):
    """Where the service listens. aiohttp's own has no say in how a connection is made."""

    def __init__(self, runner: web.AppRunner, connections: Connections) -> None:
        super().__init__(runner)
        self._connections = connections

    @property
    def name(self) -> str:
        return f"http://{self._connections.settings.host}:{self._connections.settings.port}"

    async def start(self) -> None:
        await super().start()
        server, settings = self._runner.server, self._connections.settings
        assert server is not None, "the runner is set up"
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: self._connections.accept(server), settings.host, settings.port, backlog=self._backlog
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            where = f"{settings.host}:{settings.port}"
            raise Conflict(f"{where} is in use by another program; --port takes another port") from error


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


def url_of(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
