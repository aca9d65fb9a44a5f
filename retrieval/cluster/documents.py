"""Documents of collections in several shards: each belongs to the shard that a hash of its id names.

A write is all or none in each shard. If one shard fails after another has written, the error says so; sending the
request again is harmless, because a document that is stored as it is sent stays as it is.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import web

from indexes.base.errors import InvalidInput, NearlineError, NotFound, Unavailable
from indexes.filters.grammar import Unchecked
from retrieval.access.auth import PRINCIPAL
from retrieval.access.privacy import require_vectors
from retrieval.base.cancellation import gather_or_cancel
from retrieval.cluster.asking import change, read
from retrieval.cluster.calls import DocumentsPage, ReadPage
from retrieval.cluster.link import RETRY_AFTER_S
from retrieval.cluster.names import shard_of_document, token_of
from retrieval.cluster.nodes import Nodes, Sharded
from retrieval.cluster.targets import ShardedTarget, nodes_of, sharded_of, target_of
from retrieval.handlers import documents as whole
from retrieval.handlers.state import BODY, CONFIG, HELD
from retrieval.handlers.wire import answer, answer_from, body, query_int
from retrieval.search.joint import raise_if_of_all
from retrieval.search.plan import filter_of
from retrieval.search.stopwatch import elapsed_ms
from retrieval.wire.documents import (
    CountBody,
    Deleted,
    DeleteDocuments,
    PatchDocument,
    PatchDocuments,
    Patched,
    ScrollDocuments,
    WriteDocuments,
    Written,
)
from retrieval.wire.documents import CountDocuments as CountRequest

COUNTS = ("documents", "unchanged", "passages", "tokens")  # of what was written
POSITION_BITS = 48  # of a place in a shard
PLACE = re.compile(r"documents\[(\d+)\]")


class RawDocuments(msgspec.Struct):
    documents: list[msgspec.Raw]


async def write(request: web.Request) -> web.Response:
    started = time.perf_counter()
    wanted = await body(request, WriteDocuments)
    sharded = sharded_of(request)
    raw = msgspec.json.decode(request.get(BODY) or await request.read(), type=RawDocuments).documents
    places: dict[int, list[int]] = defaultdict(list)
    for at, one in enumerate(wanted.documents):
        places[shard_of_document(str(one.id), sharded.of)].append(at)
    if not places:  # a node says what is wrong with that
        places[0] = []
    bodies = {shard: {"documents": [raw[at] for at in own]} for shard, own in places.items()}
    replies = await send_all(nodes_of(request), sharded, "POST", "documents", bodies, places)
    counts = {name: sum(one[name] for one in replies.values()) for name in COUNTS}
    return answer(Written(seq=token(sharded, replies), **counts, took_ms=elapsed_ms(started)))


async def show(request: web.Request) -> web.Response:
    found = await find_one(request, request.match_info["id"], vectors=whole.wants_vectors(request))
    if not PRINCIPAL.get().may_read(found["metadata"]):
        raise NotFound(f"no document {request.match_info['id']!r}", param="id")
    return await answer_from(lambda: found)


async def patch(request: web.Request) -> web.Response:
    await body(request, PatchDocument)
    return answer(await forward(request, "PATCH", request.get(BODY) or await request.read()))


async def delete(request: web.Request) -> web.Response:
    return answer(await forward(request, "DELETE"))


async def forward(request: web.Request, method: str, content: bytes | None = None) -> dict[str, Any]:
    """Send a change of one document to its shard, and return the answer."""
    nodes, sharded = nodes_of(request), sharded_of(request)
    number, path = place_of(sharded, request.match_info["id"])
    name = sharded.shard(number)
    found = await change(nodes, name, method, path, None if content is None else msgspec.Raw(content))
    nodes.acknowledge(name, found["seq"])
    found["seq"] = token(sharded, {number: found})
    return found


async def find_one(request: web.Request, document_id: str, *, vectors: bool = False) -> dict[str, Any]:
    """Read a document. Raises NotFound."""
    nodes, sharded = nodes_of(request), sharded_of(request)
    number, path = place_of(sharded, document_id)
    name = sharded.shard(number)
    query = f"?{whole.LEAST}={nodes.notes.acknowledged(name)}" + ("&vectors=true" if vectors else "")
    return await read(nodes, name, path + query)


def place_of(sharded: Sharded, document_id: str) -> tuple[int, str]:
    """Return the number of a document's shard, and its path there."""
    if document_id in {".", ".."}:  # which no document has, and which would be steps of a path
        raise NotFound(f"no document {document_id!r}", param="id")
    number = shard_of_document(document_id, sharded.of)
    return number, f"{path_of(sharded.shard(number))}/documents/{quote(document_id, safe='')}"


async def delete_many(request: web.Request) -> web.Response:
    wanted = await body(request, DeleteDocuments)
    sharded, replies = await change_chosen(request, wanted, "documents/delete")
    return answer(Deleted(token(sharded, replies), sum(one["deleted"] for one in replies.values())))


async def patch_many(request: web.Request) -> web.Response:
    wanted = await body(request, PatchDocuments)
    sharded, replies = await change_chosen(request, wanted, "documents/patch")
    return answer(Patched(token(sharded, replies), sum(one["changed"] for one in replies.values())))


async def change_chosen(
    request: web.Request, wanted: DeleteDocuments | PatchDocuments, path: str
) -> tuple[Sharded, Mapping[int, Any]]:
    """Send a change of the documents with these ids to their shards, or that of all that match a filter to every
    shard."""
    nodes, sharded = nodes_of(request), sharded_of(request)
    chosen = await whole.chosen_by(request, wanted)
    sent: dict[str, Any] = msgspec.json.decode(
        request.get(BODY) or await request.read(), type=dict[str, msgspec.Raw]
    )
    if isinstance(chosen, list):
        ids: dict[int, list[str]] = defaultdict(list)
        for one in chosen:
            ids[shard_of_document(one, sharded.of)].append(one)
        bodies: dict[int, Any] = {shard: {**sent, "ids": some} for shard, some in (ids or {0: []}).items()}
        return sharded, await send_all(nodes, sharded, request.method, path, bodies)
    # Where a shard is written, not a replica, it is known whether some of its documents match.
    bodies = dict.fromkeys(range(sharded.of), sent)
    replies = await send_all(nodes, sharded, request.method, path, bodies, refusable="filter")
    refused = {shard: one for shard, one in replies.items() if isinstance(one, InvalidInput)}
    changed = {shard: one for shard, one in replies.items() if shard not in refused}
    if refused and not any(sharded.documents_in(shard) for shard in changed):
        raise_if_of_all(list(refused.values()))
    if refused:  # by shards that lack a key, which matches nothing there
        bodies = dict.fromkeys(refused, sent)
        path = f"{path}?{whole.UNCHECKED}=true"
        changed |= await send_all(nodes, sharded, request.method, path, bodies)
    return sharded, changed


async def send_all(
    nodes: Nodes,
    sharded: Sharded,
    method: str,
    path: str,
    bodies: Mapping[int, Any],
    places: Mapping[int, Sequence[int]] | None = None,
    after_some: str = "send the request again, which is harmless",
    refusable: str | None = None,
) -> dict[int, Any]:
    """Send to each shard its part of a request, all at once, and return the answers. `places` says which documents of
    the request each part has. Raises the first error, in the words of the whole request; they end with `after_some` if
    other shards have done their parts. A shard may refuse the part `refusable` of its request, of which it knows less
    than others: then that error is its answer."""
    for shard in bodies:  # before anything is written
        nodes.require_writer(sharded.shard(shard))

    async def send(shard: int, part: Any) -> Any:
        try:
            name = sharded.shard(shard)
            reply = await change(nodes, name, method, f"{path_of(name)}/{path}", part)
            nodes.acknowledge(name, reply.get("seq", 0))
        except NearlineError as error:
            return error
        return reply

    replies = dict(zip(bodies, await gather_or_cancel(send(*one) for one in bodies.items()), strict=True))
    failed = {
        shard: one
        for shard, one in replies.items()
        if isinstance(one, NearlineError) and not is_about(one, refusable)
    }
    if failed:
        shard, error = next(iter(failed.items()))
        raise in_words_of_all(
            error, shard, sorted(bodies.keys() - failed.keys()), (places or {}).get(shard, ()), after_some
        )
    return replies


def is_about(error: NearlineError, part: str | None) -> bool:
    """Whether a request was invalid in this part of it."""
    return isinstance(error, InvalidInput) and part is not None and (error.param or "").startswith(part)


def in_words_of_all(
    error: NearlineError, shard: int, done: Sequence[int], places: Sequence[int], after_some: str
) -> NearlineError:
    """Say what a shard refused of its part in the words of the whole request: `places` are those of its documents."""

    def whole_place(found: re.Match[str]) -> str:
        at = int(found[1])
        return f"documents[{places[at]}]" if at < len(places) else found[0]

    error.message = PLACE.sub(whole_place, error.message)
    error.param = error.param and PLACE.sub(whole_place, error.param)
    if done:
        parts = f"shards {', '.join(map(str, done))} have done their parts"
        error.message += f"; that was shard {shard}, and {parts}: {after_some}"
    return error


def token(sharded: Sharded, replies: Mapping[int, Any]) -> str:
    return token_of({shard: one["seq"] for shard, one in replies.items()})


def path_of(shard: str) -> str:
    return f"/v1/collections/{quote(shard)}"


async def count(request: web.Request) -> web.Response:
    wanted = await body(request, CountRequest)
    target = target_of(request)
    condition = filter_of(wanted.filter, request.app[CONFIG])
    found = (await target.counts(condition)).values()
    documents, passages = sum(one.documents for one in found), sum(one.passages for one in found)
    return answer(CountBody(documents, passages, target.seen))


# --- pages: one shard after the other -------------------------------------------------------------------------


async def list_page(request: web.Request) -> web.Response:
    limits = request.app[CONFIG].limits
    limit = query_int(request, "limit", 100, least=1, most=limits.page_limit_max)
    vectors = whole.wants_vectors(request)
    condition = PRINCIPAL.get().restrict(None)
    call = ReadPage(
        0, limit, condition, text=True, vectors=vectors, bytes_max=request[HELD].page(limits.answer_bytes_max)
    )
    cursor = request.query.get("cursor", "0")
    return await answer_page(target_of(request), call, None if cursor == "0" else cursor, "next_cursor")


async def scroll(request: web.Request) -> web.Response:
    wanted = await body(request, ScrollDocuments)
    config = request.app[CONFIG]
    if wanted.vectors:
        require_vectors()
    limit = min(wanted.limit, config.limits.page_limit_max)
    condition, bytes_max = (
        filter_of(wanted.filter, config),
        request[HELD].page(config.limits.answer_bytes_max),
    )
    call = ReadPage(0, limit, condition, text=wanted.text, vectors=wanted.vectors, bytes_max=bytes_max)
    return await answer_page(target_of(request), call, wanted.cursor, "cursor")


async def answer_page(target: ShardedTarget, call: ReadPage, cursor: str | None, name: str) -> web.Response:
    """Answer with the documents after a cursor, those of one shard after those of another."""
    shard, after = (0, 0) if cursor is None else decode_cursor(cursor, target.sharded)
    if call.condition is not None:
        await target.counts(call.condition)  # raises for what no shard can match
        call = msgspec.structs.replace(call, condition=Unchecked(call.condition))
    found: list[bytes] = []
    following: str | None = None
    while following is None and shard < target.sharded.of:
        left, bytes_left = call.limit - len(found), call.bytes_max - sum(map(len, found))
        full = left <= 0 or bytes_left <= 0  # then only look whether there is another one
        part = (
            {"limit": 1, "text": False, "vectors": False}
            if full
            else {"limit": left, "bytes_max": bytes_left}
        )
        page: DocumentsPage = await target.ask_one(shard, msgspec.structs.replace(call, after=after, **part))
        if full and page.documents:
            following = encode_cursor(shard, after, target.sharded)
        elif page.following is not None:
            following = encode_cursor(shard, page.following, target.sharded)
        found += [] if full else page.documents
        shard, after = shard + 1, 0
    return await answer_from(lambda: {"documents": [msgspec.Raw(one) for one in found], name: following})


def encode_cursor(shard: int, position: int, sharded: Sharded) -> str:
    return whole.encode_cursor((shard << POSITION_BITS) + position, cursors_of(sharded))


def decode_cursor(cursor: str, sharded: Sharded) -> tuple[int, int]:
    """Return the shard and the position in it. Raises InvalidInput for anything that this collection did not issue."""
    return divmod(whole.decode_cursor(cursor, cursors_of(sharded)), 1 << POSITION_BITS)


def cursors_of(sharded: Sharded) -> str:
    """Tell its cursors from those of other collections. Raises Unavailable if no node answers for the first shard."""
    if (first := sharded.states.get(0)) is None:
        raise Unavailable(f"no node answers for shard {sharded.shard(0)} now", retry_after_s=RETRY_AFTER_S)
    return first.origin
