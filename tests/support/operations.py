"""Requests to every route of the router, made from the examples of the API description."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from retrieval.context.llm import EVENT_STREAM
from retrieval.handlers.browsers import FORM
from retrieval.server.examples import make_examples
from retrieval.server.openapi import Route
from retrieval.server.routes import ROUTES

MODEL = "all-MiniLM-L6-v2"
EDGE = "edge"


@dataclass(frozen=True, slots=True)
class Operation:
    """One example of a route; `values` are the examples of the parameters in its path."""

    route: Route
    values: dict[str, str]
    body: Any = None

    def path(self, values: Mapping[str, str] | None = None) -> str:
        known = {**self.values, **(values or {})}
        return re.sub(r"\{(\w+)(:[^{}]+)?\}", lambda found: known.get(found[1], "none"), self.route.path)

    def sent(self, body: Any = None) -> tuple[bytes | None, dict[str, str]]:
        """The body, or another in its place, as it goes over the wire, with its headers."""
        body = self.body if body is None else body
        if body is None:
            return None, {}
        if self.route.sent_as == FORM:
            return form(body), {"Content-Type": f"{FORM}; boundary={EDGE}"}
        return json.dumps(body).encode(), {"Content-Type": "application/json"}


def operations() -> Iterator[Operation]:
    """Each route whose answers end, with each of its examples. `tests/retrieval/test_watch.py` tries the other one."""
    examples = make_examples(MODEL)
    for route in ROUTES:
        if route.media == EVENT_STREAM:
            continue
        bodies = list(examples.bodies.get(route.request, {}).values()) if route.request else [None]
        for body in bodies or [{}]:
            yield Operation(route, examples.path, body)


def form(fields: dict[str, Any]) -> bytes:
    """As a browser sends them; `file` is a file of this text, named after `filename`."""
    fields = dict(fields)
    name = fields.pop("filename", "notes.txt")
    parts = b""
    for field, value in fields.items():
        named = f'name="{field}"' + (f'; filename="{name}"' if field == "file" else "")
        parts += f"--{EDGE}\r\nContent-Disposition: form-data; {named}\r\n\r\n{value}\r\n".encode()
    return parts + f"--{EDGE}--\r\n".encode()
