"""Mines a reranker's training examples from a running service, so that it learns from the hits it will have to order.

It searches each judged query. The best hit from a judged document is the positive; the hits from other documents, which
the search found nearly as good, are the negatives. Queries whose judged documents are not found are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Container
from pathlib import Path

import msgspec

from indexes.log.reader import searchable_text
from indexes.base.model import Progress
from jobs.sources.judgments import read_judgments, read_queries
from nearline import JSON, AsyncClient

DEPTH = 30  # hits searched for negatives: a little deeper than a reranker reads
TOGETHER = 50  # searches in one request
NEGATIVES_MIN = 1


class TrainingExample(msgspec.Struct, frozen=True):
    """A query, a passage that answers it, and passages that do not, best candidates first."""

    query: str
    positive: str
    negatives: list[str]


async def mine(
    client: AsyncClient,
    collection: str,
    queries: Path,
    qrels: Path,
    *,
    held_out: Container[str] = (),
    progress: Progress,
) -> AsyncIterator[TrainingExample]:
    """Examples in the order of the queries. Documents in `held_out` are neither positives nor negatives, and queries
    they answer are left out. Raises InvalidInput for unreadable files, and ServiceError."""
    answers: dict[str, set[str]] = defaultdict(set)
    for one in read_judgments(qrels):
        if one.grade > 0:
            answers[one.query].add(one.document)
    asked = [
        query
        for query in read_queries(queries)
        if answers[query.id] and not any(document in held_out for document in answers[query.id])
    ]
    for at in range(0, len(asked), TOGETHER):
        progress(f"searching {collection}", at, len(asked))
        some = asked[at : at + TOGETHER]
        searches: list[JSON] = [{"query": query.text, "k": DEPTH, "cache": False, "collapse": False} for query in some]
        for query, found in zip(some, await client.search_batch(collection, searches), strict=True):
            hits = [hit for hit in found["hits"] if hit["document_id"] not in held_out]
            right = [read(hit) for hit in hits if hit["document_id"] in answers[query.id]]
            wrong = [read(hit) for hit in hits if hit["document_id"] not in answers[query.id]]
            if right and len(wrong) >= NEGATIVES_MIN:
                yield TrainingExample(query.text, right[0], wrong)


def read(hit: JSON) -> str:
    return searchable_text(hit["title"], hit["text"])
