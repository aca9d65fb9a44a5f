"""Ranking quality on real questions, through the HTTP API of a real service, before and after a rebuild."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jobs.evaluation.asking import Asker
from jobs.evaluation.rankings import NDCG, SEARCHES, score_queries
from jobs.ingestion.ingesting import ingest
from jobs.serving.process import ServerProcess, serving
from jobs.sources import read_documents
from jobs.sources.judgments import Judgment, TextQuery, read_judgments, read_queries
from nearline import AsyncClient
from tests.support.http import Http

QUESTIONS = 500
OTHERS = 4  # of so many passages that answer none of the questions, one is there too
DOCUMENTS, HOT = 3740, 1400

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chosen(shared_data: Path) -> list[TextQuery]:
    return random.Random(0).sample(read_queries(shared_data / "squad-sent" / "queries.jsonl.gz"), QUESTIONS)


@pytest.fixture(scope="module")
def judgments(shared_data: Path) -> list[Judgment]:
    return read_judgments(shared_data / "squad-sent" / "qrels.tsv")


@pytest.fixture(scope="module")
def squad(
    tmp_path_factory: pytest.TempPathFactory,
    model_folder: Path,
    shared_data: Path,
    chosen: list[TextQuery],
    judgments: list[Judgment],
) -> Iterator[ServerProcess]:
    """Passages of squad-sent: all that answer a question, and every fourth of the others."""
    asked = {query.id for query in chosen}
    answers = {one.document for one in judgments if one.query in asked}
    every = read_documents([shared_data / "squad-sent" / "corpus.jsonl.gz"])
    documents = (one for at, one in enumerate(every) if one.id in answers or at % OTHERS == 0)

    async def fill(url: str) -> None:
        async with AsyncClient(url) as client:
            await client.create_collection("squad", hot_capacity=HOT)
            done = await ingest(client, "squad", documents, lambda *_: None, requests=1)
            assert done.documents == DOCUMENTS

    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_INDEX_SEGMENTS_MAX": "0"}
    with serving(tmp_path_factory.mktemp("quality") / "data", environ) as server:
        # One request after the other: which passages are the newest, and so hot, must not differ from run to run.
        asyncio.run(fill(server.url))
        yield server


@pytest.fixture(scope="module")
def rankings(
    squad: ServerProcess, chosen: list[TextQuery], judgments: list[Judgment]
) -> dict[str, dict[str, float]]:
    """nDCG@10 of each kind of search over random questions, before the rebuild and after it."""

    async def measure() -> dict[str, float]:
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
    """Rank fusion reaches .84 and weighted fusion .86, each at least .02 above dense and BM25 alone."""
    scores = rankings[when]
    assert scores["hybrid rrf"] >= 0.84, scores
    assert scores["hybrid weighted"] >= 0.86, scores
    alone = max(scores["dense"], scores["lexical"])
    assert min(scores["hybrid rrf"], scores["hybrid weighted"]) >= alone + 0.02, scores


def test_a_rebuild_costs_no_quality(rankings: dict[str, dict[str, float]]) -> None:
    """With more than half of the passages cold, every score is within .01 of what it was."""
    assert rankings["before"] == pytest.approx(rankings["after"], abs=0.01)


def test_most_passages_are_cold(squad: ServerProcess, rankings: object) -> None:
    """The rebuild kept 1,400 hot and moved all others, more than half, to the cold tier."""
    passages = Http(squad.url).ok("GET", "/v1/collections/squad")["passages"]
    assert (passages["delta"], passages["hot"]) == (0, HOT)
    assert passages["cold"] >= DOCUMENTS - HOT
