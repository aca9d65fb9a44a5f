"""Finding and moving shards, by the API of a service: the only part of a cluster's machinery that asks one."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from indexes.base.errors import Conflict, NotFound, Unavailable
from indexes.directory.marker import SHARD_MARK
from nearline import AsyncClient
from retrieval.clients.errors import ServiceError

LOOK_S = 0.5
KNOWN_S = 60.0


class ShardBuild(msgspec.Struct, frozen=True):
    """A shard, or a collection in one piece, and the URL of the store that it is in."""

    collection: str
    store: str


async def fill(client: AsyncClient, node: str) -> None:
    """Give a node its share of all shards, once the service that is asked knows it. Raises Conflict, Unavailable."""
    late = time.monotonic() + KNOWN_S
    while not any(one["node"] == node and one["writes"] for one in await services(client)):
        if time.monotonic() > late:
            raise Unavailable(f"a service does not know node {node} yet: repeat this to balance shards")
        await asyncio.sleep(LOOK_S)
    await balance(client)


async def balance(client: AsyncClient, without: Sequence[str] = ()) -> None:
    """Give each node as many shards as any other, and those `without` none. Raises Conflict if that fails."""
    started: dict[str, Any] = await client.request("POST", "/v1/cluster/balance", {"without": list(without)})
    try:
        await client.finished(started["job"], timeout_s=math.inf)
    except ServiceError as error:
        raise Conflict(error.message) from None


async def empty(client: AsyncClient, node: str, at_node: AsyncClient) -> None:
    """Move every shard away from a node. Raises Conflict if it has what cannot move, or does not say what it has."""
    try:
        held = await at_node.request("GET", "/v1/collections")
    except ServiceError as error:
        raise Conflict(
            f"node {node} must say what it has before it goes, so start it if it does not run: {error.message}"
        ) from None
    if sick := [*held["quarantined"], *held["unavailable"]]:
        names = sorted(one["name"] for one in sick)
        raise Conflict(f"node {node} is asked to go while something is out of service: {', '.join(names)}")
    own = [
        one["name"] for one in held["collections"] if not one.get("shards") and SHARD_MARK not in one["name"]
    ]
    if own:
        raise Conflict(
            f"node {node} has what no other node can take over: {', '.join(sorted(own))}; ingest it again into a "
            "collection in shards, or delete it"
        )
    while await shards_of(client, node):
        await balance(client, [node])


async def builds_of(nodes: Mapping[str, Sequence[str]], store: str, collection: str) -> list[ShardBuild]:
    """Return the shards of a collection, or what nodes have in one piece by this name or alias, with their stores.
    `nodes` are URLs of services, that of the writer first. Raises NotFound."""
    builds = []
    for node, urls in nodes.items():
        async with AsyncClient(urls[0]) as client:
            try:
                found = await client.collection(collection)
            except ServiceError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    continue
                raise
            if not found.get("shards"):
                builds.append(ShardBuild(found["name"], f"{store}/{node}"))
                continue
            return [
                ShardBuild(shard, f"{store}/{one['node']}")
                for one in await services(client)
                for shard in sorted(one["shards"])
                if one["writes"] and shard.partition(SHARD_MARK)[0] == found["name"]
            ]
    if not builds:
        raise NotFound(f"no collection {collection!r} on any node", param="collection")
    return builds


async def shards_of(client: AsyncClient, node: str) -> list[str]:
    return sorted({name for one in await services(client) if one["node"] == node for name in one["shards"]})


async def services(client: AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.request("GET", "/v1/cluster"))["services"]
    return found
