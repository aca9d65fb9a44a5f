"""Text to ten passages over HTTP, beside what people build in one process, and perhaps beside another checkout of ours.

Every query is fresh: no engine meets one twice, so no cache has its answer or its vector.
"""

from __future__ import annotations

import asyncio
import http.client
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from indexes.errors import NearlineError
from indexes.model import Floats
from jobs.benchmark.peers import CANDIDATES, RRF_K, Bm25s, Hnswlib, QdrantEdge, SentenceTransformers, fused
from jobs.benchmark.report import Report, Row
from jobs.benchmark.texts import Material, Say, best_scores, model_folder, recall
from jobs.benchmark.turns import SINGLE, TURN, Engine, Worker, figures, p50_ratio, rate_ratio, rotate
from jobs.server_process import ServerProcess, serving
from retrieval.client import Client
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import load_model

COLLECTION = "bench"
K = 10
MODES = ("hybrid", "dense", "lexical")
BATCH = 200  # documents of one request
JUDGED = 100  # queries that recall is counted over
LOAD_ROUNDS, LOAD_TURN = 3, 400  # queries of each service; peers, which are slower, get a quarter
BASE = "nearline hybrid"


@dataclass(frozen=True)
class Plan:
    """`hot`: passages kept in the hot tier, None for a tenth; `against`: another checkout."""

    passages: int = 100_000
    hot: int | None = None
    queries: int = 1000
    clients: int = 16
    peers: bool = True
    against: Path | None = None


class OverHttp(Engine):
    """A running service, asked over kept connections."""

    def __init__(self, url: str, pid: int) -> None:
        self._address, self._pid = url.removeprefix("http://"), pid

    def open(self) -> None:
        self._local = threading.local()

    def pid(self) -> int:
        return self._pid

    def post(self, path: str, body: object) -> Any:
        """The decoded answer. Each thread has a connection of its own."""
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection(self._address, timeout=600)
        connection: http.client.HTTPConnection = self._local.connection
        connection.request("POST", path, msgspec.json.encode(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise NearlineError(f"the service answered {answer.status}: {content[:200]!r}")
        return msgspec.json.decode(content)


class Search(OverHttp):
    """A query is a text, or fields of a search."""

    what = "POST /v1/collections/{collection}/search"

    def __init__(self, url: str, pid: int, mode: str) -> None:
        super().__init__(url, pid)
        self._mode = mode

    def ask(self, query: str | dict[str, Any]) -> list[int]:
        wanted = {"query": query} if isinstance(query, str) else query
        body = {"k": K, "mode": self._mode, **wanted}
        hits = self.post(f"/v1/collections/{COLLECTION}/search", body)["hits"]
        return [int(hit["document_id"]) for hit in hits]


class BareEmbedding(Engine):
    """The service's model alone: tokenizer and graph, one thread, nothing around them."""

    what = "the exported graph in a loop, 1 thread"

    def open(self) -> None:
        self._encoder = Encoder(load_model(model_folder()), threads=1)

    def ask(self, query: str | list[str]) -> Floats:
        return self._encoder.encode([query] if isinstance(query, str) else query, "query")


def run(material: Material, plan: Plan, scratch: Path, say: Say) -> Report:
    """Fill the services, start every engine, let them take turns."""
    with ExitStack() as stack:
        services: dict[str, ServerProcess] = {}
        hot = plan.passages // 10 if plan.hot is None else plan.hot
        settings: dict[str, Any] = asdict(plan) | {
            "hot": hot,
            "k": K,
            "turn": TURN,
            "commit": commit(Path.cwd()),
        }
        checkouts: dict[str, Path | None] = {"nearline": None}
        if plan.against:
            checkouts["against"] = plan.against
            settings["against"] = commit(plan.against)
        for name, checkout in checkouts.items():
            services[name] = stack.enter_context(filled(material, hot, scratch / name, checkout, say))
        makers: dict[str, Any] = {
            f"{name} {mode}": partial(Search, server.url, server.pid, mode)
            for name, server in services.items()
            for mode in MODES
        }
        makers["bare embedding"] = BareEmbedding
        folder = material.folder
        if plan.peers:
            makers["sentence-transformers + qdrant-edge"] = partial(SentenceTransformers, QdrantEdge(folder))
            makers["sentence-transformers + hnswlib"] = partial(SentenceTransformers, Hnswlib(folder))
            makers["sentence-transformers + hnswlib + bm25s"] = partial(
                SentenceTransformers, Hnswlib(folder), Bm25s(folder, plan.passages)
            )
        workers, notes = start(makers, stack, say)
        tables = measure(material, plan, workers, say)
    notes.append("CPU ms: processor time of the service or of the peer's process. Ratios: median over turns.")
    return Report(bench="service", settings=settings, tables=tables, notes=notes)


def start(makers: dict[str, Any], stack: ExitStack, say: Say) -> tuple[dict[str, Worker], list[str]]:
    """A worker for each engine that can be opened, and why the others cannot."""
    workers, notes = {}, []
    for name, make in makers.items():
        say(f"starting {name} ...")
        # PyTorch chooses its own number of threads.
        own = name.startswith("sentence-transformers")
        try:
            workers[name] = Worker(make, {"OMP_WAIT_POLICY": "PASSIVE"} if own else SINGLE)
        except NearlineError as error:
            notes.append(f"{name} is left out: {error.message}")
            continue
        stack.callback(workers[name].close)
    return workers, notes


def measure(material: Material, plan: Plan, workers: dict[str, Worker], say: Say) -> dict[str, list[Row]]:
    fresh = iter(material.queries)
    rounds = max(plan.queries // TURN, 1)
    asked = {mode: [take(fresh, TURN) for _ in range(rounds + 1)] for mode in MODES}

    def mode_of(name: str) -> str:
        return name.rsplit(maxsplit=1)[-1] if name.rsplit(maxsplit=1)[-1] in MODES else "hybrid"

    for name, worker in workers.items():  # reads what is mapped, fills what is kept
        worker.run(asked[mode_of(name)][rounds])
    say(f"{rounds} turns of {TURN} queries, {len(workers)} engines ...")
    runs = rotate(workers, rounds, lambda name, number: asked[mode_of(name)][number])
    judged = asked["hybrid"][0] + asked["hybrid"][-1]
    rows: list[Row] = []
    for name, worker in workers.items():
        found = figures(runs[name])
        rate = found.pop("queries/s")
        row: Row = {"text to ten passages, 1 client": name, "recall@10": None, **found}
        row["p50 / hybrid"] = p50_ratio(runs[name], runs[BASE])
        row["own MiB"], row["mapped MiB"] = (worker.memory()[part] >> 20 for part in ("own", "mapped"))
        row["queries/s"] = rate
        row["recall@10"] = judge(name, worker, material, judged[:JUDGED])
        rows.append(row)
    again = workers[BASE].run(asked["hybrid"][0])
    rows.append({"text to ten passages, 1 client": f"{BASE}, from the result cache", **figures([again])})
    tables = {"One client": rows}

    say(f"{plan.clients} clients ...")
    crowd = {
        name: worker
        for name, worker in workers.items()
        if mode_of(name) == "hybrid" and name != "bare embedding"
    }
    many = [take(fresh, LOAD_TURN) for _ in range(LOAD_ROUNDS)]
    loads = rotate(
        crowd,
        LOAD_ROUNDS,
        lambda name, number: many[number] if is_service(name) else many[number][: LOAD_TURN // 4],
        lambda name: plan.clients if is_service(name) else 2,
    )
    tables["Many clients"] = [
        {
            "searches at once": name,
            "clients": plan.clients if is_service(name) else "2 threads",
            **figures(loads[name]),
            "of ours": rate_ratio(loads[name], loads[BASE]),
        }
        for name in crowd
    ]
    return tables


def is_service(name: str) -> bool:
    return name.split(maxsplit=1)[0] in ("nearline", "against")


def judge(name: str, worker: Worker, material: Material, queries: Sequence[str]) -> float | None:
    """Recall@10 of dense answers against an exact search with the engine's own query vectors; of a service's hybrid
    ones against its exact dense and its lexical ranking, fused. None for what is exact, or finds nothing."""
    answers: list[list[int]]
    if name.endswith(("bm25s", "bare embedding", "lexical")):
        return None
    if not is_service(name):
        vectors = worker.ask("embed", list(queries))
        answers = worker.run(queries).answers
        return recall(answers, material.vectors, vectors, best_scores(material.vectors, vectors, K))
    deep = {"k": CANDIDATES, "cache": False}
    exact = worker.run(
        [{"query": query, **deep, "mode": "dense", "exact": True} for query in queries]
    ).answers
    if name.endswith("dense"):
        answers, true = worker.run(queries).answers, exact
    else:
        lexical = worker.run([{"query": query, **deep, "mode": "lexical"} for query in queries]).answers
        true = [fused(both) for both in zip(exact, lexical)]
        by_rank = {"fusion": {"method": "rrf", "k": RRF_K}}
        answers = worker.run([{"query": query, **by_rank} for query in queries]).answers
    shares = [len(set(found) & set(best[:K])) / max(len(best[:K]), 1) for found, best in zip(answers, true)]
    return round(float(np.mean(shares)), 4)


def take(fresh: Iterator[str], wanted: int) -> list[str]:
    taken = list(islice(fresh, wanted))
    if len(taken) < wanted:
        raise NearlineError("there are not enough different queries; measure fewer, or on more texts")
    return taken


def filled(
    material: Material, hot: int, data: Path, checkout: Path | None, say: Say
) -> AbstractContextManager[ServerProcess]:
    """A fresh process of the service on all texts, with their vectors, after a rebuild by another one."""
    models = {
        "NEARLINE_MODELS_FOLDER": str(model_folder().parent),
        "NEARLINE_MODELS_DEFAULT": model_folder().name,
    }
    whole = {
        "NEARLINE_INDEX_DELTA_PASSAGES_MAX": str(len(material.texts) + 1),
        "NEARLINE_INDEX_SEGMENTS_MAX": "0",
    }
    with serving(data, models | whole, checkout) as server:
        say(f"filling the service of {checkout or 'this checkout'} ...")
        asyncio.run(fill(server.url, material, hot))
    for file in data.rglob("*"):  # what it is about to map
        if file.is_file():
            file.read_bytes()
    return serving(data, models, checkout)


async def fill(url: str, material: Material, hot: int) -> None:
    async with Client(url) as client:
        await client.create_collection(COLLECTION, hot_capacity=hot)
        for start in range(0, len(material.texts), BATCH):
            rows = range(start, min(start + BATCH, len(material.texts)))
            documents = [
                {"id": str(row), "text": material.texts[row], "vector": material.vectors[row].tolist()}
                for row in rows
            ]
            await client.write(COLLECTION, documents)
        await client.finished(await client.reindex(COLLECTION))


def commit(checkout: Path) -> str:
    asked = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return found.stdout.strip() or checkout.name
