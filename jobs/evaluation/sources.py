"""Where the queries of an evaluation come from: real ones where there are any.

A file or a log of queries, if one is given; over a data directory the log that its service kept, if there is one; else
the first words of documents chosen at random, which are easier than questions: each finds its own document.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import msgspec

from indexes.errors import InvalidInput
from indexes.model import Progress
from jobs.evaluation.report import Source
from jobs.judgements import Query, read_queries
from jobs.pace import Pace
from retrieval.client import JSON, Client, ServiceError
from retrieval.query_log import read

SAMPLED_QUERY_WORDS = 12


@dataclass(frozen=True, slots=True)
class Queries:
    """Queries, and the filters that users sent along, the most frequent first, each with its queries.

    `digest` is that of the texts, in any order, of a file: the others are chosen anew as time goes by.
    """

    source: Source
    chosen: list[Query]
    filtered: list[tuple[JSON, list[Query]]] = field(default_factory=list)
    digest: str = ""


def from_file(path: Path, sample: int, seed: int) -> Queries:
    given = read_queries(path)
    chosen = random.Random(seed).sample(given, min(sample, len(given)))
    texts = msgspec.json.encode(sorted(one.text for one in chosen))
    return Queries("file", chosen, digest=blake2b(texts, digest_size=8).hexdigest())


def from_log(path: Path, sample: int, seed: int) -> Queries:
    """Raises InvalidInput if the file is not a log of queries, or holds none."""
    try:
        _, logged = read(path)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidInput(f"{path} is not a log of queries: {error}", param="query_log") from None
    if not logged:
        raise InvalidInput(f"{path} holds no queries", param="query_log")
    picked = random.Random(seed).sample(list(enumerate(logged)), min(sample, len(logged)))
    queries = [Query(f"log-{at}", one.query) for at, one in picked]
    by_filter: dict[bytes, list[Query]] = {}
    for query, (_, one) in zip(queries, picked, strict=True):
        if one.filter is not None:
            by_filter.setdefault(msgspec.json.encode(one.filter), []).append(query)
    counts = Counter({condition: len(some) for condition, some in by_filter.items()})
    filtered = [(msgspec.json.decode(one), by_filter[one]) for one, _ in counts.most_common()]
    return Queries("query log", queries, filtered)


async def from_documents(
    client: Client, collection: str, ids: Sequence[str], pace: Pace, progress: Progress
) -> Queries:
    """The first words of these documents. One that is deleted meanwhile is left out."""
    queries = []
    for at, document_id in enumerate(ids):
        progress("sampling passages", at, len(ids))
        await pace()
        try:
            document = await client.document(collection, document_id)
        except ServiceError as error:
            if error.status != 404:
                raise
            continue
        queries.append(Query(document_id, " ".join(document["text"].split()[:SAMPLED_QUERY_WORDS])))
    return Queries("sampled passages", queries)
