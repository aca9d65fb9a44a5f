"""The OpenAPI 3.1 description, generated from the routing table and the wire types, so it always matches them.

Links describe what can be done with the result of an operation: each one leads to an operation whose path can be
filled in from its request and answer.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from indexes.directory.marker import WHOLE_NAME
from retrieval.access.auth import Needed
from retrieval.admission.gates import Load
from retrieval.base.version import VERSION
from retrieval.wire import errors
from retrieval.wire.errors import ErrorBody

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REFERENCE = "#/components/schemas/{name}"
RENAMED = {"/v1/rerank": "/jina/rerank"}  # /rerank is a different operation
PATTERN = re.compile(r":[^{}]+}")
PARAMETER = re.compile(r"{(\w+)}")

QUERY_PARAMETERS = {
    "cursor": "Where the page begins: `next_cursor` of the previous page",
    "limit": "Documents on one page",
    "vectors": "Whether to list the passages with their vectors; a key needs the scope `vectors`",
    "after": "The page begins after this id: the last one of the previous page",
    "before": "The page ends before this id",
    "order": "`asc` or `desc`",
    "filter": "Only files with this status",
    "purpose": "Only files with this purpose",
    "since": "What the last answer said; 0 at first",
    "wait_s": "Seconds to wait for something new",
}
QUERY_SCHEMAS: dict[str, dict[str, Any]] = {
    "cursor": {"type": "integer", "minimum": 0, "maximum": 2**62},
    "vectors": {"type": "boolean"},
    "after": {"type": "string"},
    "before": {"type": "string"},
    "order": {"type": "string", "enum": ["asc", "desc"]},
    "filter": {"type": "string", "enum": ["completed", "failed", "in_progress", "cancelled"]},
    "purpose": {"type": "string"},
    "since": {"type": "integer", "minimum": 0, "maximum": 2**62},
    "wait_s": {"type": "integer", "minimum": 0, "maximum": 30},
}
EVENT = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}


@dataclass(frozen=True, slots=True)
class Route:
    """One operation. `request`, `answer` and `error` are the wire types of the bodies, or None for no body of ours.

    `media` is the content type of an answer that is not JSON. `gives` maps parameters in the paths of other
    operations to the OpenAPI runtime expressions that find their values in this operation's request or answer.
    `load` is the admission class whose limits apply; None means that of writes if a request has a body, else none.
    `sent_as` is the content type of the request's body, and `limit_max` bounds the parameter `limit`. A route that
    `streams` may answer with server-sent events instead of JSON. `scope` is the key scope it requires (see `auth`);
    a route without one is not served.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    request: type[Any] | None = None
    answer: type[Any] | None = None
    status: int = 200
    parameters: tuple[str, ...] = ()
    limit_max: int = 1000
    error: type[Any] = ErrorBody
    media: str | None = None
    gives: Mapping[str, str] = field(default_factory=dict)
    load: Load | None = None
    scope: Needed | None = None
    sent_as: str = "application/json"
    streams: bool = False


@dataclass(frozen=True, slots=True)
class Examples:
    """`path` has values for path parameters, `bodies` named examples for each request type."""

    path: dict[str, str]
    bodies: dict[type[Any], dict[str, dict[str, Any]]]


def describe(routes: Sequence[Route], examples: Examples) -> dict[str, Any]:
    """Return the whole description as JSON-ready values."""
    kinds = {
        kind for route in routes for kind in (route.request, route.answer, route.error) if kind is not None
    }
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    references, components = msgspec.json.schema_components(ordered, ref_template=REFERENCE)
    schemas = dict(zip(ordered, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        described = operation(route, schemas, examples)
        if links := links_from(route, routes):
            described["responses"][str(route.status)]["links"] = links
        paths.setdefault(path_of(route), {})[route.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Nearline",
            "version": VERSION,
            "description": "Text in, ranked passages out. Errors have the shape of `ErrorBody`, except in the APIs of "
            f"other servers, whose clients expect their own.\n\n{error_table()}",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def operation(route: Route, schemas: dict[type[Any], dict[str, Any]], examples: Examples) -> dict[str, Any]:
    path = path_of(route)
    answer: dict[str, Any] = {"description": "Done"}
    if route.answer is not None:
        answer["content"] = {"application/json": {"schema": schemas[route.answer]}}
        if route.streams:
            answer["content"]["text/event-stream"] = {"schema": EVENT}
    elif route.media is not None:
        answer["content"] = {route.media: {"schema": {"type": "string"}}}
    error = {
        "description": "Refused or failed",
        "content": {"application/json": {"schema": schemas[route.error]}},
    }
    described: dict[str, Any] = {
        "summary": route.summary,
        "operationId": operation_id(route.method, path),
        "tags": [route.tag],
        "parameters": [path_parameter(name, examples.path.get(name)) for name in PARAMETER.findall(path)]
        + [query_parameter(name, route.limit_max) for name in route.parameters],
        "responses": {str(route.status): answer, "default": error},
    }
    if route.scope != "public":
        # Without keys, every request is allowed.
        described["security"] = [{"key": []}, {}]
        wants = "Any access key" if route.scope == "key" else f"An access key with the scope `{route.scope}`"
        described["description"] = f"{wants}, where the service has keys."
    if route.request is not None:
        named = {name: {"value": body} for name, body in examples.bodies.get(route.request, {}).items()}
        content = {route.sent_as: {"schema": schemas[route.request], "examples": named}}
        # Handlers treat an absent body as an empty object.
        needed = any(one.required for one in msgspec.structs.fields(route.request))
        described["requestBody"] = {"required": needed, "content": content}
    return described


def links_from(route: Route, routes: Sequence[Route]) -> dict[str, Any]:
    """Return a link to each operation that needs something `route` gives and nothing that is still unknown after it."""
    known = {name: f"$request.path.{name}" for name in PARAMETER.findall(path_of(route))} | dict(route.gives)
    links = {}
    for other in routes:
        needs = set(PARAMETER.findall(path_of(other)))
        if needs & route.gives.keys() and needs <= known.keys():
            name = operation_id(other.method, path_of(other))
            links[name] = {"operationId": name, "parameters": {need: known[need] for need in sorted(needs)}}
    return links


def path_of(route: Route) -> str:
    """Return the path as OpenAPI writes it, without the patterns of its parameters."""
    return PATTERN.sub("}", route.path)


def path_parameter(name: str, example: str | None) -> dict[str, Any]:
    schema = {"type": "string", "pattern": f"^{WHOLE_NAME}$"} if name == "alias" else {"type": "string"}
    described = {"name": name, "in": "path", "required": True, "schema": schema}
    return described if example is None else {**described, "example": example}


def query_parameter(name: str, limit_max: int) -> dict[str, Any]:
    schema = QUERY_SCHEMAS.get(name) or {"type": "integer", "minimum": 1, "maximum": limit_max}
    return {"name": name, "in": "query", "description": QUERY_PARAMETERS[name], "schema": schema}


def operation_id(method: str, path: str) -> str:
    named = RENAMED.get(path, path.removeprefix("/v1")).lower()
    words = [word for word in re.split(r"[^a-z]+", named) if word]
    return "_".join([method.lower(), *words])


def error_table() -> str:
    """Return a Markdown table of all error types with their status."""
    rows = (
        f"| {status} | `{errors.type_name(kind)}` | {(kind.__doc__ or '').partition(chr(10))[0]} |"
        for kind, status in errors.STATUS.items()
    )
    return "\n".join(["| status | type | meaning |", "|---|---|---|", *rows])
