"""Aliases of collections in several shards. The first shard of a collection keeps them, so they go wherever it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from indexes.base.errors import Conflict, NotFound
from indexes.base.model import now_ms
from indexes.directory.catalog import check_name, require_one_tenant
from indexes.parts.learned import AliasSettings
from retrieval.access.auth import PRINCIPAL
from retrieval.cluster.asking import change, few_at_a_time
from retrieval.cluster.giving import read_packed
from retrieval.cluster.nodes import Nodes
from retrieval.cluster.targets import nodes_of
from retrieval.handlers import collections as whole
from retrieval.handlers.state import CATALOG, METRICS
from retrieval.handlers.wire import answer, body, names_stored, settings_stored
from retrieval.search.travel import pack
from retrieval.wire.collections import AliasBody, SetAlias

PATH = "aliases"


class ChangeAlias(msgspec.Struct, array_like=True, frozen=True):
    """`at_ms` is when the alias was given; None: it is taken away."""

    alias: str
    at_ms: int | None


async def set_alias(request: web.Request) -> web.Response:
    """Set an alias of a collection in shards, or of one of this service. All services know it within a second. If it
    goes from one kind to the other, it always means one of the two here, where one in one piece comes first."""
    wanted, caller, nodes = await body(request, SetAlias), PRINCIPAL.get(), nodes_of(request)
    caller.require_unbound()
    alias, name = caller.full(request.match_info["alias"]), caller.full(wanted.collection)
    await nodes.look()
    if alias in nodes.collections():
        raise Conflict(f"{alias!r} is a collection", param="alias")
    nodes.require_known(alias)
    held = holders(nodes, alias)
    if name not in nodes.collections():
        reply = await whole.set_alias(request)
        await take_away(nodes, alias, held)
        return reply
    check_name(alias, "alias")
    whole.require_whole_name(request.match_info["alias"], "alias")
    require_one_tenant(alias, name, "alias")
    catalog = request.app[CATALOG]
    own, others = alias in catalog.aliases, nodes.naming(alias)
    if alias in {*catalog.collections, *catalog.quarantined} or len(others) > own:
        raise Conflict(f"{alias!r} is a name in use", param="alias")
    await tell(nodes, name, ChangeAlias(alias, max(now_ms(), *(at + 1 for at in held.values()), 0)))
    if own:
        await asyncio.to_thread(catalog.remove_alias, alias)
        await names_stored(request.app)
    await take_away(nodes, alias, (one for one in held if one != name))
    return answer(AliasBody(request.match_info["alias"], wanted.collection))


async def remove_alias(request: web.Request) -> web.Response:
    caller, nodes = PRINCIPAL.get(), nodes_of(request)
    caller.require_unbound()
    alias = caller.full(request.match_info["alias"])
    await nodes.look()
    if not (held := holders(nodes, alias)):
        return await whole.remove_alias(request)
    await take_away(nodes, alias, held)
    request.app[METRICS].forget(alias)
    return web.Response(status=204)


async def take_away(nodes: Nodes, alias: str, names: Iterable[str]) -> None:
    """Take an alias from collections in shards."""
    await few_at_a_time(partial(tell, nodes, one, ChangeAlias(alias, None)) for one in names)
    await nodes.look()


def holders(nodes: Nodes, alias: str) -> dict[str, int]:
    """Return the collections that were given an alias, and when. There are several while it moves."""
    first = {name: one.states[0] for name, one in nodes.collections().items() if 0 in one.states}
    return {name: state.aliases[alias] for name, state in first.items() if alias in state.aliases}


async def tell(nodes: Nodes, name: str, wanted: ChangeAlias) -> dict[str, Any]:
    """Have the first shard of a collection keep an alias, or forget it."""
    sharded = nodes.collections().get(name)
    if sharded is None:
        raise NotFound(f"no collection {name!r}", param="collection")
    shard = sharded.shard(0)
    return await change(nodes, shard, "PUT", f"/v1/shards/{shard}/{PATH}", msgspec.Raw(pack(wanted)))


async def keep(request: web.Request) -> web.Response:
    """At the node of the shard: keep an alias, or forget it."""
    wanted = await read_packed(request, ChangeAlias)
    collection = request.app[CATALOG].get(request.match_info["shard"])

    def changed(before: AliasSettings | None) -> AliasSettings:
        names = dict(before.names if before else {})
        names.pop(wanted.alias, None)
        return AliasSettings(names=names if wanted.at_ms is None else {**names, wanted.alias: wanted.at_ms})

    await asyncio.to_thread(collection.change_aliases, changed)
    await settings_stored(request.app, collection)
    return answer({})
