"""`nearline evaluate` as an operator runs it: real text, a real service, numbers that numpy counts again."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from indexes.base.durable import with_checksum
from indexes.dense.cold import ColdSettings
from indexes.log.reader import LogReader
from indexes.parts.manifest import read_manifest
from indexes.parts.shelf import Shelf
from jobs.commands.evaluate import command
from jobs.evaluation.asking import Asker
from jobs.evaluation.recall import TIE
from jobs.evaluation.survey import make_filters, survey
from jobs.ingestion.rate_limiter import RateLimiter
from jobs.serving.process import ServerProcess, serving
from jobs.sources.judgments import read_queries
from nearline import AsyncClient
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import load_model
from tests.jobs.test_evaluate import check_page
from tests.support.commands import nearline
from tests.support.http import Http

SENTENCES, SEALED, HOT = 1500, 1300, 250  # the rest stays in the delta
LONG = 5
QUERIES, K = 60, 10
NAME = "squad"
FAST = ("--rate", "5000", "--json")

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Place:
    """A data directory that holds real sentences in all three tiers, and who serves it."""

    server: ServerProcess
    data: Path
    queries: Path
    qrels: Path
    environ: dict[str, str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, shared_data: Path) -> Iterator[Place]:
    """1,500 texts, the first five of several passages each: 250 passages hot, most cold, 200 in the delta; metadata for
    filters and tenants."""
    folder = shared_data / "squad-sent"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    data = tmp_path_factory.mktemp("evaluate") / "data"
    with serving(data, environ) as server:
        asyncio.run(fill(server.url, folder / "corpus.jsonl.gz"))
        yield Place(server, data, folder / "queries.jsonl.gz", folder / "qrels.tsv", environ)


async def fill(url: str, corpus: Path) -> None:
    with gzip.open(corpus, "rt") as lines:
        rows = [json.loads(next(lines)) for _ in range(SENTENCES)]
    rng = random.Random(0)
    for row in rows[:LONG]:
        row["text"] = " ".join(other["text"] for other in rng.sample(rows[LONG:], 40))
    documents = [
        {
            "id": row["id"], "text": row["text"], "title": row.get("title", ""),
            "metadata": {"number": number, "tenant": f"t{number % 4}", "tenth": number % 10 == 0},
        }
        for number, row in enumerate(rows)
    ]  # fmt: skip
    async with AsyncClient(url) as client:
        await client.create_collection(NAME, hot_capacity=HOT)
        for at in range(0, SEALED, 500):
            await client.write(NAME, documents[at : min(at + 500, SEALED)])
        await client.finished(await client.reindex(NAME))
        await client.write(NAME, documents[SEALED:])


@pytest.fixture(scope="module")
def server(place: Place) -> ServerProcess:
    return place.server


def evaluate(*arguments: object, environ: dict[str, str] | None = None) -> Result:
    """The command in this process: to start Python each time would take longer than to measure."""
    return CliRunner().invoke(command, [str(one) for one in arguments], env=environ, catch_exceptions=False)


def evaluated(*arguments: object, status: int = 0, environ: dict[str, str] | None = None) -> Any:
    """The report of an evaluation that ends with this exit code."""
    ended = evaluate("-c", NAME, *FAST, *arguments, environ=environ)
    assert ended.exit_code == status, ended.output
    return json.loads(ended.stdout)


def recalls(report: Any) -> dict[str, float]:
    return {one["name"]: one["recall"] for one in report["cohorts"]}


def counted_by_numpy(
    place: Place, server: ServerProcess, model_folder: Path, texts: list[str]
) -> dict[str, float]:
    """Recall overall, by tier, by age and by tenant: vectors from the log, tiers from the files of the generation."""
    log = LogReader(place.data / NAME / "log.db")
    blocks = list(log.vectors(0, log.position().last_passage))
    ids, vectors = np.concatenate([one[0] for one in blocks]), np.concatenate([one[1] for one in blocks])
    passages = log.passages(ids.tolist())
    log.close()
    keys = [(passages[int(one)].document_id, passages[int(one)].ordinal) for one in ids]
    tenants = np.array([passages[int(one)].metadata["tenant"] for one in ids])
    folder = Shelf(place.data / NAME).path(1)
    sealed, hot = np.load(folder / "ids.npy"), read_manifest(folder).hot
    tiers = np.where(np.isin(ids, sealed[:hot]), "hot", np.where(np.isin(ids, sealed[hot:]), "cold", "delta"))
    newest = np.arange(len(ids)) >= int(0.9 * len(ids))
    http = Http(server.url)
    encoder = Encoder(load_model(model_folder), threads=1)
    counts: dict[str, list[bool]] = defaultdict(list)
    for number, text in enumerate(texts):
        scores = vectors @ encoder.encode([text], "query")[0]
        found = http.search(NAME, query=text, mode="dense", k=K, cache=False)["hits"]
        returned = {(hit["document_id"], hit["passage"]) for hit in found}
        best = np.argsort(-scores)[:K]
        for at, there in zip(best, found_of(best, scores, keys, returned), strict=True):
            for cohort in ("overall", str(tiers[at]), "newest" if newest[at] else "older"):
                counts[cohort].append(there)
        for tenant in np.unique(tenants) if number < 50 else ():
            condition = {"type": "eq", "key": "tenant", "value": str(tenant)}
            found = http.search(NAME, query=text, mode="dense", k=K, cache=False, filter=condition)["hits"]
            returned = {(hit["document_id"], hit["passage"]) for hit in found}
            own = np.flatnonzero(tenants == tenant)
            best = own[np.argsort(-scores[own])[:K]]
            counts[f"tenant={tenant}"] += found_of(best, scores, keys, returned)
    return {cohort: float(np.mean(some)) for cohort, some in counts.items()}


def found_of(
    best: Any, scores: Any, keys: list[tuple[str, int]], returned: set[tuple[str, int]]
) -> list[bool]:
    """Which of the true neighbours were returned; another passage that scores as the last does may stand for it."""
    listed = {keys[at] for at in best}
    last = scores[best[-1]]
    equals = sum(
        scores[at] >= last - TIE for at, key in enumerate(keys) if key in returned and key not in listed
    )
    found = [keys[at] in returned for at in best]
    for place in reversed(range(len(best))):
        if equals and not found[place] and scores[best[place]] <= last + TIE:
            found[place], equals = True, equals - 1
    return found


@pytest.mark.slow
def test_it_agrees_with_an_independent_count(place: Place, server: ServerProcess, model_folder: Path) -> None:
    """Overall, by tier, by age and by tenant to three decimals; filters of each size were found and measured."""
    report = evaluated(
        "--url", server.url, "--queries", place.queries, "--sample", QUERIES, "--seed", 3, "--tenant-key", "tenant",
        "--recall-floor", "0.5",
    )  # fmt: skip
    measured = recalls(report)
    chosen = random.Random(3).sample(read_queries(place.queries), QUERIES)
    expected = counted_by_numpy(place, server, model_folder, [one.text for one in chosen])
    assert {"overall", "delta", "hot", "cold", "newest", "older", "tenant=t0", "tenant=t3"} <= set(expected)
    for cohort, recall in expected.items():
        assert measured[cohort] == pytest.approx(recall, abs=0.0005), cohort
    filters = {one["name"]: one for one in report["cohorts"] if one["kind"] == "filter"}
    assert 0.05 <= filters["filter-10"]["share"] <= 0.2
    assert 0.005 <= filters["filter-1"]["share"] <= 0.02
    assert 0.0005 <= filters["filter-0.1"]["share"] <= 0.002
    assert min(one["recall"] for one in filters.values()) >= 0.95
    assert all(one["low"] <= one["recall"] <= one["high"] for one in report["cohorts"])
    assert report["cold_skipped"] == 0
    assert report["latency_ms"]["dense"]["embed"]["p50"] > 0
    assert not report["changed_meanwhile"]
    assert not report["offline"]


def test_every_count_of_a_filter_waits_its_turn(server: ServerProcess) -> None:
    """What the service is asked for made-up filters is bounded like everything else."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def counted() -> int:
        async with AsyncClient(server.url) as client:
            found = await survey(Asker(client, NAME), set(), 0, 0)
            before = await client.metrics()
            asker = Asker(client, NAME, pace=RateLimiter(10, clock=lambda: 0.0, sleep=sleep))
            assert await make_filters(asker, found, 0.01, 0)
            return counts(await client.metrics()) - counts(before)

    def counts(metrics: str) -> int:
        samples = (one for family in text_string_to_metric_families(metrics) for one in family.samples)
        return sum(
            int(one.value)
            for one in samples
            if one.name == "nearline_http_requests_total" and one.labels["route"].endswith("/count")
        )

    asked = asyncio.run(counted())
    assert len(waits) + 1 == asked > 1


@pytest.mark.slow
def test_judgments_history_and_every_output(place: Place, server: ServerProcess, tmp_path: Path) -> None:
    """Documents that were judged and are not there are counted; the second night is compared with the first."""
    pytest.importorskip("matplotlib")
    arguments = [
        "--url", server.url, "--queries", place.queries, "--qrels", place.qrels, "--sample", 40, "--seed", 7,
        "--no-filters", "--history", tmp_path / "history", "--regression", "0.01", "--recall-floor", "0.5",
        "--out", tmp_path / "r.json", "--html", tmp_path / "r.html", "--prometheus", tmp_path / "r.prom",
    ]  # fmt: skip
    first = evaluated(*arguments)
    # The corpus has 13,447 sentences, of which a ninth is here: most of what was judged is missing.
    assert first["judged"] == 40
    assert first["judged_missing"] > 20
    found = 40 - first["judged_missing"]
    assert found > 5
    for scores in first["rankings"].values():
        ndcg, mrr, recall = (scores[name]["value"] for name in ("ndcg@10", "mrr@10", "recall@100"))
        assert 0 < ndcg <= recall <= found / 40
        assert mrr <= ndcg + 0.02
    small, large = (first["contexts"][budget]["value"] for budget in ("1000", "2000"))
    assert 0 < small <= large <= found / 40
    assert first["compared_with"] is None
    assert msgspec.json.decode((tmp_path / "r.json").read_bytes()) == first
    second = evaluated(*arguments)
    assert second["compared_with"] == first["time"]
    assert second["regressions"] == []
    assert len(list((tmp_path / "history").iterdir())) == 2
    page = check_page((tmp_path / "r.html").read_text())
    assert len(page.sections) == 5  # overall, rankings, contexts, relevance, latency
    names = {one.name for one in text_string_to_metric_families((tmp_path / "r.prom").read_text())}
    assert {
        "nearline_evaluate_recall",
        "nearline_evaluate_ranking",
        "nearline_evaluate_cold_skipped",
    } <= names
    # A history that was better than today's service can be: worse beyond chance, and exit code 1.
    better = json.loads(json.dumps(second))
    for one in better["cohorts"]:
        if one["name"] == "overall":
            one["recall"], one["low"], one["high"] = one["recall"] + 0.3, one["high"] + 0.2, 1.3
    (tmp_path / "history" / "squad-99990101T000000000Z.json").write_text(json.dumps(better))
    text = evaluate("-c", NAME, "--rate", "5000", *arguments)
    assert text.exit_code == 1
    assert "recall@10 overall fell" in " ".join(text.stdout.split())
    third = json.loads((tmp_path / "r.json").read_bytes())
    assert [one.partition(" fell")[0] for one in third["regressions"]] == ["recall@10 overall"]
    assert third["below"] == []


@pytest.mark.slow
def test_one_probe_is_seen_in_the_generation(place: Place, tmp_path: Path) -> None:
    """A generation whose settings probe one list only: recall falls in both of its tiers, not in the delta, and the
    exit code is 1."""
    data = tmp_path / "data"
    shutil.copytree(place.data, data)
    folder = Shelf(data / NAME).path(1)
    manifest = read_manifest(folder)
    assert manifest.search.probes > 1
    spoilt = msgspec.structs.replace(manifest, search=ColdSettings(probes=1, rescored=10))
    (folder / "manifest.json").write_bytes(with_checksum(spoilt))
    arguments = ["--queries", place.queries, "--sample", 60, "--no-filters", "--recall-floor", "0"]
    report = evaluated("--data", data, *arguments, "--floor", "cold=.9", status=1, environ=place.environ)
    measured = recalls(report)
    assert measured["cold"] < 0.8
    assert measured["hot"] < 0.8
    assert measured["delta"] == 1
    assert len(report["below"]) == 1
    assert "cold" in report["below"][0]
    evaluated("--data", data, *arguments, "--floor", "delta=.9", environ=place.environ)


@pytest.mark.slow
def test_without_a_service_it_takes_the_log_of_queries(place: Place, tmp_path: Path) -> None:
    """`--data` asks what a service with its log on was asked, with users' filters as a cohort, and leaves no trace.

    A filter that is refused by now is named, and the others are measured.
    """
    data = tmp_path / "data"
    shutil.copytree(place.data, data)
    condition = {"type": "eq", "key": "tenant", "value": "t1"}
    with serving(data, {**place.environ, "NEARLINE_QUERY_LOG_ENABLED": "true"}) as server:
        http = Http(server.url)
        for number in range(12):
            search = {"filter": condition} if number % 2 else {}
            http.search(NAME, query=f"question number {number} about history", **search)
        http.ok("PUT", "/v1/aliases/questions", {"collection": NAME})
    with (data / NAME / "queries.jsonl").open("a") as log:
        log.write('{"time_ms": 0, "query": "x", "k": null, "mode": null, "filter": {"type": "like"}}\n')
    before = {path.name for path in data.rglob("*")}
    hits = (data / NAME / "hits.msgpack").read_bytes()
    # So few questions are too few for a floor to mean anything.
    lenient = ("--data", data, "--recall-floor", "0.5")
    report = evaluated(*lenient, "--no-filters", environ=place.environ)
    assert (report["source"], report["queries"], report["offline"]) == ("query log", 13, True)
    assert "filter-logged" not in recalls(report)
    report = evaluated(*lenient, "-c", "questions", environ=place.environ)
    assert report["source"] == "query log"
    logged = next(one for one in report["cohorts"] if one["name"] == "filter-logged")
    assert logged["queries"] == 6
    refused = report["not_measured"]["filter-logged"]
    assert "a logged filter is refused" in refused
    assert "'like'" in refused
    assert {path.name for path in data.rglob("*")} ^ before <= {"log.db-wal", "log.db-shm"}
    # Measuring must not decide which passages the next rebuild keeps hot.
    assert (data / NAME / "hits.msgpack").read_bytes() == hits


def test_a_served_directory_is_refused(place: Place, server: ServerProcess, tmp_path: Path) -> None:
    """In one line that says what to do instead; so is a folder that is none. That says nothing of recall: code 2."""
    ended = evaluate("--data", place.data, "-c", NAME, environ=place.environ)
    assert ended.exit_code == 2
    assert f"(pid {server.pid}); use that service with --url" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    ended = evaluate("--data", tmp_path, "-c", NAME, environ=place.environ)
    assert (ended.exit_code, "is not a nearline data directory" in ended.stderr) == (2, True)
    assert not list(tmp_path.iterdir())


def test_an_empty_collection_and_missing_metadata(server: ServerProcess, tmp_path: Path) -> None:
    """What cannot be measured is named with its reason; nothing at all is no answer about recall."""
    http = Http(server.url)
    empty = http.new_collection()
    ended = evaluate("-c", empty, "--url", server.url, *FAST)
    report = json.loads(ended.stdout)
    assert ended.exit_code == 2
    assert "nothing was measured" in report["below"][0]
    http.write(empty, *({"id": f"d{at}", "text": f"sentence {at} of a short book"} for at in range(30)))
    arguments = ["--url", server.url, *FAST, "--tenant-key", "owner", "--html", tmp_path / "r.html"]
    ended = evaluate("-c", empty, *arguments)
    assert ended.exit_code == 0, ended.output
    report = json.loads(ended.stdout)
    assert report["cold_skipped"] == 0
    reasons = report["not_measured"]
    assert "about 10 percent" in reasons["filter-10"]
    assert reasons["filter-0.1"] == "the collection is too small"
    assert "'owner'" in reasons["tenant"]
    assert "no true neighbor is in the cold tier" in reasons["cold"]
    check_page((tmp_path / "r.html").read_text())


def test_any_passage_can_be_a_query(server: ServerProcess) -> None:
    """Also of a text without spaces that is longer than a query may be. Without a model it is refused at once."""
    http = Http(server.url)
    name = http.new_collection()
    texts = {
        "p": "A mill of the town.",
        "blob": f"See the picture: {'A1b2C3d4' * 2000}",
        "zh": "水车在城里。" * 2000,
    }
    http.write(name, *({"id": one, "text": text} for one, text in texts.items()))
    measured = nearline("evaluate", "-c", name, "--url", server.url, *FAST)
    assert measured.returncode == 0, measured.stderr
    assert json.loads(measured.stdout)["queries"] == 3
    http.ok("POST", "/v1/collections", {"name": "own-vectors", "dimensions": 8})
    refused = nearline("evaluate", "-c", "own-vectors", "--url", server.url, *FAST)
    assert (refused.returncode, "no model" in refused.stderr) == (2, True), refused.stderr


def test_a_report_that_cannot_be_written_is_printed(server: ServerProcess, tmp_path: Path) -> None:
    """What took an hour to measure is not lost for a full disk; the exit code is no answer about recall."""
    (tmp_path / ".r.json.draft").symlink_to("/dev/full")
    arguments = ["--sample", 5, "--no-filters", "--recall-floor", 0, "--out", tmp_path / "r.json"]
    ended = evaluate("-c", NAME, "--url", server.url, *FAST, *arguments)
    assert ended.exit_code == 2
    assert "no space left" in ended.stderr
    assert json.loads(ended.stdout)["queries"] == 5
