"""The X-Request-Id of the request that the current task or thread works for, or "" without one: log formatters add
it."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID", default="")
GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def request_id_of(headers: Mapping[str, str]) -> str:
    """Return the client's X-Request-Id, or a unique one if it has none that may be logged. It need not be unguessable:
    asking the system for random bytes would release the GIL."""
    given = headers.get("X-Request-Id", "")
    return given if GIVEN_ID.fullmatch(given) else random.randbytes(16).hex()
