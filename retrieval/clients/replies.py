"""Reads what a server sent. Whatever that is, the only exception is ServiceError."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import msgspec

from retrieval.clients.errors import DISCONNECTED, UNKNOWN, UNREADABLE, ServiceError

JSON = Mapping[str, Any]  # a decoded object

SHOWN_BYTES = 60  # of an answer that cannot be read
EVENT_STREAM = "text/event-stream"
DATA = b"data:"
END_OF_STREAM = b"[DONE]"
NOT_READ = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what decoding may raise
# The status that these errors have where they come before the first piece of a stream. All others there are 500.
LATE_STATUS = {
    "language_model_failed": 502,
    "language_model_timeout": 504,
    "deadline_exceeded": 503,
    "writes_held": 503,
    "not_ready": 503,
    "overloaded": 429,
}


class _Detail(msgspec.Struct):
    type: str
    message: str
    param: str | None = None


class _Refusal(msgspec.Struct):
    """The fields we read of the service's description of an error."""

    error: _Detail


def decode_answer(content: bytes) -> Any:
    """Decode the JSON of an answer. Raises ServiceError for what is none, as of something else behind the address."""
    try:
        return msgspec.json.decode(content)
    except NOT_READ as error:
        shown = content[:SHOWN_BYTES].decode(errors="replace")
        raise ServiceError(f"the answer is no JSON ({error}): {shown!r}", kind=UNREADABLE) from None


async def events_in(content: aiohttp.StreamReader) -> AsyncIterator[JSON]:
    """Yield the events of a streamed answer, of which the last has `answer`. Raises ServiceError for an error among
    them, and for a stream that ends without either."""
    whole = False
    async for line in lines_in(content):
        sent = line.removeprefix(DATA).strip()
        if not line.startswith(DATA) or sent == END_OF_STREAM:
            continue
        event = decode_answer(sent)
        if not isinstance(event, dict):
            raise ServiceError(
                f"an event of the stream is no object: {sent[:SHOWN_BYTES]!r}", kind=UNREADABLE
            )
        if "error" in event:
            error = error_from(500, sent, {})
            error.status = LATE_STATUS.get(error.kind, error.status)
            raise error
        whole = whole or "answer" in event
        yield event
    if not whole:
        raise ServiceError("the stream was cut off before the end of the answer", kind=DISCONNECTED)


async def lines_in(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines, of any length: aiohttp's own iteration ends at 512 KiB, and an answer with the metadata of what
    it cites may have more. What no line end follows was cut off, and is left out."""
    rest = bytearray()
    async for received in content.iter_any():
        rest += received
        if b"\n" in received:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in lines:
                yield line


def error_from(status: int, content: bytes, headers: Mapping[str, str]) -> ServiceError:
    """Return the exception for the service's description of an error, of the kind `unknown` for what is none."""
    try:
        detail = msgspec.json.decode(content, type=_Refusal).error
    except NOT_READ:
        detail = _Detail(UNKNOWN, f"status {status}: {content[:200]!r}")
    return ServiceError(
        detail.message,
        status=status,
        kind=detail.type,
        param=detail.param,
        retry_after_s=retry_after_s(headers),
    )


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait, from the finer of the two headers; None without one, or for a date as proxies may
    send."""
    for name, unit_s in (("Retry-After-Ms", 0.001), ("Retry-After", 1.0)):
        written = headers.get(name, "")
        if written.isascii() and written.isdigit():
            return float(written) * unit_s
    return None
