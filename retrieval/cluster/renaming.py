"""Renaming a collection in several shards: each shard is renamed by its node, one way or all of it the other way."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any

from aiohttp import web

from indexes.base.errors import Conflict, NearlineError, NotFound
from indexes.directory.catalog import check_name
from retrieval.access.auth import PRINCIPAL
from retrieval.cluster.asking import change, few_at_a_time
from retrieval.cluster.collections import describe, is_rest, require_idle
from retrieval.cluster.documents import path_of
from retrieval.cluster.names import ShardName
from retrieval.cluster.nodes import LOOK_S, Nodes, Sharded
from retrieval.cluster.running import keep_running
from retrieval.cluster.targets import nodes_of
from retrieval.handlers.collections import require_whole_name
from retrieval.handlers.state import CATALOG, METRICS
from retrieval.handlers.wire import answer, body
from retrieval.wire.collections import RenameCollection

logger = logging.getLogger(__name__)

GO_BACK_S = 86_400.0
GOING_BACK = web.AppKey["dict[str, asyncio.Task[None]]"]("GOING_BACK")  # by the old name of the collection


async def rename(request: web.Request) -> web.Response:
    """Rename a collection by its own name, or go on with what a service that died has left half renamed. If a shard
    cannot be renamed, those that were are given their old name again."""
    wanted, caller, nodes = await body(request, RenameCollection), PRINCIPAL.get(), nodes_of(request)
    caller.require_unbound()
    old, new = caller.full(request.match_info["collection"]), caller.full(wanted.name)
    await nodes.look()
    sharded = nodes.collections().get(old)
    if sharded is None:
        raise NotFound(f"no collection {old!r}", param="collection")
    check_name(new)
    require_whole_name(wanted.name, "name")
    done, taken = nodes.collections().get(new), request.app[CATALOG].holds(new)
    if taken or nodes.naming(new) or new in nodes.aliases() or (done and not is_rest(done, sharded)):
        raise Conflict(f"the name {new!r} is taken", param="name")
    left = set(range(sharded.of)).difference(done.states if done else ())
    require_idle(nodes, map(sharded.shard, left))  # before anything is renamed
    if (going_back := request.app[GOING_BACK].pop(old, None)) is not None:
        going_back.cancel()
    try:
        await asyncio.shield(keep_running(request.app, all_or_none(nodes, sharded, new, left)))
    except NearlineError as error:
        error.message += (
            f"; {old!r} keeps its name, and where a shard has the new one, it gets the old one back"
        )
        going_back = keep_running(request.app, go_back(nodes, sharded, new))
        request.app[GOING_BACK][old] = going_back
        going_back.add_done_callback(partial(forget, request.app[GOING_BACK], old))
        raise
    request.app[METRICS].forget(old)
    renamed = nodes.collections().get(new)
    if renamed is None:
        raise NotFound(f"{new!r} was renamed again, or deleted", param="collection")
    return answer(await describe(nodes, renamed))


def forget(going_back: dict[str, asyncio.Task[None]], old: str, ended: asyncio.Task[None]) -> None:
    if going_back.get(old) is ended:
        del going_back[old]


async def all_or_none(nodes: Nodes, sharded: Sharded, new: str, numbers: set[int]) -> None:
    """Rename these shards. If one cannot be renamed, give those that have the new name the old one again and raise why.
    What cannot be reached then gets it later (`go_back`), and the next attempt goes on there."""
    errors = await give_name(nodes, sharded, new, numbers)
    if errors and (done := nodes.collections().get(new)) is not None:
        for error in await give_name(nodes, done, sharded.name, set(done.states)):
            logger.warning("%s is half renamed to %s: %s", sharded.name, new, error.message)
    if errors:
        raise errors[0]


async def go_back(nodes: Nodes, sharded: Sharded, new: str) -> None:
    """Give shards that were renamed, at a node that did not answer then, their old name again once it does. Ends when
    the collection is whole again, or after GO_BACK_S."""
    late = time.monotonic() + GO_BACK_S
    while time.monotonic() < late:
        await asyncio.sleep(LOOK_S)
        left, done = (nodes.collections().get(name) for name in (sharded.name, new))
        if left is not None and len(left.states) == left.of:
            return
        if left is not None and done is not None and is_rest(done, left):
            for error in await give_name(nodes, done, sharded.name, set(done.states)):
                logger.warning("%s is half renamed to %s: %s", sharded.name, new, error.message)


async def give_name(nodes: Nodes, sharded: Sharded, new: str, numbers: set[int]) -> list[NearlineError]:
    """Rename these shards, as far as that is possible, and return what went wrong."""
    errors: list[NearlineError] = []

    async def give(number: int) -> dict[str, Any]:
        shard, name = sharded.shard(number), str(ShardName(new, number, sharded.of))
        try:
            await change(nodes, shard, "POST", f"{path_of(shard)}/rename", {"name": name})
            nodes.notes.rename(shard, name)
        except NearlineError as error:
            errors.append(error)
        return {}

    await few_at_a_time(partial(give, number) for number in sorted(numbers))
    await nodes.look()
    return errors
