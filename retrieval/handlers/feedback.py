"""Judgments and clicks: keep, list and delete them."""

from __future__ import annotations

import msgspec
from aiohttp import web
from msgspec.structs import replace

from indexes.base.errors import InvalidInput, TooLarge
from indexes.base.model import now_ms
from retrieval.access.auth import NODE, PRINCIPAL
from retrieval.base.settings import Config
from retrieval.handlers.state import CONFIG, FEEDBACK, HELD
from retrieval.handlers.wire import answer, answer_from, body, collection_of
from retrieval.upkeep.feedback import FeedbackEntry
from retrieval.wire.collections import FeedbackBody, FeedbackKept, FeedbackList, SendFeedback, SentFeedback


async def write(request: web.Request) -> web.Response:
    entries = await sent_entries(request)
    _, collection = collection_of(request)
    feedback = request.app[FEEDBACK]

    def keep() -> FeedbackKept:
        visible = collection.log.visible(named_in(entries), PRINCIPAL.get().may_read)
        if about := about_visible(entries, visible):
            feedback.keep(collection, about)
        return kept(about, entries, visible)

    return answer(await feedback.on_thread(keep))


async def list_feedback(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    held, feedback = request[HELD], request.app[FEEDBACK]

    def work() -> FeedbackList:
        entries = feedback.read(collection)
        known = collection.log.known({one.document_id for one in entries})
        about = [one for one in entries if one.document_id in known]
        held.answer(sum(map(chars_of, about)))
        return FeedbackList([msgspec.convert(one, FeedbackBody, from_attributes=True) for one in about])

    return await answer_from(work)


async def delete(request: web.Request) -> web.Response:
    """Delete the feedback. Idempotent: succeeds if there is none."""
    _, collection = collection_of(request)
    feedback = request.app[FEEDBACK]
    await feedback.on_thread(feedback.forget, collection)
    return web.Response(status=204)


async def sent_entries(request: web.Request) -> list[FeedbackEntry]:
    """Return the feedback in the body. Raises InvalidInput or TooLarge."""
    sent, config = (await body(request, SendFeedback)).feedback, request.app[CONFIG]
    most = config.limits.feedback_per_request_max
    if not sent:
        raise InvalidInput("feedback is empty, expected at least one entry", param="feedback")
    if len(sent) > most:
        raise TooLarge(f"{len(sent)} entries in one request, at most {most} are allowed", param="feedback")
    received_ms = now_ms()
    return [check_entry(one, f"feedback[{at}]", received_ms, config) for at, one in enumerate(sent)]


def named_in(entries: list[FeedbackEntry]) -> set[str]:
    return {each for one in entries for each in (one.document_id, *one.passed)}


def about_visible(entries: list[FeedbackEntry], visible: set[str]) -> list[FeedbackEntry]:
    """Return the entries about visible documents, which name no others as passed. A node has asked the other shards
    already which of those are visible."""
    if PRINCIPAL.get() is NODE:
        return [one for one in entries if one.document_id in visible]
    return [
        replace(one, passed=[each for each in one.passed if each in visible])
        for one in entries
        if one.document_id in visible
    ]


def kept(about: list[FeedbackEntry], entries: list[FeedbackEntry], visible: set[str]) -> FeedbackKept:
    """Say what was kept of the entries, and of which documents nothing."""
    unknown = dict.fromkeys(one.document_id for one in entries if one.document_id not in visible)
    return FeedbackKept(len(about), [*unknown])


def chars_of(one: FeedbackEntry) -> int:
    return len(one.query) + len(one.document_id) + sum(map(len, one.passed))


def check_entry(one: SentFeedback, where: str, received_ms: int, config: Config) -> FeedbackEntry:
    """Return feedback in the form that is kept: of the documents shown, only those ranked above this one. Raises
    InvalidInput or TooLarge."""
    query, document_id, shown = one.query.strip(), str(one.document_id), [str(each) for each in one.shown]
    limits = config.limits
    if not query:
        raise InvalidInput(f"{where}.query is empty, expected text", param=f"{where}.query")
    if len(query) > limits.query_chars_max:
        words = f"{where}.query has {len(query)} characters, at most {limits.query_chars_max} are allowed"
        raise TooLarge(words, param=f"{where}.query")
    for field, ids in (("document_id", [document_id]), ("shown", shown)):
        if any(len(each) > limits.id_chars_max for each in ids):
            words = f"{where}.{field}: an id is longer than {limits.id_chars_max} characters"
            raise TooLarge(words, param=f"{where}.{field}")
    if shown and one.grade is not None:
        words = f"{where}.shown goes with a document that was opened, not with a grade"
        raise InvalidInput(words, param=f"{where}.shown")
    if shown and document_id not in shown:
        raise InvalidInput(f"{where}.shown does not hold {document_id!r}", param=f"{where}.shown")
    if len(set(shown)) < len(shown):
        raise InvalidInput(f"{where}.shown names a document twice", param=f"{where}.shown")
    passed = shown[: shown.index(document_id)] if shown else []
    return FeedbackEntry(received_ms, query, document_id, one.grade, passed)
