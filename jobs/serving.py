"""Runs the service in this process until SIGTERM or SIGINT: stop being ready, finish what was accepted, close."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from pathlib import Path

from aiohttp import web

from retrieval.app import create_app
from retrieval.config import Config
from retrieval.keys import READY

READY_LINE = "nearline listens on "
DRAIN_S = 0.2  # between failing readiness and closing the socket, for a load balancer to notice


def run(config: Config, data: Path) -> None:
    """Blocks until the service has ended. Raises what opening the data directory raises."""
    set_up_logging(config)
    asyncio.run(serve(config, data))


async def serve(config: Config, data: Path) -> None:
    app = create_app(config, data)
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
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
        print(f"{READY_LINE}{url_of(runner)}", flush=True)  # noqa: T201 - other programs wait for this line
        await stop.wait()
        app[READY]["ready"] = False
        await asyncio.sleep(DRAIN_S)
    finally:
        await runner.cleanup()


def url_of(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(config: Config) -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if config.log.format == "json" else text)
    logging.basicConfig(level=config.log.level.upper(), handlers=[handler], force=True)
