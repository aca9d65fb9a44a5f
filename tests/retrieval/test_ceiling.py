"""The ceiling of memory: who is refused when, and what shows it. tests/scenarios/test_memory.py tries to break it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from indexes.base.errors import Overloaded
from jobs.serving.process import serving
from retrieval.admission.ceiling import ANSWER_FACTOR, BODY_FACTOR, PAGE_BYTES_MIN, Ceiling, decoded_bytes
from retrieval.admission.gates import Load
from retrieval.base.cgroups import cgroup_bytes
from retrieval.wire.documents import SentDocument
from tests.support.http import Http

MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    ("own", "refusing"),
    [
        (79, []),
        (81, ["heavy", "answer", "watch"]),
        (91, ["heavy", "answer", "watch", "write", "change", "embed"]),
        (101, ["heavy", "answer", "watch", "write", "change", "embed", "search"]),
    ],
)
def test_the_heavy_are_refused_first(own: int, refusing: list[Load]) -> None:
    """Then writes and embeddings, and searches last, each with the reason."""
    ceiling = Ceiling(100 * MEGABYTE, lambda: own * MEGABYTE)
    assert ceiling.refusing() == refusing
    for load in refusing:
        with ceiling.hold(load) as held, pytest.raises(Overloaded, match=r"server\.memory_bytes_max"):
            held.body(0)
    assert ceiling.refused == dict.fromkeys(refusing, 1)


def test_what_is_foretold_counts_until_the_request_ends() -> None:
    """Two bodies that have room one after the other have none together."""
    ceiling = Ceiling(100 * MEGABYTE, lambda: 0)
    size = 60 * MEGABYTE // BODY_FACTOR
    for _ in range(2):
        with ceiling.hold("write") as first, ceiling.hold("write") as second:
            first.body(size)
            with pytest.raises(Overloaded):
                second.body(size)
    assert ceiling.foretold == 0


def test_pages_are_smaller_where_memory_is_short() -> None:
    """A page gets what there is room for, down to a megabyte."""
    ceiling = Ceiling(100 * MEGABYTE, lambda: 0)
    with ceiling.hold("heavy") as held:
        assert ANSWER_FACTOR * held.page(64 * MEGABYTE) <= 80 * MEGABYTE
    with ceiling.hold("heavy") as first, ceiling.hold("heavy") as second:
        first.body(79 * MEGABYTE // BODY_FACTOR)
        with pytest.raises(Overloaded):
            second.page(PAGE_BYTES_MIN)


@pytest.mark.parametrize(
    ("item", "type_"),
    [
        ("0", list[int]),
        ("[0]", list[list[int]]),
        ("1.5", list[float]),
        ('{"id":1,"text":""}', list[SentDocument]),
    ],
)
def test_what_a_body_grows_to_is_foretold(item: str, type_: type) -> None:
    """What decoding takes is not more than that, nor a tenth of it."""
    body = f"[{','.join([item] * 100_000)}]".encode()
    tracemalloc.start()
    decoded: list[object] = msgspec.json.decode(body, type=type_)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(decoded) == 100_000
    assert grown <= decoded_bytes(body) < 10 * grown


def test_what_a_container_may_have(tmp_path: Path) -> None:
    """The tightest limit above our control group, of either version; none where none is set."""
    membership = tmp_path / "cgroup"
    membership.write_text("0::/service\n")
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "memory.max").write_text("max\n")
    assert cgroup_bytes(tmp_path, membership) is None
    (tmp_path / "memory.max").write_text("1000\n")
    assert cgroup_bytes(tmp_path, membership) == 1000
    membership.write_text("5:memory:/\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("2000\n")
    assert cgroup_bytes(tmp_path, membership) == 2000


@pytest.fixture
def full(tmp_path: Path, model_folder: Path) -> Iterator[Http]:
    """A service that holds more than it may from the start."""
    data, environ = tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    with serving(data, environ) as server:
        Http(server.url).ok("POST", "/v1/collections", {"name": "docs"})
    with serving(data, {**environ, "NEARLINE_SERVER_MEMORY_BYTES_MAX": "1"}) as server:
        yield Http(server.url)


@pytest.mark.slow
def test_a_full_service_says_so(full: Http) -> None:
    """429 with the reason and Retry-After; health, readiness and metrics answer, and deleting a collection helps."""
    for path in ("/v1/collections/docs/search", "/v1/collections/docs/documents", "/v1/embeddings"):
        reply = full.call("POST", path, {})
        assert reply.status == 429
        assert "server.memory_bytes_max" in reply.body["error"]["message"]
        assert reply.headers["Retry-After"]
    assert full.ok("GET", "/healthz") == {"status": "ok"}
    assert full.ok("GET", "/readyz")["refusing"] == [
        "heavy",
        "answer",
        "watch",
        "write",
        "change",
        "embed",
        "search",
    ]
    assert full.metric("nearline_memory_refusals_total", **{"class": "search"}) == 1
    held, ceiling = (full.metric("nearline_memory_bytes", kind=kind) for kind in ("held", "ceiling"))
    assert held > ceiling == 1
    assert full.call("DELETE", "/v1/collections/docs").status == 204
