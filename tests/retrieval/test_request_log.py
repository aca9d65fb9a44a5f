"""Which request a log line belongs to, in the running application, and what the line of a request says."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from jobs.serving.process import log_of, serving
from retrieval.base.request_id import REQUEST_ID
from retrieval.base.settings import Config
from retrieval.handlers.state import PIPELINE
from retrieval.observe.request_log import RequestLog
from retrieval.server.app import create_app
from tests.support.http import Http

logger = logging.getLogger("test")


class Ids(logging.Handler):
    """Message and request id of every record, as a formatter finds them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.getMessage(), REQUEST_ID.get()))


async def on_the_pool(request: web.Request) -> web.Response:
    await request.app[PIPELINE].on_thread(lambda: logger.info("searching"))
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


# --- what a line says -------------------------------------------------------------------------------------------


def logged(data: Path) -> list[dict[str, Any]]:
    """The request lines of a service's log, as JSON."""
    lines = [json.loads(line) for line in log_of(data).read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["logger"] == "nearline.requests"]


def searched(data: Path, model_folder: Path, **settings: str) -> list[dict[str, Any]]:
    """The lines of a search, a batch, a context and a listing."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_LOG_FORMAT": "json", **settings}
    with serving(data, environ) as server:
        service = Http(server.url)
        name = service.new_collection()
        service.write(name, {"id": "a", "text": "Refunds within 30 days"})
        service.search(name, query="the secret of refunds")
        service.ok("POST", f"/v1/collections/{name}/search/batch", {"searches": [{"query": "secret one"}]})
        context = {"queries": ["secret two", "secret three"], "token_budget": 99}
        service.ok("POST", f"/v1/collections/{name}/context", context)
        service.ok("GET", "/v1/collections")
    return [line for line in logged(data) if line["method"] == "GET" or "/documents" not in line["path"]][-4:]


def test_queries_are_logged_only_if_wanted(tmp_path: Path, model_folder: Path) -> None:
    """By default no word of them is in the log; stages are."""
    lines = searched(tmp_path / "data", model_folder)
    assert "secret" not in log_of(tmp_path / "data").read_text()
    assert [line.get("queries") for line in lines] == [None] * 4
    stages = lines[0]["stages_ms"]
    assert {"embed", "dense", "lexical", "fuse", "hydrate", "total"} <= {*stages}
    assert stages["total"] <= lines[0]["ms"]
    assert [line["level"] for line in lines] == ["info"] * 4
    lines = searched(
        tmp_path / "wanted", model_folder, NEARLINE_LOG_QUERIES="true", NEARLINE_LOG_SLOW_MS="0.001"
    )
    asked = [["the secret of refunds"], ["secret one"], ["secret two", "secret three"], None]
    assert [line.get("queries") for line in lines] == asked
    slow = [line for line in lines if line["level"] == "warning"]
    assert [line["path"].rpartition("/")[2] for line in slow] == ["search", "context"]
    assert all(", slow: " in line["message"] and "embed" in line["message"] for line in slow)
