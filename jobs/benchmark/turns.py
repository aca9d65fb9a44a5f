"""Runs engines in turns: each in a process of its own, which answers "run these queries" over a pipe.

A machine's speed drifts by half within minutes, so engines take turns of 40 queries in rotation and are compared within
each round. CPU time is taken beside wall time: it hardly depends on what else the machine does.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from indexes.errors import NearlineError
from indexes.memory import memory_bytes

TURN = 40
STOP_S = 60.0
# The engines search on one thread for each caller; idle OpenMP threads must not spin on the other engines' time.
SINGLE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


class Engine(ABC):
    """One way to answer queries. Opened, used and closed in a process of its own."""

    what: str = ""
    """Libraries and how they are set up, for readers of the report. Known after `open`."""

    @abstractmethod
    def open(self) -> None:
        """Get ready to answer. ImportError: the library is not installed, and the engine is left out."""

    @abstractmethod
    def ask(self, query: Any) -> Any:
        """Answer one query. Called from several threads when several clients ask."""

    def pid(self) -> int:
        """The process that does the work, where that is not the one that asks."""
        return os.getpid()

    def clients(self, count: int) -> None:  # noqa: B027 - most engines need not know
        """So many clients ask from now on."""

    def close(self) -> None:  # noqa: B027 - most engines have nothing to close
        """Release files and processes. Called once, after `open`."""


@dataclass(frozen=True, slots=True)
class Run:
    """One turn: milliseconds and answer of each query, and what all of them took together."""

    milliseconds: list[float]
    answers: list[Any]
    wall_s: float
    cpu_s: float
    major_faults: int


class Worker:
    """An engine in a process of its own. Raises NearlineError where it cannot be opened or fails."""

    def __init__(self, make: Callable[[], Engine], environ: Mapping[str, str] = SINGLE) -> None:
        """`make` and all it holds must survive pickling; `environ` is set before the process starts."""
        before = dict(os.environ)
        os.environ.update(environ)
        try:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(make, theirs), daemon=False)
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()
        try:
            self.what, self.opened_s, self.grown_bytes = self._receive()
        except BaseException:
            self.close()
            raise

    def run(self, queries: Sequence[Any], clients: int = 1) -> Run:
        run: Run = self._call("run", queries, clients)
        return run

    def memory(self) -> dict[str, int]:
        """As `indexes.memory.memory_bytes`, of the engine's process and its children."""
        found: dict[str, int] = self._call("memory")
        return found

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the engine."""
        return self._call("engine_does", method, *arguments)

    def close(self) -> None:
        self._pipe.close()  # the process ends at the end of its pipe
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _call(self, method: str, *arguments: Any) -> Any:
        self._pipe.send((method, arguments))
        return self._receive()

    def _receive(self) -> Any:
        try:
            result = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise NearlineError("an engine's process ended before it answered") from None
        if isinstance(result, _Failure):
            raise NearlineError(result.message)
        return result


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str


class _Host:
    """The other end of a Worker's pipe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pools: dict[int, ThreadPoolExecutor] = {}  # kept, so that clients keep their connections

    def run(self, queries: Sequence[Any], clients: int) -> Run:
        if clients not in self._pools:
            self._pools[clients] = ThreadPoolExecutor(clients)
        self._engine.clients(clients)
        pids = family(self._engine.pid())
        cpu, faults = cpu_seconds(pids), major_faults(pids)
        shares = [queries[at::clients] for at in range(clients)]
        begun = time.perf_counter()
        if clients == 1:
            timed = [self._client(queries)]
        else:
            timed = list(self._pools[clients].map(self._client, shares))
        wall = time.perf_counter() - begun
        spent = cpu_seconds(pids) - cpu
        # Back in the order of the queries: client 0 had the first, client 1 the second.
        each = [timed[at % clients][at // clients] for at in range(len(queries))]
        faults = major_faults(pids) - faults
        return Run([took for took, _ in each], [answer for _, answer in each], wall, spent, faults)

    def memory(self) -> dict[str, int]:
        settle()
        parts = [memory_bytes(pid) for pid in family(self._engine.pid())]
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    def engine_does(self, method: str, *arguments: Any) -> Any:
        return getattr(self._engine, method)(*arguments)

    def _client(self, queries: Sequence[Any]) -> list[tuple[float, Any]]:
        """Milliseconds and answer of each query, asked one after the other."""
        timed = []
        for query in queries:
            begun = time.perf_counter()
            answer = self._engine.ask(query)
            timed.append(((time.perf_counter() - begun) * 1000, answer))
        return timed


def _serve(make: Callable[[], Engine], pipe: Connection) -> None:
    engine = make()
    begun = time.perf_counter()
    try:
        settle()
        before = memory_bytes()["own"]
        engine.open()
        opened_s = time.perf_counter() - begun
        settle()
        pipe.send((engine.what, opened_s, memory_bytes()["own"] - before))
        host = _Host(engine)
        while True:
            method, arguments = pipe.recv()
            try:
                pipe.send(getattr(host, method)(*arguments))
            except Exception as error:  # noqa: BLE001 - whatever a library raises is told to who asked
                pipe.send(_Failure(f"{type(error).__name__}: {error}"))
    except EOFError:
        pass
    except Exception as error:  # noqa: BLE001 - as above
        pipe.send(_Failure(f"{type(error).__name__}: {error}"))
    finally:
        engine.close()


def rotate(
    workers: Mapping[str, Worker],
    rounds: int,
    queries: Callable[[str, int], Sequence[Any]],
    clients: Callable[[str], int] = lambda name: 1,
) -> dict[str, list[Run]]:
    """Let each worker answer `queries(name, round)` in every round; another one begins each time."""
    runs: dict[str, list[Run]] = {name: [] for name in workers}
    names = list(workers)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            runs[name].append(workers[name].run(queries(name, number), clients(name)))
    return runs


def figures(runs: Sequence[Run]) -> dict[str, float]:
    """Percentiles over all queries of all turns, and what a query took in wall and CPU time."""
    taken = [one for run in runs for one in run.milliseconds]
    found = {f"p{q} ms": round(float(np.percentile(taken, q)), 3) for q in (50, 95, 99)}
    found["CPU ms"] = round(sum(run.cpu_s for run in runs) * 1000 / len(taken), 3)
    found["queries/s"] = round(len(taken) / sum(run.wall_s for run in runs), 1)
    found["major faults"] = sum(run.major_faults for run in runs)
    return found


def p50_ratio(runs: Sequence[Run], base: Sequence[Run]) -> float:
    """How many times as long as `base` a query takes: median over the rounds of the ratio of their p50."""
    pairs = zip(runs, base, strict=True)
    ratios = [np.median(one.milliseconds) / np.median(other.milliseconds) for one, other in pairs]
    return round(float(np.median(ratios)), 2)


def rate_ratio(runs: Sequence[Run], base: Sequence[Run]) -> float:
    """How many times as many queries a second as `base`: median over the rounds."""
    rates = [np.array([len(run.milliseconds) / run.wall_s for run in each]) for each in (runs, base)]
    return round(float(np.median(rates[0] / rates[1])), 2)


def settle() -> None:
    """Return freed memory to the system, so that what is measured is in use."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    children = [
        child
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in map(int, task.read_text().split())
    ]
    return [pid, *(one for child in children for one in family(child))]


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor time of running processes, to the nanosecond (clock_getcpuclockid(3)), all their threads included."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def major_faults(pids: Sequence[int]) -> int:
    """Pages that had to be read from disk."""
    # Fields after the command, which stands in brackets and may hold blanks.
    return sum(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[9]) for pid in pids)
