"""Which request a log line belongs to, in the running application."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from retrieval.app import create_app
from retrieval.keys import PIPELINE
from retrieval.request_log import REQUEST_ID, RequestLog
from retrieval.settings import Config

logger = logging.getLogger("test")


class Ids(logging.Handler):
    """Message and request id of every record, as a formatter finds them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.getMessage(), REQUEST_ID.get()))


async def on_the_pool(request: web.Request) -> web.Response:
    await request.app[PIPELINE]._run(lambda: logger.info("searching"))
    return web.Response(text="done")


async def broken(request: web.Request) -> web.Response:
    raise RuntimeError("a bug")


async def slow(request: web.Request) -> web.Response:
    logger.info("begun")
    await asyncio.sleep(60)
    return web.Response()


def test_lines_of_a_request_have_its_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the search threads log, what fails unexpectedly, and the request's own line, also where the client left."""
    caplog.set_level(logging.INFO)
    ids = Ids()
    logging.getLogger().addHandler(ids)

    async def story() -> None:
        app = create_app(Config(), tmp_path / "data")
        for path, handler in {"/pool": on_the_pool, "/broken/{x}": broken, "/slow": slow}.items():
            app.router.add_get(path, handler)
        runner = web.AppRunner(app, access_log_class=RequestLog, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession() as session:
            await session.get(f"{url}/pool", headers={"X-Request-Id": "first"})
            await session.get(f"{url}/broken/a%0Ab", headers={"X-Request-Id": "second"})
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await session.get(f"{url}/slow", headers={"X-Request-Id": "third"})
            while not any("499" in message for message, _ in ids.seen):  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
        logger.info("after")
        await runner.cleanup()

    try:
        asyncio.run(story())
    finally:
        logging.getLogger().removeHandler(ids)
    seen = [(message.split(" 4")[0].split(" 5")[0].split(" 2")[0], one) for message, one in ids.seen if one]
    assert seen == [
        ("searching", "first"),
        ("GET /pool", "first"),
        ("GET /broken/a%0Ab failed", "second"),
        ("GET /broken/a%0Ab", "second"),
        ("begun", "third"),
        ("GET /slow", "third"),
    ]
    assert ("after", "") in ids.seen
