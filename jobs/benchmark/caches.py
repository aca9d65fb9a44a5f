"""Measures the caches under a user-like load: throughput, hit rates and latency, compared with caches off.

Every arm asks the same questions in the same order, each of a fresh service over a copy of the same data, and the arms
take turns in every round. The questions before the measured window warm up the caches; there are enough of them that a
cache that forgets nothing would reach the requested hit rate.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from indexes.base.errors import InvalidInput, NearlineError
from jobs.benchmark.report import BenchResults, Row, Say, percentiles
from jobs.benchmark.service import K, fill_service
from jobs.benchmark.texts import Material
from jobs.benchmark.turns import family_cpu_s
from jobs.benchmark.visit import CHECKED, FAR, NEAR, Took, Visit, writes_of
from jobs.serving.process import serving

HELD_OUT = 400  # texts, to be written during the searches
ZIPF = 1.0  # exponent of the questions' popularity
DRAWN = 4  # draws per question
REWORDED = 0.1
WRITES_S = 10.0  # documents written or deleted a second, in arms with writes
WARM_OFF = 500  # warm-up questions with caches off, where more would change nothing
REDIS_START_S = 10.0
OFF = "caches off"
REWORDINGS = ("please tell me {}", "do you know {}", "i would like to know {}", "{}, please", "question: {}")
NOTES = f"""\
Searches a second, their ratio to caches off, and the share of the hit rate without writes: medians over rounds.
Hit rate: from the receipts of the measured searches. p50, p99: over all rounds, as a client sees them.
Embedding hit: the answer was a miss, but the same text had been embedded before.
Not asked before: shared another client's identical search, or asked before in other words (reworded).
{FAR}: one process warms up, the next is measured, so first hits come from Redis. With writes, one process does both.
With writes, one hit in {CHECKED} is repeated at once without caches. Stale: same seq, but different ids or order.
Of ten writes, five are new documents, four replace one, and one deletes one.
{OFF}: asked with `cache: false`, warmed up by the last {WARM_OFF} questions before the window.\
""".splitlines()


@dataclass(frozen=True)
class Arm:
    """One way of running the service."""

    name: str
    cache: bool = True
    redis: bool = False
    writes: bool = False
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def restarts(self) -> bool:
        """Whether another process warms up Redis first. Not with writes: a process cannot tell which passages are newer
        than an answer of another process, so it would find little."""
        return self.redis and not self.writes


ARMS = [
    Arm(OFF, cache=False),
    Arm(NEAR),
    Arm(f"{NEAR}, writes", writes=True),
    Arm(FAR, redis=True),
    Arm(f"{FAR}, writes", redis=True, writes=True),
    Arm("reworded", environ={"NEARLINE_CACHE_REWORDED": "true"}),
]


@dataclass
class ArmTurn:
    """One arm in one round."""

    wall_s: float
    took: Took  # all clients
    alone: Took  # one client
    row: Row

    @property
    def rate(self) -> float:
        return sum(map(len, self.took.values())) / self.wall_s

    @property
    def hit_rate(self) -> float:
        hits = [
            len(took) for outcome, took in self.took.items() if not outcome.startswith(("miss", "bypass"))
        ]
        return sum(hits) / sum(map(len, self.took.values()))


def run(
    material: Material, scratch: Path, say: Say, *, clients: int, requests: int, alone: int, hit_rate: float,
    rounds: int, redis_server: str | None,
) -> BenchResults:  # fmt: skip
    """Run `clients` closed-loop clients for `requests` questions, then one client alone for `alone` of each kind."""
    asked = draw_questions(
        material.queries, DRAWN * len(material.queries), zipf=ZIPF, reworded=REWORDED, seed=0
    )
    before = find_repeats(asked)
    begin = window(before, requests, hit_rate)
    end = begin + requests
    stored = copy.copy(material)
    stored.texts, stored.vectors = material.texts[HELD_OUT:], material.vectors[HELD_OUT:]
    fill_service(stored, scratch / "filled", say)
    binary = redis_server or shutil.which("redis-server")
    arms = [arm for arm in ARMS if binary or not arm.redis]
    load = CacheLoad(material, scratch, binary or "", asked[:begin], asked[begin:end], clients, alone)
    turns: dict[str, list[ArmTurn]] = {arm.name: [] for arm in arms}
    for number in range(rounds):
        first = number % len(arms)
        for arm in arms[first:] + arms[:first]:
            say(f"round {number + 1} of {rounds}: {arm.name} ...")
            turns[arm.name].append(asyncio.run(load.turn(arm)))
    reworded = f"{REWORDED:.0%} of the draws in one of {len(REWORDINGS)} other wordings"
    notes = [
        f"{len(material.queries):,} questions, Zipf s = {ZIPF:g}, {reworded}.",
        f"Measured: draws {begin:,} to {end:,}, of which {np.mean(before[begin:end]):.1%} came before.",
        f"{len(stored.texts):,} texts searched, {HELD_OUT} held out to be written, {clients} clients, k = {K}.",
    ]
    if not binary:
        notes.append("Redis is left out: there is no redis-server on PATH, and --redis-server names none.")
    return BenchResults(tables(turns, clients), [*notes, *NOTES])


def draw_questions(
    questions: Sequence[str], count: int, *, zipf: float, reworded: float, seed: int
) -> list[str]:
    """Draw `count` questions, the one at rank r with a probability proportional to 1 / r ** `zipf`.

    Ranks are random. A share of `reworded` is reworded by one of REWORDINGS.
    """
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, len(questions) + 1) ** zipf
    ranked = rng.permutation(len(questions))
    rows = ranked[rng.choice(len(questions), count, p=popularity / popularity.sum())]
    wordings = np.where(rng.random(count) < reworded, rng.integers(0, len(REWORDINGS), count), -1)
    return [
        questions[row] if wording < 0 else REWORDINGS[wording].format(questions[row].rstrip(" ?"))
        for row, wording in zip(rows.tolist(), wordings.tolist())
    ]


def find_repeats(asked: Sequence[str]) -> list[bool]:
    """Whether each question was asked before, so that a cache that forgets nothing would answer it."""
    first = {one: at for at, one in reversed(list(enumerate(asked)))}
    return [first[one] < at for at, one in enumerate(asked)]


def window(before: Sequence[bool], length: int, share: float) -> int:
    """Start of the first `length` consecutive questions of which at least `share` are repeats.

    Raises InvalidInput if there is no such window.
    """
    ends = np.cumsum([0, *before])
    reached = np.flatnonzero(ends[length:] - ends[:-length] >= share * length)
    if not len(reached):
        raise InvalidInput(
            f"too few of {len(before):,} questions are repeats for this hit rate", param="hit_rate"
        )
    return int(reached[0])


@dataclass
class CacheLoad:
    """What every turn asks and writes."""

    material: Material
    scratch: Path
    redis_server: str
    warm: Sequence[str]
    measured: Sequence[str]
    clients: int
    alone: int

    async def turn(self, arm: Arm) -> ArmTurn:
        data, environ, known = self.scratch / "turn", dict(arm.environ), set[str]()
        with ExitStack() as stack:
            shutil.copytree(self.scratch / "filled", data)
            stack.callback(shutil.rmtree, data)
            if arm.redis:
                environ["NEARLINE_REDIS_URL"] = stack.enter_context(redis(self.redis_server, self.scratch))
            if arm.restarts:
                with serving(data, environ) as server:
                    async with Visit(server.url, cache=True) as visit:
                        # One client first: answers that Redis cannot take from many clients at once are dropped.
                        await visit.ask(self.warm[: self.alone], 1)
                        await visit.ask(self.warm[self.alone :], self.clients)
                        known = visit.answered
            texts = self.material.texts
            writes = writes_of(texts[:HELD_OUT], len(texts) - HELD_OUT) if arm.writes else None
            server = stack.enter_context(serving(data, environ))
            async with Visit(
                server.url, cache=arm.cache, writes=writes, writes_s=WRITES_S, elsewhere=known
            ) as visit:
                return await self._visited(visit, server.pid, arm)

    async def _visited(self, visit: Visit, pid: int, arm: Arm) -> ArmTurn:
        alone: Took = {}
        if arm.restarts:
            alone = await visit.ask(sorted({*self.warm[: self.alone]}), 1)
        else:
            await visit.ask(self.warm if arm.cache else self.warm[-WARM_OFF:], self.clients)
        visit.begin()
        cpu, own, begun = family_cpu_s(pid), time.process_time(), time.monotonic()
        took = await visit.ask(self.measured, self.clients)
        wall_s = time.monotonic() - begun
        cores = {
            "cores": (family_cpu_s(pid) - cpu) / wall_s,
            "callers' cores": (time.process_time() - own) / wall_s,
        }
        row = {**cores, "written/s": visit.written / wall_s, **visit.found}
        if not arm.writes:
            drawn = {*self.warm, *self.measured}
            fresh = [one for one in self.material.queries if one not in drawn][: self.alone]
            known = random.Random(0).sample(sorted(visit.answered), min(self.alone, len(visit.answered)))
            for texts, k in ((known, K), (fresh, K), (fresh, K + 1)):
                for outcome, times in (await visit.ask(texts, 1, k)).items():
                    alone.setdefault(outcome, []).extend(times)
        return ArmTurn(wall_s, took, alone, row)


@contextlib.contextmanager
def redis(binary: str, folder: Path) -> Iterator[str]:
    """Run a fresh Redis on loopback without persistence; yields its URL. Raises NearlineError if it does not start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()
    options = ["--port", str(address[1]), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([binary, *options], cwd=folder, stdout=subprocess.DEVNULL)
    give_up = time.monotonic() + REDIS_START_S
    try:
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(address, timeout=1).close()
                break
            if process.poll() is not None or time.monotonic() > give_up:
                raise NearlineError(f"{binary} did not start")
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{address[1]}/0"
    finally:
        process.kill()
        process.wait()


def tables(turns: dict[str, list[ArmTurn]], clients: int) -> dict[str, list[Row]]:
    crowd = {name: [turn.took for turn in own] for name, own in turns.items()}
    alone = {name: [turn.alone for turn in own] for name, own in turns.items()}
    return {
        f"{clients} clients": [compare_arm(name, turns) for name in turns],
        f"{clients} clients, by outcome": outcomes(crowd),
        "One client alone, by outcome": outcomes(alone),
    }


def compare_arm(name: str, turns: dict[str, list[ArmTurn]]) -> Row:
    """The row of one arm, compared with caches off and with the same arm without writes."""
    own, off, quiet = turns[name], turns[OFF], turns.get(name.partition(",")[0], turns[name])
    share = [a.hit_rate / b.hit_rate for a, b in zip(own, quiet) if b.hit_rate]
    row: Row = {
        "caches": name,
        "searches/s": round(float(np.median([turn.rate for turn in own])), 1),
        "x off": round(float(np.median([a.rate / b.rate for a, b in zip(own, off)])), 2),
        "hit rate": round(float(np.median([turn.hit_rate for turn in own])), 3),
        "of that without writes": round(float(np.median(share)), 3) if quiet is not own else None,
        **percentiles([one for turn in own for times in turn.took.values() for one in times]),
    }
    for column in own[0].row:
        values = [turn.row[column] for turn in own]
        counts = column in ("errors", "checked", "stale")
        row[column] = int(sum(values)) if counts else round(float(np.median(values)), 2)
    return row


def outcomes(took: dict[str, list[Took]]) -> list[Row]:
    rows = []
    for name, rounds in took.items():
        for outcome in sorted({outcome for one in rounds for outcome in one}):
            every = [each for one in rounds for each in one.get(outcome, [])]
            rows.append({"caches": name, "outcome": outcome, "searches": len(every), **percentiles(every)})
    return rows
