"""A service whose data directory has access keys, and callers that send them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexes.directory.marker import prepare
from jobs.serving.process import ServerProcess, serving
from retrieval.access.auth import RELOAD_S, Keys
from retrieval.access.key_file import Key, Scope
from tests.support.http import Http, Reply


def key(*scopes: Scope, **rights: Any) -> Key:
    return Key(id="", sha256="", scopes=list(scopes), created_ms=0, **rights)


class Caller(Http):
    """Sends a key with everything; none, if it has none."""

    def __init__(self, url: str, token: str = "") -> None:
        super().__init__(url)
        self.token = token

    def call(self, method: str, path: str, body: object = None, **others: Any) -> Reply:
        headers = {**(others.pop("headers", None) or {})}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        return super().call(method, path, body, headers=headers, **others)


@dataclass(frozen=True)
class Guarded:
    server: ServerProcess
    keys: Keys
    data: Path

    def caller(self, *scopes: Scope, **rights: Any) -> Caller:
        """Known to the service when this returns, if it is valid."""
        made = Caller(self.server.url, self.keys.create(key(*scopes, **rights))[1])
        time.sleep(RELOAD_S + 0.05)
        return made


@contextmanager
def guarded_service(data: Path, environ: Mapping[str, str]) -> Iterator[Guarded]:
    """It wants a key from its first moment on."""
    prepare(data)
    keys = Keys(data)
    keys.create(key("admin"))
    with serving(data, environ) as server:
        yield Guarded(server, keys, data)
