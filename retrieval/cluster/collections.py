"""Collections in several shards: create, show, list, delete."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from indexes.base.errors import Conflict, NotFound, Unavailable
from indexes.directory.catalog import check_name
from retrieval.access.auth import NODE, PRINCIPAL
from retrieval.cluster.asking import change, few_at_a_time, read, send
from retrieval.cluster.documents import path_of
from retrieval.cluster.link import RETRY_AFTER_S
from retrieval.cluster.names import ShardName, token_of
from retrieval.cluster.nodes import Nodes, Sharded
from retrieval.cluster.placing import place
from retrieval.cluster.targets import nodes_of, sharded_of
from retrieval.handlers import collections as whole
from retrieval.handlers.evaluation import no_evaluation
from retrieval.handlers.state import BODY, CATALOG, CONFIG
from retrieval.handlers.wire import answer, answer_from, body
from retrieval.wire.collections import (
    CollectionBody,
    CreateCollection,
    HeldBody,
    HoldWrites,
    SetRanking,
    SetSynonyms,
    ShardBody,
    UnavailableBody,
)
from retrieval.wire.evaluation import KeepEvaluation

SUMS = (
    "hot_capacity",
    "documents",
    "dead_passages",
    "segments",
    "memory_bytes",
    "resident_bytes",
    "mapped_bytes",
    "owed_bytes",
)
SUMS_BY_KEY = ("languages", "passages", "tier_bytes")
OF_ONE_INDEX = ("recall_evidence", "search", "moves", "cold", "store")


async def create(request: web.Request) -> web.Response:
    """Create a collection. Of one in several shards, those that a failed attempt has left out are created."""
    wanted, nodes, caller = await body(request, CreateCollection), nodes_of(request), PRINCIPAL.get()
    caller.require_unbound()
    if caller is NODE:
        return await whole.create(request)
    whole.require_whole_name(wanted.name, "name")
    name = caller.full(wanted.name)
    await nodes.look()
    known = nodes.collection(name)
    if wanted.shards == 1:
        if known is not None:
            raise Conflict(f"{name!r} is a collection in {known.of} shards", param="name")
        nodes.require_known(name)
        return await whole.create(request)
    check_name(name)
    if request.app[CATALOG].holds(name) or nodes.naming(name):
        raise Conflict(f"{name!r} is a name in use", param="name")
    if known is not None and (known.of != wanted.shards or len(known.states) == known.of):
        raise Conflict(f"{name!r} is a collection in {known.of} shards", param="name")
    if known is not None and (other := half_renamed(nodes, known)) is not None:
        raise Conflict(
            f"{name!r} is half renamed: give the rest, {other!r}, the same name again", param="name"
        )
    writers = nodes.writers()
    placed = place(name, wanted.shards, list(writers))
    hot = request.app[CONFIG].index.hot_capacity if wanted.hot_capacity is None else wanted.hot_capacity
    settings = {
        key: value
        for key in ("model", "dimensions", "language")
        if (value := getattr(wanted, key)) is not None
    } | {"hot_capacity": -(-hot // wanted.shards), "field_weights": msgspec.to_builtins(wanted.field_weights)}
    missing = set(range(wanted.shards)).difference(known.states if known else ())
    shards = [(placed[number], str(ShardName(name, number, wanted.shards))) for number in sorted(missing)]
    await few_at_a_time(
        partial(send, nodes, writers[node], "POST", "/v1/collections", {"name": one, **settings})
        for node, one in shards
    )
    await nodes.look()
    made = nodes.collection(name)
    if made is None:
        raise Unavailable(
            f"{name!r} was created, and its nodes do not answer now", retry_after_s=RETRY_AFTER_S
        )
    return answer(await describe(nodes, made), status=201)


async def show(request: web.Request) -> web.Response:
    return answer(await describe(nodes_of(request), sharded_of(request)))


def half_renamed(nodes: Nodes, known: Sharded) -> str | None:
    """Return the name of the other shards of a collection of which some have another name."""
    others = nodes.collections().values()
    return next((one.name for one in others if one.name != known.name and is_rest(one, known)), None)


def is_rest(done: Sharded, left: Sharded) -> bool:
    """Whether two collections are the parts of one that was being renamed."""
    whole = set(range(left.of))
    return (
        done.of == left.of
        and not done.states.keys() & left.states.keys()
        and whole == {*done.states, *left.states}
    )


async def list_collections(request: web.Request) -> web.Response:
    """List the collections of this service, and those in shards. One that has a shard nowhere is unavailable."""
    own = await asyncio.to_thread(whole.list_own, request.app)
    nodes, caller = nodes_of(request), PRINCIPAL.get()
    for name, sharded in sorted(nodes.collections().items()):
        if not caller.sees(name, {}):
            continue
        try:
            own.collections.append(await describe(nodes, sharded))
        except Unavailable as error:
            own.unavailable.append(UnavailableBody(caller.own(name), caller.hide_tenant(error.message)))
    for name, shards in sorted(nodes.hidden().items()):
        if caller.sees(name, {}):
            why = f"no node that answers has any of its shards; {shards[0]} was at one that does not"
            own.unavailable.append(UnavailableBody(caller.own(name), caller.hide_tenant(why)))
    return await answer_from(lambda: own)


async def delete(request: web.Request) -> web.Response:
    """Delete all shards. If all nodes answer, those that no node has were never created."""
    nodes, sharded = nodes_of(request), sharded_of(request)
    if (
        alias := next((one for one, name in nodes.aliases().items() if name == sharded.name), None)
    ) is not None:
        raise Conflict(f"alias {alias!r} names the collection {sharded.name!r}", param="collection")
    if nodes.away():
        require_all(nodes, sharded)
    shards = [sharded.shard(number) for number in range(sharded.of) if number in sharded.states]
    await nodes.look()
    require_idle(nodes, shards)  # before anything is deleted
    await few_at_a_time(partial(change, nodes, one, "DELETE", path_of(one)) for one in shards)
    for one in shards:
        nodes.notes.forget(one)
    await nodes.look()
    return web.Response(status=204)


async def set_ranking(request: web.Request) -> web.Response:
    await body(request, SetRanking)
    await tell_all(request, "PUT", "ranking")
    return await show(request)


async def remove_ranking(request: web.Request) -> web.Response:
    await tell_all(request, "DELETE", "ranking")
    return web.Response(status=204)


async def hold(request: web.Request) -> web.Response:
    await body(request, HoldWrites)
    held = await tell_all(request, "PUT", "hold")
    return answer(HeldBody(token_of({at: one["seq"] for at, one in enumerate(held)})))


async def set_synonyms(request: web.Request) -> web.Response:
    await body(request, SetSynonyms)
    return answer((await tell_all(request, "PUT", "synonyms"))[0])


async def show_synonyms(request: web.Request) -> web.Response:
    PRINCIPAL.get().require_whole()
    return answer(whole.synonyms_body(sharded_of(request).synonyms))


async def remove_synonyms(request: web.Request) -> web.Response:
    await tell_all(request, "DELETE", "synonyms")
    return web.Response(status=204)


async def keep_evaluation(request: web.Request) -> web.Response:
    """Keep a report at the first shard."""
    await body(request, KeepEvaluation)
    first = sharded_of(request).shard(0)
    sent = msgspec.Raw(request.get(BODY) or await request.read())
    return answer(await change(nodes_of(request), first, "PUT", f"{path_of(first)}/evaluation", sent))


async def show_evaluation(request: web.Request) -> web.Response:
    PRINCIPAL.get().require_whole()
    first = sharded_of(request).shard(0)
    try:
        return answer(await read(nodes_of(request), first, f"{path_of(first)}/evaluation"))
    except NotFound:
        raise no_evaluation(request.match_info["collection"]) from None


async def tell_all(
    request: web.Request, method: str, path: str, options: object = None
) -> list[dict[str, Any]]:
    """Send a request, or these options in the place of its body, to every shard. If it fails at some, sending it again
    is harmless."""
    nodes, sharded = nodes_of(request), sharded_of(request)
    shards = [sharded.shard(number) for number in range(sharded.of)]
    for one in shards:
        nodes.require_writer(one)
    sent = options
    if options is None and request.body_exists:
        sent = msgspec.Raw(request.get(BODY) or await request.read())
    answers = await few_at_a_time(
        partial(change, nodes, one, method, f"{path_of(one)}/{path}", sent) for one in shards
    )
    await nodes.look()
    return answers


def require_idle(nodes: Nodes, shards: Iterable[str]) -> None:
    """Raise Conflict if a job works for one of the shards, and as `Nodes.require_writer`."""
    for one in shards:
        nodes.require_writer(one)
        state = nodes.reader_of(one).state_of(one)
        if state is not None and state.job:
            raise Conflict(f"job {state.job} works for shard {one}: wait for its end", param="collection")


def require_all(nodes: Nodes, sharded: Sharded) -> None:
    """Raise Unavailable if no node has one of the shards."""
    for number in range(sharded.of):
        name = sharded.shard(number)
        if not nodes.having(name):
            raise Unavailable(f"no node answers for shard {name} now", retry_after_s=RETRY_AFTER_S)


async def describe(nodes: Nodes, sharded: Sharded) -> CollectionBody:
    """Describe a collection by what its shards say: sums, the lowest recall, and what only one index has left out.
    Raises Unavailable if a shard has no node, and Forbidden for a caller that sees only some documents."""
    PRINCIPAL.get().require_whole()
    require_all(nodes, sharded)
    names = [sharded.shard(number) for number in range(sharded.of)]
    found = await few_at_a_time(partial(read, nodes, one, path_of(one)) for one in names)
    joined: dict[str, Any] = dict(found[0])
    joined |= {key: sum(one[key] for one in found) for key in SUMS}
    for key in SUMS_BY_KEY:
        counts: Counter[str] = Counter()
        for one in found:
            counts.update(one[key])
        joined[key] = dict(counts.most_common()) if key == "languages" else dict(counts)
    joined |= dict.fromkeys(OF_ONE_INDEX)
    tiers = {tier for one in found for tier in one["recall"]}
    caller = PRINCIPAL.get()
    joined |= {
        "name": caller.own(sharded.name),
        "aliases": caller.aliases_of(sharded.name, nodes.aliases()),
        "seq": token_of({at: one["seq"] for at, one in enumerate(found)}),
        "generation": max(one["generation"] for one in found),
        "generations": [],
        "recall": {tier: min(one["recall"].get(tier, 1.0) for one in found) for tier in sorted(tiers)},
        "owed_since_ms": min((one["owed_since_ms"] for one in found if one["owed_since_ms"]), default=None),
        "ranking": found[0]["ranking"],
        "rebuild_due": next((one["rebuild_due"] for one in found if one["rebuild_due"]), None),
        "shards": [
            ShardBody(name, having[0].name, len(having), one["seq"], one["documents"])
            for name, one in zip(names, found, strict=True)
            if (having := nodes.having(name))
        ],
    }
    return msgspec.convert(joined, CollectionBody)
