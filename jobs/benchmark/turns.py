"""Runs engines in turns, each in a process of its own.

A machine's speed drifts by half within minutes, so engines take turns of 40 queries in rotation and are compared within
each round. CPU time is recorded along with wall time, because it hardly depends on other load.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from indexes.base.errors import NearlineError
from indexes.parts.memory import cpu_s, give_back, memory_bytes
from jobs.benchmark.report import Row, Say, percentiles

TURN = 40
# For engines: one thread per caller. PyTorch would use more, and while its threads busy-wait, it is up to ten times
# slower on a machine with any other load.
ENVIRON = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
NOTES = [
    f"Engines take turns of {TURN} queries. x p50, x rate: times the first row's, medians over the turns.",
    "CPU ms: processor time of a query, 1st: in the first process of the engine, which of a service speaks HTTP.",
    "own: the memory of the processes without mapped files.",
    "2 threads: times the queries a second of one thread, median over rounds of all queries.",
]


@dataclass(frozen=True, slots=True)
class Run:
    """One turn: milliseconds and answer of each query, and the totals of the turn."""

    milliseconds: list[float]
    answers: list[Any]
    wall_s: float
    cpu_s: float
    first_s: float  # of it, in the process without its descendants


class Engine(ABC):
    """A way to answer queries. Must pickle until opened; opened, used and closed in a worker process."""

    @abstractmethod
    def open(self) -> None:
        """Get ready to answer. An engine that raises, such as ImportError for a missing library, is left out."""

    @abstractmethod
    def ask(self, query: Any) -> Any:
        """Answer one query. Called from several threads if there are several clients."""

    def pid(self) -> int:
        """The process that does the work; override if it is not this one."""
        return os.getpid()

    def expect(self, clients: int) -> None:  # noqa: B027 - most engines ignore it
        """Prepare for this number of concurrent clients."""

    def close(self) -> None:  # noqa: B027 - most engines have nothing to close
        """Release files and processes."""

    def run(self, queries: Sequence[Any], clients: int = 1) -> Run:
        """Run the queries, split among the clients; each client runs its share sequentially."""
        self.expect(clients)
        first, before, begun = cpu_s(self.pid()), family_cpu_s(self.pid()), time.perf_counter()
        if clients == 1:
            timed = [self._client(queries)]
        else:
            with ThreadPoolExecutor(clients) as pool:
                timed = list(pool.map(self._client, [queries[at::clients] for at in range(clients)]))
        wall, cpu = time.perf_counter() - begun, family_cpu_s(self.pid()) - before
        first = cpu_s(self.pid()) - first
        # Restore query order: query i went to client i % clients.
        each = [timed[at % clients][at // clients] for at in range(len(queries))]
        return Run([took for took, _ in each], [answer for _, answer in each], wall, cpu, first)

    def _client(self, queries: Sequence[Any]) -> list[tuple[float, Any]]:
        timed = []
        for query in queries:
            begun = time.perf_counter()
            answer = self.ask(query)
            timed.append(((time.perf_counter() - begun) * 1000, answer))
        return timed

    def memory(self) -> Row:
        """Memory in MiB, after returning freed memory to the system."""
        gc.collect()
        give_back()
        return memory(self.pid())


class Worker:
    """An engine in its own process. Raises NearlineError if the engine cannot be opened or fails."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        """`make` must survive pickling."""
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _make, (make,))
        try:
            self.call("open")
        except BaseException:
            self.close()
            raise

    def run(self, queries: Sequence[Any], clients: int = 1) -> Run:
        run: Run = self.call("run", queries, clients)
        return run

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the engine."""
        try:
            return self._process.submit(_call, method, arguments).result()
        except BrokenProcessPool:
            raise NearlineError("an engine's process ended before it answered") from None

    def close(self) -> None:
        with suppress(NearlineError):
            self.call("close")
        self._process.shutdown()


_engines: list[Engine] = []  # in a worker's process: its only engine


def _make(make: Callable[[], Engine]) -> None:
    _engines.append(make())


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(_engines[0], method)(*arguments)
    except Exception as error:  # libraries raise what does not survive pickling
        raise NearlineError(f"{type(error).__name__}: {error}") from error


def start(
    makers: Mapping[str, Callable[[], Engine]], stack: ExitStack, say: Say
) -> tuple[dict[str, Worker], list[str]]:
    """A worker for each engine that opens; notes on how they run, and on why the others do not."""
    workers, notes = {}, [*NOTES]
    for name, make in makers.items():
        say(f"starting {name} ...")
        try:
            with patch.dict(os.environ, ENVIRON):
                workers[name] = Worker(make)
        except NearlineError as error:
            notes.append(f"{name} is left out: {error.message}")
        else:
            stack.callback(workers[name].close)
    return workers, notes


def rotate(
    workers: Mapping[str, Worker],
    rounds: Sequence[Any],
    queries: Callable[[str, Any], Sequence[Any]] = lambda _, part: part,
    clients: Mapping[str, int] | None = None,
) -> dict[str, list[Run]]:
    """Run every worker's `queries(name, part)` in each round, rotating which one goes first."""
    runs: dict[str, list[Run]] = {name: [] for name in workers}
    names = list(workers)
    for number, part in enumerate(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            runs[name].append(workers[name].run(queries(name, part), (clients or {}).get(name, 1)))
    return runs


def turns(queries: Sequence[Any]) -> list[Sequence[Any]]:
    """The queries in full turns of TURN, dropping the remainder; fewer than TURN make a single turn."""
    return [queries[at : at + TURN] for at in range(0, len(queries) - TURN + 1, TURN)] or [queries]


def figures(runs: Sequence[Run], base: Sequence[Run]) -> Row:
    """Percentiles over all queries of all turns, throughput, and CPU time per query.

    "x p50" and "x rate" are latency and throughput relative to `base`: the median over rounds of the ratio within a
    round.
    """
    taken = [one for run in runs for one in run.milliseconds]
    row = percentiles(taken, (50, 95, 99), digits=3)
    row["CPU ms"] = round(sum(run.cpu_s for run in runs) * 1000 / len(taken), 3)
    row["1st"] = round(sum(run.first_s for run in runs) * 1000 / len(taken), 3)
    row["queries/s"] = round(len(taken) / sum(run.wall_s for run in runs), 1)
    row["x p50"] = ratio(runs, base, lambda run: float(np.median(run.milliseconds)))
    row["x rate"] = ratio(runs, base, rate)
    return row


def ratio(runs: Sequence[Run], base: Sequence[Run], of: Callable[[Run], float]) -> float:
    return round(float(np.median([of(run) / of(other) for run, other in zip(runs, base)])), 2)


def rate(run: Run) -> float:
    return len(run.milliseconds) / run.wall_s


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            children += map(int, task.read_text().split())
    return [pid, *(one for child in children for one in family(child))]


def family_cpu_s(pid: int) -> float:
    """Processor seconds of a process and its descendants, all threads included."""
    return sum(map(cpu_s, family(pid)))


def memory(pid: int) -> Row:
    """Private and file-mapped memory of a process and its descendants."""
    parts = [memory_bytes(one) for one in family(pid)]
    return {f"{which} MiB": sum(part[which] for part in parts) >> 20 for which in ("own", "mapped")}
