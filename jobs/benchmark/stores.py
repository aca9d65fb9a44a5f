"""Measures what a store costs a service, how far a replica is behind, and how long a new machine takes.

Two services on copies of the same texts take turns; one has a store in a folder of the same disk. A bucket adds its own
time to an upload, not to a search, nor to a write that is acknowledged when it is on the disk.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np

from jobs.benchmark.callers import Callers, Numbers, arrivals, post, quantile
from jobs.benchmark.report import BenchResults, Row, Say, percentiles
from jobs.benchmark.service import COLLECTION, DOCUMENTS, fill_service, search_request
from jobs.benchmark.texts import Material, model_folder, model_settings
from jobs.serving.process import ServerProcess, serving
from nearline import AsyncClient

TOGETHER = 50  # documents in a write
SEARCHES = 20.0  # a second
PATIENCE_S = 60.0
LOOK_S = 0.01
SETTLE_S = 5.0  # after a turn, for segments that are still made
NO_REBUILDS = {"NEARLINE_INDEX_SEGMENTS_MAX": "0"}  # one would run beside turns of the other service
ALONE, WITH = "without a store", "with a store"
NOTES = [
    "Open loop: Poisson arrivals. Times count from when a request was due. Medians of the rounds, in turns.",
    f"Beside {SEARCHES:g} searches a second, without caches; documents come with vectors, {TOGETHER} in a write.",
    "The store is a folder on the same disk, and writes are acknowledged when they are on the disk.",
    "No rebuilds begin by themselves.",
    "Behind: from the acknowledgement of a write until the replica can search it, both services on the same cores.",
    "A new machine: an empty data directory, from the start of the program.",
]


def run(
    material: Material, scratch: Path, say: Say, *, rate: float, seconds: float, rounds: int
) -> BenchResults:
    store = {**NO_REBUILDS, "NEARLINE_STORE_URL": (scratch / "bucket").as_uri()}
    models = model_settings(model_folder())
    with ExitStack() as stack:
        fills = {ALONE: NO_REBUILDS, WITH: store}
        servers = {
            name: stack.enter_context(fill_service(material, scratch / name.split()[0], say, environ=environ))
            for name, environ in fills.items()
        }
        wait_until_level(servers[WITH])
        writes = new_documents(material)
        found: dict[str, list[Row]] = {name: [] for name in servers}
        for at in range(rounds):
            say(f"round {at + 1} of {rounds}, {seconds:g} s each ...")
            for name, server in servers.items():
                found[name].append(asyncio.run(beside_writes(server, material, writes, rate, seconds)))
                time.sleep(SETTLE_S)
        rows = [{"service": name, **medians(own)} for name, own in found.items()]
        for row in rows:
            row["x p99 search"] = round(row["search p99 ms"] / rows[0]["search p99 ms"], 3)
            row["x p99 write"] = round(row["write p99 ms"] / rows[0]["write p99 ms"], 3)
        say("a replica follows ...")
        follows = {**models, **store, "NEARLINE_STORE_REPLICA": "true"}
        with serving(scratch / "replica", follows) as replica:
            time.sleep(2 * SETTLE_S)
            behind = asyncio.run(lags(servers[WITH], replica, writes, rate, seconds))
    say("a new machine ...")
    begun = time.monotonic()
    with serving(scratch / "new", {**models, **store}) as server:
        ready_s = time.monotonic() - begun
        body = asyncio.run(shown(server))
    new = {"documents": body["documents"], "ready s": round(ready_s, 1), "generation": body["generation"]}
    tables = {
        f"Beside {rate:g} documents a second": rows,
        "A replica": [{f"behind {name}": value for name, value in behind.items()}],
        "A new machine": [new],
    }
    return BenchResults(tables, NOTES)


async def beside_writes(
    server: ServerProcess, material: Material, writes: Iterator[bytes], rate: float, seconds: float
) -> Row:
    """Latencies of searches and of writes at a rate of documents a second."""
    rng = np.random.default_rng(0)
    questions = itertools.cycle(search_request(query, cache=False) for query in material.queries)
    searchers = Callers(server.url, questions, patience_s=PATIENCE_S)
    writers = Callers(server.url, writes, patience_s=PATIENCE_S)
    searched, written = await asyncio.gather(
        searchers.open(arrivals(SEARCHES, seconds, rng), seconds),
        writers.open(arrivals(rate / TOGETHER, seconds, rng), seconds),
    )
    searchers.close()
    writers.close()
    row: Row = {}
    for name, one in {"search": searched, "write": written}.items():
        row |= {f"{name} {label}": value for label, value in percentiles(list(1000 * one.took)).items()}
        row[f"{name} failed"] = int((one.status != 200).sum())
    return row


def medians(rows: list[Row]) -> Row:
    return {name: round(float(np.median([row[name] for row in rows])), 2) for name in rows[0]}


async def lags(
    writer: ServerProcess, replica: ServerProcess, writes: Iterator[bytes], rate: float, seconds: float
) -> Row:
    """Seconds from an acknowledgement until the replica has the write."""
    callers = Callers(writer.url, writes, patience_s=PATIENCE_S)
    acknowledged: list[tuple[int, float]] = []
    reached: list[tuple[int, float]] = []
    until = time.monotonic() + seconds

    async def write() -> None:
        while time.monotonic() < until:
            begun = time.monotonic()
            reply = await callers.ask(next(writes))
            acknowledged.append((int(msgspec.json.decode(reply.body)["seq"]), time.monotonic()))
            await asyncio.sleep(max(0.0, TOGETHER / rate - (time.monotonic() - begun)))

    async def watch() -> None:
        async with AsyncClient(replica.url) as client:
            while time.monotonic() < until or not reached or reached[-1][0] < acknowledged[-1][0]:
                reached.append((int((await client.collection(COLLECTION))["seq"]), time.monotonic()))
                await asyncio.sleep(LOOK_S)

    await asyncio.gather(write(), watch())
    callers.close()
    seqs = [seq for seq, _ in reached]
    behind: Numbers = np.array([reached[int(np.searchsorted(seqs, seq))][1] - at for seq, at in acknowledged])
    return {f"p{share} s": round(quantile(behind, share / 100), 2) for share in (50, 99, 100)}


def wait_until_level(server: ServerProcess) -> None:
    while asyncio.run(shown(server))["store"]["behind"]:
        time.sleep(0.2)


async def shown(server: ServerProcess) -> Row:
    async with AsyncClient(server.url) as client:
        return dict(await client.collection(COLLECTION))


def new_documents(material: Material) -> Iterator[bytes]:
    """Writes of documents that are not there yet, without end."""
    rows = itertools.cycle(range(len(material.texts)))
    for number in itertools.count():
        documents = [
            {
                "id": f"new-{number}-{at}",
                "text": material.texts[row],
                "vector": material.vectors[row].tolist(),
            }
            for at, row in zip(range(TOGETHER), rows)
        ]
        yield post(DOCUMENTS, msgspec.json.encode({"documents": documents}))
