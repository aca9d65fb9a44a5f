"""Every body that the description shows, changed at random: whatever is sent, it is never our fault."""

from __future__ import annotations

import copy
import http.client
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from jobs.serving.process import ServerProcess, log_of, serving
from retrieval.server.examples import DOCUMENTS
from tests.support.http import Http
from tests.support.memory import peak_bytes

CEILING = 1_000_000_000
SLOWEST_SHARE = 0.999  # the machine has pauses of its own
MARK = "@@"  # stands for raw JSON text in what is otherwise a Python value
NASTY = [
    *("null", "true", "false", "0", "-1", "-0.0", "1.5", "[]", "{}", '""', '" "', '"x"', "[[]]", "[null]", '{"": {}}'),
    *("NaN", "Infinity", "-Infinity", "1e999", "1e308", "-1e308", "5e-324", str(2**63), str(-(2**64)), "9" * 400),
    *('"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"a\\u0000b"', '"\xff"', '"\\u202e\\ufffe"', '{"\\ud800": 1}'),
    *('{"\\u0000": 1}', "[" * 300 + "]" * 300, "[" * 100_000 + "]" * 100_000, '{"a":' * 5 + "1" + "}" * 5),
    *('{"a":' * 900 + "1" + "}" * 900, '{"a":' * 100_000 + "1" + "}" * 100_000, '{"a.b": 1, "a": {"b": 2}}'),
    *('"' + "word " * 2000 + '"', '"' + "\U0001f4a5" * 600 + '"', "[" + "1," * 4000 + "1]"),
    *("[" + "1e38," * 383 + "1e38]", "[" + "1e-45," * 383 + "1]", '{"type": "and", "filters": []}', '{"type": "not"}'),
]  # fmt: skip


@pytest.fixture(scope="module")
def fuzzed(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path
) -> Iterator[tuple[ServerProcess, Path]]:
    data = tmp_path_factory.mktemp("fuzzed") / "data"
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_SERVER_MEMORY_BYTES_MAX": str(CEILING),
    }
    with serving(data, environ) as server:
        yield server, data


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values inside a JSON value, itself first."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [above, *(path for step, inner in steps for path in places(inner, (*above, step)))]


def changed(body: Any, dice: random.Random) -> bytes:
    """The body as JSON with one to three of its values replaced, or an unknown one added, or cut short."""
    body = copy.deepcopy(body)
    raws: list[str] = []
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        *above, last = dice.choice(places(body)[1:] or [("unknown",)])
        inner = body
        for step in above:
            inner = inner[step]
        if dice.random() < 0.1 and isinstance(inner, dict):
            last = dice.choice(
                ["unknown", "vector", "filter", "metadata", "min_score", "deadline_ms", "\ud800"]
            )
        inner[last] = f"{MARK}{len(raws)}"
        raws.append(dice.choice(NASTY))
    text = json.dumps(body)
    for number, raw in enumerate(raws):
        text = text.replace(f'"{MARK}{number}"', raw)
    sent = text.encode("utf-8", "surrogatepass")
    return sent[: dice.randrange(len(sent))] if dice.random() < 0.03 else sent


@pytest.mark.parametrize(
    ("bodies", "seed"), [(2000, 0), pytest.param(20_000, 3, marks=pytest.mark.torture)], ids=["short", "long"]
)
@pytest.mark.timeout(1800)
def test_no_body_is_our_fault(fuzzed: tuple[ServerProcess, Path], bodies: int, seed: int) -> None:
    """Changed bodies over all operations: each is answered in JSON and below 500, within a second and the ceiling."""
    server, data = fuzzed
    at, dice = Http(server.url), random.Random(seed)
    operations = []
    for path, methods in at.ok("GET", "/openapi.json")["paths"].items():
        for method, described in methods.items():
            given = {one["name"]: one.get("example") for one in described["parameters"]}
            left_out = path.endswith(
                ("/watch", "/hold")
            )  # its answer is a stream; writes are refused afterwards
            if not left_out and "application/json" in described.get("requestBody", {}).get("content", {}):
                examples = described["requestBody"]["content"]["application/json"]["examples"]
                operations += [
                    (method.upper(), path.format(**given), one["value"]) for one in examples.values()
                ]
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    statuses: dict[int, int] = {}
    took = []
    for number in range(bodies):
        if number % 100 == 0:  # what the bodies before have renamed or removed
            at.call("POST", "/v1/collections", {"name": "docs"})
            at.call("POST", "/v1/collections/docs/documents", {"documents": DOCUMENTS})
        method, path, body = dice.choice(operations)
        sent = changed(body, dice)
        started = time.monotonic()
        connection.request(method, path, sent, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        took.append((time.monotonic() - started, method, path))
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
        assert answer.status < 500, (method, path, sent[:500], content)
        assert isinstance(json.loads(content), dict | list), (method, path, sent[:500], content)
        # A hit has a score; what is explained may be no hit.
        assert path.endswith("/explain") or b'"score":null' not in content, (path, sent[:500], content)
    took.sort()
    print(f"\n{statuses}; slowest {took[-3:]}, {peak_bytes(server.pid) / 1e6:.0f} MB at most")  # noqa: T201
    assert statuses.get(200, 0) > bodies // 40, statuses  # some are still good: not all stop at the door
    assert took[int(SLOWEST_SHARE * bodies)][0] < 1
    assert peak_bytes(server.pid) < CEILING
    assert "Traceback" not in log_of(data).read_text()
