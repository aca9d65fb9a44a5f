"""Measures what a store costs a service, how far a replica is behind, and how long a new machine takes.

Two services on copies of the same texts take turns; one has a store, in a folder. A bucket adds its own time to an
upload, not to a search, nor to a write that is acknowledged when it is on the disk. A folder beside the data shares the
disk with the log, so that each waits for the syncs of the other; a bucket, or a folder in memory, does not.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from jobs.benchmark.callers import Callers, Numbers, SpanOutcome, arrivals, post, quantile
from jobs.benchmark.report import BenchResults, Row, Say, percentiles
from jobs.benchmark.service import COLLECTION, DOCUMENTS, fill_service, search_request
from jobs.benchmark.texts import Material, model_folder, model_settings
from jobs.benchmark.turns import family_cpu_s
from jobs.serving.process import ServerProcess, serving
from nearline import AsyncClient

TOGETHER = 50  # documents in a write
SEARCHES = 25.0  # a second
PATIENCE_S = 60.0
LOOK_S = 0.01
SETTLE_S = 5.0  # after a turn, for segments that are still made
NO_REBUILDS = {"NEARLINE_INDEX_SEGMENTS_MAX": "0"}  # one would run beside turns of the other service
ALONE, WITH = "without a store", "with a store"
KINDS = {"search": "searched", "write": "written"}
RESAMPLES = 300
NOTES = [
    "Open loop: Poisson arrivals. Times count from when a request was due, over all rounds. The services take turns.",
    "Between: 90% of resamples of the rounds. CPU s/s: processor seconds a second of all processes, median of rounds.",
    f"Beside {SEARCHES:g} searches a second, without caches; documents come with vectors, {TOGETHER} in a write.",
    "Writes are acknowledged when they are on the disk. Without --bucket, the store is on the same disk.",
    "No rebuilds begin by themselves.",
    "Behind: from the acknowledgement of a write until the replica can search it, both services on the same cores.",
    "The replica has `store.writer`: the service that writes tells it when there is something new.",
    "A new machine: an empty data directory, from the start of the program.",
]


def run(
    material: Material,
    scratch: Path,
    say: Say,
    *,
    rate: float,
    seconds: float,
    rounds: int,
    bucket: str | None,
) -> BenchResults:
    with TemporaryDirectory(prefix="nearline-bench-", dir=bucket or scratch) as folder:
        store = {**NO_REBUILDS, "NEARLINE_STORE_URL": Path(folder).as_uri()}
        tables = beside_each_other(material, scratch, store, say, rate, seconds, rounds)
        say("a new machine ...")
        tables["A new machine"] = [a_new_machine(scratch, store)]
    return BenchResults(tables, NOTES)


def beside_each_other(
    material: Material,
    scratch: Path,
    store: dict[str, str],
    say: Say,
    rate: float,
    seconds: float,
    rounds: int,
) -> dict[str, list[Row]]:
    """Measure the two services in turns, then a replica of the one with a store."""
    with ExitStack() as stack:
        fills = {ALONE: NO_REBUILDS, WITH: store}
        servers = {
            name: stack.enter_context(fill_service(material, scratch / name.split()[0], say, environ=environ))
            for name, environ in fills.items()
        }
        wait_until_level(servers[WITH])
        writes = new_documents(material)
        turns: dict[str, list[ServiceTurn]] = {name: [] for name in servers}
        for at in range(rounds):
            say(f"round {at + 1} of {rounds}, {seconds:g} s each ...")
            for name, server in list(servers.items())[:: -1 if at % 2 else 1]:
                turns[name].append(asyncio.run(beside_writes(server, material, writes, rate, seconds, at)))
                time.sleep(SETTLE_S)
        rows = [{"service": name, **figures(own), **ratios(own, turns[ALONE])} for name, own in turns.items()]
        say("a replica follows ...")
        writer = {"NEARLINE_STORE_REPLICA": "true", "NEARLINE_STORE_WRITER": servers[WITH].url}
        follows = {**model_settings(model_folder()), **store, **writer}
        with serving(scratch / "replica", follows) as replica:
            time.sleep(2 * SETTLE_S)
            behind = asyncio.run(lags(servers[WITH], replica, writes, rate, seconds))
    return {
        f"Beside {rate:g} documents a second": rows,
        "A replica": [{f"behind {name}": value for name, value in behind.items()}],
    }


def a_new_machine(scratch: Path, store: dict[str, str]) -> Row:
    begun = time.monotonic()
    with serving(scratch / "new", {**model_settings(model_folder()), **store}) as server:
        ready_s = time.monotonic() - begun
        body = asyncio.run(shown(server))
    return {"documents": body["documents"], "ready s": round(ready_s, 1), "generation": body["generation"]}


@dataclass(frozen=True, slots=True)
class ServiceTurn:
    """What callers of one service saw, and the processor seconds a second of its processes."""

    searched: SpanOutcome
    written: SpanOutcome
    cpu: float


async def beside_writes(
    server: ServerProcess, material: Material, writes: Iterator[bytes], rate: float, seconds: float, seed: int
) -> ServiceTurn:
    """Searches beside writes, at a rate of documents a second. They come at times drawn by `seed`."""
    rng = np.random.default_rng(seed)
    questions = itertools.cycle(search_request(query, cache=False) for query in material.queries)
    searchers = Callers(server.url, questions, patience_s=PATIENCE_S)
    writers = Callers(server.url, writes, patience_s=PATIENCE_S)
    before, begun = family_cpu_s(server.pid), time.monotonic()
    searched, written = await asyncio.gather(
        searchers.open(arrivals(SEARCHES, seconds, rng), seconds),
        writers.open(arrivals(rate / TOGETHER, seconds, rng), seconds),
    )
    cpu = (family_cpu_s(server.pid) - before) / (time.monotonic() - begun)
    searchers.close()
    writers.close()
    return ServiceTurn(searched, written, cpu)


def figures(turns: list[ServiceTurn]) -> Row:
    """Return percentiles over all requests of all turns."""
    row: Row = {"searches": len(took(turns, "searched"))}
    for name, kind in KINDS.items():
        row |= {f"{name} {label}": value for label, value in percentiles(list(took(turns, kind))).items()}
        row[f"{name} failed"] = int(sum((getattr(turn, kind).status != 200).sum() for turn in turns))
    return {**row, "CPU s/s": round(float(np.median([turn.cpu for turn in turns])), 3)}


def ratios(turns: list[ServiceTurn], base: list[ServiceTurn]) -> Row:
    """Return the ratios of the p99 to those of `base`, each with its range in nine of ten resamples of the rounds."""
    rng, row = np.random.default_rng(0), Row()
    for name, kind in KINDS.items():
        drawn = []
        for _ in range(RESAMPLES):
            rounds = rng.integers(len(turns), size=len(turns))
            own, other = ([of[at] for at in rounds] for of in (turns, base))
            drawn.append(p99(own, kind) / p99(other, kind))
        low, high = np.quantile(drawn, (0.05, 0.95))
        row[f"x p99 {name}"] = round(p99(turns, kind) / p99(base, kind), 3)
        row[f"x p99 {name} between"] = f"{low:.2f} and {high:.2f}"
    return row


def took(turns: list[ServiceTurn], kind: str) -> Numbers:
    """Milliseconds."""
    together: Numbers = 1000 * np.concatenate([getattr(turn, kind).took for turn in turns])
    return together


def p99(turns: list[ServiceTurn], kind: str) -> float:
    return float(np.quantile(took(turns, kind), 0.99))


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
