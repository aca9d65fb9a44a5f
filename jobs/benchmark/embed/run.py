"""One run: all engines on the same texts, in rounds and in turns, so that a noisy minute meets everybody."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jobs.benchmark.embed.child import ENGINES, ONNX, TORCH, TORCH_ONNX
from jobs.benchmark.embed.engine import Setup
from jobs.benchmark.embed.job import Job, Task
from jobs.benchmark.embed.material import Material
from jobs.benchmark.embed.nearline import config_of
from jobs.benchmark.embed.process import busy_share, is_failure, run_in_turns, run_job
from jobs.benchmark.embed.quality import judge
from jobs.benchmark.embed.ratios import ratios
from jobs.benchmark.embed.timing import QUERIES
from jobs.benchmark.embed.weights import ABSENT, weights_of
from jobs.benchmark.machine import machine, versions
from jobs.benchmark.service import percentiles
from retrieval.embedders import runs_of

Say = Callable[[str], None]

CLIENTS = 32
REFERENCES = (TORCH, ONNX, TORCH_ONNX)  # the first of these that was measured is what fp32 means
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured and how often. `engines` None: all."""

    model: Path
    repeat: int = 1
    clients: int = CLIENTS
    engines: Sequence[str] | None = None

    def chosen(self) -> list[str]:
        return [name for name in ENGINES if self.engines is None or name in self.engines]


def run(material: Material, plan: Plan, say: Say) -> dict[str, Any]:
    """The whole report. An engine that fails is a row with the error; the run goes on without it."""
    with tempfile.TemporaryDirectory(prefix="nearline-bench-") as name:
        folder = Path(name)
        material.write(folder, plan.clients)
        runner = Runner(folder, set_up(plan, folder, say), say)
        for number in range(plan.repeat):
            runner.round(f"round {number + 1} of {plan.repeat}", plan.chosen())
        for engine in plan.chosen():
            say(f"vectors: {engine} ...")
            runner.embed(engine)
        rows = {engine: runner.row(engine, material) for engine in plan.chosen()}
    settings = {
        "model": plan.model.name,
        "clients": plan.clients,
        "repeat": plan.repeat,
        "environment": {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        "fp32": runner.reference(),
        **material.describe(),
    }
    report = {"machine": machine(), "versions": versions(), "settings": settings, "rows": rows}
    return {**report, "ratios": ratios(rows, runner.reference())}


def set_up(plan: Plan, folder: Path, say: Say) -> Setup:
    """Find the weights, and make their plain graph once for all engines that want it."""
    model = plan.model.resolve()
    threads, runs = runs_of(config_of(model))
    bare = Setup(model=str(model), scratch=str(folder), run_threads=threads, runs_at_once=runs)
    if not {ONNX, TORCH, TORCH_ONNX}.intersection(plan.chosen()):
        return bare
    if (weights := weights_of(model)) is None:
        return msgspec.structs.replace(bare, missing=ABSENT)
    setup = msgspec.structs.replace(bare, weights=str(weights))
    if not {ONNX, TORCH_ONNX}.intersection(plan.chosen()):
        return setup
    say("exporting the plain fp32 graph ...")
    wanted = msgspec.structs.replace(setup, plain=str(folder / "plain" / weights.name))
    made = run_job(
        Job(task="plain", engine="", setup=wanted, run=str(folder), result=str(folder / "plain.json"))
    )
    if failure := made.get("error") or made.get("skipped"):
        return msgspec.structs.replace(setup, missing=f"no plain fp32 graph: {failure}")
    return wanted


class Runner:
    """Runs children and keeps what they found, by engine. An engine that failed once is not run again."""

    def __init__(self, folder: Path, setup: Setup, say: Say) -> None:
        self._folder = folder
        self._setup = setup
        self._say = say
        self._rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in ENGINES}
        self._vectors: dict[str, Path] = {}
        self._failed: dict[str, dict[str, Any]] = {}

    def round(self, title: str, engines: Sequence[str]) -> None:
        """A cold start of each engine in a process of its own, then everything that is timed in another.

        All of those live side by side, and one works at a time: single queries in turns, then each its other work.
        """
        begun: dict[str, dict[str, Any]] = {}
        for engine in [name for name in engines if name not in self._failed]:
            self._say(f"{title}: start of {engine} ...")
            busy = busy_share()
            if (cold := self._job("cold", engine)) is not None:
                begun[engine] = {"others_busy": busy, **cold}
        self._say(f"{title}: single queries in turns ...")
        timed = run_in_turns(
            [self._made("speed", engine) for engine in begun],
            QUERIES,
            lambda job: self._say(f"{title}: clients and bulk of {job.engine} ..."),
        )
        for (engine, cold), speed in zip(begun.items(), timed, strict=True):
            if self._kept(engine, speed) is not None:
                self._rounds[engine].append({**cold, **speed})

    def embed(self, engine: str) -> None:
        """The vectors that quality is judged by; they are the same in every round."""
        if (found := self._job("vectors", engine)) is not None:
            self._vectors[engine] = Path(found["vectors"])

    def reference(self) -> str | None:
        return next((name for name in REFERENCES if name in self._vectors), None)

    def row(self, engine: str, material: Material) -> dict[str, Any]:
        if engine in self._failed:
            return self._failed[engine]
        rounds = self._rounds[engine]
        fp32 = self.reference()
        return {
            "what": rounds[0]["what"],
            "threads": rounds[0]["threads"],
            **medians([summed_up(one, material.tokens) for one in rounds]),
            "quality": judge(
                self._vectors[engine], self._vectors[fp32] if fp32 else None, material.collections
            ),
        }

    def _job(self, task: Task, engine: str) -> dict[str, Any] | None:
        return None if engine in self._failed else self._kept(engine, run_job(self._made(task, engine)))

    def _made(self, task: Task, engine: str) -> Job:
        result = self._folder / f"{task}-{list(ENGINES).index(engine)}.json"
        return Job(task=task, engine=engine, setup=self._setup, run=str(self._folder), result=str(result))

    def _kept(self, engine: str, found: dict[str, Any]) -> dict[str, Any] | None:
        if is_failure(found):
            self._say(f"  {engine}: {found.get('error') or found.get('skipped')}")
            self._failed[engine] = found
            return None
        return found


def summed_up(found: dict[str, Any], tokens: dict[str, int]) -> dict[str, Any]:
    """Percentiles and rates of one round."""
    kept = ("others_busy", "cold_start_s", "first_query_ms", "tenth_query_ms", "memory")
    measured: dict[str, Any] = {
        **{name: found[name] for name in kept},
        "query": percentiles(list(chain(*found["query_ms"]))),
        "query_turns_p50_ms": [float(np.median(turn)) for turn in found["query_ms"]],
        "query_after_pause": percentiles(list(chain(*found["query_after_pause_ms"]))),
        "crowd": crowd(found["crowd"]),
        "bulk_tokens_per_s": rates(found["bulk_s"], tokens),
    }
    if found["bulk_sorted_s"]:
        measured["bulk_sorted_tokens_per_s"] = rates(found["bulk_sorted_s"], tokens)
    if "load" in found:
        measured["load"] = {name: beside(one) for name, one in found["load"].items()}
    return measured


def crowd(found: dict[str, Any]) -> dict[str, Any]:
    answered = len(found["milliseconds"])
    rate = answered / found["seconds"]
    return {
        **percentiles(found["milliseconds"]),
        "queries_per_s": round(rate, 1),
        "failed": found["failed"],
        "first_failure": found["first_failure"],
    }


def beside(found: dict[str, Any]) -> dict[str, Any]:
    asked = {name: crowd(found[name]) for name in ("clients", "one_client")}
    rate = {"passages_per_s": round(found["passages_per_s"], 1)} if "passages_per_s" in found else {}
    return {**asked, **rate}


def rates(seconds: dict[str, float], tokens: dict[str, int]) -> dict[str, float]:
    """Real tokens a second, of each collection and of all together."""
    found = {name: round(tokens[name] / taken, 1) for name, taken in seconds.items()}
    return {**found, "all": round(sum(tokens[name] for name in seconds) / sum(seconds.values()), 1)}


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of every figure by itself; all rounds have the same ones. Those of turns are kept, one round after the other.

    Failures are added up, and the first is told.
    """
    return {name: _of_all(name, [one[name] for one in rounds]) for name in rounds[0]}


def _of_all(name: str, values: Sequence[Any]) -> Any:
    if isinstance(values[0], dict):
        return medians(values)
    if isinstance(values[0], list):
        return [round(value, 4) for value in chain(*values)]
    if name == "first_failure":
        return next(filter(None, values), "")
    return sum(values) if name == "failed" else round(float(np.median(values)), 4)
