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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from indexes.base.errors import InvalidInput, NearlineError
from jobs.benchmark.report import Found, Row, Say, percentiles
from jobs.benchmark.service import K, filled
from jobs.benchmark.texts import Material
from jobs.benchmark.turns import cpu_s
from jobs.benchmark.visit import CHECKED, FAR, NEAR, Took, Visit, writes_of
from jobs.serving.process import serving

HELD_OUT = 400  # of the texts, to be written beside the searches
ZIPF = 1.0  # exponent of the questions' popularity
DRAWN = 4  # times the questions, at most
REWORDED = 0.1
WRITES_S = 10.0  # documents written or deleted a second, where there are writes
WARM_OFF = 500  # questions: without caches the others leave nothing behind
REDIS_START_S = 10.0
OFF = "caches off"
REWORDINGS = ("please tell me {}", "do you know {}", "i would like to know {}", "{}, please", "question: {}")
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


ARMS = [
    Arm(OFF, cache=False),
    Arm(NEAR),
    Arm(f"{NEAR}, writes", writes=True),
    Arm(FAR, redis=True),
    Arm(f"{FAR}, writes", redis=True, writes=True),
    Arm("semantic", environ={"NEARLINE_SEMANTIC_CACHE_ENABLED": "true"}),
]


@dataclass
class Turn:
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
) -> Found:  # fmt: skip
    """`clients` ask `requests` questions, each when its answer is there, and one client alone `alone` of each kind."""
    asked = drawn(material.queries, DRAWN * len(material.queries), zipf=ZIPF, reworded=REWORDED, seed=0)
    before = asked_before(asked)
    begin = window(before, requests, hit_rate)
    end = begin + requests
    stored = copy.copy(material)
    stored.texts, stored.vectors = material.texts[HELD_OUT:], material.vectors[HELD_OUT:]
    filled(stored, scratch / "filled", say)
    binary = redis_server or shutil.which("redis-server")
    arms = [arm for arm in ARMS if binary or not arm.redis]
    load = Load(material, scratch, binary or "", asked[:begin], asked[begin:end], clients, alone)
    turns: dict[str, list[Turn]] = {arm.name: [] for arm in arms}
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
    return Found(tables(turns, clients), [*notes, *NOTES])


def drawn(questions: Sequence[str], count: int, *, zipf: float, reworded: float, seed: int) -> list[str]:
    """`count` draws from `questions`, the one at rank r with a probability in proportion to 1 / r ** `zipf`.

    Ranks are random. A share of `reworded` is asked in other words, one of REWORDINGS.
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


def asked_before(asked: Sequence[str]) -> list[bool]:
    """Of each question whether it came before: what a cache that forgets nothing answers."""
    first = {one: at for at, one in reversed(list(enumerate(asked)))}
    return [first[one] < at for at, one in enumerate(asked)]


def window(before: Sequence[bool], length: int, share: float) -> int:
    """Where the first `length` questions begin of which at least `share` came before.

    Raises InvalidInput if there are none.
    """
    ends = np.cumsum([0, *before])
    reached = np.flatnonzero(ends[length:] - ends[:-length] >= share * length)
    if not len(reached):
        raise InvalidInput(f"not so many of {len(before):,} questions came before", param="hit_rate")
    return int(reached[0])


@dataclass
class Load:
    """What every turn asks and writes."""

    material: Material
    scratch: Path
    redis_server: str
    warm: Sequence[str]
    measured: Sequence[str]
    clients: int
    alone: int

    async def turn(self, arm: Arm) -> Turn:
        data, environ, known = self.scratch / "turn", dict(arm.environ), set[str]()
        with ExitStack() as stack:
            shutil.copytree(self.scratch / "filled", data)
            stack.callback(shutil.rmtree, data)
            if arm.redis:
                environ["NEARLINE_REDIS_URL"] = stack.enter_context(redis(self.redis_server, self.scratch))
            if arm.restarts:
                with serving(data, environ) as server:
                    async with Visit(server.url, cache=True) as visit:
                        # Some by one client: what Redis does not take from many at once is not kept there.
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

    async def _visited(self, visit: Visit, pid: int, arm: Arm) -> Turn:
        alone: Took = {}
        if arm.restarts:
            alone = await visit.ask(sorted({*self.warm[: self.alone]}), 1)
        else:
            await visit.ask(self.warm if arm.cache else self.warm[-WARM_OFF:], self.clients)
        visit.begin()
        cpu, own, begun = cpu_s(pid), time.process_time(), time.monotonic()
        took = await visit.ask(self.measured, self.clients)
        wall_s = time.monotonic() - begun
        cores = {"cores": (cpu_s(pid) - cpu) / wall_s, "callers' cores": (time.process_time() - own) / wall_s}
        row = {**cores, "written/s": visit.written / wall_s, **visit.found}
        if not arm.writes:
            drawn = {*self.warm, *self.measured}
            fresh = [one for one in self.material.queries if one not in drawn][: self.alone]
            known = random.Random(0).sample(sorted(visit.answered), min(self.alone, len(visit.answered)))
            for texts, k in ((known, K), (fresh, K), (fresh, K + 1)):
                for outcome, times in (await visit.ask(texts, 1, k)).items():
                    alone.setdefault(outcome, []).extend(times)
        return Turn(wall_s, took, alone, row)


@contextlib.contextmanager
def redis(binary: str, folder: Path) -> Iterator[str]:
    """The URL of a fresh Redis on loopback, which keeps nothing on disk. Raises NearlineError if it does not start."""
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


def tables(turns: dict[str, list[Turn]], clients: int) -> dict[str, list[Row]]:
    crowd = {name: [turn.took for turn in own] for name, own in turns.items()}
    alone = {name: [turn.alone for turn in own] for name, own in turns.items()}
    return {
        f"{clients} clients": [compared(name, turns) for name in turns],
        f"{clients} clients, by outcome": outcomes(crowd),
        "One client alone, by outcome": outcomes(alone),
    }


def compared(name: str, turns: dict[str, list[Turn]]) -> Row:
    """The row of a way of running, beside caches off and the same way without writes."""
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
