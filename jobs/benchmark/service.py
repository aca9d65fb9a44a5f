"""Measures one running service over HTTP: ingest, rebuild, search with and without the cache, recall, inserts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jobs.evaluation.observing import Observations
from jobs.evaluation.recall import Asker
from jobs.ingesting import Ingested, ingest
from jobs.judgements import Query
from jobs.pace import Pace
from jobs.sources import SourceDocument
from retrieval.client import JSON, Client

COLLECTION = "bench"
WARM_UP = 50
Say = Callable[[str], None]


async def fill(
    client: Client, documents: Sequence[SourceDocument], hot_capacity: int, say: Say
) -> dict[str, Any]:
    """Ingest everything; rates are from the first request to the last acknowledgement."""
    await client.create_collection(COLLECTION, hot_capacity=hot_capacity)
    begun = time.perf_counter()
    last_said = [begun]

    def progress(done: Ingested) -> None:
        if time.perf_counter() - last_said[0] > 10:
            last_said[0] = time.perf_counter()
            say(f"  {done.documents} of {len(documents)} documents")

    done = await ingest(client, COLLECTION, documents, progress)
    seconds = time.perf_counter() - begun
    return {
        "documents": done.documents,
        "passages": done.passages,
        "seconds": round(seconds, 1),
        "passages_per_s": round(done.passages / seconds, 1),
    }


async def settle(client: Client) -> None:
    """Wait until no rebuild runs: ingest may have started some by itself."""
    for job in (await client.request("GET", "/v1/jobs"))["jobs"]:
        if job["status"] in ("queued", "running"):
            await client.finished(job["id"])


async def rebuild(client: Client) -> dict[str, Any]:
    await settle(client)
    begun = time.perf_counter()
    job = await client.finished(await client.reindex(COLLECTION))
    return {"seconds": round(time.perf_counter() - begun, 1), **job["result"]}


async def latencies(client: Client, searches: Sequence[JSON], warm_up: Sequence[JSON]) -> dict[str, Any]:
    """One client, one search after the other. Milliseconds as the client sees them, and the service's own stages."""
    for search in warm_up:
        await client.search(COLLECTION, **search)
    taken, stages = [], []
    for search in searches:
        begun = time.perf_counter()
        answer = await client.search(COLLECTION, **search)
        taken.append((time.perf_counter() - begun) * 1000)
        stages.append(answer["timings_ms"])
    return {
        **percentiles(taken),
        "stages_p50": {name: median(one[name] for one in stages) for name in stages[0]},
    }


async def recall(client: Client, queries: Sequence[Query], k: int = 10) -> dict[str, Any]:
    """Recall of dense search against exact search over the log's vectors."""
    asker = Asker(client, COLLECTION, k, Pace(0), Observations(), lambda *_: None)
    found: dict[str, list[bool]] = {"overall": []}
    for neighbour in (one for outcome in await asker.outcomes("recall", queries) for one in outcome):
        found["overall"].append(neighbour.found)
        found.setdefault(neighbour.tier, []).append(neighbour.found)
    return {"queries": len(queries), **{name: round(float(np.mean(found[name])), 4) for name in found}}


async def inserts(client: Client, texts: Sequence[str]) -> dict[str, Any]:
    """One short document at a time, from sending it to the first search that finds it, durable by then."""
    acknowledged, searchable = [], []
    for number, text in enumerate(texts):
        document_id = f"bench-insert-{number}"
        begun = time.perf_counter()
        await client.write(COLLECTION, [{"id": document_id, "text": text}])
        acknowledged.append((time.perf_counter() - begun) * 1000)
        answer = await client.search(COLLECTION, query=text, k=5, mode="lexical", cache=False)
        searchable.append((time.perf_counter() - begun) * 1000)
        if document_id not in {hit["document_id"] for hit in answer["hits"]}:
            raise AssertionError(f"{document_id} was acknowledged but not found")
    for number in range(len(texts)):
        await client.delete(COLLECTION, f"bench-insert-{number}")
    return {"acknowledged": percentiles(acknowledged), "found_by_a_search": percentiles(searchable)}


def sample_queries(documents: Sequence[SourceDocument], count: int, seed: int) -> list[Query]:
    """About ten tokens each: eight words out of the middle of documents chosen at random."""
    rng = random.Random(seed)
    queries: dict[str, Query] = {}
    for document in rng.sample(list(documents), len(documents)):
        words = document.text.split()
        if len(words) >= 8:
            start = rng.randrange(len(words) - 7)
            text = " ".join(words[start : start + 8])
            queries.setdefault(text, Query(document.id, text))
        if len(queries) == count:
            break
    return list(queries.values())


def percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    return {f"p{q}_ms": round(float(np.percentile(milliseconds, q)), 3) for q in (50, 99)}


def median(values: Any) -> float:
    return round(float(np.median(list(values))), 3)
