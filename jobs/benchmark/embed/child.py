"""One job in a process of its own: `python -m jobs.benchmark.embed.child JOB`. The result goes to a file.

A cold start counts what this module imports too, so an engine's own module is imported only when it is wanted.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jobs.benchmark.embed.engine import Engine
from jobs.benchmark.embed.job import Job, announce
from jobs.benchmark.embed.timing import Lists, Stage, Texts, measure

NEARLINE, OVER_HTTP, BARE, ONNX = "nearline", "nearline over HTTP", "bare session", "ONNX fp32"
TORCH, TORCH_ONNX = "sentence-transformers (PyTorch)", "sentence-transformers (ONNX backend)"
ENGINES = {
    NEARLINE: "nearline:InProcess",
    OVER_HTTP: "over_http:OverHttp",
    BARE: "graphs:Bare",
    ONNX: "graphs:PlainFp32",
    TORCH: "peers:SentenceTransformers",
    TORCH_ONNX: "peers:SentenceTransformersOnnx",
}
FIRST_QUERIES = 10
REST_S = 0.2
SPEED, QUALITY = "speed.json", "quality.json"  # in the folder of a run: Texts and Lists


def main() -> int:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    try:
        result = TASKS[job.task](job)
    except ModuleNotFoundError as error:
        result = {"skipped": f"{error}; pip install 'nearline[bench]'"}
    except Exception as error:  # noqa: BLE001 - whatever a library raises becomes its row of the report
        first = innermost(error)
        result = {"error": f"{type(first).__name__}: {first}"}
    Path(job.result).write_bytes(msgspec.json.encode(result))
    return 0


def innermost(error: BaseException) -> BaseException:
    """The first error of a group, which says more than the group."""
    return innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def plain(job: Job) -> dict[str, Any]:
    """Write the plain fp32 graph that several engines share."""
    from jobs.benchmark.embed.weights import write_plain

    assert job.setup.weights is not None
    assert job.setup.plain is not None
    write_plain(Path(job.setup.weights), Path(job.setup.plain))
    return {}


def engine_of(job: Job) -> Engine:
    module, _, name = ENGINES[job.engine].partition(":")
    engine: Engine = getattr(importlib.import_module(f"jobs.benchmark.embed.{module}"), name)(job.setup)
    return engine


async def cold(job: Job) -> dict[str, Any]:
    """Seconds from the start of the process to the first vector, and milliseconds of the first queries.

    The others come after a rest each: what has just run is awake and answers sooner.
    """
    engine = engine_of(job)
    try:
        await engine.open()
        taken = []
        for number in range(FIRST_QUERIES):
            if number:
                await asyncio.sleep(REST_S)
            begun = time.perf_counter()
            await engine.query(f"what is the question that comes as number {number}?")
            if not number:
                started = time.monotonic() - (job.begun if engine.begun is None else engine.begun)
            taken.append((time.perf_counter() - begun) * 1000)
        return {"cold_start_s": started, "first_query_ms": taken[0], "tenth_query_ms": taken[-1]}
    finally:
        await engine.close()


async def speed(job: Job) -> dict[str, Any]:
    texts = msgspec.json.decode((Path(job.run) / SPEED).read_bytes(), type=Texts)
    announce("open", os.getpid())
    engine = engine_of(job)
    try:
        await engine.open()

        def stage(name: str) -> None:
            announce(name, engine.pid)

        found = await measure(engine, texts, stage)
        if job.engine == OVER_HTTP:
            found["load"] = await loaded(engine, texts, stage)
        stage("end")
        return {"what": engine.what, "threads": engine.threads, **found}
    finally:
        await engine.close()


async def loaded(engine: Engine, texts: Texts, stage: Stage) -> dict[str, Any]:
    from jobs.benchmark.embed.load import under_load
    from jobs.benchmark.embed.over_http import OverHttp

    assert isinstance(engine, OverHttp)
    return await under_load(engine, texts, stage)


async def vectors(job: Job) -> dict[str, Any]:
    """Vectors of all texts that quality is judged by, one .npy a text list, beside the result."""
    lists = msgspec.json.decode((Path(job.run) / QUALITY).read_bytes(), type=Lists)
    folder = Path(job.result).with_suffix("")
    folder.mkdir()
    engine = engine_of(job)
    try:
        await engine.open()
        np.save(folder / "together.npy", await engine.documents(lists.checks))
        alone = [await engine.documents([text]) for text in lists.checks]
        np.save(folder / "alone.npy", np.concatenate(alone))
        for name, texts in lists.documents.items():
            np.save(folder / f"{name}.documents.npy", await engine.documents(texts))
        for name, texts in lists.queries.items():
            np.save(folder / f"{name}.queries.npy", np.stack([await engine.query(text) for text in texts]))
        return {"vectors": str(folder)}
    finally:
        await engine.close()


TASKS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "plain": plain,
    "cold": lambda job: asyncio.run(cold(job)),
    "speed": lambda job: asyncio.run(speed(job)),
    "vectors": lambda job: asyncio.run(vectors(job)),
}


if __name__ == "__main__":
    sys.exit(main())
