"""Runs engines in turns: each in a process of its own, which answers "run these queries" over a pipe.

A machine's speed drifts by half within minutes, so engines take turns of 40 queries in rotation and are compared within
each round. CPU time is taken beside wall time: it hardly depends on what else the machine does.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from indexes.errors import NearlineError
from indexes.memory import give_back, memory_bytes

TURN = 40
STOP_S = 60.0
# Of engines: one thread for each caller. PyTorch takes more by itself; while its threads spin, it is up to ten times as
# slow on a machine that does anything else.
ENVIRON = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

Say = Callable[[str], None]
Row = dict[str, Any]
Tables = tuple[dict[str, list[Row]], list[str]]  # what a bench found: tables by title, and notes


@dataclass(frozen=True, slots=True)
class Run:
    """One turn: milliseconds and answer of each query, and what all of them took together."""

    milliseconds: list[float]
    answers: list[Any]
    wall_s: float
    cpu_s: float
    major_faults: int


class Engine(ABC):
    """One way to answer queries. Made in one process; opened, used and closed in another."""

    @abstractmethod
    def open(self) -> None:
        """Get ready to answer. ImportError: the library is not installed, and the engine is left out."""

    @abstractmethod
    def ask(self, query: Any) -> Any:
        """Answer one query. Called from several threads when several clients ask."""

    def pid(self) -> int:
        """The process that does the work, where that is not the one that asks."""
        return os.getpid()

    def expect(self, clients: int) -> None:  # noqa: B027 - most engines need not know
        """So many clients ask from now on."""

    def close(self) -> None:  # noqa: B027 - most engines have nothing to close
        """Release files and processes."""

    def run(self, queries: Sequence[Any], clients: int = 1) -> Run:
        """Each client asks its share of the queries, one after the other."""
        self.expect(clients)
        pids = family(self.pid())
        before, begun = usage(pids), time.perf_counter()
        if clients == 1:
            timed = [self._client(queries)]
        else:
            with ThreadPoolExecutor(clients) as pool:
                timed = list(pool.map(self._client, [queries[at::clients] for at in range(clients)]))
        wall, (cpu, faults) = time.perf_counter() - begun, usage(pids) - before
        # Back in the order of the queries: client 0 had the first, client 1 the second.
        each = [timed[at % clients][at // clients] for at in range(len(queries))]
        return Run([took for took, _ in each], [answer for _, answer in each], wall, float(cpu), int(faults))

    def _client(self, queries: Sequence[Any]) -> list[tuple[float, Any]]:
        timed = []
        for query in queries:
            begun = time.perf_counter()
            answer = self.ask(query)
            timed.append(((time.perf_counter() - begun) * 1000, answer))
        return timed

    def memory(self) -> Row:
        """MiB of its own, and of pages of mapped files; freed memory is given back first."""
        gc.collect()
        give_back()
        parts = [memory_bytes(pid) for pid in family(self.pid())]
        return {f"{which} MiB": sum(part[which] for part in parts) >> 20 for which in ("own", "mapped")}


class Worker:
    """An engine in a process of its own. Raises NearlineError where it cannot be opened or fails."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        """`make` must survive pickling."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, theirs))
        self._process.start()
        theirs.close()
        try:
            self.call("open")
        except BaseException:
            self.close()
            raise

    def run(self, queries: Sequence[Any], clients: int = 1) -> Run:
        run: Run = self.call("run", queries, clients)
        return run

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the engine. One that fails is the last."""
        try:
            self._pipe.send((method, arguments))
            result = self._pipe.recv()
        except (EOFError, OSError):
            raise NearlineError("an engine's process ended before it answered") from None
        if isinstance(result, NearlineError):
            raise result
        return result

    def close(self) -> None:
        with suppress(NearlineError):
            self.call("close")
        self._pipe.close()
        self._process.join(STOP_S)
        self._process.kill()


def _serve(make: Callable[[], Engine], pipe: Connection) -> None:
    engine = make()
    try:
        while True:
            method, arguments = pipe.recv()
            pipe.send(getattr(engine, method)(*arguments))
    except EOFError:
        pass
    except Exception as error:  # noqa: BLE001 - whatever a library raises is told to the one who asked
        pipe.send(NearlineError(f"{type(error).__name__}: {error}"))


def start(
    makers: Mapping[str, Callable[[], Engine]], stack: ExitStack, say: Say
) -> tuple[dict[str, Worker], list[str]]:
    """A worker for each engine that can be opened, and why the others cannot."""
    workers, notes = {}, []
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
    """Let each worker answer its `queries(name, part)` in every round; another one begins each time."""
    runs: dict[str, list[Run]] = {name: [] for name in workers}
    names = list(workers)
    for number, part in enumerate(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            runs[name].append(workers[name].run(queries(name, part), (clients or {}).get(name, 1)))
    return runs


def turns(queries: Sequence[Any]) -> list[Sequence[Any]]:
    """Whole turns of the queries; one of them all where they are fewer."""
    return [queries[at : at + TURN] for at in range(0, len(queries) - TURN + 1, TURN)] or [queries]


def figures(runs: Sequence[Run], base: Sequence[Run]) -> Row:
    """Percentiles over all queries of all turns, and what a query took of wall and CPU time.

    "x p50" is how many times as long as `base` a query takes, "x rate" how many times as many are answered: medians
    over the rounds of the ratio within a round.
    """
    taken = [one for run in runs for one in run.milliseconds]
    row: Row = {f"p{q} ms": round(float(np.percentile(taken, q)), 3) for q in (50, 95, 99)}
    row["CPU ms"] = round(sum(run.cpu_s for run in runs) * 1000 / len(taken), 3)
    row["queries/s"] = round(len(taken) / sum(run.wall_s for run in runs), 1)
    row["x p50"] = ratio(runs, base, lambda run: float(np.median(run.milliseconds)))
    row["x rate"] = ratio(runs, base, rate)
    row["major faults"] = sum(run.major_faults for run in runs)
    return row


def ratio(runs: Sequence[Run], base: Sequence[Run], of: Callable[[Run], float]) -> float:
    return round(float(np.median([of(run) / of(other) for run, other in zip(runs, base)])), 2)


def rate(run: Run) -> float:
    return len(run.milliseconds) / run.wall_s


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [pid, *(one for child in children for one in family(child))]


def usage(pids: Sequence[int]) -> NDArray[np.float64]:
    """Processor seconds of running processes, all threads included, and pages that had to be read from disk."""
    seconds = sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)  # clock_getcpuclockid(3)
    # Fields after the command, which stands in brackets and may hold blanks.
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return np.array([seconds, sum(int(fields[9]) for fields in stats)])
