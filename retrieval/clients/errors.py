"""The error of the Python client."""

from __future__ import annotations

UNREACHABLE, DISCONNECTED, OPEN = "unreachable", "disconnected", "circuit_open"
UNREADABLE, UNKNOWN = "unreadable", "unknown"


class ServiceError(Exception):
    """The service refused or failed. `status` is 0 if it was not reached; `retry_after_s` is how long it asks to
    wait.

    `kind` is the service's error type (docs/api.md), or one of the client's own: `unreachable`, `disconnected`,
    `timeout`, `circuit_open`, `unreadable`, `unknown`.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        kind: str = UNREACHABLE,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.retry_after_s = retry_after_s
