"""Gets the queries of an evaluation: real ones if there are any.

They come from a file or a query log, if one is given, and otherwise are the first words of random documents. Those are
easier than questions, because each finds its own document.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import msgspec

from indexes.base.errors import Damaged, InvalidInput, message_of
from jobs.evaluation.asking import Asker
from jobs.evaluation.report import Source
from jobs.sources.judgments import TextQuery, read_queries
from nearline import JSON, ServiceError
from retrieval.upkeep.line_file import decode, read_lines
from retrieval.upkeep.query_log import LoggedQuery

SAMPLED_QUERY_WORDS = 12
SAMPLED_QUERY_CHARS = 200  # where words have no spaces between them, or are no words


@dataclass(frozen=True, slots=True)
class Queries:
    """Queries, and the filters that users sent with them, the most frequent first.

    `digest` identifies the texts of a file, in any order; it is empty for random queries.
    """

    source: Source
    chosen: list[TextQuery]
    filtered: list[tuple[JSON, list[TextQuery]]] = field(default_factory=list)
    digest: str = ""


def from_file(path: Path, sample: int, seed: int) -> Queries:
    given = read_queries(path)
    chosen = random.Random(seed).sample(given, min(sample, len(given)))
    texts = msgspec.json.encode(sorted(one.text for one in chosen))
    return Queries("file", chosen, digest=blake2b(texts, digest_size=8).hexdigest())


def from_log(path: Path, sample: int, seed: int) -> Queries:
    """Sample queries from a query log. Raises InvalidInput if the file is not one or has no queries."""
    try:
        _, lines = read_lines(path)
    except (OSError, Damaged) as error:
        raise InvalidInput(
            f"{path} is not a log of queries: {message_of(error)}", param="query_log"
        ) from None
    logged = [one for line in lines if (one := decode(line, LoggedQuery))]
    if not logged:
        raise InvalidInput(f"{path} holds no queries", param="query_log")
    queries = []
    by_filter: dict[bytes, list[TextQuery]] = {}
    for at, one in random.Random(seed).sample(list(enumerate(logged)), min(sample, len(logged))):
        queries.append(TextQuery(f"log-{at}", one.query))
        if one.filter is not None:
            by_filter.setdefault(msgspec.json.encode(one.filter), []).append(queries[-1])
    often = sorted(by_filter.items(), key=lambda item: -len(item[1]))
    return Queries("query log", queries, [(msgspec.json.decode(one), some) for one, some in often])


async def from_documents(asker: Asker, ids: Sequence[str]) -> Queries:
    """The first words of these documents, or their titles if they have no text. Deleted documents are skipped."""
    queries = []
    for at, document_id in enumerate(ids):
        asker.progress("sampling passages", at, len(ids))
        await asker.pace()
        try:
            document = await asker.client.document(asker.collection, document_id)
        except ServiceError as error:
            if error.status != 404:
                raise
            continue
        words = (document["text"].split() or document["title"].split())[:SAMPLED_QUERY_WORDS]
        queries.append(TextQuery(document_id, " ".join(words)[:SAMPLED_QUERY_CHARS]))
    return Queries("sampled passages", queries)
