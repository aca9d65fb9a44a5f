"""How our errors look over HTTP: one table from error to status, one shape for the body.

    {"error": {"type": "invalid_input", "message": "k must be at most 1000, found 5000", "param": "k"}}

The most specific class decides. A test holds that every error of the tree has its line here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from aiohttp import web
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
)


class MalformedRequest(NearlineError):
    """The request is not valid HTTP, or its body is not JSON at all."""


class MethodNotAllowed(NearlineError):
    """The path exists, not with this method."""


class TargetTooLong(NearlineError):
    """The path with its query is longer than the service reads."""


class ExpectationFailed(NearlineError):
    """The header Expect asks for something other than 100-continue."""


class HeadersTooLarge(NearlineError):
    """A header is longer than the service reads, or there are too many."""


class RequestTimeout(NearlineError):
    """The body did not arrive in time."""


class ForeignOrigin(NearlineError):
    """A page in a browser calls that the configuration does not allow."""


class Unauthorized(NearlineError):
    """The service wants an access key, and the request has none that is valid."""


class Forbidden(NearlineError):
    """The access key is valid and may not do this."""


class RateLimited(Unavailable):
    """The access key has sent as much as it may for now."""


class UnknownHost(NearlineError):
    """The client used a name for this service that is not one of its own."""


class UnsupportedMediaType(NearlineError):
    """The body is declared as something other than JSON."""


class UnsupportedEncoding(NearlineError):
    """The body is compressed. How large it becomes would show only by unpacking it."""


class LanguageModelFailed(NearlineError):
    """The server of the language model refused, broke off, or sent what is no answer."""


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
    StorageError: 500,
    Damaged: 500,
    Locked: 500,
    NotADataDirectory: 500,
    NewerFormat: 500,
    OlderFormat: 500,
    LanguageModelFailed: 502,
    Unavailable: 503,
    DeadlineExceeded: 503,
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
    job: Annotated[str | None, Meta(description="The job that is in the way of a request that got 409")] = (
        None
    )


class ErrorBody(msgspec.Struct):
    error: Annotated[ErrorDetail, Meta(description="What went wrong")]


def status_of(error: NearlineError) -> int:
    """The status of the nearest class in the tree."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def body_of(error: NearlineError) -> ErrorBody:
    job = error.job if isinstance(error, Conflict) else None
    return ErrorBody(ErrorDetail(type_name(type(error)), error.message, error.param, job))


def without_folders(message: str, folders: Iterable[Path]) -> str:
    """The message with these folders by their last names: where they lie is for the log, not for clients."""
    for folder in folders:
        if folder.is_absolute() and folder.name:
            message = message.replace(str(folder), folder.name)
    return message


def type_name(kind: type[NearlineError]) -> str:
    """`DiskFull` is `disk_full` on the wire."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def response(error: NearlineError, *, status: int | None = None) -> web.Response:
    """The answer in our own shape. `status`, where the class does not say it."""
    return web.Response(
        body=msgspec.json.encode(body_of(error)),
        status=status or status_of(error),
        content_type="application/json",
        headers=error_headers(error),
    )


def error_headers(error: NearlineError) -> dict[str, str]:
    """What kind of key is wanted; or when to try again: in whole seconds for everybody, in milliseconds for the clients
    that ask for those first."""
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    if not isinstance(error, Unavailable):
        return {}
    seconds = max(1, math.ceil(error.retry_after_s))
    return {"Retry-After": str(seconds), "Retry-After-Ms": str(max(1, round(error.retry_after_s * 1000)))}
