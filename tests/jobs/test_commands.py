"""The command line, as a user types it, against a real service."""

from __future__ import annotations

import difflib
import gzip
import json
import math
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from indexes.base.errors import NotFound, message_of
from jobs.cli import COMMANDS, cli
from jobs.commands.ingest import check_encoding
from jobs.serving.process import ServerProcess
from retrieval.clients.bulk import packed
from tests.support.commands import nearline
from tests.support.http import Http

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    """`--help` works without a service or a model and shows how to call it."""
    ended = CliRunner().invoke(cli, [name, "--help"])
    assert ended.exit_code == 0
    assert f"Example: nearline {name}" in " ".join(ended.output.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as people have them."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "soup.md").write_text("# Soup\n\nThe soup needs lemongrass and patience.\n")
    (tmp_path / "notes" / "bread.txt").write_text("Sourdough needs a starter and a warm kitchen.")
    (tmp_path / "notes" / "picture.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "rows.csv").write_text(
        "id,text,title,year\n1,The moon is far away.,Moon,1969\n2,Mars is further.,Mars,2021\n"
    )
    (tmp_path / "lines.jsonl").write_text(
        '{"id": "x", "text": "Whales sing."}\n{"id": "y", "text": "Bats listen."}\n'
    )
    return tmp_path


def test_a_command_without_standard_output_does_its_work(tmp_path: Path, http: Http) -> None:
    """As some programs start others. What cannot be shown is no error."""
    name = http.new_collection()
    for arguments in (["collections", "delete", name, "--yes", "--url", http.url], ["--version"]):
        command = [sys.executable, "-m", "jobs.cli", *arguments]
        shell = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
        ended = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
    assert http.call("GET", f"/v1/collections/{name}").status == 404


@pytest.mark.slow
def test_control_characters_reach_no_terminal(service: ServerProcess, http: Http, tmp_path: Path) -> None:
    """Those of documents, titles and file names are shown escaped, and a name takes one line."""
    name, escape = http.new_collection(), "\x1b]0;title\x07\x1b[31m"
    http.write(name, {"id": "e", "text": f"evil {escape} whales\nsing", "title": f"Whales {escape}"})
    (tmp_path / f"new\nline{escape.replace('/', '')}.txt").write_text("x")
    for ended in (
        nearline("search", "--url", service.url, "-c", name, "evil whales"),
        nearline("explain", "--url", service.url, "-c", name, "--document", "e", f"evil {escape}"),
        nearline("ingest", "--url", service.url, "-c", name, tmp_path),
    ):
        assert "\\x1b" in ended.stdout + ended.stderr
        assert not set("\x1b\x07") & set(ended.stdout + ended.stderr)
    assert r"new\nline\x1b" in ended.stderr


@pytest.mark.slow
def test_ingest_search_reindex_evaluate(service: ServerProcess, http: Http, folder: Path) -> None:
    """Files of each kind go in, are found, rebuilt, and measured."""
    name = http.new_collection()
    paths = [folder / "notes", folder / "rows.csv", folder / "lines.jsonl"]
    ended = nearline("ingest", *paths, "--url", service.url, "-c", name)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"6 documents written to {name}: 6 passages, ")
    again = nearline("ingest", *paths, "--url", service.url, "-c", name)
    assert again.stdout.startswith(f"0 documents written to {name}, 6 unchanged: 0 passages, ")

    ended = nearline("search", "--url", service.url, "-c", name, "which spice goes into soup?", "-k", "2")
    assert ended.returncode == 0
    assert "lemongrass" in ended.stdout
    assert "with 6 writes" in ended.stdout

    found = nearline(
        "search", "--url", service.url, "-c", name, "animals and sound", "--json", "--mode", "dense"
    )
    assert {hit["document_id"] for hit in json.loads(found.stdout)["hits"][:2]} == {"x", "y"}
    condition = '{"type": "eq", "key": "year", "value": 1969}'
    found = nearline("search", "--url", service.url, "-c", name, "planet", "--json", "--filter", condition)
    assert [hit["title"] for hit in json.loads(found.stdout)["hits"]] == ["Moon"]

    ended = nearline("reindex", "--url", service.url, "--collection", name)
    assert ended.returncode == 0, ended.stderr
    assert "generation 1 is live: 6 passages hot, 0 cold" in ended.stdout
    job = nearline("reindex", "--url", service.url, "--collection", name, "--json")
    assert json.loads(job.stdout)["result"]["generation"] == 2

    ended = nearline("evaluate", "--url", service.url, "--collection", name, "--json")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["cohorts"][0]["name"] == "overall"
    assert report["cohorts"][0]["recall"] == 1
    assert report["queries"] == 6
    assert report["below"] == []


@pytest.mark.slow
def test_evaluate_reads_judgments(service: ServerProcess, http: Http, tmp_path: Path) -> None:
    """nDCG and MRR for every kind of search; exit code 1 for a floor that is missed, 2 for a file with a bad line."""
    name = http.new_collection()
    http.write(
        name, {"id": "a", "text": "Apples grow on trees."}, {"id": "b", "text": "Boats float on water."}
    )
    (tmp_path / "q.jsonl").write_text(
        '{"id": "1", "text": "fruit trees"}\n{"id": "2", "text": "ships at sea"}\n'
    )
    (tmp_path / "qrels.tsv").write_text("1\ta\t1\n2\tb\t1\n")
    arguments = [
        "evaluate",
        "--url",
        service.url,
        "-c",
        name,
        "--queries",
        tmp_path / "q.jsonl",
        "--qrels",
        tmp_path / "qrels.tsv",
    ]
    ended = nearline(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    dense = report["rankings"]["dense"]
    assert {name: one["value"] for name, one in dense.items()} == {"ndcg@10": 1, "mrr@10": 1, "recall@100": 1}
    # Two hits in two passages, and without them two questions with one wrong hit each.
    assert sum(one["hits"] for one in report["relevance"]["bins"]) == 6
    assert report["relevance"]["lost"]["value"] == 0
    assert set(report["rankings"]) == {"dense", "lexical", "hybrid rrf", "hybrid weighted"}
    table = nearline(*arguments)
    assert "hybrid weighted" in table.stdout
    (tmp_path / "qrels.tsv").write_text("1\ta\t1\n1\tgone\t1\n2\tb\t1\n")
    ended = nearline(*arguments, "--floor", "cold=.9", "--ndcg-floor", ".99")
    assert ended.returncode == 1
    assert "ndcg@10 hybrid" in ended.stdout
    # Each measure reads the last lines, so "b" is relevant and "a" is not, and the same is said on stderr.
    (tmp_path / "qrels.tsv").write_text("1\ta\t1\n1\ta\t0\n1\tb\t1\n2\tb\t0\n2\tb\t3\n2\tb\t1\n")
    repeated = nearline(*arguments, "--json")
    assert "qrels.tsv: 3 lines repeat a query and document" in repeated.stderr
    (tmp_path / "qrels.tsv").write_text("1\ta\t0\n1\tb\t1\n2\tb\t1\n")
    once = nearline(*arguments, "--json")
    assert once.stderr == ""
    first, second = (json.loads(one.stdout) for one in (repeated, once))
    for measured in ("rankings", "contexts", "relevance", "judged"):
        assert first[measured] == second[measured]
    assert first["rankings"]["dense"]["mrr@10"]["value"] == 0.75
    (tmp_path / "qrels.tsv").write_text("1\ta\t1\n2\tb\tone\n")
    ended = nearline(*arguments)
    assert ended.returncode == 2
    assert "qrels.tsv, line 2" in ended.stderr
    (tmp_path / "qrels.tsv").write_text("8\ta\t1\n")
    ended = nearline(*arguments)
    assert (ended.returncode, "none of the 2 queries asked" in ended.stderr) == (2, True)
    for content, wrong in (
        ("1\ta\t1\n".encode("utf-16"), "not text in UTF-8"),
        (b"\x1f\x8b\x08", "not text in UTF-8"),
        (b"", "holds no judgments"),
    ):
        (tmp_path / "qrels.tsv").write_bytes(content)
        ended = nearline(*arguments)
        assert (ended.returncode, ended.stderr.count("\n"), wrong in ended.stderr) == (2, 1, True)
    for content in (b"no gzip", gzip.compress(b"1\ta\t1\n")[:-9]):
        (tmp_path / "qrels.tsv.gz").write_bytes(content)
        ended = nearline(*arguments[:-1], tmp_path / "qrels.tsv.gz")
        assert (ended.returncode, ended.stderr.count("\n"), "cannot be read" in ended.stderr) == (2, 1, True)
    (tmp_path / "qrels.tsv").write_text("\ufeff1\ta\t1\n2\tb\t1\n")
    assert nearline(*arguments).returncode == 0


def test_what_a_search_does_not_find(service: ServerProcess, http: Http) -> None:
    """No hits are said to be none, irrelevant ones to be that; a query that is no text is one clear line."""
    name = http.new_collection()
    ended = nearline("search", "--url", service.url, "-c", name, "anything")
    assert ended.returncode == 0, ended.stderr
    assert "nothing found" in ended.stdout
    http.write(name, {"id": "a", "text": "Apples grow on trees."})
    ended = nearline("search", "--url", service.url, "-c", name, "quantum chromodynamics")
    assert "relevance 0.0" in ended.stdout
    assert "nothing here seems to be about this" in ended.stdout
    ended = nearline("search", "--url", service.url, "-c", name, "where do apples grow?")
    assert "seems to be about" not in ended.stdout
    ended = nearline("search", "--url", service.url, "-c", name, "a")
    assert "name 1.000" in ended.stdout, ended
    ended = nearline("search", "--url", service.url, "-c", name, "\udcff\udcfe")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert "not valid Unicode" in ended.stderr


def test_a_collection_without_a_model(service: ServerProcess, http: Http) -> None:
    """It is searched by words, cannot be evaluated, and can be copied into one with a model."""
    name = http.new_collection(dimensions=2)
    http.write(name, {"id": "a", "text": "Apples grow on trees.", "vector": [1, 0]})
    assert "Apples" in nearline("search", "--url", service.url, "-c", name, "apples").stdout
    refused = nearline("evaluate", "--url", service.url, "-c", name)
    assert refused.returncode != 0
    assert "no model" in refused.stderr, refused
    copied = f"{name}-embedded"
    ended = nearline(
        "reembed", "--url", service.url, "--from", name, "--into", copied, "--model", "all-MiniLM-L6-v2"
    )
    assert ended.returncode == 0, ended.stderr
    assert http.found(copied, query="where do apples grow?", mode="dense") == ["a"]


@pytest.mark.slow
def test_rows_with_vectors(service: ServerProcess, http: Http, tmp_path: Path) -> None:
    """Parquet with vectors of any type becomes a collection without a model. A row without a vector fails alone."""
    vectors = np.random.default_rng(2).normal(size=(600, 3))
    ids = [f"r{at}" for at in range(600)]
    columns = {
        "fixed": pa.FixedSizeListArray.from_arrays(vectors.astype(np.float32).ravel(), 3),
        "lists": pa.array(vectors.tolist()),
        "halves": pa.array(list(vectors.astype(np.float16)), pa.list_(pa.float16())),
    }
    for column, values in columns.items():
        table = pa.table({"id": ids, "text": ["A row."] * 600, "n": range(600), column: values})
        pq.write_table(table, tmp_path / "rows.parquet")
        name = f"{http.new_collection()}-{column}"
        ended = nearline(
            "ingest", tmp_path / "rows.parquet", "--url", service.url, "-c", name,
            "--create", "--dimensions", "3", "--vector-field", column,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert http.found(
            name, vector=vectors[7].tolist(), k=1, filter={"type": "eq", "key": "n", "value": 7}
        ) == ["r7"]
        assert http.ok("GET", f"/v1/collections/{name}/documents/r7")["metadata"] == {"n": 7}
    lines: list[dict[str, Any]] = [
        {"v": [1, 2, 3]},
        {},
        {"v": ["1"]},
        {"v": [10**400, 1, 1]},
        {"v": packed([4, 5, 6])},
        {"v": {"x": 1}},
    ]
    rows = [{"id": str(at), "text": "x", **line} for at, line in enumerate(lines)]
    (tmp_path / "bad.jsonl").write_text("\n".join(map(json.dumps, rows)))
    ended = nearline(
        "ingest", tmp_path / "bad.jsonl", "--url", service.url, "-c", name, "--vector-field", "v"
    )
    assert ended.returncode == 1
    for said in (
        "bad.jsonl:2: vector is missing: the collection has no model",
        "bad.jsonl:3: vector is not a list of numbers",
        "bad.jsonl:4: vector holds a number that is too large",
        "bad.jsonl:6: field 'v': expected a list of numbers, or base64, found an object",
    ):
        assert said in ended.stderr
    assert http.found(name, vector=[4, 5, 6], k=1) == ["4"]


def test_a_wrong_row_is_named_by_its_number(service: ServerProcess, http: Http, tmp_path: Path) -> None:
    """The other rows are written, with their own vectors, wherever batches of the file end."""
    vectors: list[list[float] | None] = np.random.default_rng(3).normal(size=(700, 4)).tolist()
    vectors[99], vectors[300], vectors[301], vectors[650] = (
        None,
        [1.0, 2.0],
        [1.0, 2.0, 3.0, math.nan],
        [1e99] * 4,
    )
    table = pa.table({"id": [f"r{at}" for at in range(700)], "text": ["A row."] * 700, "v": vectors})
    with pa.ipc.new_file(tmp_path / "rows.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=333)
    name = http.new_collection(dimensions=4)
    ended = nearline(
        "ingest", tmp_path / "rows.arrow", "--url", service.url, "-c", name, "--vector-field", "v"
    )
    assert ended.returncode == 1
    for said in (
        "rows.arrow:100: vector is missing",
        "rows.arrow:301: vector has 2 dimensions, expected 4",
        "rows.arrow:302: vector[3] is not finite",
        "rows.arrow:651: vector[0] is not finite, or too large for 32 bits",
    ):
        assert said in ended.stderr
    assert http.ok("GET", f"/v1/collections/{name}")["documents"] == 696
    for at in (0, 98, 100, 299, 302, 649, 699):
        assert http.found(name, vector=vectors[at], k=1) == [f"r{at}"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--vector-field", "v", "--create"], "needs --dimensions"),
        (["--dimensions", "3", "--create"], "--dimensions goes with --create and --vector-field"),
        (["--dimensions", "3", "--vector-field", "v"], "--dimensions goes with --create"),
        (["--vector-field", "absent"], "no column 'absent'; the columns are id, text, v, s, b"),
        (["--vector-field", "s"], "column 's' holds struct"),
        (["--vector-field", "b"], "column 'b' holds binary"),
    ],
)
def test_vectors_that_cannot_be_loaded(
    service: ServerProcess, http: Http, tmp_path: Path, options: list[str], says: str
) -> None:
    """It is said once, before anything is sent or made."""
    columns = {"id": ["1", "2"], "text": ["a", "b"], "v": [[1.0], None], "s": [{"x": 1}] * 2, "b": [b"1"] * 2}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    name = http.new_collection(dimensions=1)
    ended = nearline("ingest", tmp_path / "rows.parquet", "--url", service.url, "-c", name, *options)
    assert ended.returncode != 0
    assert ended.stderr.count(says) == 1, ended.stderr
    assert http.ok("GET", f"/v1/collections/{name}")["documents"] == 0


def test_what_is_skipped_is_named(service: ServerProcess, http: Http, tmp_path: Path) -> None:
    """The rest goes in, and each thing left out is a line with its place. A pipe gets whole lines."""
    title = "All that is known about the songs of the largest animals, from the surface down to the bottom of the sea"
    good = json.dumps({"id": "x", "title": title, "text": "Whales sing. " * 10})
    (tmp_path / "broken.jsonl").write_text(good + '\n{"id": "y"}\nno json\n')
    name = http.new_collection()
    ended = nearline("ingest", tmp_path, "--url", service.url, "-c", name, "--lenient", COLUMNS="")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"1 document written to {name}: 1 passage, ")
    assert "broken.jsonl:2" in ended.stderr
    assert "broken.jsonl:3" in ended.stderr
    found = nearline("search", "--url", service.url, "-c", name, "songs of whales", COLUMNS="")
    first, text, _ = found.stdout.splitlines()
    assert f"{title} x#0" in first
    assert "words" in first
    assert text.strip() == ("Whales sing. " * 10).strip()


def test_several_collections_are_searched_as_one(service: ServerProcess, http: Http) -> None:
    names = [http.new_collection(), http.new_collection()]
    for name, text in zip(names, ("Whales sing.", "Songs of whales.")):
        http.write(name, {"id": f"in {name}", "text": text})
    asked = [word for name in names for word in ("-c", name)]
    found = nearline("search", "--url", service.url, *asked, "songs of whales", COLUMNS="")
    assert found.returncode == 0, found.stderr
    *hits, searched = found.stdout.splitlines()
    assert all(f"{name}: in {name}#0" in "".join(hits) for name in names)
    assert all(f"passages of {name}; build 0" in searched for name in names)


@pytest.mark.slow
def test_a_stopped_ingest_says_what_is_written(service: ServerProcess, http: Http, tmp_path: Path) -> None:
    """Ctrl-C ends it with one line and the exit code of an interrupt."""
    (tmp_path / "many.jsonl").write_text(
        "".join(json.dumps({"id": f"d{at}", "text": f"Number {at}. " * 20}) + "\n" for at in range(20_000))
    )
    name = http.new_collection()
    command = [sys.executable, "-m", "jobs.cli", "ingest", str(tmp_path), "--url", service.url, "-c", name]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as ingest:
        counts = {0}
        while ingest.poll() is None and len(counts) < 4:  # what is counted here is acknowledged there later
            counts.add(http.ok("GET", f"/v1/collections/{name}")["documents"])
            time.sleep(0.05)
        ingest.send_signal(signal.SIGINT)
        out, err = ingest.communicate(timeout=60)
    assert ingest.returncode == 130
    assert out == ""
    *progress, stopped = err.splitlines()
    assert stopped.startswith("stopped: ")
    assert 0 < int(stopped.split()[1]) <= http.ok("GET", f"/v1/collections/{name}")["documents"]
    assert all(line.endswith(" s left") for line in progress)  # where the machine is slow


@pytest.mark.slow
def test_a_demo_that_is_ended_leaves_nothing(model_folder: Path, tmp_path: Path) -> None:
    """SIGTERM ends its service too, and removes the folder it made."""
    command = [sys.executable, "-m", "jobs.cli", "demo"]
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
    }
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environ) as demo:
        assert demo.stdout is not None
        serving = next(line for line in demo.stdout if line.startswith("Serving demo/data at "))
        port = int(serving.rsplit(":", 1)[1])
        demo.terminate()
        demo.wait(60)
    assert demo.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize(("arguments", "status"), [(["search", "x"], 1), (["reindex"], 1), (["evaluate"], 2)])
def test_no_service_is_one_clear_line(arguments: list[str], status: int) -> None:
    """One line, no traceback; exit code 1, but for `evaluate`, whose 1 says that recall is too low."""
    ended = nearline(*arguments, "--url", "http://127.0.0.1:9", "-c", "c")
    assert ended.returncode == status
    assert "cannot be reached" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_an_unknown_collection_is_one_clear_line(service: ServerProcess, folder: Path) -> None:
    """--create makes it instead."""
    arguments = ["ingest", folder / "lines.jsonl", "--url", service.url, "-c", "made-by-create"]
    ended = nearline(*arguments)
    assert (ended.returncode, ended.stderr) == (1, "nearline: no collection 'made-by-create'\n")
    assert nearline(*arguments, "--create").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        "serve --data {0}",
        "keys list --data {0}",
        "keys create --scope search --data {0}",
        "backup --data {0} --to {0}.backup",
        "backup --data {0} --to {0}/backup",
        "restore --from {0} --data {0}.restored",
        "accept --data {0} -c docs --yes",
        "verify --data {0}",
        "verify --backup {0}",
        "tune -c docs --recall-target .9 --query-log {0}/log",
        "evaluate -c docs --queries {0}/queries",
    ],
)
def test_a_file_in_place_of_a_folder_is_one_clear_line(tmp_path: Path, words: str) -> None:
    """It names the file that was given, and no number of the system's."""
    (given := tmp_path / "given").write_text("x")
    called = nearline(*words.format(given).split())
    assert called.returncode in (1, 2)
    line = called.stderr.strip().splitlines()[-1]
    assert str(given) in line
    assert not [word for word in ("Errno", "Traceback", "keys.json") if word in called.stderr], called.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


def test_a_service_looks_at_its_folder_first(tmp_path: Path) -> None:
    """What is no folder, or below what is none, is all that is said: nothing is read, and no port is taken."""
    (given := tmp_path / "given").write_text("x")
    for data in (given, given / "data"):
        called = nearline("serve", "--data", data, "--port", "0")
        assert (called.returncode, called.stderr) == (1, f"nearline: {given} is not a folder\n")


def test_errors_of_the_system_are_said_in_words(tmp_path: Path) -> None:
    """They name the path that they are about, and no number."""
    with pytest.raises(OSError, match="Errno") as caught:
        (tmp_path / "none").open()
    assert message_of(caught.value) == f"{tmp_path}/none: No such file or directory"
    assert message_of(TimeoutError("not within 5 s")) == "not within 5 s"
    assert message_of(OSError(28, "No space left on device")) == "No space left on device"
    assert message_of(NotFound("no collection 'x'")) == "no collection 'x'"


@pytest.mark.parametrize(
    "name", ["nope", "latni1", "hex", "base64", "rot13", "zlib", "undefined", "punycode"]
)
def test_what_is_no_encoding_of_text_is_refused(tmp_path: Path, name: str) -> None:
    """Before anything is read or sent; a codec of letters with several bytes is one."""
    called = CliRunner().invoke(cli, ["ingest", str(tmp_path), "-c", "x", "--encoding", name])
    assert (called.exit_code, f"{name!r} is no encoding of text" in called.output) == (2, True)
    for known in ("cp1252", "utf-16", "UTF8", "shift-jis"):
        assert check_encoding(click.Context(cli), click.Option(["--encoding"]), known) == known


def test_nan_is_within_no_bounds() -> None:
    """No option of any command takes it: it would pass each comparison."""
    bounded = [option for option in options() if isinstance(option.type, click.FloatRange)]
    assert len(bounded) > 10
    for option in bounded:
        with pytest.raises(click.BadParameter, match="'nan' is not a number"):
            option.type.convert("nan", option, None)


def options() -> Iterator[click.Parameter]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command
        inner = command.commands.values() if isinstance(command, click.Group) else [command]
        yield from chain.from_iterable(one.params for one in inner)


def test_a_wrong_call_is_exit_code_2() -> None:
    """Unknown commands and options, and missing arguments, are the usual usage errors."""
    assert nearline("serch").returncode == 2
    assert nearline("search").returncode == 2
    assert nearline("serve", "--data", "x", "--prot", "1").returncode == 2


def test_a_bad_setting_stops_the_start(tmp_path: Path) -> None:
    """Unknown keys in file or environment are refused before anything is opened."""
    ended = nearline("serve", "--data", tmp_path / "data", NEARLINE_SEARCH_KK="3")
    assert ended.returncode == 1
    assert "NEARLINE_SEARCH_KK" in ended.stderr
    assert not (tmp_path / "data").exists()


# `nearline demo` with a few of the docstrings, most of which will be cold all the same.
SMALL_DEMO = """
import functools, pathlib, sys
from jobs.commands import demo
demo.docstrings = functools.partial(demo.docstrings, pathlib.Path(sys.argv.pop(1)))
demo.HOT_CAPACITY = 60
demo.command()
"""


def test_the_demo(model_folder: Path, tmp_path: Path) -> None:
    """It indexes the docstrings, rebuilds, and shows hits with tiers and timings. Its data stay: the command it names
    last serves them, and another run finds them."""
    (library := tmp_path / "library").mkdir()
    for module in Path(difflib.__file__).parent.glob("[d-f]*.py"):
        shutil.copy(module, library)
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NEARLINE_SERVER_PORT": "0",
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
    }
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, env=environ, check=True)
    demo = [sys.executable, "-c", SMALL_DEMO, str(library)]
    first = run(demo).stdout
    assert "searched recent (hot) + older (cold) passages" in first
    assert "cache hit" in first
    assert "difflib" in first
    serve, search = (shlex.split(line) for line in first.splitlines() if " -m jobs.cli " in line)
    with subprocess.Popen(serve, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environ) as served:
        try:
            assert served.stdout is not None
            url = next(served.stdout).removeprefix("nearline listens on ").strip()
            assert "filecmp" in run([*search, "--url", url]).stdout
        finally:
            served.terminate()
    again = run(demo).stdout
    assert "The docstrings are indexed already." in again
    assert "difflib" in again
