"""Answers of a language model from a collection's passages, whole or as a stream of server-sent events:

event: piece     data: {"text": "Refunds take"}           one for each piece of text from the model
event: answer    data: the whole answer, as without `stream`
event: error     data: the error body; only after the first piece, because an earlier error has an HTTP status
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

from aiohttp import web

from indexes.base.errors import InvalidInput, NearlineError, TooLarge
from indexes.collection.collection import Collection
from retrieval.context.answering import Asking
from retrieval.handlers.search import context_of, headers_of
from retrieval.handlers.state import CONFIG, LLM
from retrieval.handlers.streams import event, event_stream
from retrieval.handlers.wire import answer as json_of
from retrieval.handlers.wire import body, collection_of, in_callers_words
from retrieval.search.stopwatch import in_time
from retrieval.wire.answer import AnswerPiece, AnswerRequest
from retrieval.wire.errors import body_of
from retrieval.wire.search import Citation, ContextAnswer, ContextRequest

T = TypeVar("T")


async def answer(request: web.Request) -> web.StreamResponse:
    wanted = await body(request, AnswerRequest)
    _, collection = collection_of(request)

    async def passages(citations: Sequence[Citation]) -> dict[int, tuple[str, str]]:
        return await asyncio.to_thread(passages_of, collection, citations)

    return await answer_from(request, wanted, context_of, passages)


async def answer_from(
    request: web.Request,
    wanted: AnswerRequest,
    find_context: Callable[[web.Request, ContextRequest], Awaitable[ContextAnswer]],
    passages: Callable[[Sequence[Citation]], Awaitable[Mapping[int, tuple[str, str]]]],
) -> web.StreamResponse:
    """Answer from a context that is found, and check the answer by the cited passages, as `passages_of` returns
    them."""
    check(wanted, request)
    deadline = Deadline(wanted.deadline_ms)
    context = await deadline.meets(find_context(request, wanted))
    if context.hint is not None:
        raise InvalidInput(context.hint, param="token_budget")
    asking = Asking(wanted, context, request.app[LLM], passages)
    if wanted.stream:
        return await stream_answer(request, asking, deadline)
    async with aclosing(asking.pieces()) as pieces:
        while await deadline.meets(anext(pieces, None)) is not None:
            pass
    return json_of(await asking.answer(), headers=headers_of(context.timings_ms))


class Deadline:
    """The caller's deadline for the whole request. With None, only the deadlines of the search and the model apply."""

    def __init__(self, deadline_ms: int | None) -> None:
        self._ms = deadline_ms
        now = asyncio.get_running_loop().time()
        self._at = None if deadline_ms is None else now + deadline_ms / 1000

    async def meets(self, work: Awaitable[T]) -> T:
        """Await `work`. Raises DeadlineExceeded once the deadline has passed."""
        async with in_time(self._at, self._ms):
            return await work


async def stream_answer(request: web.Request, asking: Asking, deadline: Deadline) -> web.StreamResponse:
    """Stream the answer, starting with the first piece: an error before that is answered with its HTTP status."""
    async with aclosing(asking.pieces()) as pieces:
        piece = await deadline.meets(anext(pieces, None))
        async with event_stream(request) as stream:
            try:
                while piece is not None:
                    await stream.write(event("piece", AnswerPiece(piece)))
                    piece = await deadline.meets(anext(pieces, None))
                await stream.write(event("answer", await asking.answer()))
            except NearlineError as error:
                await stream.write(event("error", body_of(in_callers_words(request.app, error))))
        return stream.reply


def check(wanted: AnswerRequest, request: web.Request) -> None:
    """Raises InvalidInput for options that do not apply to an answer, and TooLarge for a long instruction."""
    limits = request.app[CONFIG].limits
    if wanted.queries is not None or wanted.format == "messages":
        param = "format" if wanted.queries is None else "queries"
        raise InvalidInput(f"{param}: an answer takes one query and builds its own messages", param=param)
    if wanted.explain:
        raise InvalidInput("an answer has no explain; a context with the same options has", param="explain")
    if wanted.instruction is not None and len(wanted.instruction) > limits.query_chars_max:
        raise TooLarge(
            f"instruction has {len(wanted.instruction)} characters, at most {limits.query_chars_max} are allowed",
            param="instruction",
        )


def passages_of(collection: Collection, citations: Sequence[Citation]) -> dict[int, tuple[str, str]]:
    """Return the text and language of each cited passage, by number, as the log has them now. Reads the log: run it
    on a thread."""
    documents = {name: collection.log.document(name) for name in {one.document_id for one in citations}}
    return cited_in(
        {name: (one.text, one.language) for name, one in documents.items() if one is not None}, citations
    )


def cited_in(
    documents: Mapping[str, tuple[str, str]], citations: Sequence[Citation]
) -> dict[int, tuple[str, str]]:
    """Cut the cited passages out of documents, given as text and language. Those of deleted ones are absent."""
    return {
        one.number: (documents[one.document_id][0][one.start : one.end], documents[one.document_id][1])
        for one in citations
        if one.document_id in documents
    }
