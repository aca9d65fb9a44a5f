"""How our errors look over HTTP: one table from error to status, one shape for the body.

    {"error": {"type": "invalid_input", "message": "k must be at most 1000, found 5000", "param": "k"}}

The most specific class decides. A test checks that the table covers every error of the tree.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from indexes.base.errors import (
    Conflict,
    Damaged,
    DeadlineExceeded,
    DiskFull,
    InvalidInput,
    Locked,
    ModelMismatch,
    NearlineError,
    NewerFormat,
    NotADataDirectory,
    NotFound,
    NotReady,
    OlderFormat,
    OutOfDescriptors,
    Overloaded,
    Quarantined,
    RecallTooLow,
    StorageError,
    TooLarge,
    Unavailable,
    WritesHeld,
)


class MalformedRequest(NearlineError):
    """The request is not valid HTTP, or its body is not JSON at all."""


class MethodNotAllowed(NearlineError):
    """The path exists, but not with this method."""


class TargetTooLong(NearlineError):
    """The path and its query string are longer than the service accepts."""


class ExpectationFailed(NearlineError):
    """The header Expect asks for something other than 100-continue."""


class HeadersTooLarge(NearlineError):
    """A header is longer than the service accepts, or there are too many."""


class RequestTimeout(NearlineError):
    """The body did not arrive in time."""


class ForeignOrigin(NearlineError):
    """A web page calls from an origin that the configuration does not allow."""


class Unauthorized(NearlineError):
    """The service requires an access key, and the request has no valid one."""


class Forbidden(NearlineError):
    """The access key is valid but may not do this."""


class RateLimited(Unavailable):
    """The access key has reached its limit for now. `limit` says which one."""

    limit = "second"  # of an error that another service answered with

    def __init__(self, message: str, *, limit: str = limit, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit


class UnknownHost(NearlineError):
    """The client used a name for this service that is not one of its own."""


class UnsupportedMediaType(NearlineError):
    """The body is declared as something other than JSON."""


class UnsupportedEncoding(NearlineError):
    """The body is compressed, so its full size is unknown until it is unpacked."""


class SearchCrashed(NearlineError):
    """This search ended two search processes, so it is not tried again for a while."""


class LanguageModelFailed(NearlineError):
    """The language model server refused, broke off, or sent something that is not an answer."""


class LanguageModelTimeout(NearlineError):
    """The language model did not answer within `llm.timeout_s`."""


STATUS: dict[type[NearlineError], int] = {
    MalformedRequest: 400,
    Unauthorized: 401,
    ForeignOrigin: 403,
    Forbidden: 403,
    NotFound: 404,
    MethodNotAllowed: 405,
    RequestTimeout: 408,
    Conflict: 409,
    ModelMismatch: 409,
    RecallTooLow: 409,
    TooLarge: 413,
    TargetTooLong: 414,
    UnsupportedMediaType: 415,
    UnsupportedEncoding: 415,
    ExpectationFailed: 417,
    UnknownHost: 421,
    InvalidInput: 422,
    Overloaded: 429,
    RateLimited: 429,
    HeadersTooLarge: 431,
    NearlineError: 500,
    SearchCrashed: 500,
    StorageError: 500,
    Damaged: 500,
    Locked: 500,
    NotADataDirectory: 500,
    NewerFormat: 500,
    OlderFormat: 500,
    LanguageModelFailed: 502,
    Unavailable: 503,
    DeadlineExceeded: 503,
    WritesHeld: 503,
    NotReady: 503,
    OutOfDescriptors: 503,
    Quarantined: 503,
    LanguageModelTimeout: 504,
    DiskFull: 507,
}


class ErrorDetail(msgspec.Struct, omit_defaults=True):
    type: Annotated[str, Meta(description="The kind of error, for programs")]
    message: Annotated[str, Meta(description="What is wrong, for people")]
    param: Annotated[str | None, Meta(description="The field at fault")] = None
    job: Annotated[
        str | None, Meta(description="The job that conflicts with the request, for status 409")
    ] = None


class ErrorBody(msgspec.Struct):
    error: Annotated[ErrorDetail, Meta(description="What went wrong")]


def status_of(error: NearlineError) -> int:
    """Return the status of the nearest class in the error tree."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def body_of(error: NearlineError) -> ErrorBody:
    job = error.job if isinstance(error, Conflict) else None
    return ErrorBody(ErrorDetail(type_name(type(error)), error.message, error.param, job))


def error_of(detail: ErrorDetail) -> NearlineError:
    """Return the error that another service answered with. What its class keeps beside the message stays there."""
    kind = _kinds().get(detail.type, NearlineError)
    error = kind.__new__(kind)
    of_tree = next(base for base in kind.__mro__ if base.__module__ == NearlineError.__module__)
    of_tree.__init__(error, detail.message, param=detail.param)  # type: ignore[misc]
    return error


@functools.cache
def _kinds() -> dict[str, type[NearlineError]]:
    """Every error by its name on the wire."""
    found, left = {}, [NearlineError]
    while left:
        kind = left.pop()
        found[type_name(kind)] = kind
        left += kind.__subclasses__()
    return found


def without_folders(message: str, folders: Iterable[Path]) -> str:
    """Shorten these folders in a message to their last names: full paths belong in the log, not in answers."""
    for folder in folders:
        if folder.is_absolute() and folder.name:
            message = message.replace(str(folder), folder.name)
    return message


def type_name(kind: type[NearlineError]) -> str:
    """Return the name of an error on the wire: `DiskFull` is `disk_full`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def error_headers(error: NearlineError) -> dict[str, str]:
    """Return the headers for the kind of key required and for when to retry. Retry-After is in whole seconds; some
    clients prefer a header in milliseconds."""
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    if not isinstance(error, Unavailable):
        return {}
    seconds = max(1, math.ceil(error.retry_after_s))
    return {"Retry-After": str(seconds), "Retry-After-Ms": str(max(1, round(error.retry_after_s * 1000)))}
