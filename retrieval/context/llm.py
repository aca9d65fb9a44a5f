"""Client for a language model behind an OpenAI-compatible API (Ollama, vLLM, llama.cpp and many more).

Answers are always streamed, so that a caller who leaves also ends the work on the server. Redirects are not followed
and cookies are not kept; replies are limited in bytes and in time. Errors say what went wrong, but not the key or
the server's address, which only the log has. The log in turn has no words of the server, which may quote a question.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from msgspec import UNSET, UnsetType, field

from retrieval.base.settings import LlmSection
from retrieval.wire.errors import LanguageModelFailed, LanguageModelTimeout
from retrieval.wire.message import Message

logger = logging.getLogger(__name__)

CONNECT_S = 10.0
EVENTS_AT_ONCE = 32  # a millisecond of work
SHOWN_CHARS = 200  # of the server's error message
REFUSED_BYTES_MAX = 65_536  # of an error body
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class ModelPiece:
    """The next characters of an answer. `finish` comes with the last piece: why the answer ended (`stop`, `length`,
    ...)."""

    text: str
    finish: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = field(default_factory=_Delta)
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """The fields we read of a stream event."""

    choices: list[_Choice] = []
    error: msgspec.Raw | UnsetType = UNSET


class LanguageModel:
    """The configured model. Use it from one event loop; `close` it."""

    def __init__(self, settings: LlmSection) -> None:
        self._settings = settings
        self.outcomes = {"answered": 0, "failed": 0, "left": 0}  # answers asked of it; left by who asked
        self._session: aiohttp.ClientSession | None = None

    @property
    def configured(self) -> bool:
        return bool(self._settings.base_url)

    @property
    def name(self) -> str:
        return self._settings.model

    @property
    def max_tokens(self) -> int:
        return self._settings.max_tokens

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def answer(self, messages: list[Message]) -> AsyncGenerator[ModelPiece, None]:
        """Yield the answer as it arrives; the last piece has `finish`. Closing the generator ends the request.
        Raises LanguageModelFailed and LanguageModelTimeout."""
        settings, outcome = self._settings, "failed"
        body = {
            "model": settings.model,
            "messages": messages,
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "stream": True,
        }
        headers = {"Content-Type": "application/json", "Accept": EVENT_STREAM}
        if settings.api_key:
            headers["Authorization"] = f"Bearer {settings.api_key}"
        url = f"{settings.base_url.rstrip('/')}/chat/completions"
        try:
            async with self._open().post(
                url, data=msgspec.json.encode(body), headers=headers, allow_redirects=False
            ) as reply:
                if reply.status != 200:
                    raise self._refusal(reply.status, await reply.content.read(REFUSED_BYTES_MAX))
                if reply.content_type != EVENT_STREAM:
                    raise failure(f"sent {reply.content_type[:SHOWN_CHARS]!r} instead of a stream of events")
                async for piece in self._pieces(reply.content):
                    yield piece
            outcome = "answered"
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "left"
            raise
        except TimeoutError as error:
            logger.warning("the language model did not answer in %g s: %r", settings.timeout_s, error)
            raise LanguageModelTimeout(
                f"llm: the language model did not answer within {settings.timeout_s:g} s", param="llm"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            connected = not isinstance(error, aiohttp.ClientConnectorError)
            what = "broke off" if connected else "cannot be reached"
            raise failure(what, logged=self._without_key(str(error))) from None
        finally:
            self.outcomes[outcome] += 1

    async def _pieces(self, content: aiohttp.StreamReader) -> AsyncIterator[ModelPiece]:
        finish, said = None, False
        async for event in events(content, self._settings.reply_bytes_max):
            if event == b"[DONE]":
                break
            try:
                chunk = msgspec.json.decode(event, type=_Chunk)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise failure("sent an event that is no part of a chat completion") from None
            if chunk.error is not UNSET:
                raise failure("gave up", told=self._message_in(chunk.error))
            for choice in chunk.choices[:1]:
                finish = choice.finish_reason or finish
                if choice.delta.content:
                    said = said or not choice.delta.content.isspace()
                    yield ModelPiece(choice.delta.content)
        else:
            if finish is None:
                raise failure("broke off before the end of its answer")
        if not said:
            raise failure(
                "sent no answer" + (": its tokens ended before one began" if finish == "length" else "")
            )
        yield ModelPiece("", finish or "stop")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s, sock_connect=CONNECT_S),
                auto_decompress=False,  # its decompressed size would not be known in advance
                skip_auto_headers=("Accept-Encoding",),
            )
        return self._session

    def _refusal(self, status: int, body: bytes) -> LanguageModelFailed:
        if status in (401, 403):
            return failure(f"refused the key (status {status}); see llm.api_key")
        if 300 <= status < 400:
            return failure(
                f"answered with a redirect (status {status}), which is not followed; see llm.base_url"
            )
        return failure(f"refused the request (status {status})", told=self._message_in(body))

    def _message_in(self, body: bytes | msgspec.Raw) -> str:
        """Return the server's error message, in any of the shapes that such servers use."""
        try:
            told: Any = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            told = None
        for key in ("error", "message"):
            told = told.get(key, told) if isinstance(told, dict) else told
        if not isinstance(told, str):
            return "no reason given"
        return self._without_key(" ".join(told.split()))[:SHOWN_CHARS]

    def _without_key(self, text: str) -> str:
        return text.replace(self._settings.api_key, "***") if self._settings.api_key else text


async def events(content: aiohttp.StreamReader, bytes_max: int) -> AsyncIterator[bytes]:
    """Yield the data of each server-sent event. Raises LanguageModelFailed after more than `bytes_max` in total."""
    taken, rest, read = 0, b"", 0
    async for received in content.iter_any():
        taken += len(received)
        if taken > bytes_max:
            raise failure(f"sent more than {bytes_max} bytes (llm.reply_bytes_max)")
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
                read += 1
                if read % EVENTS_AT_ONCE == 0:  # what arrived together is read without waiting for anything
                    await asyncio.sleep(0)


def failure(what: str, *, told: str = "", logged: str = "") -> LanguageModelFailed:
    """Log a failure, and return its error. What is `told` goes into the error alone, what is `logged` into the log."""
    what = f"the server of the language model {what}"
    logger.warning("%s", ": ".join(filter(None, (what, logged))))
    return LanguageModelFailed("llm: " + ": ".join(filter(None, (what, told))), param="llm")
