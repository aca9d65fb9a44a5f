"""The service as a plain HTTP client sees it: status, JSON, headers. No client of ours in between."""

from __future__ import annotations

import itertools
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

SHARDS = "NEARLINE_TESTS_SHARDS"  # of the collections that tests make, of a service that is its own only node
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any
    headers: Mapping[str, str] | Message


class Http:
    def __init__(self, url: str) -> None:
        self.url = url

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send JSON (or raw bytes); errors are replies like any other."""
        data = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        request = urllib.request.Request(self.url + path, data=data, method=method)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Reply(answer.status, _decoded(answer.read()), answer.headers)
        except urllib.error.HTTPError as error:
            return Reply(error.code, _decoded(error.read()), error.headers)

    def ok(self, method: str, path: str, body: object = None) -> Any:
        reply = self.call(method, path, body)
        assert reply.status < 300, reply
        return reply.body

    def new_collection(self, **settings: object) -> str:
        """Make an empty collection of a fresh name."""
        name = f"c{next(_numbers)}"
        shards = {"shards": int(os.environ[SHARDS])} if SHARDS in os.environ else {}
        self.ok("POST", "/v1/collections", {"name": name, **shards, **settings})
        return name

    def write(self, collection: str, *documents: Mapping[str, object]) -> Any:
        return self.ok("POST", f"/v1/collections/{collection}/documents", {"documents": documents})

    def search(self, collection: str, **search: object) -> Any:
        return self.ok("POST", f"/v1/collections/{collection}/search", search)

    def found(self, collection: str, **search: object) -> list[str]:
        return [hit["document_id"] for hit in self.search(collection, **search)["hits"]]

    def reindex(self, collection: str, **options: object) -> Any:
        """Start a rebuild and wait for it."""
        return self.wait_for(self.ok("POST", f"/v1/collections/{collection}/reindex", options)["job"])

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that carry these labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def wait_for(self, job_id: str, timeout_s: float = 240) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            job = self.ok("GET", f"/v1/jobs/{job_id}")
            if job["status"] not in ("queued", "running"):
                return job
            time.sleep(0.05)
        raise AssertionError(f"job {job_id} did not end")


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content) if content else None
    except json.JSONDecodeError:
        return content.decode(errors="replace")
