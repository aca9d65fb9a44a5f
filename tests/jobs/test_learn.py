"""`nearline learn`: what it learns from judgments and clicks, and that chance teaches it nothing."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from indexes.base.errors import InvalidInput
from jobs.commands.learn import command, learn_and_adopt, show
from jobs.evaluation.learning import CHOICES, from_feedback, held_out_gains, mean_interval, usable_queries
from jobs.serving.process import ServerProcess
from jobs.sources.judgments import Judgment, TextQuery
from tests.support.http import Http

QUERIES, DECOYS = 26, 3
BY_WORDS = {"method": "weighted", "weight_dense": 0.2}
DENSE = [-4.0, 3.0, 0.0, 8.0, 0.0, 0.1, 0.5]  # coefficients that learning for hybrid search leaves alone
WORDS = (
    "harbour",
    "quarry",
    "orchard",
    "library",
    "glacier",
    "market",
    "mill",
    "lantern",
    "violin",
    "compass",
)


def learn(*arguments: object) -> Result:
    """The command in this process: to start Python each time would take longer than to learn."""
    return CliRunner().invoke(command, [str(one) for one in arguments])


def query(number: int) -> str:
    first, second, third = random.Random(number).sample(WORDS, 3)
    return f"{first} {second} {third} number {number}"


@pytest.fixture
def misleading(http: Http) -> str:
    """Each query's words stand in documents that do not answer it; the one that does lies where the query does. The
    ranking goes by words, so that what is learned does not depend on the configuration."""
    name = http.new_collection()
    texts = [query(number) for number in range(QUERIES)]
    reply = http.ok("POST", "/v1/embeddings", {"model": "all-MiniLM-L6-v2", "input": texts})
    chance = np.random.default_rng(1)
    for number, one in enumerate(reply["data"]):
        vector = np.array(one["embedding"])
        near = vector + 0.6 * chance.normal(size=len(vector)) / np.sqrt(len(vector))
        answer = {"id": f"answer {number}", "text": "The page itself.", "vector": near.tolist()}
        far = chance.normal(size=(DECOYS, len(vector)))
        decoys = [
            {
                "id": f"decoy {number} {at}",
                "text": f"{texts[number]}: {WORDS[at]}",
                "vector": far[at].tolist(),
            }
            for at in range(DECOYS)
        ]
        http.write(name, answer, *decoys)
    http.ok(
        "PUT", f"/v1/collections/{name}/ranking", {**BY_WORDS, "coefficients": {"relevance.dense": DENSE}}
    )
    return name


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    path = tmp_path / "queries.jsonl"
    path.write_text("".join(json.dumps({"id": f"q{n}", "text": query(n)}) + "\n" for n in range(QUERIES)))
    return path


def qrels(folder: Path, about: dict[int, str]) -> Path:
    path = folder / "qrels.tsv"
    path.write_text("".join(f"q{number}\t{document}\t1\n" for number, document in about.items()))
    return path


def first_hits(http: Http, name: str) -> list[str]:
    return [http.found(name, query=query(number), k=1)[0] for number in range(QUERIES)]


def ranking_of(http: Http, name: str) -> Any:
    return http.ok("GET", f"/v1/collections/{name}")["ranking"]


@pytest.mark.slow
@pytest.mark.model
def test_words_that_mislead_lose_their_weight(
    service: ServerProcess, http: Http, misleading: str, queries: Path, tmp_path: Path
) -> None:
    """Learned from judgments, adopted with its evidence, used at once, not adopted twice, and reset."""
    answers = [f"answer {number}" for number in range(QUERIES)]
    judgments = qrels(tmp_path, dict(enumerate(answers)))
    to = ["--url", service.url, "-c", misleading, "--rate", "10000"]
    assert not set(first_hits(http, misleading)) & set(answers)
    report = json.loads(learn(*to, "--queries", queries, "--qrels", judgments, "--dry-run", "--json").stdout)
    assert (report["adopted"], report["reason"]) == (False, "a dry run")
    assert ranking_of(http, misleading)["weight_dense"] == 0.2
    ended = learn(*to, "--queries", queries, "--qrels", judgments, "--relevance")
    assert ended.exit_code == 0, ended.output
    assert "relevance: adopted" in " ".join(ended.stdout.split())
    assert "ranking: adopted; the gain on held-out queries is beyond chance" in " ".join(ended.stdout.split())
    ranking = ranking_of(http, misleading)
    assert (ranking["method"], ranking["queries"]) == ("weighted", QUERIES)
    assert ranking["weight_dense"] > 0.2
    assert ranking["coefficients"]["relevance.dense"] == DENSE
    assert len(ranking["coefficients"]["relevance.hybrid"]) == 7
    assert 0 < ranking["gain_low"] <= ranking["gain"] <= ranking["gain_high"]
    assert first_hits(http, misleading) == answers
    again = json.loads(learn(*to, "--queries", queries, "--qrels", judgments, "--json").stdout)
    assert (again["adopted"], again["before"]) == (False, ranking)
    assert again["ndcg@10_before"] == again["ndcg@10"]
    assert learn(*to, "--reset").exit_code == 0
    assert ranking_of(http, misleading) is None


@pytest.mark.slow
@pytest.mark.model
def test_clicks_teach_too(service: ServerProcess, http: Http, misleading: str) -> None:
    """From feedback alone; what is said about documents that are deleted since is left out."""
    clicks = [
        {"query": query(n), "document_id": f"answer {n}", "shown": [f"decoy {n} 0", f"answer {n}"]}
        for n in range(QUERIES)
    ]
    http.ok("POST", f"/v1/collections/{misleading}/feedback", {"feedback": clicks})
    to = ["--url", service.url, "-c", misleading, "--rate", "10000", "--json"]
    gone = [f"answer {number}" for number in range(QUERIES - 22)]
    http.ok("POST", f"/v1/collections/{misleading}/documents/delete", {"ids": gone})
    report = json.loads(learn(*to).stdout)
    assert (report["source"], report["queries"], report["adopted"]) == ("feedback", 22, True)
    assert ranking_of(http, misleading)["weight_dense"] > 0.2
    more = {"ids": [f"answer {number}" for number in range(QUERIES - 22, QUERIES - 19)]}
    http.ok("POST", f"/v1/collections/{misleading}/documents/delete", more)
    report = json.loads(learn(*to).stdout)
    assert report["reason"] == "19 queries have a relevant document, 20 are needed"


@pytest.mark.slow
@pytest.mark.model
def test_random_judgments_change_nothing(
    service: ServerProcess, http: Http, misleading: str, queries: Path, tmp_path: Path
) -> None:
    """Judgments that have nothing to do with the queries leave the ranking as it is, and say so."""
    chance = random.Random(5)
    about = {n: f"decoy {chance.randrange(QUERIES)} {chance.randrange(DECOYS)}" for n in range(QUERIES)}
    to = ["--url", service.url, "-c", misleading, "--rate", "10000"]
    ended = learn(*to, "--queries", queries, "--qrels", qrels(tmp_path, about))
    assert ended.exit_code == 0, ended.output
    assert "ranking: unchanged; the gain on held-out queries may be chance" in " ".join(ended.stdout.split())
    assert ranking_of(http, misleading)["weight_dense"] == 0.2


@pytest.mark.slow
@pytest.mark.model
def test_judgments_of_documents_that_are_not_there_are_refused(
    service: ServerProcess, http: Http, misleading: str, queries: Path, tmp_path: Path
) -> None:
    """Such judgments belong to another collection. Reporting that no choice is better would mislead."""
    judged = qrels(tmp_path, {number: f"elsewhere {number}" for number in range(QUERIES)})
    to = ["--url", service.url, "-c", misleading, "--rate", "10000"]
    ended = learn(*to, "--queries", queries, "--qrels", judged)
    assert isinstance(ended.exception, InvalidInput)
    assert "no search found any document that is judged relevant" in ended.exception.message


class Fake:
    """A service that ranks right where meaning weighs at least half, and whose model reads no question of an odd
    number. Keeps the searches that asked for evidence."""

    collection = "docs"

    def __init__(self) -> None:
        self.client = FakeClient()
        self.explained: list[Any] = []

    async def answers(self, stage: str, queries: list[TextQuery], **search: Any) -> AsyncIterator[Any]:
        right = search.get("fusion", {}).get("weights", {}).get("dense", 0.0) >= 0.5
        for at, one in enumerate(queries):
            hits = [hit(f"d{one.id}", 0.9)] if right else []
            hits += [hit(f"{one.id} {other}", 0.1) for other in range(11)]
            receipt = {"evidence_from": {"some": 0.1, "strong": 0.5}, "share_read": 0.2 if at % 2 else 1.0}
            if search.get("explain"):
                self.explained.append(search)
            yield one, {"hits": hits, "receipt": receipt}


class FakeClient:
    def __init__(self, ranking: Any = None) -> None:
        self.ranking = ranking

    async def collection(self, name: str) -> Any:
        return {"ranking": self.ranking}

    async def set_ranking(self, name: str, **settings: Any) -> None:
        self.ranking = settings

    async def reset_ranking(self, name: str) -> None:
        self.ranking = None


class FakeReader(Fake):
    """A service whose fusion does not matter, and whose reranker finds what is relevant if it is a good one."""

    def __init__(self, *, good: bool, ranking: Any) -> None:
        super().__init__()
        self.client, self._good = FakeClient(ranking), good

    async def answers(self, stage: str, queries: list[TextQuery], **search: Any) -> AsyncIterator[Any]:
        for at, one in enumerate(queries):
            first = search.get("rerank") is True and self._good and at % 3 > 0
            hits = [hit(f"{one.id} {other}", 0.1) for other in range(3)]
            hits.insert(0 if first else 2, hit(f"d{one.id}", 0.5))
            yield one, {"hits": hits, "receipt": {}}


BY_HAND: dict[str, Any] = {
    "method": "rrf",
    "weight_dense": None,
    "rerank": None,
    "coefficients": {},
    "queries": 0,
}
GAINED: dict[str, Any] = {"gain": None, "gain_low": None, "gain_high": None}


@pytest.mark.parametrize(
    ("good", "before", "after"),
    [
        (True, None, {"coefficients": {}, "rerank": True}),
        (True, {**BY_HAND, **GAINED}, {**BY_HAND, **GAINED, "rerank": True}),
        (False, None, None),
        (False, {**BY_HAND, **GAINED, "rerank": True}, {**BY_HAND, **GAINED}),
        (False, {**BY_HAND, **GAINED, "method": None, "rerank": True}, None),
    ],
)
def test_reranking_is_adopted_while_it_is_a_gain(good: bool, before: Any, after: Any, tmp_path: Path) -> None:
    """And ends when it gains nothing any more. The rest of the ranking stays as it was."""
    queries = [TextQuery(str(number), f"query {number}") for number in range(30)]
    (tmp_path / "queries").write_text(
        "".join(json.dumps({"id": one.id, "text": one.text}) + "\n" for one in queries)
    )
    (tmp_path / "qrels").write_text("".join(f"{one.id}\td{one.id}\t1\n" for one in queries))
    fake: Any = FakeReader(good=good, ranking=before)
    how: Any = {"relevance": False, "rerank": True, "adopt": True}
    report = asyncio.run(learn_and_adopt(fake, tmp_path / "queries", tmp_path / "qrels", 100, **how))
    kept = fake.client.ranking
    assert (kept and {**BY_HAND, **GAINED, "method": None, **kept}) == (
        after and {**BY_HAND, **GAINED, "method": None, **after}
    )
    assert report["rerank"]["adopted"] == good
    assert (report["rerank"]["gain_low"] > 0) == good
    show(report)


def hit(document: str, value: float) -> Any:
    names = ("meaning", "words", "meaning_lead", "words_lead")
    return {"document_id": document, "relevance": value, "evidence": dict.fromkeys(names, value)}


@pytest.mark.parametrize(("asked", "judged"), [(60, 30), (30, None)])
def test_relevance_is_learned_as_it_will_be_judged(asked: int, judged: int | None, tmp_path: Path) -> None:
    """By hybrid search with the ranking that is about to be adopted, from queries that the model reads, if enough."""
    queries = [TextQuery(str(number), f"query {number}") for number in range(asked)]
    (tmp_path / "queries").write_text(
        "".join(json.dumps({"id": one.id, "text": one.text}) + "\n" for one in queries)
    )
    (tmp_path / "qrels").write_text("".join(f"{one.id}\td{one.id}\t1\n" for one in queries))
    fake: Any = Fake()
    how: Any = {"relevance": True, "rerank": False, "adopt": False}
    report = asyncio.run(learn_and_adopt(fake, tmp_path / "queries", tmp_path / "qrels", 100, **how))
    assert len(fake.explained) == asked
    for search in fake.explained:
        assert (search["mode"], search["fusion"]["weights"]["dense"]) == ("hybrid", 0.5)
    assert report["relevance"].get("queries") == judged
    show(report)


def test_what_was_adopted_is_said_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    """If relevance alone is adopted, the ranking is unchanged, and not everything."""
    relevance = {"gain": 0.1, "gain_low": 0.05, "gain_high": 0.2, "adopted": True}
    show({"relevance": relevance, "adopted": False, "reason": "its gain on held-out queries may be chance"})
    said = " ".join(capsys.readouterr().out.split())
    assert "relevance: adopted; gain in log loss" in said
    assert said.endswith("ranking: unchanged; its gain on held-out queries may be chance")


def test_chance_is_seldom_adopted() -> None:
    """Where all choices rank equally well, 400 times on 40 queries, the lower bound is above 0 in 5 percent at most."""
    adopted = 0
    for seed in range(400):
        chance = np.random.default_rng(seed)
        places = np.exp(1.2 + 1.3 * correlated(chance, 40)).astype(int) + 1
        table = np.where(places <= 10, 1 / np.log2(1 + places), 0.0)
        adopted += mean_interval(held_out_gains(table, table[8], seed))[1] > 0
    assert adopted <= 20


def correlated(chance: np.random.Generator, count: int) -> Any:
    """[choices, count] of unit normals, each choice like its neighbors."""
    rows = [chance.normal(size=count)]
    for _ in CHOICES[1:]:
        rows.append(0.95 * rows[-1] + np.sqrt(1 - 0.95**2) * chance.normal(size=count))
    return np.array(rows)


def test_the_last_grade_counts_and_clicks_are_weighed() -> None:
    """Opened at least as often as passed over is relevant; a grade goes before any number of clicks."""

    def said(text: str, document: str, grade: int | None = None, *passed: str) -> dict[str, Any]:
        return {"query": text, "document_id": document, "grade": grade, "passed": list(passed)}

    queries, judgments = from_feedback(
        [
            said("a", "d1", 3),
            said("a", "d1", 1),
            said("a", "d1"),
            said("b", "d2", None, "d3"),
            said("b", "d3"),
            said("b", "d4", None, "d3", "d5"),
            said("c", "d6"),
            said("c", "d6", 0),
        ]
    )
    assert queries == [TextQuery("a", "a"), TextQuery("b", "b"), TextQuery("c", "c")]
    assert {(one.query, one.document): one.grade for one in judgments} == {
        ("a", "d1"): 1,
        ("b", "d2"): 1,
        ("b", "d3"): 0,
        ("b", "d4"): 1,
        ("c", "d6"): 0,
    }
    assert {one.id for one in usable_queries(queries, judgments, 10)} == {"a", "b"}
    assert (
        len(
            usable_queries(
                [TextQuery(str(n), "") for n in range(9)], [Judgment(str(n), "d", 1) for n in range(9)], 4
            )
        )
        == 4
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--qrels", "x"], "need each other"),
        (["--queries", "x"], "need each other"),
        (["--config", "x"], "--config needs --data"),
        (["--reset", "--dry-run"], "--reset goes alone"),
    ],
)
def test_options_that_need_others(arguments: list[str], words: str) -> None:
    """A wrong call says what is wrong."""
    ended = learn("-c", "docs", *arguments)
    assert ended.exit_code == 2
    assert words in " ".join(ended.stderr.split())


@pytest.mark.model
def test_judgments_of_other_queries(
    service: ServerProcess, http: Http, queries: Path, tmp_path: Path
) -> None:
    """Files that do not belong together are refused, naming the option."""
    other = tmp_path / "qrels.tsv"
    other.write_text("z1\td1\t1\n")
    ended = learn("--url", service.url, "-c", http.new_collection(), "--queries", queries, "--qrels", other)
    assert isinstance(ended.exception, InvalidInput)
    assert ended.exception.param == "qrels"
