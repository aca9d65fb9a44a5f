"""Assessments: an action or alert beside the events most like it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
from aiohttp import web

from indexes.base.errors import InvalidInput, TooLarge
from indexes.collection.collection import Collection
from indexes.reading import scrolling
from retrieval.base.config import Config
from retrieval.handlers.search import budget_of, headers_of
from retrieval.handlers.state import CONFIG, PIPELINE
from retrieval.handlers.wire import answer, body, collection_of, note_search
from retrieval.insight.assessing import Judge, search_request, text_of
from retrieval.insight.assessing import assess as assessed
from retrieval.observe.request_log import note_queries
from retrieval.search.plan import filter_of
from retrieval.wire.assess import AssessRequest
from retrieval.wire.decoding import decode_part

OWN_PLACE = re.compile(r"^filter[\w.\[\]]*: ")  # in a filter that the request does not have
ACTION_BYTES_MAX = 1 << 18  # decoded on the event loop; what is read of it is far less


async def assess(request: web.Request) -> web.Response:
    wanted = await body(request, AssessRequest)
    name, collection = collection_of(request)
    app, config = request.app, request.app[CONFIG]
    text = action_of(wanted)
    read = text[: config.limits.query_chars_max].strip()
    judge = Judge.of(wanted.outcome, config.assess)
    if not judge.bad and judge.bad_from is None:
        raise InvalidInput("outcome names nothing that is bad: give bad or bad_from", param="outcome")
    neighbors, most = wanted.neighbors or config.assess.neighbors, config.limits.k_max
    if neighbors > most:
        raise InvalidInput(f"neighbors must be from 1 to {most}, found {neighbors}", param="neighbors")
    search = search_request(wanted, read, neighbors)
    note_queries(request, [read])
    found = await app[PIPELINE].search(name, collection, search, budget=budget_of(request, "neighbors"))
    note_search(app, collection, search, found)
    base_rate = await asyncio.to_thread(base_rate_of, collection, wanted, judge, config)
    assessment = await asyncio.to_thread(assessed, found, wanted, judge, base_rate, config.assess)
    assessment.read_chars, assessment.cut = len(read), len(text) > len(read)
    return answer(assessment, headers=headers_of(found.timings_ms))


def action_of(wanted: AssessRequest) -> str:
    """Raises InvalidInput and TooLarge."""
    if len(wanted.action) > ACTION_BYTES_MAX:
        raise TooLarge(
            f"action has {len(wanted.action)} bytes, at most {ACTION_BYTES_MAX} are read", param="action"
        )
    action = decode_part(wanted.action, str | dict[str, Any], "action")  # type: ignore[arg-type]
    text = text_of(action)
    if not text:
        raise InvalidInput(
            "action holds no text that says what it is: numbers and links are not read", param="action"
        )
    return text


def base_rate_of(collection: Collection, wanted: AssessRequest, judge: Judge, config: Config) -> float | None:
    """Share of bad outcomes among the events with one; None where none has. Raises InvalidInput naming `outcome`."""
    own = decode_part(wanted.filter, object, "filter")

    def count(outcome: dict[str, Any]) -> int:
        filters = [outcome] if own is None else [own, outcome]
        raw = msgspec.Raw(msgspec.json.encode({"type": "and", "filters": filters}))
        return scrolling.count(collection, filter_of(raw, config)).documents

    known, bad = judge.filters()
    try:
        total = count(known)
    except InvalidInput as error:  # the filter of the request was fine for the search
        if wanted.outcome is None:
            return None  # the key is that of the settings, which not every collection has
        raise about_outcome(error) from None
    try:
        return count(bad) / total if total else None
    except InvalidInput as error:
        raise about_outcome(error) from None


def about_outcome(error: InvalidInput) -> InvalidInput:
    return InvalidInput(f"outcome: {OWN_PLACE.sub('', error.message)}", param="outcome")
