"""Ids of documents: each that can be written can be read, changed and deleted by its address."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from nearline import AsyncClient
from tests.support.http import Http

ODD = [
    *(
        "...",
        ".a",
        "a.",
        "./a",
        "a/.",
        "a/..",
        "a/../b",
        "a/./b",
        "../a",
        "/",
        "//",
        "/a",
        "a/",
        "a//b",
        "a b",
        " a",
    ),
    *(
        "a ",
        "%2F",
        "%2e",
        "%",
        "a%b",
        "%00",
        "a?b",
        "a#b",
        "a&b=c",
        "a+b",
        "a;b",
        "a:b",
        "http://x/y?z#w",
        "é",
        "日本語",
    ),
    *(
        "a\\b",
        "~",
        "documents",
        "scroll",
        "count",
        "delete",
        "a/documents/b",
        "{id}",
        '"',
        "'",
        "<a>",
        "*",
        "_",
        "0",
    ),
]


@pytest.fixture(scope="module")
def name(service: object) -> str:
    http = Http(service.url)  # type: ignore[attr-defined]
    name = http.new_collection()
    http.write(name, *({"id": one, "text": f"text of {one}"} for one in ODD))
    return name


@pytest.mark.parametrize("raw", [True, False], ids=["aiohttp", "client"])
def test_odd_ids_have_an_address(http: Http, name: str, raw: bool) -> None:
    """Through aiohttp's own client, which normalizes paths, and through ours: read, patch, delete, write again."""

    async def run() -> None:
        async with aiohttp.ClientSession() as session, AsyncClient(http.url) as client:
            for one in ODD:
                if raw:
                    # As `encoded`: else yarl decodes and normalizes what the caller has quoted.
                    url = URL(
                        f"{http.url}/v1/collections/{name}/documents/{quote(one, safe='')}", encoded=True
                    )
                    async with session.get(url) as reply:
                        assert (reply.status, (await reply.json()).get("id")) == (200, one)
                    async with session.patch(url, json={"metadata": {"a": 1}}) as reply:
                        assert reply.status == 200, one
                    async with session.delete(url) as reply:
                        assert (await reply.json())["deleted"] == 1, one
                else:
                    assert (await client.document(name, one))["id"] == one
                    await client.patch(name, one, {"b": 1})
                    assert await client.delete(name, one), one
                await client.write(name, [{"id": one, "text": f"text of {one}"}])

    asyncio.run(run())


@pytest.mark.parametrize("one", [".", ".."])
def test_ids_that_no_address_can_hold_are_refused(http: Http, one: str) -> None:
    """Clients and proxies take a segment of dots out of a path, quoted or not."""
    body = {"documents": [{"id": "good", "text": "x"}, {"id": one, "text": "x"}]}
    reply = http.call("POST", f"/v1/collections/{http.new_collection()}/documents", body)
    assert (reply.status, reply.body["error"]["param"]) == (422, "documents[1].id")
    assert repr(one) in reply.body["error"]["message"]
