"""Runs the service in this process until SIGTERM or SIGINT, then shuts down gracefully: fail readiness, drain, close.

It listens before it opens anything: until it is ready, it reports its progress, and a signal ends it at once.

Requests not finished within `server.shutdown_grace_s` get a 503 (`base/cancellation.py`). A storage failure shuts
down the same way with exit code 1: only a new process can tell what is on disk. A service whose interpreter is stuck
cannot do any of this, and is killed by its watchdog (`jobs/serving/watchdog.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import ipaddress
import logging
import os
import resource
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from indexes.base.durable import keep_private
from indexes.base.errors import Conflict, InvalidInput, NearlineError, NotADataDirectory, message_of
from indexes.base.structs import learn_structs
from jobs.serving.interpreter import share_heaps, tune_interpreter
from jobs.serving.log_lines import set_up_logging
from jobs.serving.tls import Tls, tls_of
from jobs.serving.watchdog import start_watchdog
from jobs.sources.extraction import extract
from retrieval.access.auth import Keys
from retrieval.base.config import Config, take_over
from retrieval.base.settings import ServerSection
from retrieval.handlers.browsers import is_address
from retrieval.handlers.state import CEILING, CONFIG, FAILED, READY, RELOADED, STOPPING
from retrieval.handlers.system import starting_server
from retrieval.server.app import create_app
from retrieval.server.connections import AcceptErrors, Connection, Connections
from retrieval.server.door import DOOR

logger = logging.getLogger(__name__)

T = TypeVar("T")

READY_LINE = "nearline listens on "
SEARCH_COMMAND = (sys.executable, "-m", "jobs.serving.search_process")
BACKLOG = 128  # connections queued by the kernel
DRAIN_S = 0.2  # from failing readiness to closing the socket, for load balancers to notice
LAST_ANSWERS_S = 1.0  # after the grace period, to send the 503s
RELOAD_S = 5.0  # for reading the configuration, and for reading the certificate and its key
DESCRIPTORS_MIN = 1024  # enough for any number of collections (`indexes.log.log`)
WATCHED_EVERY_S = 1.0  # between two looks at the watchdog
CLOSING_S = 4.5  # after the grace period, until a forced exit


def run(config: Config, data: Path, reread: Callable[[], Config]) -> None:
    """Run the service, and return once it has shut down. SIGHUP applies the configuration that `reread` returns.

    Raises InvalidInput for an address reachable from other machines unless the settings allow it, any error of opening
    the data directory, and SystemExit as above.
    """
    require_folder(data)
    require_private(config.server, keys=Keys(data).required)
    keep_private()
    share_heaps()
    allow_all_descriptors(config.server.connections_max)
    logging.getLogger("aiohttp.server").addFilter(is_worth_logging)
    learn_structs()
    if not asyncio.run(serve(config, data, reread)):
        sys.exit(1)


def require_folder(data: Path) -> None:
    """Raises NotADataDirectory if something else than a folder is at this path or above it."""
    found = next(path for path in (data, *data.absolute().parents) if path.exists())
    if not found.is_dir():
        raise NotADataDirectory(f"{found} is not a folder")


def require_private(server: ServerSection, *, keys: bool) -> None:
    """Raises InvalidInput for an address reachable from other machines without access keys."""
    host = server.host
    private = ipaddress.ip_address(host).is_loopback if is_address(host) else host == "localhost"
    if not private and not keys and not server.insecure:
        raise InvalidInput(
            f"server.host: other machines reach {host!r}, and anyone there may read, write and delete; "
            "make a key with `nearline keys create`, listen on 127.0.0.1, or allow it with --insecure "
            "(server.insecure)",
            param="server.host",
        )


def allow_all_descriptors(connections_max: int) -> None:
    """Raise the soft limit of open files to the hard one. It is low only for select(), which we do not use.

    Log a warning if even that is too low: half of it is for connections, the rest for the files of collections.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems allow less than they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed < (needed := max(2 * connections_max, DESCRIPTORS_MIN)):
        logger.warning(
            "only %d files may be open (ulimit -n), for at most %d connections; server.connections_max = %d needs %d",
            allowed,
            min(allowed // 2, connections_max),
            connections_max,
            needed,
        )


def is_worth_logging(record: logging.LogRecord) -> bool:
    """A log filter that drops aiohttp's tracebacks of malformed requests, unless the level is debug: the line in the
    request log is enough."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError) or logger.isEnabledFor(logging.DEBUG)


async def serve(config: Config, data: Path, reread: Callable[[], Config]) -> bool:
    """Serve until told to stop. Returns False if storage failed instead."""
    app = create_app(config, data, extract, SEARCH_COMMAND)
    grace_s = config.server.shutdown_grace_s
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=grace_s + LAST_ANSWERS_S)
    connections = Connections(config.server, app[DOOR], app[CEILING].bytes_max // 4)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(AcceptErrors())
    stop = asyncio.Event()
    tls = tls_of(config.server)
    reload = asyncio.Event()
    handle_signals({signal.SIGTERM: stop.set, signal.SIGINT: stop.set, signal.SIGHUP: reload.set})
    watchdog = start_watchdog(grace_s + CLOSING_S)
    server = starting_server(app)
    context = tls.context if tls else None
    listening = await listen(lambda: connections.accept(server), config.server, context)
    url = url_of(listening, context)
    logger.info("starting on %s", url)
    beside = [
        loop.create_task(connections.watch()),
        loop.create_task(keep_watched(watchdog, grace_s + CLOSING_S)),
        loop.create_task(keep_reloading(app, reread, tls, reload)),
    ]
    try:
        if not await open_unless_stopped(runner, stop):
            return True
        assert runner.server is not None
        server = runner.server
        tune_interpreter()
        print(f"{READY_LINE}{url}", flush=True)  # noqa: T201 - parent processes wait for this line
        ends = [loop.create_task(event.wait()) for event in (stop, app[FAILED])]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        leave_within(grace_s + CLOSING_S)
        app[READY]["ready"] = False
        logger.info("stopping: requests under way have %g s to finish", grace_s)
        loop.call_later(grace_s, app[STOPPING].end_grace)
        await asyncio.sleep(DRAIN_S)
        listening.close()
    finally:
        listening.close()
        await runner.cleanup()
        for task in beside:
            task.cancel()
    return not app[FAILED].is_set()


async def keep_watched(watchdog: subprocess.Popen[bytes], stop_s: float) -> None:
    """Replace the watchdog when it has ended: somebody has killed it."""
    while True:
        await asyncio.sleep(WATCHED_EVERY_S)
        if watchdog.poll() is not None:
            logger.warning("the watchdog %d has ended, and is started again", watchdog.pid)
            if (pipe := signal.set_wakeup_fd(-1)) >= 0:
                os.close(pipe)
            with contextlib.suppress(OSError):  # no memory or descriptors: tried again
                watchdog = start_watchdog(stop_s)


async def open_unless_stopped(runner: web.AppRunner, stop: asyncio.Event) -> bool:
    """Open the data directory. Returns False if the service was told to stop before that was done."""
    setup = asyncio.ensure_future(runner.setup())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([setup, stopped], return_when=asyncio.FIRST_COMPLETED)
    if setup.done():
        stopped.cancel()
        await setup  # raises the error of opening, if any
        return True
    logger.info("stopping before the start is complete")
    leave_within(CLOSING_S)
    setup.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await setup
    return False


def handle_signals(handlers: Mapping[signal.Signals, Callable[[], object]]) -> None:
    """Run handlers on this event loop. asyncio's own handlers would take the wake-up descriptor from the watchdog."""
    loop = asyncio.get_running_loop()

    def handle(number: int, _: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is about to end
            loop.call_soon_threadsafe(handlers[signal.Signals(number)])

    for one in handlers:
        signal.signal(one, handle)


async def keep_reloading(
    app: web.Application, reread: Callable[[], Config], tls: Tls | None, asked: asyncio.Event
) -> None:
    """On each request, apply the settings that can change while the service runs, or none if the configuration has an
    error. Then reload the certificate in any case."""
    while await asked.wait():
        asked.clear()
        try:
            changed, waiting = take_over(app[CONFIG], await read_within(RELOAD_S, "configuration", reread))
        except (NearlineError, OSError) as error:
            logger.error("the configuration is in error, the old one stays: %s", message_of(error))
        except Exception:
            logger.exception("the configuration could not be read, the old one stays")
        else:
            follow_config(app)
            logger.info("the configuration was read again; changed: %s", ", ".join(changed) or "nothing")
            if waiting:
                logger.warning("these settings differ and need a restart: %s", ", ".join(waiting))
        if tls is None:
            continue
        try:
            await read_within(RELOAD_S, "certificate", tls.renew)
        except (NearlineError, OSError) as error:
            logger.error("the certificate is in error, the old one stays: %s", message_of(error))
        except Exception:
            logger.exception("the certificate could not be read, the old one stays")
        else:
            logger.info("the certificate was read again")


def follow_config(app: web.Application) -> None:
    """Notify every part of the changed configuration. A part that fails does not keep others from following."""
    set_up_logging(app[CONFIG].log)
    for follow in app[RELOADED]:
        try:
            follow()
        except Exception:
            logger.exception("a part of the service did not follow the configuration")


async def read_within(seconds: float, what: str, read: Callable[[], T]) -> T:
    """Run `read` on a daemon thread and return its result, because a file may be a pipe or on a file system that hangs.
    Raises TimeoutError in that case, and any error of `read`."""
    name = f"read-{what}"
    if any(thread.name == name for thread in threading.enumerate()):
        raise TimeoutError("its files are still being read since an earlier signal")
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def work() -> None:
        try:
            done.set_result(read())
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            done.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    try:
        return await asyncio.wait_for(asyncio.wrap_future(done), seconds)
    except TimeoutError:
        raise TimeoutError(f"its files were not read within {seconds:g} s") from None


def leave_within(seconds: float) -> None:
    """Force the process to exit after `seconds`, logging every thread's stack.

    Python waits for threads at exit, and those in native code cannot be stopped. Acknowledged writes are already on
    disk.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)


async def listen(
    accept: Callable[[], Connection], settings: ServerSection, tls: ssl.SSLContext | None
) -> asyncio.Server:
    """Accept connections; aiohttp's sites cannot use our protocol class. Raises Conflict for a port in use."""
    try:
        return await asyncio.get_running_loop().create_server(
            accept,
            settings.host,
            settings.port,
            backlog=BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=settings.header_timeout_s if tls else None,
        )
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        where = f"{settings.host}:{settings.port}"
        raise Conflict(f"{where} is in use by another program; --port takes another port") from error


def url_of(listening: asyncio.Server, tls: ssl.SSLContext | None) -> str:
    host, port = listening.sockets[0].getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
