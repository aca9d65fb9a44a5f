"""Runs engines in turns, each in its own process that takes "run these queries" over a pipe.

A machine's speed drifts by half within minutes, so engines take turns of 40 queries in rotation and are compared within
each round. CPU time is recorded along with wall time, because it hardly depends on other load.
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
# For engines: one thread per caller. PyTorch would use more, and while its threads busy-wait, it is up to ten times
# slower on a machine with any other load.
ENVIRON = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

Say = Callable[[str], None]
Row = dict[str, Any]
Tables = tuple[dict[str, list[Row]], list[str]]  # a bench's result: tables by title, and notes


@dataclass(frozen=True, slots=True)
class Run:
    """One turn: milliseconds and answer of each query, and the totals of the turn."""

    milliseconds: list[float]
    answers: list[Any]
    wall_s: float
    cpu_s: float
    major_faults: int


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
        pids = family(self.pid())
        before, begun = usage(pids), time.perf_counter()
        if clients == 1:
            timed = [self._client(queries)]
        else:
            with ThreadPoolExecutor(clients) as pool:
                timed = list(pool.map(self._client, [queries[at::clients] for at in range(clients)]))
        wall, (cpu, faults) = time.perf_counter() - begun, usage(pids) - before
        # Restore query order: query i went to client i % clients.
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
        """Private and file-mapped memory in MiB, after returning freed memory to the system."""
        gc.collect()
        give_back()
        parts = [memory_bytes(pid) for pid in family(self.pid())]
        return {f"{which} MiB": sum(part[which] for part in parts) >> 20 for which in ("own", "mapped")}


class Worker:
    """An engine in its own process. Raises NearlineError if the engine cannot be opened or fails."""

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
        """Call a method of the engine. The process ends at the first failure."""
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
    except Exception as error:  # noqa: BLE001 - any library error is reported to the caller
        pipe.send(NearlineError(f"{type(error).__name__}: {error}"))


def start(
    makers: Mapping[str, Callable[[], Engine]], stack: ExitStack, say: Say
) -> tuple[dict[str, Worker], list[str]]:
    """A worker for each engine that opens, and notes on why the others do not."""
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
    """CPU seconds of running processes, all threads included, and major page faults."""
    seconds = sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)  # clock_getcpuclockid(3)
    # Fields after the command, which is parenthesized and may contain spaces.
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return np.array([seconds, sum(int(fields[9]) for fields in stats)])
