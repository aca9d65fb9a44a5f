"""The caches under a load like that of users: answers a second, hit rates and times, beside the same without them.

All ways of running ask the same questions in the same order, each of a fresh service over a copy of the same data, one
way after the other in every round. The questions before the measured ones warm up: so many that a cache which forgets
nothing would hit as often as wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from indexes.errors import NearlineError
from jobs.benchmark.questions import REWORDINGS, asked_before, drawn, window
from jobs.benchmark.service import K, filled
from jobs.benchmark.texts import Material
from jobs.benchmark.turns import Row, Say, Tables
from jobs.benchmark.visit import CHECKED, FAR, NEAR, Visit, writes_of
from jobs.server_process import serving
from retrieval.settings import Config

HELD_OUT = 400  # of the texts, to be written beside the searches
DRAWN = 4  # times the questions, at most
REWORDED = 0.1
WARM_OFF = 500  # questions: without caches the others leave nothing behind
REDIS_START_S = 10.0
OFF = "caches off"
NOTES = f"""\
Searches a second, their ratio to caches off, and the share of the hit rate without writes: medians over rounds.
Hit rate: by the receipts of the measured searches. p50, p99: over all rounds, as a client sees it.
Embedding hit: the answer was a miss, and the same text had been embedded.
Not asked before: waited for the same search of another client, or was answered as a question like it (semantic).
{FAR}: warmed by one process, measured in the next, so that first hits come from Redis. With writes one does both.
With writes one hit in {CHECKED} is asked for again at once past the caches. Stale: same seq, other ids or order.
Of ten writes five are new documents, four replace one and one deletes one.
{OFF}: asked with `cache: false`, warmed up by the last {WARM_OFF} of the questions before.\
""".splitlines()


@dataclass(frozen=True)
class Wanted:
    """`clients` ask `requests` questions, each when its answer is there, beside `writes` a second, and one client
    alone asks `alone` of each kind."""

    zipf: float
    clients: int
    writes: float
    requests: int
    alone: int
    hit_rate: float
    rounds: int
    redis_server: str | None


@dataclass(frozen=True)
class Arm:
    """A way of running the service."""

    name: str
    cache: bool = True
    redis: bool = False
    writes: bool = False
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def restarts(self) -> bool:
        """What one process left in Redis is found by the next one. Beside writes it would find little: it cannot know
        which passages came after an answer of another process."""
        return self.redis and not self.writes


@dataclass
class Turn:
    """One arm in one round."""

    wall_s: float
    took: dict[str, list[float]]  # milliseconds by outcome, all clients
    alone: dict[str, list[float]]  # one client
    counted: Counter[tuple[str, str]]  # the service's own counters of caches, by metric and last label
    row: Row

    @property
    def answered(self) -> int:
        return sum(map(len, self.took.values()))

    @property
    def rate(self) -> float:
        return self.answered / self.wall_s

    @property
    def hit_rate(self) -> float:
        found = [
            len(took) for outcome, took in self.took.items() if not outcome.startswith(("miss", "bypass"))
        ]
        return sum(found) / self.answered


def run(material: Material, scratch: Path, say: Say, **options: Any) -> Tables:
    wanted = Wanted(**options)
    asked = drawn(
        material.queries, DRAWN * len(material.queries), zipf=wanted.zipf, reworded=REWORDED, seed=0
    )
    before = asked_before(asked)
    begin = window(before, wanted.requests, wanted.hit_rate)
    end = begin + wanted.requests
    arms, notes = arms_for(wanted)
    stored = copy.copy(material)
    stored.texts, stored.vectors = material.texts[HELD_OUT:], material.vectors[HELD_OUT:]
    filled(stored, 0, scratch / "filled", None, say)
    load = Load(material, scratch, wanted, asked[:begin], asked[begin:end])
    turns: dict[str, list[Turn]] = {arm.name: [] for arm in arms}
    for number in range(wanted.rounds):
        first = number % len(arms)
        for arm in arms[first:] + arms[:first]:
            say(f"round {number + 1} of {wanted.rounds}: {arm.name} ...")
            turns[arm.name].append(asyncio.run(load.turn(arm)))
    reworded = f"{REWORDED:.0%} of the draws in one of {len(REWORDINGS)} other wordings"
    notes += [
        f"{len(material.queries):,} questions, Zipf s = {wanted.zipf:g}, {reworded}.",
        f"Measured: draws {begin:,} to {end:,}, of which {np.mean(before[begin:end]):.1%} came before.",
        f"{len(stored.texts):,} texts searched, {HELD_OUT} held out to be written, {wanted.clients} clients, k = {K}.",
        *NOTES,
    ]
    return tables(turns, wanted.clients), notes


def arms_for(wanted: Wanted) -> tuple[list[Arm], list[str]]:
    """Those that can run here, and why the others cannot."""
    beside = ", writes"
    arms = [Arm(OFF, cache=False), Arm(NEAR), Arm(NEAR + beside, writes=True)]
    notes = []
    if wanted.redis_server:
        arms += [Arm(FAR, redis=True), Arm(FAR + beside, redis=True, writes=True)]
    else:
        notes.append("Redis is left out: there is no redis-server on PATH, and --redis-server names none.")
    if hasattr(Config(), "semantic_cache"):
        arms.append(Arm("semantic", environ={"NEARLINE_SEMANTIC_CACHE_ENABLED": "true"}))
    else:
        notes.append("The semantic cache is left out: this version has none.")
    return arms, notes


class Load:
    """What every turn asks and writes."""

    def __init__(
        self, material: Material, scratch: Path, wanted: Wanted, warm: Sequence[str], measured: Sequence[str]
    ) -> None:
        self._texts, self._scratch, self._wanted = material.texts, scratch, wanted
        self._warm, self._measured = warm, measured
        drawn = {*warm, *measured}
        self._fresh = [one for one in material.queries if one not in drawn][: wanted.alone]

    async def turn(self, arm: Arm) -> Turn:
        data = self._scratch / "turn"
        shutil.copytree(self._scratch / "filled", data)
        writes = writes_of(self._texts[:HELD_OUT], len(self._texts) - HELD_OUT) if arm.writes else None
        ways: dict[str, Any] = {"cache": arm.cache, "writes": writes, "writes_s": self._wanted.writes}
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, data)
            environ, known = dict(arm.environ), set[str]()
            if arm.redis:
                environ["NEARLINE_REDIS_URL"] = stack.enter_context(redis(self._redis, self._scratch))
            if arm.restarts:
                with serving(data, environ) as server:
                    async with Visit(server.url, server.pid, **ways) as visit:
                        # Some by one client: what Redis does not take from many at once is not kept there.
                        await visit.ask(self._warm[: self._wanted.alone], 1)
                        await visit.ask(self._warm[self._wanted.alone :], self._wanted.clients)
                        known = visit.answered
            with serving(data, environ) as server:
                async with Visit(server.url, server.pid, **ways, elsewhere=known) as visit:
                    return await self._visited(visit, arm)

    @property
    def _redis(self) -> str:
        assert self._wanted.redis_server is not None
        return self._wanted.redis_server

    async def _visited(self, visit: Visit, arm: Arm) -> Turn:
        clients = self._wanted.clients
        if arm.restarts:
            visit.begin()
            await visit.ask(sorted({*self._warm[: self._wanted.alone]}), 1)
            alone = visit.took
        else:
            alone = {}
            await visit.ask(self._warm if arm.cache else self._warm[-WARM_OFF:], clients)
        visit.begin()
        counted, cpu, begun = await visit.counters(), visit.cpu_s(), time.monotonic()
        await visit.ask(self._measured, clients)
        wall_s = time.monotonic() - begun
        used = [now - then for now, then in zip(visit.cpu_s(), cpu)]
        row = {
            "cores": used[0] / wall_s,
            "callers' cores": used[1] / wall_s,
            "written/s": visit.written / wall_s,
            **{name: float(count) for name, count in visit.found.items()},
        }
        found = Turn(wall_s, visit.took, alone, await visit.counters() - counted, row)
        if not arm.writes:
            visit.begin()
            known = some(visit.answered, self._wanted.alone)
            for texts, k in ((known, K), (self._fresh, K), (self._fresh, K + 1)):
                await visit.ask(texts, 1, k)
            found.alone = {
                name: alone.get(name, []) + visit.took.get(name, []) for name in {**alone, **visit.took}
            }
        return found


def some(texts: AbstractSet[str], count: int) -> list[str]:
    return random.Random(0).sample(sorted(texts), min(count, len(texts)))


@contextlib.contextmanager
def redis(binary: str, folder: Path) -> Iterator[str]:
    """The URL of a fresh Redis on loopback, which keeps nothing on disk. Raises NearlineError if it does not start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    options = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(folder),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + REDIS_START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > give_up:
                    raise NearlineError(f"{binary} did not start") from None
                time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def tables(turns: dict[str, list[Turn]], clients: int) -> dict[str, list[Row]]:
    rows: list[Row] = []
    for name, own in turns.items():
        took = [one for turn in own for each in turn.took.values() for one in each]
        quiet = turns.get(name.partition(",")[0], own)
        share = [a.hit_rate / b.hit_rate for a, b in zip(own, quiet) if b.hit_rate]
        row: Row = {
            "caches": name,
            "searches/s": round(float(np.median([turn.rate for turn in own])), 1),
            "x off": round(float(np.median([a.rate / b.rate for a, b in zip(own, turns[OFF])])), 2),
            "hit rate": round(float(np.median([turn.hit_rate for turn in own])), 3),
            "of that without writes": round(float(np.median(share)), 3) if quiet is not own else None,
            **percentiles(took),
        }
        for column in own[0].row:
            values = [turn.row.get(column, 0.0) for turn in own]
            counts = column in ("errors", "checked", "stale")
            row[column] = int(sum(values)) if counts else round(float(np.median(values)), 2)
        rows.append(row)
    return {
        f"{clients} clients": rows,
        f"{clients} clients, by outcome": outcomes(
            {name: [turn.took for turn in own] for name, own in turns.items()}
        ),
        "One client alone, by outcome": outcomes(
            {name: [turn.alone for turn in own] for name, own in turns.items()}
        ),
        "What the service counted": counted(turns),
    }


def outcomes(took: dict[str, list[dict[str, list[float]]]]) -> list[Row]:
    rows = []
    for name, rounds in took.items():
        for outcome in sorted({outcome for one in rounds for outcome in one}):
            every = [each for one in rounds for each in one.get(outcome, [])]
            rows.append({"caches": name, "outcome": outcome, "searches": len(every), **percentiles(every)})
    return rows


def counted(turns: dict[str, list[Turn]]) -> list[Row]:
    rows: dict[tuple[str, str], Row] = {}
    for name, own in turns.items():
        for (metric, event), count in sum((turn.counted for turn in own), Counter[tuple[str, str]]()).items():
            rows.setdefault((name, metric), {"caches": name, "counter": metric})[event] = count
    for row in rows.values():
        if "hit" in row or "miss" in row:
            row["hit rate"] = round(row.get("hit", 0) / (row.get("hit", 0) + row.get("miss", 0)), 3)
    return list(rows.values())


def percentiles(took_ms: Sequence[float]) -> Row:
    return {f"p{of} ms": round(float(np.percentile(took_ms, of)), 2) for of in (50, 99)}
