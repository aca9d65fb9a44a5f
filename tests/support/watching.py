"""Streams of standing queries, for tests."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class HasToken(Protocol):
    """Calls a service with an access key."""

    url: str
    token: str


class Events:
    """One open stream."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.answer = answer
        self.id = ""  # of the last event

    def next(self) -> tuple[str, Any, int | str | None]:
        """Name, data and the operations in the id of the next event; ("end", None, None) after the last one."""
        fields: dict[str, str] = {}
        while line := self.answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields:
                self.id = fields.get("id", "")
                seq = self.id.rpartition("-")[0]
                return fields["event"], json.loads(fields["data"]), int(seq) if seq.isdigit() else seq or None
        return "end", None, None

    def entered(self) -> dict[str, int]:
        """The next hits: their documents with their ranks."""
        name, data, number = self.next()
        assert name == "hits", data
        assert data["seq"] == number
        return {one["hit"]["document_id"]: one["rank"] for one in data["hits"]}


@contextmanager
def watching(
    caller: HasToken, collection: str, search: dict[str, Any], after: int | str | None = None
) -> Iterator[Events]:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(caller.url).netloc, timeout=20)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {caller.token}"}
    if after is not None:
        headers["Last-Event-ID"] = str(after)
    connection.request("POST", f"/v1/collections/{collection}/watch", json.dumps(search), headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    assert answer.headers["Content-Type"] == "text/event-stream"
    try:
        yield Events(answer)
    finally:
        connection.close()
