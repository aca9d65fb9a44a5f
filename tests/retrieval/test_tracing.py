"""Traces, as a collector of OpenTelemetry receives them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from jobs.serving.process import serving
from tests.support.http import Http

SERVER = 2  # a kind of span
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Its address, and the bodies that were sent to it."""
    bodies: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Any:
    """Of a search that continues a trace, one that fails, and a probe."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_TRACING_ENABLED": "true"}
    with collector() as (url, bodies):
        environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        with serving(tmp_path_factory.mktemp("traced") / "data", environ) as server:
            service = Http(server.url)
            service.ok("POST", "/v1/collections", {"name": "docs"})
            service.write("docs", {"id": "a", "text": "Refunds within 30 days"})
            traced = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            path = "/v1/collections/docs/search"
            assert service.call("POST", path, {"query": "my secret refunds"}, headers=traced).status == 200
            assert service.call("POST", path, {"query": ""}).status == 422
            service.call("DELETE", "/v1/keys/nl_0123456789ab_" + "secret" * 8)
            service.ok("GET", "/readyz")
        assert not any(b"secret" in body or b"Refunds" in body for body in bodies)
        received = [ExportTraceServiceRequest.FromString(body) for body in bodies]
    return [
        span for one in received for of in one.resource_spans for in_ in of.scope_spans for span in in_.spans
    ]


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: one.value for one in span.attributes}


@pytest.mark.slow
def test_a_request_continues_its_callers_trace(spans: Any) -> None:
    """With what the receipt says, by OpenTelemetry's names; stages are inside, end to end."""
    search = next(one for one in spans if one.trace_id.hex() == TRACE and one.kind == SERVER)
    assert (search.name, search.parent_span_id.hex()) == ("POST /v1/collections/{collection}/search", PARENT)
    found = attributes(search)
    assert found["http.response.status_code"].int_value == 200
    assert (found["nearline.cache"].string_value, found["nearline.collection"].string_value) == (
        "miss",
        "docs",
    )
    stages = [one for one in spans if one.parent_span_id == search.span_id]
    assert {"embed", "dense", "lexical", "fuse", "hydrate"} <= {one.name for one in stages}
    assert "total" not in {one.name for one in stages}
    for before, after in itertools.pairwise(stages):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    assert stages[0].start_time_unix_nano == search.start_time_unix_nano
    assert stages[-1].end_time_unix_nano <= search.end_time_unix_nano


def test_refusals_and_probes(spans: Any) -> None:
    """A refusal is a span with its status and no error of ours; probes are none."""
    names = [one.name for one in spans]
    assert not any("readyz" in name for name in names)
    requests = [one for one in spans if one.kind == SERVER]
    [refused] = [one for one in requests if attributes(one)["http.response.status_code"].int_value == 422]
    assert refused.status.code == 0
    assert "nearline.cache" not in attributes(refused)
