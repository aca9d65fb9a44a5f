"""A language model behind an OpenAI-compatible API (Ollama, vLLM, llama.cpp and many more), asked for one answer.

Answers always come as a stream, so that whoever leaves ends the work over there too. No redirect is followed and no
cookie kept; what a reply may take is bounded in bytes and in time. Errors say what went wrong, never the key, nor where
the server is: that is in the log.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from msgspec import UNSET, UnsetType, field

from retrieval.base.settings import Llm
from retrieval.wire.errors import LanguageModelFailed, LanguageModelTimeout
from retrieval.wire.message import Message

logger = logging.getLogger(__name__)

CONNECT_S = 10.0
SHOWN_CHARS = 200  # of what the server says is wrong
REFUSED_BYTES_MAX = 65_536  # of a refusal
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Piece:
    """The next characters of an answer. `finish` comes with the last ones: why it ends (`stop`, `length`, ...)."""

    text: str
    finish: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = field(default_factory=_Delta)
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """What matters of one event of a stream."""

    choices: list[_Choice] = []
    error: msgspec.Raw | UnsetType = UNSET


class LanguageModel:
    """The model of the settings. Use from one event loop; `close` it."""

    def __init__(self, settings: Llm) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    @property
    def configured(self) -> bool:
        return bool(self._settings.base_url)

    @property
    def name(self) -> str:
        return self._settings.model

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def answer(self, messages: list[Message]) -> AsyncGenerator[Piece, None]:
        """The answer as it comes; the last piece has `finish`. Close it, or leave its task, and the request ends.

        Raises LanguageModelFailed and LanguageModelTimeout.
        """
        settings = self._settings
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
            async with self._opened().post(
                url, data=msgspec.json.encode(body), headers=headers, allow_redirects=False
            ) as reply:
                if reply.status != 200:
                    raise self._refused(reply.status, await reply.content.read(REFUSED_BYTES_MAX))
                if reply.content_type != EVENT_STREAM:
                    raise failed(f"sent {reply.content_type[:SHOWN_CHARS]!r} instead of a stream of events")
                async for piece in self._pieces(reply.content):
                    yield piece
        except TimeoutError as error:
            logger.warning("the language model did not answer in %g s: %r", settings.timeout_s, error)
            raise LanguageModelTimeout(
                f"llm: the language model did not answer within {settings.timeout_s:g} s", param="llm"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            logger.warning("the language model cannot be asked: %s", self._without_key(str(error)))
            connected = not isinstance(error, aiohttp.ClientConnectorError)
            raise failed("broke off" if connected else "cannot be reached") from None

    async def _pieces(self, content: aiohttp.StreamReader) -> AsyncIterator[Piece]:
        finish = None
        async for event in events(content, self._settings.reply_bytes_max):
            if event == b"[DONE]":
                break
            try:
                chunk = msgspec.json.decode(event, type=_Chunk)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise failed("sent an event that is no part of a chat completion") from None
            if chunk.error is not UNSET:
                raise failed(f"gave up: {self._said(chunk.error)}")
            for choice in chunk.choices[:1]:
                finish = choice.finish_reason or finish
                if choice.delta.content:
                    yield Piece(choice.delta.content)
        else:
            if finish is None:
                raise failed("broke off before the end of its answer")
        yield Piece("", finish or "stop")

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s, sock_connect=CONNECT_S),
                auto_decompress=False,  # what it grows to would show only by unpacking it
                skip_auto_headers=("Accept-Encoding",),
            )
        return self._session

    def _refused(self, status: int, body: bytes) -> LanguageModelFailed:
        if status in (401, 403):
            return failed(f"refused the key (status {status}); see llm.api_key")
        if 300 <= status < 400:
            return failed(
                f"answered with a redirect (status {status}), which is not followed; see llm.base_url"
            )
        return failed(f"refused the request (status {status}): {self._said(body)}")

    def _said(self, body: bytes | msgspec.Raw) -> str:
        """What a server says is wrong, in the ways that such servers say it."""
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
    """The data of each server-sent event. Raises LanguageModelFailed for more than `bytes_max` in all."""
    taken, rest = 0, b""
    async for received in content.iter_any():
        taken += len(received)
        if taken > bytes_max:
            raise failed(f"sent more than {bytes_max} bytes (llm.reply_bytes_max)")
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def failed(what: str) -> LanguageModelFailed:
    return LanguageModelFailed(f"llm: the server of the language model {what}", param="llm")
