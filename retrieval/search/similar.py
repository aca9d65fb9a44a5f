"""More like this: documents as examples of what a search should find, or should not.

Rocchio's formula with the weights of Manning, Raghavan and Schütze (Introduction to Information Retrieval, 2008, 9.1):

    q = ALPHA * query + BETA * mean of the documents like it - GAMMA * mean of the documents unlike it

all of them unit vectors; a document's is the mean of those of its passages. Lexical search keeps to the query's words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from indexes.base.errors import InvalidInput
from indexes.base.model import Floats, Ids
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL
from retrieval.wire.search import SearchRequest

ALPHA, BETA, GAMMA = 1.0, 0.75, 0.15


@dataclass(frozen=True, slots=True)
class ExampleDocuments:
    """What the examples of a search say: `direction` is what they add to its vector, float32 [dimensions]. Neither they
    nor their `passages` (ascending ids) are hits."""

    direction: Floats
    documents: frozenset[str]
    passages: Ids

    def moved(self, vector: Floats | None) -> Floats:
        """The vector of the search. Raises InvalidInput where everything cancels out."""
        sum_ = self.direction if vector is None else ALPHA * vector + self.direction
        length = float(np.linalg.norm(sum_))
        if length < 1e-6:
            raise InvalidInput("query, like and unlike cancel each other out", param="unlike")
        unit: Floats = (sum_ / length).astype(np.float32)
        return unit


def read_examples(collection: Collection, request: SearchRequest) -> ExampleDocuments:
    """Reads the vectors of all passages of the examples. Raises InvalidInput naming a document that is not there."""
    sides = [("like", BETA, request.like or []), ("unlike", -GAMMA, request.unlike or [])]
    direction = np.zeros(collection.settings.dimensions, np.float32)
    passages: list[Ids] = []
    for side, weight, ids in sides:
        for at, one in enumerate(ids):
            document = collection.log.document(str(one))
            found = collection.log.vectors_of_document(str(one))
            if document is None or found is None or not PRINCIPAL.get().may_read(document.metadata):
                raise InvalidInput(f"{side}[{at}]: no document {str(one)!r}", param=f"{side}[{at}]")
            numbers, vectors = found
            passages.append(numbers)
            mean = vectors.mean(axis=0)
            direction += np.float32(weight / len(ids)) * mean / max(float(np.linalg.norm(mean)), 1e-6)
    documents = frozenset(str(one) for _, _, ids in sides for one in ids)
    return ExampleDocuments(direction, documents, np.sort(np.concatenate(passages)))
