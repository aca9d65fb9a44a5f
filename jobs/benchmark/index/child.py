"""One job in a process of its own: `python -m jobs.benchmark.index.child JOB`. The result goes to a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from indexes.courtesy import keep_turns_short
from jobs.benchmark.index import load as under_load
from jobs.benchmark.index.databases import LancedbHnswSq, LancedbIvfPq, QdrantEdge
from jobs.benchmark.index.engine import Engine, Peer
from jobs.benchmark.index.libraries import FaissHnsw, FaissIvfPq, Hnswlib, Usearch
from jobs.benchmark.index.material import Material, load
from jobs.benchmark.index.nearline import Nearline
from jobs.benchmark.index.process import Job, folder_bytes, mapped_bytes, settled_memory
from jobs.benchmark.index.timing import Bench, inserts, measure, one_pass, sweep, throughput

NEARLINE = "nearline"
PEERS: dict[str, Callable[[], Peer]] = {
    "hnswlib": Hnswlib,
    "faiss HNSW": FaissHnsw,
    "usearch f16": partial(Usearch, "f16"),
    "usearch f32": partial(Usearch, "f32"),
    "qdrant-edge": QdrantEdge,
    "lancedb HNSW-SQ": LancedbHnswSq,
    "lancedb IVF-PQ": LancedbIvfPq,
    "faiss IVF-PQ": FaissIvfPq,
}
ENGINES: dict[str, Callable[[], Engine]] = {NEARLINE: Nearline, **PEERS}


def main() -> int:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    keep_turns_short()  # as the service does, whatever is measured
    try:
        result = run(job)
    except ImportError as error:
        result = {"skipped": f"{error}; pip install 'nearline[bench]'"}
    except Exception as error:  # noqa: BLE001 - whatever a library raises becomes its row of the report
        result = {"error": f"{type(error).__name__}: {error}"}
    Path(job.result).write_bytes(msgspec.json.encode(result))
    return 0


def run(job: Job) -> dict[str, Any]:
    material = Material(Path(job.material))
    if job.task == "build":
        peer = PEERS[job.engine]()
        begun = time.perf_counter()
        peer.build(material.vectors, Path(job.folder), job.threads)
        return {"what": peer.what, "build_s": round(time.perf_counter() - begun, 1)}
    engine = ENGINES[job.engine]()
    run_folder = Path(job.run)
    bench = Bench(
        material.vectors,
        load(run_folder / "queries.npy")[:],
        load(run_folder / "best.npy")[:],
        job.k,
        job.repeat,
    )
    if job.task == "load":
        assert isinstance(engine, Nearline)
        return under_load.run(engine, Path(job.folder), material, bench, job.ingest)
    return search(engine, job, bench)


def search(engine: Engine, job: Job, bench: Bench) -> dict[str, Any]:
    """Memory is what this process grew by, from before opening to after all searches."""
    folder = Path(job.folder)
    before = settled_memory()
    engine.open(folder, bench.vectors)
    try:
        result: dict[str, Any] = {"what": engine.what, "extra": engine.extra}
        one_pass(engine.search, bench.queries, bench.k)  # reads what is mapped, and fills what is cached
        if engine.tuned:
            result["as_built"] = measure(engine, bench, bench.repeat)
        result |= sweep(engine, bench, job.recall)
        one_pass(engine.search, bench.queries, bench.k)
        rows = len(bench.vectors)
        result["own_bytes_per_vector"] = round((settled_memory() - before) / rows, 1)
        result["mapped_bytes_per_vector"] = round(mapped_bytes(folder) / rows, 1)
        result["file_bytes_per_vector"] = round(folder_bytes(folder) / rows, 1)
        result["qps_2_threads"] = throughput(engine, bench.queries, bench.k, bench.repeat)
        result |= engine.details(bench.queries, bench.k)
        result["insert_to_found"] = inserts(engine, bench)
        return result
    finally:
        engine.close()


if __name__ == "__main__":
    sys.exit(main())
