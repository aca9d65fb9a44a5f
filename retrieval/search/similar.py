"""More like this: documents as examples of what a search should find, or should avoid.

Rocchio's formula with the weights of Manning, Raghavan and Schütze (Introduction to Information Retrieval, 2008, 9.1):

    q = ALPHA * query + BETA * mean of the documents like it - GAMMA * mean of the documents unlike it

All are unit vectors; a document's vector is the mean of its passages' vectors. Lexical search uses only the query's
words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from indexes.base.errors import InvalidInput
from indexes.base.model import Floats, Ids
from retrieval.access.auth import PRINCIPAL
from retrieval.search.shard import Partition
from retrieval.wire.search import SearchRequest

ALPHA, BETA, GAMMA = 1.0, 0.75, 0.15


@dataclass(frozen=True, slots=True)
class ExampleDocuments:
    """The examples of a search. `direction` is what they add to its vector, float32 [dimensions]. Neither the
    `documents` nor their `passages` (ascending ids) are returned as hits."""

    direction: Floats
    documents: frozenset[str]
    passages: Ids

    def move_query(self, vector: Floats | None) -> Floats:
        """Return the vector to search with. Raises InvalidInput if everything cancels out."""
        sum_ = self.direction if vector is None else ALPHA * vector + self.direction
        length = float(np.linalg.norm(sum_))
        if length < 1e-6:
            raise InvalidInput("query, like and unlike cancel each other out", param="unlike")
        unit: Floats = (sum_ / length).astype(np.float32)
        return unit


async def read_examples(shard: Partition, request: SearchRequest, dimensions: int) -> ExampleDocuments:
    """Read the vectors of all passages of the examples. Raises InvalidInput naming a document that does not exist."""
    sides = [("like", BETA, request.like or []), ("unlike", -GAMMA, request.unlike or [])]
    direction = np.zeros(dimensions, np.float32)
    passages: list[Ids] = []
    for side, weight, ids in sides:
        for at, found in enumerate(await shard.examples([str(one) for one in ids])):
            if found is None or not PRINCIPAL.get().may_read(found.metadata):
                raise InvalidInput(f"{side}[{at}]: no document {str(ids[at])!r}", param=f"{side}[{at}]")
            passages.append(found.passages)
            length = max(float(np.linalg.norm(found.mean)), 1e-6)
            direction += np.float32(weight / len(ids)) * found.mean / length
    documents = frozenset(str(one) for _, _, ids in sides for one in ids)
    return ExampleDocuments(direction, documents, np.sort(np.concatenate(passages)))
