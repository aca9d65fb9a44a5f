"""Ranking quality and recall on real questions, through the HTTP API of a real service, before and after a rebuild."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from indexes.log.reader import LogReader
from jobs.evaluation.asking import Asker
from jobs.evaluation.rankings import NDCG, SEARCHES, score_queries
from jobs.evaluation.recall import TIE
from jobs.ingestion.ingesting import ingest
from jobs.serving.process import ServerProcess, serving
from jobs.sources import read_documents
from jobs.sources.judgments import read_judgments, read_queries
from nearline import AsyncClient
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import load_model
from tests.support.http import Http

QUESTIONS = 500
SCIFACT_DOCUMENTS = 250
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quality") / "data"


@pytest.fixture(scope="module")
def squad(data: Path, model_folder: Path, shared_data: Path) -> Iterator[ServerProcess]:
    """squad-sent, 13,447 passages, of which 5,000 will be hot after a rebuild."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_INDEX_SEGMENTS_MAX": "0"}
    with serving(data, environ) as server:
        # One request after the other: which passages are the newest, and so hot, must not differ from run to run.
        asyncio.run(fill(server.url, shared_data / "squad-sent" / "corpus.jsonl.gz"))
        yield server


async def fill(url: str, corpus: Path) -> None:
    async with AsyncClient(url) as client:
        await client.create_collection("squad", hot_capacity=5000)
        done = await ingest(client, "squad", read_documents([corpus]), lambda *_: None, requests=1)
        assert done.documents == 13_447


@pytest.fixture(scope="module")
def rankings(squad: ServerProcess, shared_data: Path) -> dict[str, dict[str, float]]:
    """nDCG@10 of each kind of search over 500 random questions, before the rebuild and after it."""

    async def measure() -> dict[str, float]:
        questions = read_queries(shared_data / "squad-sent" / "queries.jsonl.gz")
        chosen = random.Random(0).sample(questions, QUESTIONS)
        judgments = read_judgments(shared_data / "squad-sent" / "qrels.tsv")
        async with AsyncClient(squad.url) as client:
            asker = Asker(client, "squad")
            values = {
                name: (await score_queries(asker, name, chosen, judgments, NDCG, k=10, **search))["ndcg@10"]
                for name, search in SEARCHES.items()
            }
        return {name: float(np.mean(each)) for name, each in values.items()}

    before = asyncio.run(measure())
    job = Http(squad.url).reindex("squad")
    assert job["status"] == "succeeded", job
    return {"before": before, "after": asyncio.run(measure())}


@pytest.mark.parametrize("when", ["before", "after"])
def test_hybrid_beats_both_of_its_parts(rankings: dict[str, dict[str, float]], when: str) -> None:
    """Rank fusion reaches .76 and weighted fusion .78, each at least .03 above dense and BM25 alone."""
    scores = rankings[when]
    assert scores["hybrid rrf"] >= 0.76, scores
    assert scores["hybrid weighted"] >= 0.78, scores
    alone = max(scores["dense"], scores["lexical"])
    assert min(scores["hybrid rrf"], scores["hybrid weighted"]) >= alone + 0.03, scores


def test_a_rebuild_costs_no_quality(rankings: dict[str, dict[str, float]]) -> None:
    """With more than half of the passages cold, every score is within .01 of what it was."""
    assert rankings["before"] == pytest.approx(rankings["after"], abs=0.01)


def test_most_passages_are_cold(squad: ServerProcess, rankings: object) -> None:
    """The rebuild kept 5,000 hot and moved all others, more than half, to the cold tier."""
    passages = Http(squad.url).ok("GET", "/v1/collections/squad")["passages"]
    assert (passages["delta"], passages["hot"]) == (0, 5000)
    assert passages["cold"] >= 13_447 - 5000


@pytest.fixture(scope="module")
def scifact(squad: ServerProcess, shared_data: Path) -> None:
    """The first abstracts of scifact, of more passages than one, in a collection beside; 200 passages hot."""

    async def fill() -> None:
        documents = islice(read_documents([shared_data / "scifact" / "corpus.jsonl.gz"]), SCIFACT_DOCUMENTS)
        async with AsyncClient(squad.url) as client:
            await client.create_collection("scifact", hot_capacity=200)
            await ingest(client, "scifact", documents, lambda *_: None)

    asyncio.run(fill())
    job = Http(squad.url).reindex("scifact")
    assert job["status"] == "succeeded", job


@pytest.mark.parametrize(("name", "folder"), [("squad", "squad-sent"), ("scifact", "scifact")])
def test_evaluate_agrees_with_an_independent_count(
    squad: ServerProcess,
    rankings: object,
    scifact: None,
    data: Path,
    shared_data: Path,
    model_folder: Path,
    name: str,
    folder: str,
) -> None:
    """`nearline evaluate` prints the recall@10 that numpy counts over the log's vectors, to three decimals."""
    queries_file = shared_data / folder / "queries.jsonl.gz"
    command = [sys.executable, "-m", "jobs.cli", "evaluate", "--url", squad.url, "-c", name, "--json"]
    command += ["--queries", str(queries_file), "--sample", "100", "--seed", "5", "--recall-floor", "0.9"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    recalls = {one["name"]: one["recall"] for one in json.loads(ended.stdout)["cohorts"]}
    assert {"hot", "cold"} <= set(recalls)
    assert "delta" not in recalls
    chosen = random.Random(5).sample(read_queries(queries_file), 100)
    counted = recall_by_numpy(
        Http(squad.url), name, data / name / "log.db", model_folder, [query.text for query in chosen]
    )
    assert recalls["overall"] == pytest.approx(counted, abs=0.0005 + 1e-9)
    if name == "squad":
        assert recalls["overall"] >= 0.98


def recall_by_numpy(http: Http, name: str, path: Path, model_folder: Path, texts: list[str]) -> float:
    """Recall@10 of dense search against all vectors of the log, by passage."""
    log = LogReader(path)
    blocks = list(log.vectors(0, log.position().last_passage))
    ids = np.concatenate([block[0] for block in blocks])
    vectors = np.concatenate([block[1] for block in blocks])
    places = {one: (stored.document_id, stored.ordinal) for one, stored in log.passages(ids.tolist()).items()}
    log.close()
    encoder = Encoder(load_model(model_folder), threads=1)
    found = 0
    for text in texts:
        scores = vectors @ encoder.encode([text], "query")[0]
        order = np.argsort(-scores)
        # Passages that score as the tenth does, within what float16 moves a score, are as good as it.
        best = [one for one in order[:50] if scores[one] >= scores[order[9]] - TIE]
        hits = http.search(name, query=text, mode="dense", cache=False)["hits"]
        found += min(
            10,
            len(
                {places[int(ids[one])] for one in best}
                & {(hit["document_id"], hit["passage"]) for hit in hits}
            ),
        )
    return found / (10 * len(texts))


def test_evaluate_fails_below_a_floor(squad: ServerProcess, rankings: object, shared_data: Path) -> None:
    """Exit code 1, and the line that says which floor was missed."""
    command = [sys.executable, "-m", "jobs.cli", "evaluate", "--url", squad.url, "-c", "squad"]
    command += ["--sample", "20", "--queries", str(shared_data / "squad-sent" / "queries.jsonl.gz")]
    command += ["--qrels", str(shared_data / "squad-sent" / "qrels.tsv"), "--ndcg-floor", "0.999"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.returncode == 1
    assert "ndcg@10 hybrid" in ended.stdout
