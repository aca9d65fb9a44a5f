"""One run: Nearline and the others on the same material, one after the other, each in processes of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexes.errors import NearlineError
from jobs.benchmark.index.child import NEARLINE, PEERS
from jobs.benchmark.index.material import Material
from jobs.benchmark.index.nearline import copy_collection, rebuild
from jobs.benchmark.index.process import Job, run_job
from jobs.benchmark.index.truth import best_scores
from jobs.benchmark.machine import machine, versions

Say = Callable[[str], None]
COLD, TIERED, LOAD = "nearline, all cold", "nearline, hot and cold", "nearline under load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured and how. `engines` None: all. `hot_capacity` None: a tenth of the passages."""

    queries: int = 1000
    k: int = 10
    recall: float = 0.98
    recall_target: float = 0.99
    hot_capacity: int | None = None
    repeat: int = 1
    ingest: int = 100_000
    build_threads: int = 2
    engines: Sequence[str] | None = None

    def wants(self, name: str) -> bool:
        return self.engines is None or name in self.engines


def run(material: Material, plan: Plan, scratch: Path | None, say: Say) -> dict[str, Any]:
    """The whole report. An engine that fails is a row with the error; the run goes on."""
    queries = np.ascontiguousarray(material.queries[: plan.queries])
    hot = len(material) // 10 if plan.hot_capacity is None else plan.hot_capacity
    report: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "settings": {
            "passages": len(material),
            "dimensions": material.vectors.shape[1],
            "queries": len(queries),
            "k": plan.k,
            "recall": plan.recall,
            "recall_target": plan.recall_target,
            "hot_capacity": hot,
            "repeat": plan.repeat,
            "ingest": plan.ingest,
            "build_threads": plan.build_threads,
            "clients": 1,
        },
    }
    with tempfile.TemporaryDirectory(prefix="run-", dir=scratch) as name:
        folder = Path(name)
        say("searching exactly ...")
        np.save(folder / "queries.npy", queries)
        np.save(folder / "best.npy", best_scores(material.vectors, queries, plan.k))
        rows: dict[str, Any] = {}
        if plan.wants(NEARLINE):
            rows |= nearline_rows(material, plan, hot, folder, say)
        under_load = rows.pop(LOAD, None)
        for peer in PEERS:
            if plan.wants(peer):
                say(f"{peer} ...")
                rows[peer] = peer_row(peer, material, plan, folder)
    return {**report, "rows": rows, "nearline_under_load": under_load, "ratios": ratios(rows)}


def nearline_rows(material: Material, plan: Plan, hot: int, folder: Path, say: Say) -> dict[str, Any]:
    """Without a hot tier, with one, and that one under filters and writes."""
    rows: dict[str, Any] = {}
    for name, capacity in ((COLD, 0), (TIERED, hot)):
        say(f"{name}: rebuilding ...")
        try:
            built = rebuild(material.collection, capacity, plan.recall_target, plan.build_threads, say)
        except (NearlineError, OSError) as error:
            rows[name] = {"error": str(error)}
            continue
        say(f"{name}: searching ...")
        rows[name] = {**built, **on_a_copy("search", material, plan, folder)}
    say(f"{LOAD} ...")
    rows[LOAD] = on_a_copy("load", material, plan, folder)
    return rows


def on_a_copy(task: Any, material: Material, plan: Plan, folder: Path) -> dict[str, Any]:
    """A job of Nearline's on a copy of the collection as it is now: measuring writes, and the material stays."""
    copy = folder / "copy"
    try:
        copy_collection(material.folder, copy)
        return run_job(job(task, NEARLINE, material, plan, folder, copy))
    except OSError as error:
        return {"error": str(error)}
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def peer_row(name: str, material: Material, plan: Plan, folder: Path) -> dict[str, Any]:
    own = folder / "peer"
    try:
        own.mkdir()
        built = run_job(job("build", name, material, plan, folder, own))
        if "build_s" not in built:
            return built
        return {**built, **run_job(job("search", name, material, plan, folder, own))}
    except OSError as error:
        return {"error": str(error)}
    finally:
        shutil.rmtree(own, ignore_errors=True)


def job(task: Any, engine: str, material: Material, plan: Plan, folder: Path, own: Path) -> Job:
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    return Job(
        task=task,
        engine=engine,
        material=str(material.folder),
        run=str(folder),
        folder=str(own),
        result=str(result),
        k=plan.k,
        recall=plan.recall,
        repeat=plan.repeat,
        threads=plan.build_threads,
        ingest=plan.ingest,
    )


def ratios(rows: dict[str, Any]) -> dict[str, Any]:
    """Nearline beside each peer that reaches the same recall: above 1, Nearline needs less.

    Latency is the p50 of the fastest setting that reaches the recall asked for. Memory is the process's own, and with
    the resident pages of mapped index files: an engine that maps all it has would otherwise seem to need none. What
    an engine reads through the system's cache (lancedb) is in neither.
    """
    peers = {
        name: row
        for name, row in rows.items()
        if name in PEERS and row.get("reached") and not row.get("extra")
    }
    found: dict[str, Any] = {}
    for name in (COLD, TIERED):
        ours = rows.get(name, {})
        if not peers or not ours.get("reached"):
            continue
        needs = needs_of(ours)
        by_peer = {
            peer: {what: round(need / max(needs[what], 1e-3), 2) for what, need in needs_of(row).items()}
            for peer, row in peers.items()
        }
        best = {what: min(by_peer, key=lambda peer: by_peer[peer][what]) for what in needs}
        found[name] = {"best_peer": best, "by_peer": by_peer}
    return found


def needs_of(row: dict[str, Any]) -> dict[str, float]:
    own = float(row["own_bytes_per_vector"])
    return {
        "latency": float(row["best"]["p50_ms"]),
        "own_memory": own,
        "memory_with_mapped_files": own + float(row["mapped_bytes_per_vector"]),
    }
