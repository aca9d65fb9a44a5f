"""Names of shards: `docs~2of8` is the third of eight shards of `docs`, and `docs~2of8@acme` that of a tenant.

A shard is a collection with such a name, so the data directory, the log, backups and the store know it without knowing
what a shard is, and a machine that is restored brings its shards along.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

from indexes.base.errors import InvalidInput
from indexes.directory.marker import SHARD_MARK

SHARDS_MAX = 256
SHARD = re.compile(
    rf"(?P<name>[a-z0-9_-]+){SHARD_MARK}(?P<number>\d{{1,3}})of(?P<of>\d{{1,3}})(?P<tenant>@[a-z0-9_-]+)?"
)
TOKEN = re.compile(r"[0-9]{1,3}\.[0-9]{1,18}(-[0-9]{1,3}\.[0-9]{1,18})*")


class ShardName(NamedTuple):
    """`collection` is the full name of the collection that it is a shard of, with its tenant."""

    collection: str
    number: int
    of: int

    def __str__(self) -> str:
        name, at, tenant = self.collection.partition("@")
        return f"{name}{SHARD_MARK}{self.number}of{self.of}{at}{tenant}"

    @staticmethod
    def parse(name: str) -> ShardName | None:
        """Return the shard that a collection is by its full name; None if it is a whole collection."""
        found = SHARD.fullmatch(name)
        if found is None or int(found["number"]) >= int(found["of"]):
            return None
        return ShardName(found["name"] + (found["tenant"] or ""), int(found["number"]), int(found["of"]))


def shard_of_document(document_id: str, shards: int) -> int:
    """Return the number of the shard that a document belongs to."""
    digest = blake2b(document_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % shards


def token_of(seqs: Mapping[int, int]) -> str:
    """Write down the last operation of each shard that a caller knows of: `0.17-2.4` is 17 of the first shard and 4 of
    the third."""
    return "-".join(f"{shard}.{seq}" for shard, seq in sorted(seqs.items())) or "0.0"


def read_token(token: str | int | None, shards: int) -> dict[int, int]:
    """Read what `token_of` wrote. Raises InvalidInput naming min_seq for anything else."""
    if token is None:
        return {}
    parts = str(token).split("-") if TOKEN.fullmatch(str(token)) else []
    found = {int(shard): int(seq) for shard, _, seq in (one.partition(".") for one in parts)}
    if not found or max(found) >= shards:
        raise InvalidInput(
            f"min_seq {str(token)[:40]!r} is none that this collection of {shards} shards gave",
            param="min_seq",
        )
    return found


def weigh(shard: ShardName, node: str) -> int:
    """Return how much a shard prefers a node (rendezvous hashing): a new node takes only the shards that prefer it."""
    return int.from_bytes(blake2b(f"{shard}\0{node}".encode(), digest_size=8).digest(), "big")
