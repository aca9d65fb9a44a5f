"""Measures what it costs a search that a collection is in shards: as one piece in one service, and divided among
services on the same cores, behind one that holds none of it.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from jobs.benchmark.report import BenchResults, Row, Say
from jobs.benchmark.service import MODES, SearchEngine, fill, fill_service, take
from jobs.benchmark.texts import Material, model_folder, model_settings, overlap
from jobs.benchmark.turns import TURN, Run, family_cpu_s, figures, rotate, start
from jobs.serving.process import serving

CLIENTS = 8
WHOLE, SHARDED = "one piece", "in shards"
NOTES = [
    "One piece: a service with the default number of search processes.",
    "Same: the share of the ten best that both have.",
]


class ShardedEngine(SearchEngine):
    """Asks the service with this pid; `nodes` are the processes that have the shards."""

    def __init__(self, url: str, pid: int, mode: str, nodes: Sequence[int]) -> None:
        super().__init__(url, pid, mode)
        self._nodes = nodes

    def run(self, queries: Sequence[Any], clients: int = 1) -> Run:
        before = sum(map(family_cpu_s, self._nodes))
        run = super().run(queries, clients)
        return replace(run, cpu_s=run.cpu_s + sum(map(family_cpu_s, self._nodes)) - before)


def run(
    material: Material, scratch: Path, say: Say, *, shards: int, services: int | None, queries: int
) -> BenchResults:
    services = min(services or shards, shards)
    processes = 0 if services == shards else -(-shards // services)
    shape = (
        f"In shards: {shards} shards; services: {services}, search processes of each: {processes}, and one service "
        "that is asked and holds none (1st)."
    )
    models = model_settings(model_folder())
    with ExitStack() as stack:
        whole = stack.enter_context(fill_service(material, scratch / "whole", say))
        ports = [free_port() for _ in range(services)]
        named = {f"n{at}": [f"http://127.0.0.1:{port}"] for at, port in enumerate(ports)}
        environ = {
            **models,
            "NEARLINE_CLUSTER_NODES": json.dumps(named),
            "NEARLINE_SERVER_SEARCH_PROCESSES": str(processes),
            "NEARLINE_INDEX_DELTA_PASSAGES_MAX": str(len(material.texts) + 1),
            "NEARLINE_INDEX_SEGMENTS_MAX": "0",
        }
        nodes = [
            stack.enter_context(serving(scratch / f"n{at}", environ, port=port))
            for at, port in enumerate(ports)
        ]
        gateway = stack.enter_context(
            serving(scratch / "gateway", {**environ, "NEARLINE_SERVER_SEARCH_PROCESSES": "0"})
        )
        say("filling the shards ...")
        asyncio.run(fill(gateway.url, material, 0, shards=shards))
        pids = [node.pid for node in nodes]
        makers: dict[str, Any] = {}
        for mode in MODES:
            makers[f"{WHOLE}, {mode}"] = partial(SearchEngine, whole.url, whole.pid, mode)
            makers[f"{SHARDED}, {mode}"] = partial(ShardedEngine, gateway.url, gateway.pid, mode, pids)
        workers, notes = start(makers, stack, say)
        fresh = iter(material.queries)
        rounds = max(queries // TURN, 1)
        asked = {mode: [take(fresh, TURN) for _ in range(rounds)] for mode in MODES}
        for name, worker in workers.items():  # warms up
            worker.run([f"{query} first" for query in asked[mode_of(name)][0]])
        say(f"{rounds} turns of {TURN} queries ...")
        runs = rotate(workers, range(rounds), lambda name, at: asked[mode_of(name)][at])
        one = [row_of(name, runs) for name in workers]
        say(f"{CLIENTS} clients ...")
        together = {name: worker for name, worker in workers.items() if mode_of(name) == "hybrid"}
        parts = [take(fresh, 4 * TURN) for _ in range(3)]
        many = rotate(together, parts, clients=dict.fromkeys(together, CLIENTS))
        rows = [row_of(name, many) for name in together]
    return BenchResults({"One client": one, f"{CLIENTS} clients": rows}, [*notes, shape, *NOTES])


def row_of(name: str, runs: dict[str, list[Run]]) -> Row:
    base = f"{WHOLE}, {mode_of(name)}"
    answers = [[answer for one in runs[which] for answer in one.answers] for which in (name, base)]
    return {"collection": name, **figures(runs[name], runs[base]), "same": overlap(*answers)}


def mode_of(name: str) -> str:
    return name.rsplit(maxsplit=1)[-1]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
