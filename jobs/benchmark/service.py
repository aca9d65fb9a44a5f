"""Measures text to ten passages over HTTP, against in-process stacks of other libraries and another checkout.

Every query is fresh: no engine sees one twice, so no cache holds its answer or its vector.
"""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from indexes.base.errors import InvalidInput, NearlineError
from indexes.base.model import Floats
from jobs.benchmark import peers as others
from jobs.benchmark.callers import post
from jobs.benchmark.peers import SentenceTransformers, VectorIndex, fuse
from jobs.benchmark.report import BenchResults, Row, Say
from jobs.benchmark.texts import Material, batches, best_scores, model_folder, model_settings, overlap, recall
from jobs.benchmark.turns import TURN, Engine, Worker, figures, rotate, start
from jobs.serving.process import ServerProcess, serving
from nearline import AsyncClient
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import load_model

COLLECTION = "bench"
SEARCH, DOCUMENTS = (f"/v1/collections/{COLLECTION}/{path}" for path in ("search", "documents"))
K = 10
MODES = ("hybrid", "dense", "lexical")
BATCH = 200  # documents per request
CLIENTS = 16
LOAD_ROUNDS = 3
LOAD_TURN = 400  # queries per service at most; peers, which are slower, get a quarter
OURS, BARE, PEER = "nearline hybrid", "bare embedding", "sentence-transformers"


class OverHttp(Engine):
    """A running service. Clients keep a connection for one turn only: the service closes idle ones between turns."""

    def __init__(self, url: str, pid: int) -> None:
        self._address, self._pid = url.removeprefix("http://"), pid

    def open(self) -> None:
        pass

    def expect(self, clients: int) -> None:
        self._local = threading.local()

    def pid(self) -> int:
        return self._pid

    def post(self, path: str, body: object) -> Any:
        """The decoded response. Raises NearlineError for any status but 200."""
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPConnection(self._address, timeout=600)
        connection: http.client.HTTPConnection = self._local.connection
        connection.request("POST", path, msgspec.json.encode(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise NearlineError(f"the service answered {answer.status}: {content[:200]!r}")
        return msgspec.json.decode(content)


class SearchEngine(OverHttp):
    """A query is a text, or the fields of a search request."""

    def __init__(self, url: str, pid: int, mode: str) -> None:
        super().__init__(url, pid)
        self._mode = mode

    def ask(self, query: str | dict[str, Any]) -> list[int]:
        wanted = {"query": query} if isinstance(query, str) else query
        body = {"k": K, "mode": self._mode, **wanted}
        return [int(hit["document_id"]) for hit in self.post(SEARCH, body)["hits"]]


class BareEmbedding(Engine):
    """The service's model alone: tokenizer and graph, on one thread."""

    def open(self) -> None:
        self._encoder = Encoder(load_model(model_folder()), threads=1)

    def ask(self, query: str | list[str]) -> Floats:
        return self._encoder.encode([query] if isinstance(query, str) else query, "query")


def run(
    material: Material, scratch: Path, say: Say, *, queries: int, peers: bool, against: Path | None
) -> BenchResults:
    """Compare the service with its peers, and with `against`, another checkout. A tenth of the passages is hot."""
    checkouts = {"nearline": None} | ({"against": against} if against else {})
    hot = len(material.texts) // 10
    makers: dict[str, Any] = {}
    with ExitStack() as stack:
        for name, checkout in checkouts.items():
            server = stack.enter_context(
                fill_service(material, scratch / name, say, hot=hot, checkout=checkout)
            )
            for mode in MODES:
                makers[f"{name} {mode}"] = partial(SearchEngine, server.url, server.pid, mode)
        makers[BARE] = BareEmbedding
        if peers:
            folder = material.folder
            graph, edge = VectorIndex(folder, others.hnswlib), VectorIndex(folder, others.qdrant_edge)
            words = others.Bm25Index(folder, others.bm25s, len(material.texts))
            makers[f"{PEER} + qdrant-edge"] = partial(SentenceTransformers, edge)
            makers[f"{PEER} + hnswlib"] = partial(SentenceTransformers, graph)
            makers[f"{PEER} + hnswlib + bm25s"] = partial(SentenceTransformers, graph, words)
        workers, notes = start(makers, stack, say)
        fresh = iter(material.queries)
        tables = {"Text to ten passages": one_client(material, queries, workers, fresh, say)}
        tables["Many at once"] = many_clients(min(LOAD_TURN, queries), workers, fresh, say)
    notes += [
        others.NOTE,
        "Recall of hybrid answers: against exact dense and BM25 rankings, fused by rank. A tenth of the texts is hot.",
    ]
    return BenchResults(tables, notes)


def one_client(
    material: Material, queries: int, workers: dict[str, Worker], fresh: Iterator[str], say: Say
) -> list[Row]:
    rounds = max(queries // TURN, 1)
    # Each mode has its own queries: hybrid and dense searches of one text would share its cached vector.
    asked = {mode: [take(fresh, TURN) for _ in range(rounds + 1)] for mode in MODES}
    mode_of = {name: name.split()[-1] if name.endswith(MODES) else "hybrid" for name in workers}
    for name, worker in workers.items():  # warms up
        worker.run(asked[mode_of[name]][-1])
    say(f"{rounds} turns of {TURN} queries, {len(workers)} engines ...")
    runs = rotate(workers, range(rounds), lambda name, at: asked[mode_of[name]][at])
    rows: list[Row] = []
    for name, worker in workers.items():
        row: Row = {"engine": name, **figures(runs[name], runs[OURS]), **worker.call("memory")}
        rows.append(row | {"recall@10": judge(name, worker, material, asked["hybrid"][0])})
    bare = next(row["CPU ms"] for row in rows if row["engine"] == BARE)
    for row in rows:
        row["x CPU of bare"] = round(row["CPU ms"] / bare, 2)
    again = [workers[OURS].run(part) for part in asked["hybrid"][:5]]
    return [*rows, {"engine": f"{OURS}, from the result cache", **figures(again, runs[OURS])}]


def many_clients(turn: int, workers: dict[str, Worker], fresh: Iterator[str], say: Say) -> list[Row]:
    """Run services under CLIENTS concurrent clients, and peers on two threads that embed single-threaded."""
    say(f"{CLIENTS} clients ...")
    services = {name: CLIENTS for name in workers if name.endswith("hybrid")}
    clients = services | {name: 2 for name in workers if name.startswith(PEER)}
    runs = rotate(
        {name: workers[name] for name in clients},
        [take(fresh, turn) for _ in range(LOAD_ROUNDS)],
        lambda name, queries: queries if name in services else queries[: turn // 4],
        clients,
    )
    return [
        {"engine": name, "clients": clients[name], **figures(own, runs[OURS])} for name, own in runs.items()
    ]


def judge(name: str, worker: Worker, material: Material, queries: Sequence[str]) -> float | None:
    """Recall@10: a peer's dense answers against its own query vectors, a service's against its exact rankings. None
    for other engines."""
    if name.startswith(PEER) and not name.endswith("bm25s"):
        vectors = worker.call("embed", queries)
        best = best_scores(material.vectors, vectors, K)
        return recall(worker.run(queries).answers, material.vectors, vectors, best)
    if not name.endswith(("hybrid", "dense")):
        return None

    def answers(**wanted: Any) -> list[list[int]]:
        return worker.run([{"query": query, "cache": False, **wanted} for query in queries]).answers

    true = answers(mode="dense", exact=True, k=others.CANDIDATES)
    options: dict[str, Any] = {}
    if name.endswith("hybrid"):
        true = [fuse(both) for both in zip(true, answers(mode="lexical", k=others.CANDIDATES))]
        options["fusion"] = {"method": "rrf", "k": others.RRF_K}
    return overlap(answers(**options), [best[:K] for best in true])


def take(fresh: Iterator[str], wanted: int) -> list[str]:
    taken = list(islice(fresh, wanted))
    if len(taken) < wanted:
        raise InvalidInput("there are not enough different queries; ask for fewer", param="queries")
    return taken


def search_request(query: str, **wanted: Any) -> bytes:
    return post(SEARCH, msgspec.json.encode({"query": query, **wanted}))


def write_request(name: str, text: str) -> bytes:
    return post(DOCUMENTS, msgspec.json.encode({"documents": [{"id": name, "text": text}]}))


def fill_service(
    material: Material,
    data: Path,
    say: Say,
    *,
    hot: int = 0,
    checkout: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> AbstractContextManager[ServerProcess]:
    """Write and rebuild all texts in one process, and return a context that serves them from a fresh one.

    `environ` adds settings.
    """
    models = model_settings(model_folder())
    # Everything in one delta: no segments, and no rebuilds before the explicit one.
    most = str(len(material.texts) + 1)
    whole = {"NEARLINE_INDEX_DELTA_PASSAGES_MAX": most, "NEARLINE_INDEX_SEGMENTS_MAX": "0"}
    with serving(data, models | whole, checkout) as server:
        say(f"filling the service of {checkout or 'this checkout'} ...")
        asyncio.run(fill(server.url, material, hot))
    return serving(data, {**models, **(environ or {})}, checkout)


async def fill(url: str, material: Material, hot: int, **settings: Any) -> None:
    """Write every text with its vector, then rebuild. `settings` are of the collection."""
    async with AsyncClient(url) as client:
        await client.create_collection(COLLECTION, hot_capacity=hot, **settings)
        for rows in batches(len(material.texts), BATCH):
            documents = [
                {"id": str(row), "text": material.texts[row], "vector": material.vectors[row]} for row in rows
            ]
            await client.write(COLLECTION, documents)
        await client.finished(await client.reindex(COLLECTION))
