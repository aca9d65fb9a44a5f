"""`nearline mcp`, spoken to by the official SDK's own client, over stdin and over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, TextContent

from jobs.serving.process import ServerProcess
from tests.support.http import Http

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "refunds/eu", "title": "Refunds", "text": "You get your money back within fourteen days."},
    {
        "id": "moon",
        "text": "The moon is far away.",
        "metadata": {"url": "https://example.org/moon", "year": 1969},
    },
    {"id": "mars", "title": "Mars", "text": "Mars is further.", "metadata": {"source": "file:///mars.md"}},
]


@pytest.fixture
def collection(http: Http) -> str:
    return filled(http)


def filled(http: Http) -> str:
    name = http.new_collection()
    http.write(name, *DOCUMENTS)
    return name


def asked(
    server: StdioServerParameters | str, work: Callable[[Client], Awaitable[T]], *, mode: str = "auto"
) -> T:
    async def run() -> T:
        async with Client(server, mode=mode) as client:
            return await work(client)

    return asyncio.run(run())


def on_stdio(service: ServerProcess, *collections: str) -> StdioServerParameters:
    names = [word for name in collections for word in ("-c", name)]
    arguments = ["-m", "jobs.cli", "mcp", "--url", service.url, *names]
    return StdioServerParameters(command=sys.executable, args=arguments, env=ENVIRON, cwd=str(ROOT))


def json_of(result: CallToolResult) -> Any:
    """The JSON in its one text item, which is the structured content, too."""
    assert not result.is_error, result
    (item,) = result.content
    assert isinstance(item, TextContent)
    assert json.loads(item.text) == result.structured_content
    return result.structured_content


def test_search_and_fetch(service: ServerProcess, collection: str) -> None:
    """As ChatGPT's connectors call them: ids, titles and URLs, then one whole document."""

    async def work(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["search", "fetch", "context"]
        assert tools["search"].input_schema["required"] == ["query"]
        assert set(tools["search"].input_schema["properties"]) == {"query"}
        assert not any(tool.input_schema["additionalProperties"] for tool in tools.values())
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())
        found = json_of(await client.call_tool("search", {"query": "how long do I wait for my money?"}))[
            "results"
        ]
        place = f"{service.url}/v1/collections/{collection}/documents"
        assert found[0] == {"id": "refunds/eu", "title": "Refunds", "url": f"{place}/refunds%2Feu"}
        assert {one["id"]: one["url"] for one in found} == {
            "refunds/eu": f"{place}/refunds%2Feu",
            "moon": "https://example.org/moon",
            "mars": f"{place}/mars",
        }
        moon = json_of(await client.call_tool("fetch", {"id": "moon"}))
        assert moon == {
            "id": "moon",
            "title": "moon",
            "text": "The moon is far away.",
            "url": "https://example.org/moon",
            "metadata": {"url": "https://example.org/moon", "year": 1969},
        }
        assert json_of(await client.call_tool("fetch", {"id": "refunds/eu"}))["text"].startswith("You get")

    asked(on_stdio(service, collection), work)


def test_context(service: ServerProcess, collection: str) -> None:
    """The text is readable as it is, and its citations are structured."""

    async def work(client: Client) -> None:
        result = await client.call_tool("context", {"query": "money back", "token_budget": 200})
        assert not result.is_error, result
        built: Any = result.structured_content
        (item,) = result.content
        assert isinstance(item, TextContent)
        assert item.text == built["context"]
        assert "fourteen days" in built["context"]
        assert built["citations"][0]["id"] == "refunds/eu"
        assert built["citations"][0]["url"].startswith(service.url)

    asked(on_stdio(service, collection), work)


def test_clients_of_the_first_kind(service: ServerProcess, collection: str) -> None:
    """Assistants that begin with the handshake of the protocol before 2026 get the same."""

    async def work(client: Client) -> None:
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.version) == ("nearline", version("nearline"))
        assert json_of(await client.call_tool("fetch", {"id": "mars"}))["title"] == "Mars"

    asked(on_stdio(service, collection), work, mode="legacy")


def test_several_collections(service: ServerProcess, collection: str, http: Http) -> None:
    """Ids say which one they are of; a search may name one, and a context has to."""
    other = http.new_collection()
    http.write(
        other, {"id": "venus", "text": "Venus is hot."}, {"id": "a/b", "text": "Money grows on trees."}
    )

    async def work(client: Client) -> None:
        found = json_of(await client.call_tool("search", {"query": "planets and money"}))["results"]
        assert {one["id"] for one in found} == {
            *(f"{collection}/{one['id']}" for one in DOCUMENTS),
            f"{other}/venus",
            f"{other}/a/b",
        }
        narrow = await client.call_tool("search", {"query": "planets", "collection": other})
        assert {one["id"] for one in json_of(narrow)["results"]} == {f"{other}/venus", f"{other}/a/b"}
        assert (
            json_of(await client.call_tool("fetch", {"id": f"{other}/a/b"}))["text"]
            == "Money grows on trees."
        )
        assert (await client.call_tool("context", {"query": "planets"})).is_error
        built = await client.call_tool("context", {"query": "planets", "collection": other})
        assert not built.is_error
        for arguments in ({"query": "x", "collection": "secret"}, {"query": "x", "collection": ""}):
            refused = await client.call_tool("search", arguments)
            assert refused.is_error
            assert "no collection" in str(refused.content)

    asked(on_stdio(service, collection, other), work)


def test_errors_are_readable(service: ServerProcess, collection: str, http: Http) -> None:
    """What the service refuses is told to the assistant, and the server goes on."""
    nothing = http.new_collection()

    async def work(client: Client) -> None:
        for name, arguments, words in (
            ("search", {"query": " "}, "query is empty"),
            ("fetch", {"id": "nobody"}, "no document 'nobody'"),
            ("fetch", {"id": ".."}, "no document '..'"),
            ("context", {"query": "x", "token_budget": 1}, "token_budget"),
            (
                "context",
                {"query": "x", "max_tokens": 9},
                "no argument 'max_tokens'; did you mean 'token_budget'?",
            ),
            ("search", {"qury": "x"}, "search has no argument 'qury'; did you mean 'query'?"),
            ("search", {"query": "x", "language": "en"}, "no argument 'language'; known names: query"),
        ):
            refused = await client.call_tool(name, arguments)
            assert refused.is_error
            (item,) = refused.content
            assert isinstance(item, TextContent)
            assert words in item.text
        assert json_of(await client.call_tool("search", {"query": "x"})) == {"results": []}

    asked(on_stdio(service, nothing), work)

    async def unreachable(client: Client) -> None:
        refused = await client.call_tool("search", {"query": "x"})
        assert refused.is_error
        assert "cannot be reached" in str(refused.content)

    away = on_stdio(service, collection)
    asked(away.model_copy(update={"args": [*away.args, "--url", "http://127.0.0.1:9"]}), unreachable)


# --- over HTTP ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def over_http(service: ServerProcess) -> Iterator[str]:
    """The address of a server on a free port."""
    collection = filled(Http(service.url))
    command = [sys.executable, "-m", "jobs.cli", "mcp", "--url", service.url, "-c", collection, "--http"]
    extra = ["--port", "0", "--allow-host", "tools.example"]
    with subprocess.Popen(
        [*command, *extra], env=ENVIRON, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        found = re.fullmatch(
            r"nearline mcp listens on (http://127\.0\.0\.1:\d+/mcp)\n", server.stdout.readline()
        )
        assert found
        yield found[1]
        server.terminate()
        assert server.wait(20) in (0, -15)


def test_over_http(over_http: str) -> None:
    """The same tools by the streamable HTTP transport."""

    async def work(client: Client) -> None:
        found = json_of(await client.call_tool("search", {"query": "how long do I wait for my money?"}))
        assert found["results"][0]["id"] == "refunds/eu"

    asked(over_http, work)
    asked(over_http, work, mode="legacy")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "tools.example"}, 200),
        ({"Host": "rebound.example"}, 421),
        ({"Host": "127.0.0.1.rebound.example:80"}, 421),
        ({"Origin": "http://localhost:6274"}, 200),
        ({"Origin": "https://tools.example"}, 200),
        ({"Origin": "https://rebound.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 400),
    ],
    ids=str,
)
def test_pages_cannot_reach_it(over_http: str, headers: dict[str, str], status: int) -> None:
    """Host and Origin have to be known ones: a page's own name that resolves to this machine is not."""
    connection = http.client.HTTPConnection(urlsplit(over_http).netloc, timeout=20)
    usual = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    call = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    connection.request("POST", "/mcp", json.dumps(call), {**usual, **headers})
    assert connection.getresponse().status == status


@pytest.mark.slow
def test_other_machines_reach_it_only_on_purpose() -> None:
    """An address that they reach is refused without --insecure."""
    command = [sys.executable, "-m", "jobs.cli", "mcp", "-c", "docs", "--http", "--host", "0.0.0.0"]
    ended = subprocess.run(
        command, env=ENVIRON, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 1
    assert "--insecure" in ended.stderr
