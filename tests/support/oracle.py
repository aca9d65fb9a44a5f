"""What a workload was promised, kept by another process than the one that dies: this one, which reads its pipe.

An acknowledged operation must be there afterwards. One that was begun and not acknowledged may be there, but only
whole; several of them in the order in which they were begun.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from indexes.base import failpoints
from indexes.base.child import child_environment
from indexes.directory.catalog import Catalog
from tests.support import workload
from tests.support.inspection import Value, everything
from tests.support.workload import TUNING, Options

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([__name__])
Facts = Mapping[str, Value]
END_S_MAX = 120.0


class Line(msgspec.Struct):
    """One line of a workload."""

    by: str = ""
    n: int = 0
    do: dict[str, Value] | None = None
    seq: int | None = None
    error: str = ""
    message: str = ""
    started: bool = False
    failed: bool = False
    visits: dict[str, int] = {}
    steps: int = 0
    lost: bool = False


@dataclass
class Promises:
    """Of one actor. No other actor touches its facts."""

    certain: dict[str, Value] = field(default_factory=dict)
    open: dict[int, dict[str, Value]] = field(default_factory=dict)  # begun, by number
    seqs: dict[str, int] = field(default_factory=dict)  # of the documents in `certain`, where one is known

    def read(self, line: Line) -> None:
        if line.do is not None:
            self.open[line.n] = line.do
        elif line.seq is not None:
            done = self.open.pop(line.n)
            self._note_seqs(done, line.seq)
            self.certain |= done
            for earlier in self.open.values():  # came before, if it came at all
                for key in done:
                    earlier.pop(key, None)
        elif line.error == "DiskFull":
            del self.open[line.n]  # rolled back whole
        # After any other error it may have happened or not: it stays open.

    def _note_seqs(self, done: Facts, last: int) -> None:
        """Before `done` is certain. Deleting what was not there took no seq; where that is open, so are the others."""
        unsure = {key for one in self.open.values() for key in one}
        seq: int | None = last
        for key in reversed(list(done)):
            self.seqs.pop(key, None)
            if done[key] is None and (key in unsure or self.certain.get(key) is None):
                seq = None if key in unsure else seq
                continue
            if seq is not None and done[key] is not None and key.startswith("doc:"):
                self.seqs[key] = seq
            seq = None if seq is None else seq - 1

    def allowed(self) -> Iterator[dict[str, Value]]:
        """Every state there may be: what is certain, with any of the open operations applied in order."""
        for count in range(len(self.open) + 1):
            for chosen in combinations(sorted(self.open), count):
                state = dict(self.certain)
                for number in chosen:
                    state |= self.open[number]
                yield state

    def keys(self) -> set[str]:
        return {*self.certain, *(key for one in self.open.values() for key in one)}


class Oracle:
    """The promises made to all actors, over any number of runs on one folder."""

    def __init__(self) -> None:
        self.actors: dict[str, Promises] = {}
        self.acknowledged = 0

    def read(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if line.by:
                self.actors.setdefault(line.by, Promises()).read(line)
                self.acknowledged += line.seq is not None

    def check(self, folder: Path, accepted: tuple[str, ...] = ()) -> dict[str, Value]:
        """Open the directory and compare; from now on what was found is certain. Returns it. Nothing was promised of
        facts that begin like those accepted."""
        catalog = Catalog(folder, TUNING)
        try:
            found = everything(catalog)
            for prefix in accepted:
                self._accept(prefix, found)
            self._compare(found)
            self._compare_seqs(catalog)
        finally:
            catalog.close()
        return found

    def _accept(self, prefix: str, found: dict[str, Value]) -> None:
        """Take the facts that begin like this as they are now."""
        for promises in self.actors.values():
            for key in filter(lambda one: one.startswith(prefix), promises.keys()):
                promises.certain[key] = found.get(key)
                for one in promises.open.values():
                    one.pop(key, None)

    def _compare(self, found: dict[str, Value]) -> None:
        unclaimed = set(found)
        for name, promises in self.actors.items():
            keys = promises.keys()
            unclaimed -= keys
            own = {key: found[key] for key in keys if key in found}
            if not any(own == without_none(state) for state in promises.allowed()):
                expected = without_none(promises.certain)
                lost = {k: (v, own.get(k)) for k, v in expected.items() if own.get(k) != v}
                extra = {k: v for k, v in own.items() if k not in expected}
                raise AssertionError(
                    f"{name}: promised and otherwise {lost}, there and not promised {extra}, open {promises.open}"
                )
            for key in [key for one in promises.open.values() for key in one]:
                promises.seqs.pop(key, None)
            promises.certain = {key: own.get(key) for key in keys}
            promises.open.clear()
        assert not unclaimed, f"phantoms: {unclaimed}"

    def _compare_seqs(self, catalog: Catalog) -> None:
        """A document that is as it was acknowledged has the seq it was acknowledged with."""
        for promises in self.actors.values():
            for key, seq in promises.seqs.items():
                _, collection, number = key.split(":")
                if promises.certain[key] is not None and collection in catalog.collections:
                    stored = catalog.get(collection).document(f"d{number}").seq
                    assert stored == seq, (key, stored, seq)
            promises.seqs.clear()


def read_until_killed(child: Child, oracle: Oracle, seconds: float) -> None:
    """Kill a storm so many seconds after it has started. The pipe is emptied while this waits: a workload that has to
    wait for its reader is not at work."""
    lines = child.lines()
    for line in lines:
        oracle.read([line])
        if line.started:
            break
    else:
        raise AssertionError(child.end())
    until = time.monotonic() + seconds
    for line in lines:
        oracle.read([line])
        if time.monotonic() > until:
            break
    child.kill()
    oracle.read(lines)
    status, errors = child.end()
    assert status == -9, errors


def without_none(facts: Facts) -> dict[str, Value]:
    return {key: value for key, value in facts.items() if value is not None}


class Child:
    """A workload in a process of its own, forked from one that has imported everything."""

    def __init__(self, folder: Path, options: Options, environ: Mapping[str, str] | None = None) -> None:
        self._errors = folder.parent / f"{folder.name}.errors"
        told, tells = FORKING.Pipe(duplex=False)
        given = [str(folder), msgspec.json.encode(options).decode()]
        self._process = FORKING.Process(target=live, args=(given, tells, self._errors, dict(environ or {})))
        self._process.start()
        tells.close()
        self._told = os.fdopen(os.dup(told.fileno()), "rb")

    def lines(self) -> Iterator[Line]:
        """As they come, until the child ends."""
        for text in self._told:
            yield msgspec.json.decode(text, type=Line)

    def kill(self) -> None:
        self._process.kill()

    def end_its_children(self) -> None:
        """Once it was killed: end the builds and backups that it has started, which write until they notice."""
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            for _ in range(1000):
                os.killpg(self._process.pid, signal.SIGKILL)
                time.sleep(0.01)

    def end(self) -> tuple[int | None, str]:
        """Wait: the exit status and what it wrote to standard error."""
        self._process.join(END_S_MAX)
        self._told.close()
        return self._process.exitcode, self._errors.read_text(errors="replace")


def live(given: list[str], tells: Connection, errors: Path, environ: dict[str, str]) -> None:
    """In the child: what `python -m tests.support.workload` does with this environment and these streams."""
    os.setsid()
    os.dup2(tells.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.environ |= child_environment() | environ
    failpoints._armed = failpoints.from_environment()
    workload.main(given)
