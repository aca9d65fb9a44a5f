"""nearline bench ranking: how sets are read, what its intervals are, and a small real run."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.benchmark.ranking import Difference, JudgedPart, compare_default, group_parts, interval, read_parts

ROOT = Path(__file__).parents[2]
COLORS = {"en": ("red", "green", "blue", "white"), "de": ("rot", "gelb", "blau", "braun")}


def write_set(folder: Path, documents: dict[str, str], questions: dict[str, tuple[str, str]]) -> None:
    """`questions`: the text, and the document that answers it, by id."""
    folder.mkdir()
    for name, rows in (
        ("corpus", [{"id": one, "title": "", "text": text} for one, text in documents.items()]),
        ("queries", [{"id": one, "text": text} for one, (text, _) in questions.items()]),
    ):
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    qrels = "".join(f"{one}\t{answer}\t1\n" for one, (_, answer) in questions.items())
    (folder / "qrels.tsv").write_text(qrels)


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A set of one collection, and one of two languages; every question asks for a color of a number."""
    folder = tmp_path / "judged"
    folder.mkdir()
    numbers = range(40)
    write_set(
        folder / "plain",
        {f"d{n}": f"Box {n} is painted {COLORS['en'][n % 4]} on shelf {n * 7}." for n in numbers},
        {f"q{n}": (f"which box is on shelf {n * 7}", f"d{n}") for n in numbers},
    )
    write_set(
        folder / "two",
        {f"{lang}-{n}": f"{some[n % 4]} {n * 7}" for lang, some in COLORS.items() for n in numbers},
        {
            f"{lang}-q{n}": (f"{some[n % 4]} {n * 7}?", f"{lang}-{n}")
            for lang, some in COLORS.items()
            for n in numbers
        },
    )
    return folder


def test_a_set_whose_ids_begin_with_their_language_is_a_row_for_each(judged: Path) -> None:
    """With its own documents, or with all of them together; other sets are one row."""
    (plain,) = read_parts(judged / "plain", 500, together=False)
    assert (plain.name, plain.collection, plain.prefix, len(plain.queries)) == ("plain", "plain", "", 40)
    apart = read_parts(judged / "two", 500, together=False)
    assert [(part.name, part.collection, part.prefix) for part in apart] == [
        ("two en", "two-en", "en-"),
        ("two de", "two-de", "de-"),
    ]
    together = read_parts(judged / "two", 500, together=True)
    assert [(part.name, part.collection, part.prefix) for part in together] == [
        ("two en", "two", ""),
        ("two de", "two", ""),
    ]
    assert all(query.id.startswith("de-") for query in together[1].queries)


def test_questions_judged_across_languages_make_one_row(judged: Path) -> None:
    """A collection of one language would lack what answers them."""
    with (judged / "two" / "qrels.tsv").open("a") as qrels:
        qrels.write("en-q0\tde-0\t1\n")
    assert [part.name for part in read_parts(judged / "two", 500, together=False)] == ["two"]


def test_every_run_asks_the_same_questions(judged: Path) -> None:
    """So that two checkouts can be compared."""
    first, second = (read_parts(judged / "plain", 10, together=False)[0].queries for _ in range(2))
    assert len(first) == 10
    assert first == second


def test_the_real_languages_are_found(shared_data: Path) -> None:
    """xquad-r is 11 collections, the others one each."""
    assert len(read_parts(shared_data / "xquad-r", 5, together=False)) == 11
    for name in ("scifact", "cranfield", "alert-runbook", "k8s-docs", "squad-sent"):
        assert [part.name for part in read_parts(shared_data / name, 5, together=False)] == [name]


def test_an_interval_is_of_the_mean_over_questions() -> None:
    """About 1.96 standard errors to each side; of the mean of two sets, the root of two narrower."""
    values = np.random.default_rng(1).normal(0.5, 0.2, 400)
    one, two = interval([values]), interval([values, values[::-1]])
    assert one.value == pytest.approx(values.mean())
    assert (one.high - one.low) / 2 == pytest.approx(1.96 * 0.2 / 20, rel=0.15)
    assert two.value == pytest.approx(values.mean())
    assert (two.high - two.low) / (one.high - one.low) == pytest.approx(2**-0.5, rel=0.15)


def test_differences_are_of_the_same_questions() -> None:
    """A gain on every question is certain, however much the questions differ."""
    values = np.random.default_rng(1).normal(0.5, 0.2, 400)
    found = interval([(values + 0.01) - values], Difference)
    assert (found.low, found.high) == pytest.approx((0.01, 0.01))
    assert str(found) == "+0.0100 (+0.010 to +0.010)"


def test_the_default_is_compared_with_the_better_list_of_each_set() -> None:
    """The mean of two sets is over their own better lists."""
    ones, halves = np.ones(10), np.full(10, 0.5)
    first = {"lexical": ones, "dense": halves, "default": ones, "hybrid rrf": halves}
    second = {"lexical": halves, "dense": ones, "default": halves, "hybrid rrf": halves}
    assert compare_default([first])["which is"] == "lexical"
    both = compare_default([first, second])
    assert both["less the better list"].value == -0.25
    assert both["less hybrid rrf"].value == 0.25
    assert both["which is"] == "dense or lexical"


def test_means_are_of_sets_and_of_languages_apart() -> None:
    """A group of one has no mean."""
    parts = [
        JudgedPart(name, group, name, Path(), "", [], [])
        for name, group in (("a", "sets"), ("x de", "languages of x"), ("x en", "languages of x"))
    ]
    rows = group_parts(parts, [{}, {}, {}])
    assert [(name, len(some)) for name, some in rows] == [
        ("a", 1), ("x de", 1), ("x en", 1), ("mean of 2 languages of x", 2),
    ]  # fmt: skip


def bench(judged: Path, model: Path, out: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    ended = subprocess.run(
        [sys.executable, "-m", "jobs.cli", "bench", "ranking", "--data", judged, "--out", out, "--json", *arguments],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NEARLINE_MODELS_FOLDER": str(model.parent)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report, " ".join(report["notes"])


@pytest.mark.slow
@pytest.mark.model
def test_every_search_is_measured_and_nothing_is_embedded_twice(
    judged: Path, model_folder: Path, tmp_path: Path
) -> None:
    """The second run, which takes the same model's place too, writes no document and finds no difference."""
    first, notes = bench(judged, model_folder, tmp_path / "out")
    assert "plain: 40 documents, 40 passages; 40 documents were written" in notes
    quality, default = first["tables"].values()
    assert [row["set"] for row in quality] == ["plain", "two en", "two de", "mean of 2 languages of two"]
    for row in quality:
        for search in ("lexical", "dense", "hybrid rrf", "hybrid weighted", "default"):
            assert 0 <= row[search]["low"] <= row[search]["value"] <= row[search]["high"] <= 1
    assert quality[0]["lexical"]["value"] > 0.9
    assert {"less hybrid rrf", "less the better list"} <= set(default[0])
    second, notes = bench(
        judged, model_folder, tmp_path / "out", "--sets", "plain", "--against", model_folder.name
    )
    assert "0 documents were written" in notes
    assert second["tables"][f"nDCG@10, {model_folder.name}"][0] == quality[0]
