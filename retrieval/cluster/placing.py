"""Which node shall have which shard: as many on each node as on any other, and few moves when nodes come and go.

Each shard prefers some nodes to others (rendezvous hashing), and moves only where there would be more than elsewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from retrieval.cluster.names import ShardName, weigh


def place(name: str, shards: int, nodes: Sequence[str]) -> list[str]:
    """Choose a node for each shard of a new collection."""
    names = [ShardName(name, number, shards) for number in range(shards)]
    placed = {str(one): max(nodes, key=partial(weigh, one)) for one in names}
    placed |= balance(placed, nodes)
    return [placed[str(one)] for one in names]


def balance(held: Mapping[str, str], nodes: Sequence[str]) -> list[tuple[str, str]]:
    """Return the moves, as pairs of a shard and a node, after which each of the nodes has as many shards of every
    collection as any other, or one more, and no other node has any. `held` says which node has each shard now."""
    collections: dict[str, dict[str, str]] = defaultdict(dict)
    for shard, node in sorted(held.items()):
        if (name := ShardName.parse(shard)) is not None:
            collections[name.collection][shard] = node
    total, moves = Counter(held.values()), []
    for shards in collections.values():
        while move := next_move(shards, nodes, total):
            shard, node = move
            total[shards[shard]] -= 1
            total[node] += 1
            shards[shard] = node
            moves.append(move)
    return moves


def next_move(
    shards: Mapping[str, str], nodes: Sequence[str], total: Mapping[str, int]
) -> tuple[str, str] | None:
    """Return the next move of a shard of one collection. Of nodes that have as many of its shards, the one with more
    in `total` gives, and the one with less takes."""
    own = Counter(dict.fromkeys(nodes, 0))
    own.update(shards.values())

    def load(node: str) -> tuple[int, int, str]:
        return own[node], total[node], node

    taker = min(nodes, key=load)
    leaving = [node for node in own if own[node] and node not in nodes]
    giver = max(leaving or nodes, key=load)
    if not leaving and own[giver] - own[taker] < 2:
        return None
    movable = [shard for shard, node in shards.items() if node == giver]
    return max(movable, key=lambda shard: weigh_name(shard, taker) - weigh_name(shard, giver)), taker


def weigh_name(shard: str, node: str) -> int:
    name = ShardName.parse(shard)
    assert name is not None
    return weigh(name, node)
