"""Judgments and clicks of collections in several shards: each is kept in the shard of the document that it is about."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

from aiohttp import web

from retrieval.access.auth import PRINCIPAL
from retrieval.cluster.asking import few_at_a_time, read
from retrieval.cluster.calls import FindVisible
from retrieval.cluster.collections import tell_all
from retrieval.cluster.documents import path_of, send_all
from retrieval.cluster.names import shard_of_document
from retrieval.cluster.targets import ShardedTarget, answered, nodes_of, sharded_of, target_of
from retrieval.handlers import feedback as whole
from retrieval.handlers.state import HELD
from retrieval.handlers.wire import answer, answer_from
from retrieval.search.steps import Away
from retrieval.upkeep.feedback import FeedbackEntry

AFTER_SOME = "a judgment may be sent again, a click would count twice"


async def write(request: web.Request) -> web.Response:
    entries = await whole.sent_entries(request)
    target = target_of(request)
    visible = await visible_among(target, whole.named_in(entries))
    about, of = whole.about_visible(entries, visible), target.sharded.of
    parts: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for one in about:
        parts[shard_of_document(one.document_id, of)].append(as_sent(one))
    bodies = {shard: {"feedback": part} for shard, part in parts.items()}
    await send_all(target.nodes, target.sharded, "POST", "feedback", bodies, after_some=AFTER_SOME)
    return answer(whole.kept(about, entries, visible))


async def visible_among(target: ShardedTarget, documents: set[str]) -> set[str]:
    """Return the ids among these of documents that exist and that the caller may see."""
    by_shard: dict[int, list[str]] = defaultdict(list)
    for one in documents:
        by_shard[shard_of_document(one, target.sharded.of)].append(one)
    groups = PRINCIPAL.get().groups
    calls: list[Away[list[str]]] = [
        Away(target.parts[shard], FindVisible(some, groups)) for shard, some in by_shard.items()
    ]
    return {one for found in await target.ask(calls) for one in answered(found)}


def as_sent(entry: FeedbackEntry) -> dict[str, Any]:
    shown = [*entry.passed, entry.document_id] if entry.passed else []
    return {
        "query": entry.query,
        "document_id": entry.document_id,
        "grade": entry.grade,
        "shown": shown,
    }


async def list_feedback(request: web.Request) -> web.Response:
    """List the feedback of all shards by the time of its arrival."""
    nodes, sharded, held = nodes_of(request), sharded_of(request), request[HELD]

    async def read_some(shard: str) -> dict[str, Any]:
        found = await read(nodes, shard, f"{path_of(shard)}/feedback")
        held.answer(sum(len(one["query"]) + len(one["document_id"]) for one in found["feedback"]))
        return found

    found = await few_at_a_time(partial(read_some, sharded.shard(number)) for number in range(sharded.of))
    entries = sorted((one for part in found for one in part["feedback"]), key=lambda one: one["time_ms"])
    return await answer_from(lambda: {"feedback": entries})


async def delete(request: web.Request) -> web.Response:
    await tell_all(request, "DELETE", "feedback")
    return web.Response(status=204)
