"""A body of millions of tiny values is refused before it is decoded, on every route that takes JSON."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import random
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from aiohttp import web
from msgspec import inspect

from indexes.base.errors import TooLarge
from retrieval.base.settings import Config
from retrieval.dialects.ollama import OllamaEmbed
from retrieval.dialects.openai import OpenAIEmbeddingRequest
from retrieval.dialects.tei import TeiSimilarity
from retrieval.handlers.state import CATALOG
from retrieval.server.app import create_app
from retrieval.server.examples import make_examples
from retrieval.server.routes import ROUTES
from retrieval.wire.decoding import alternatives, decode
from retrieval.wire.documents import WriteDocuments
from retrieval.wire.value_budget import UNITS_MAX, Strings
from tests.support.operations import MODEL, Operation
from tests.support.vectors import settings

BODY_BYTES = 33_000_000  # of one body for each route; the limit is 33.5 million
OTHER_BYTES = (
    6_000_000  # of the others: what is left as JSON is checked to its end, and sending takes a while
)
# CPU of the process while its loop does not run: such bodies held it for up to 3 s, and now for 0.06.
HELD_S_MAX = 0.3
BEAT_S = 0.002
PLACE = "\x00"
Place = tuple[str | int, ...]


class Loop:
    """A service in this process, and the longest that its loop did not run, in CPU time of the process."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._beaten, self.held_s = time.process_time(), 0.0
        loop.call_soon_threadsafe(self._beat)

    def _beat(self) -> None:
        now = time.process_time()
        self.held_s = max(self.held_s, now - self._beaten)
        self._beaten = now
        self._loop.call_later(BEAT_S, self._beat)

    def close(self) -> None:
        self._connection.close()

    def ask(self, operation: Operation, body: bytes) -> tuple[int, str, float]:
        """Status and text of the answer, and how long it held the loop."""
        return self.post(operation.path(), body, "application/json", operation.route.method)

    def post(self, path: str, body: bytes, kind: str, method: str = "POST") -> tuple[int, str, float]:
        self.held_s = 0.0
        self._connection.request(method, path, body, {"Content-Type": kind})
        reply = self._connection.getresponse()
        text = reply.read().decode()
        return reply.status, text, self.held_s


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[web.AppRunner, str]:
        app = create_app(Config(), tmp_path_factory.mktemp("huge") / "data")
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        app[CATALOG].create("docs", settings())
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"

    runner, url = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    gc.collect()
    gc.freeze()  # as a service does once all is loaded
    service = Loop(url, loop)
    yield service
    service.close()
    gc.unfreeze()
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


def containers(one: inspect.Type, at: Place = ()) -> Iterator[tuple[Place, bytes]]:
    """Where a body of this type may hold any number of values, with a tiny one; `"":1` is a member of an object."""
    for each in alternatives(one):
        match each:
            case inspect.StructType():
                for field in each.fields:
                    yield from containers(field.type, (*at, field.encode_name))
            case inspect.CollectionType():
                yield at, tiny(each.item_type)
                yield from containers(each.item_type, (*at, 0))
            case inspect.DictType():
                yield at, b'"":' + tiny(each.value_type)
            case inspect.AnyType():
                yield at, b'"":[]'
            case inspect.RawType():
                yield at, b"[]"
                yield at, b'"":1'


def tiny(one: inspect.Type) -> bytes:
    """The shortest JSON of a type; of several the one that takes most to decode."""
    found = b"1"
    for each in alternatives(one):
        match each:
            case inspect.CollectionType() | inspect.AnyType():
                return b"[]"
            case inspect.StructType() | inspect.DictType():
                return b"{}"
            case inspect.StrType():
                found = b'""'
    return found


def routes() -> Iterator[Operation]:
    """An example of each route that takes JSON."""
    examples = make_examples(MODEL)
    for route in ROUTES:
        if route.request is not None and route.sent_as == "application/json":
            bodies = examples.bodies.get(route.request, {})
            yield Operation(route, examples.path, next(iter(bodies.values()), {}))


def huge_bodies() -> Iterator[tuple[Operation, Place, bytes, int]]:
    """Every place of every type of body that may be huge, and for each further route of a type the first one."""
    seen = set()
    for operation in routes():
        assert operation.route.request is not None
        places = list(containers(inspect.type_info(operation.route.request)))
        for at, element in places[:1] if operation.route.request in seen else places:
            yield operation, at, element, BODY_BYTES if at == places[0][0] else OTHER_BYTES
        seen.add(operation.route.request)


def huge(operation: Operation, at: Place, element: bytes, size: int) -> bytes:
    """The example of the operation with one place of it full of tiny values."""
    body = copy.deepcopy(operation.body)
    inner: Any = body
    for step, after in pairwise(at):
        empty: Any = [{}] if after == 0 else {}
        if isinstance(inner, list) or not isinstance(inner.get(step), type(empty)):
            inner[step] = empty
        inner = inner[step]
    inner[at[-1]] = PLACE
    head, tail = json.dumps(body).encode().split(json.dumps(PLACE).encode())
    return head + many(element, size - len(head) - len(tail)) + tail


def many(element: bytes, size: int) -> bytes:
    """A list, or an object of members, of so many bytes."""
    opening, closing = (b"{", b"}") if element.startswith(b'"":') else (b"[", b"]")
    return opening + (element + b",") * (size // (len(element) + 1) - 2) + element + closing


CASES = [
    pytest.param(
        *case, id=f"{case[0].route.method} {case[0].route.path} {'.'.join(map(str, case[1]))} {case[2]!r}"
    )
    for case in huge_bodies()
]


@pytest.mark.parametrize(("operation", "at", "element", "size"), CASES)
def test_no_field_holds_the_loop(
    served: Loop, operation: Operation, at: Place, element: bytes, size: int
) -> None:
    """Every list and every object of every body may be as large as the body; the answer names it."""
    status, text, held_s = served.ask(operation, huge(operation, at, element, size))
    assert status in (400, 413, 422), text
    assert str(at[0]) in text, text
    assert held_s < HELD_S_MAX


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        (b'{"input":' + many(b"1", 20_000_000) + b"}", OpenAIEmbeddingRequest, "input"),
        (b'{"input":[' + many(b"1", 20_000_000) + b"]}", OpenAIEmbeddingRequest, "input"),
        (b'{"inputs":{"sentences":' + many(b'""', 20_000_000) + b"}}", TeiSimilarity, "inputs.sentences"),
        (b'{"model":"a","options":{"a":' + many(b'""', 20_000_000) + b"}}", OllamaEmbed, "options.a"),
        (b'{"model":"a","options":' + many(b'"":1', 20_000_000) + b"}", OllamaEmbed, "options"),
        (many(b'"":1', 20_000_000), OllamaEmbed, None),
        (b'{"documents":' + many(b'{"id":1}', 20_000_000) + b"}", WriteDocuments, "documents"),
    ],
)
def test_the_field_that_holds_too_many_values_is_named(body: bytes, kind: type, param: str | None) -> None:
    """By its path, up to the first list; a list inside a list is a part of that, and so is a member of an object."""
    with pytest.raises(TooLarge, match=r"too many values") as refused:
        decode(body, kind)
    assert refused.value.param == param


def test_a_large_body_of_few_values_is_decoded() -> None:
    """What stands in strings is no value, nor what is left as JSON: vectors and metadata have limits of their own."""
    text = 'a, [b], {"c": "\\"}, ' * 60_000
    assert (
        decode(json.dumps({"input": [text] * 20, "model": "m"}).encode(), OpenAIEmbeddingRequest).input
        == [text] * 20
    )
    document = b'{"id":1,"text":"a","vector":' + many(b"0.123", 20_000) + b"}"
    body = b'{"documents":' + many(document, 25_000_000) + b"}"
    assert body.count(b",") > 4 * UNITS_MAX
    assert len(decode(body, WriteDocuments).documents) > 1_000


def test_strings_are_told_apart_across_slices() -> None:
    """As a parser does it, wherever a slice ends: quotes behind an even number of backslashes end a string."""
    chance = random.Random(1)
    for _ in range(200):
        texts = ["".join(chance.choices('\\"a,{[', k=chance.randint(0, 12))) for _ in range(5)]
        body = json.dumps(texts, separators=(",", ":")).encode()
        ends = [
            0,
            *np.cumsum([len(json.dumps(one)) + 1 for one in texts]),
        ]  # where the brackets and commas are
        size, strings = chance.randint(1, 9), Strings()
        whole = np.frombuffer(body, np.uint8)
        outside = np.concatenate(
            [strings.outside(whole[at : at + size]) for at in range(0, len(whole), size)]
        )
        outside[whole == ord('"')] = 0
        assert np.flatnonzero(outside).tolist() == ends


def test_a_form_has_few_fields(served: Loop) -> None:
    """Each takes a while to read, and none but those of an upload are of use."""
    part = b'--edge\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    status, text, held_s = served.post("/v1/files", part * 100_000, "multipart/form-data; boundary=edge")
    assert status == 413
    assert "form fields" in text
    assert held_s < HELD_S_MAX
