"""Assessments: compare an action or alert with the most similar past events."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from indexes.base.errors import InvalidInput, TooLarge
from indexes.filters.grammar import Compound, Exists, Filter, parse_filter
from indexes.reading import scrolling
from retrieval.access.auth import PRINCIPAL
from retrieval.base.config import Config
from retrieval.handlers.search import Find, await_writes, budget_of, headers_of
from retrieval.handlers.state import CONFIG, PIPELINE
from retrieval.handlers.wire import answer, body, collection_of, note_search
from retrieval.insight import assessing
from retrieval.insight.assessing import Judge, PastOutcomes, search_request, text_of
from retrieval.observe.request_log import note_queries
from retrieval.search.plan import filter_of
from retrieval.wire.assess import AssessRequest, Outcome
from retrieval.wire.decoding import decode_part
from retrieval.wire.search import SearchAnswer, SearchRequest

# The prefix of errors about a filter that we built, not the caller.
OWN_PLACE = re.compile(r"^filter[\w.\[\]]*: ")
ACTION_BYTES_MAX = 1 << 18  # decoded on the event loop; only a small part is read


Count = Callable[[Filter | None], Awaitable[int]]  # the documents that match


async def assess(request: web.Request) -> web.Response:
    wanted = await body(request, AssessRequest)
    name, collection = collection_of(request)
    app, budget = request.app, budget_of(request, "neighbors")

    async def find(search: SearchRequest) -> SearchAnswer:
        await await_writes(request, collection, [search])
        found = await app[PIPELINE].search(name, collection, search, budget=budget)
        note_search(app, collection, search, found)
        return found

    async def count(condition: Filter | None) -> int:
        return (await asyncio.to_thread(scrolling.count, collection, condition)).documents

    return await assess_with(request, wanted, find, count)


async def assess_with(request: web.Request, wanted: AssessRequest, find: Find, count: Count) -> web.Response:
    """Assess by the events that `find` finds, and by how many `count` counts."""
    config = request.app[CONFIG]
    text = action_of(wanted)
    read = text[: config.limits.query_chars_max].strip()
    judge = Judge.of(wanted.outcome, config.assess)
    if not judge.bad and judge.bad_from is None:
        raise InvalidInput("outcome does not say which values are bad: give bad or bad_from", param="outcome")
    neighbors, most = wanted.neighbors or config.assess.neighbors, config.limits.k_max
    if neighbors > most:
        raise InvalidInput(f"neighbors must be from 1 to {most}, found {neighbors}", param="neighbors")
    note_queries(request, [read])
    if (
        wanted.remedy_key is not None and PRINCIPAL.get().groups is None
    ):  # the error names keys of all documents
        await require_key(count, wanted.remedy_key)
    found = await events_of(find, search_request(wanted, read, neighbors))
    past = await past_outcomes(count, wanted, judge, config)
    assessment = await asyncio.to_thread(assessing.assess, found, wanted, judge, past, config.assess)
    assessment.read_chars, assessment.cut = len(read), len(text) > len(read)
    return answer(assessment, headers=headers_of(found.timings_ms))


async def events_of(find: Find, search: SearchRequest) -> SearchAnswer:
    """Find similar events. Raises InvalidInput naming `action` if the collection has no model to compare it with."""
    try:
        return await find(search)
    except InvalidInput as error:
        if error.param != "vector":
            raise
        message = "action cannot be compared: events are compared by meaning, and the collection has no model"
        raise InvalidInput(message, param="action") from None


async def require_key(count: Count, key: str) -> None:
    """Raise InvalidInput naming `remedy_key` if no document has that key."""
    try:
        await count(Exists(key))
    except InvalidInput as error:
        raise InvalidInput(f"remedy_key: {OWN_PLACE.sub('', error.message)}", param="remedy_key") from None


def action_of(wanted: AssessRequest) -> str:
    """Return the text of the action. Raises InvalidInput if it has none, and TooLarge."""
    if len(wanted.action) > ACTION_BYTES_MAX:
        raise TooLarge(
            f"action has {len(wanted.action)} bytes, at most {ACTION_BYTES_MAX} are read", param="action"
        )
    action = decode_part(wanted.action, str | dict[str, Any], "action")  # type: ignore[arg-type]
    text = text_of(action)
    if not text:
        raise InvalidInput("action holds no descriptive text: numbers and links are not read", param="action")
    return text


async def past_outcomes(
    count_matching: Count, wanted: AssessRequest, judge: Judge, config: Config
) -> PastOutcomes:
    """Return how the events that match the request's filter ended. Raises InvalidInput naming `outcome` if no outcome
    has the kind of any bad one."""
    own = await asyncio.to_thread(filter_of, wanted.filter, config)  # the limits are for this one alone

    async def count(outcome: dict[str, Any], condition: Filter | None = None) -> int:
        ended = parse_filter(outcome, conditions_max=sys.maxsize)
        both = ended if condition is None else Compound("and", [ended, condition])
        return await count_matching(PRINCIPAL.get().restrict(both))

    known, bad = judge.filters()
    try:
        total = await count(known, own)
    except InvalidInput as error:  # not about the request's filter: the search accepted it
        if wanted.outcome is None:
            return PastOutcomes(None)  # the key comes from the settings, and this collection does not have it
        raise about_outcome(error) from None
    if not total:
        return PastOutcomes(None)
    possible, faults = [], []
    for one in bad:
        try:
            await count(one, own)
            possible.append(one)
        except InvalidInput as error:
            faults.append(error)
    if not possible:
        asked = wanted.outcome or Outcome()
        is_usual = asked.bad is None and asked.bad_from is None
        raise about_outcome(faults[-1], f"; {judge.meaning()}: give bad or bad_from" if is_usual else "")
    ended_badly = {"type": "or", "filters": possible}
    matching = await count(ended_badly, own)
    ever_bad = bool(matching or (own is not None and await count(ended_badly)))
    return PastOutcomes(matching / total, ever_bad)


def about_outcome(error: InvalidInput, more: str = "") -> InvalidInput:
    return InvalidInput(f"outcome: {OWN_PLACE.sub('', error.message)}{more}", param="outcome")
