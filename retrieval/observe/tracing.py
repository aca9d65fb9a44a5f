"""OpenTelemetry: a span per request, with a child per stage of its search. Queries and answers are never included.

Spans are sent over OTLP/HTTP as configured by the standard variables (OTEL_EXPORTER_OTLP_ENDPOINT,
OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER). Only the durations of stages are known, so their spans are laid end to end
in the order of Server-Timing.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from indexes.base.errors import InvalidInput
from retrieval.access.auth import PRINCIPAL
from retrieval.base.request_id import REQUEST_ID
from retrieval.observe.request_log import PROBES, stages_of
from retrieval.wire.search import Receipt

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

LAST_SPANS_S = 1.0
RECEIPT = web.RequestKey("RECEIPT", Receipt)  # of the search behind the answer, if any


def trace(app: web.Application) -> None:
    """Trace all requests of the service. Raises InvalidInput if the extra `tracing` is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidInput(
            f"tracing.enabled needs the extra `tracing` of nearline: {error}", param="tracing.enabled"
        ) from None
    named = {} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: "nearline"}
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    app.middlewares.insert(0, spans_of(provider))

    async def until_sent(app: web.Application) -> AsyncIterator[None]:
        yield
        sending = threading.Thread(target=provider.shutdown, daemon=True)  # the collector may never answer
        sending.start()
        await asyncio.to_thread(sending.join, LAST_SPANS_S)

    app.cleanup_ctx.insert(0, until_sent)  # closed last, so nothing waits for it


def spans_of(provider: TracerProvider) -> Middleware:
    from opentelemetry import propagate
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

    tracer = provider.get_tracer("nearline")

    @web.middleware
    async def traced(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in PROBES:
            return await handler(request)
        route = request.match_info.route.resource
        path = route.canonical if route else "unknown"
        begun_ns = time.time_ns()
        span = tracer.start_span(
            f"{request.method} {path}",
            propagate.extract(request.headers),
            SpanKind.SERVER,
            # Not the path, which may contain ids or a misplaced key.
            {"http.request.method": request.method, "http.route": path},
            start_time=begun_ns,
        )
        try:
            answer = await handler(request)
        except BaseException:
            span.set_status(Status(StatusCode.ERROR, "the client has left"))
            span.end()
            raise
        span.set_attributes(attributes_of(request, answer))
        if answer.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span)
        for name, ms in stages_of(answer.headers.get("Server-Timing", "")).items():
            if name != "total":
                child = tracer.start_span(name, inside, start_time=begun_ns)
                begun_ns += round(ms * 1e6)
                child.end(begun_ns)
        span.end()
        return answer

    return traced


def attributes_of(request: web.Request, answer: web.StreamResponse) -> dict[str, str | int | tuple[str, ...]]:
    """Return span attributes, using OpenTelemetry's names where they exist."""
    found: dict[str, str | int | tuple[str, ...]] = {
        "http.response.status_code": answer.status,
        "nearline.request_id": REQUEST_ID.get(),
        "nearline.key": PRINCIPAL.get().key,
    }
    if receipt := request.get(RECEIPT):
        found |= {
            "nearline.collection": receipt.collection,
            "nearline.generation": receipt.generation,
            "nearline.cache": receipt.cache,
            "nearline.tiers": tuple(receipt.tiers),
            "nearline.degraded": tuple(receipt.degraded or ()),
        }
    return found
