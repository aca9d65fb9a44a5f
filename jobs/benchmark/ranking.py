"""Measures ranking quality on judged collections over HTTP, in every way of searching, and compares two models.

FOLDER/SET/corpus.jsonl.gz  queries.jsonl.gz  qrels.tsv

A set is one collection, unless its ids start with a language ("de-17") and questions are judged only against documents
in their own language: then each language is one. Each model's collections stay in a data directory, so that another run
embeds only what has changed.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ir_measures import R
from numpy.typing import NDArray

from indexes.base.errors import InvalidInput
from jobs.benchmark.report import BenchResults, Row, Say
from jobs.benchmark.texts import model_folder, model_settings
from jobs.evaluation.asking import Asker
from jobs.evaluation.rankings import NDCG, SEARCHES, judged_queries, score_queries
from jobs.evaluation.report import Score
from jobs.ingestion.ingesting import ingest
from jobs.serving.process import serving
from jobs.sources import SourceReport, read_documents
from jobs.sources.judgments import Judgment, TextQuery, read_judgments, read_queries
from nearline import JSON, AsyncClient, ServiceError
from retrieval.embedding.models import read_manifest

CORPUS, QUERIES, QRELS = "corpus.jsonl.gz", "queries.jsonl.gz", "qrels.tsv"
LANGUAGE = re.compile(r"[a-z]{2,3}-|")
MEASURES = {10: NDCG, 100: {"recall@100": R @ 100}}  # by k
# One column each. Add others to compare here, such as a search with a reranker.
SEARCHES_ASKED: dict[str, JSON] = {
    **{name: {"k": 10, **search} for name, search in SEARCHES.items()},
    "dense, exact": {"k": 10, "mode": "dense", "exact": True},
    "default": {"k": 10, "mode": "hybrid"},
    "default, recall@100": {"k": 100, "mode": "hybrid"},
}
LISTS = ("lexical", "dense")
HOT = 0.1  # of the passages
RESAMPLES = 2000
NOTE = f"In parentheses: 95 percent intervals, from {RESAMPLES} resamples of each set's questions."

Values = dict[str, NDArray[np.float64]]  # by search, one value per question


class Difference(Score, frozen=True):
    """The difference of two means over the same questions."""

    def __str__(self) -> str:
        return f"{self.value:+.4f} ({self.low:+.3f} to {self.high:+.3f})"


@dataclass(frozen=True)
class JudgedPart:
    """The data of one row: judged questions, and the documents of `corpus` whose ids start with `prefix`."""

    name: str
    group: str  # rows that share a mean
    collection: str
    corpus: Path
    prefix: str
    queries: Sequence[TextQuery]
    judgments: Sequence[Judgment]


def run(
    data: Path, out: Path, say: Say, *, sets: Sequence[str], queries: int, together: bool, against: str | None
) -> BenchResults:
    """Measure the packaged model, and `against`, another one. `together`: all languages of a set in one collection."""
    names = sets or sorted(path.parent.name for path in data.glob(f"*/{QRELS}"))
    parts = [part for name in names for part in read_parts(data / name, queries, together)]
    if not parts:
        raise InvalidInput(f"no folder in {data} holds {QRELS}", param="data")
    tables: dict[str, list[Row]] = {}
    notes, found = [NOTE], []
    models = [model_folder().name, *([against] if against else [])]
    for model in models:
        folder = model_folder().with_name(model)
        served = out / "ranking" / f"{model}-{read_manifest(folder).fingerprint[:12]}"
        served.parent.mkdir(parents=True, exist_ok=True)
        with serving(served, model_settings(folder)) as server:
            values, written = asyncio.run(measure_parts(server.url, parts, say))
        notes += [f"{model}: {note}" for note in written]
        found.append(values)
        tables[f"nDCG@10, {model}"] = scores(parts, values, Score)
        tables[f"The default on the same questions, {model}"] = [
            {"set": name, **compare_default(some)} for name, some in group_parts(parts, values)
        ]
    if against:
        less = [{search: one[search] - other[search] for search in one} for one, other in zip(*found)]
        tables[" less ".join(models)] = scores(parts, less, Difference)
    return BenchResults(tables, notes)


def read_parts(folder: Path, queries: int, together: bool) -> list[JudgedPart]:
    """Read a set's rows, with at most `queries` questions each, the same in every run."""
    judgments = read_judgments(folder / QRELS)
    languages = {(prefix_of(one.query), prefix_of(one.document)) for one in judgments}
    split = len(languages) > 1 and all(asked and asked == judged for asked, judged in languages)
    asked: dict[str, list[TextQuery]] = defaultdict(list)
    for query in judged_queries(read_queries(folder / QUERIES), judgments):
        asked[prefix_of(query.id) if split else ""].append(query)
    return [
        JudgedPart(
            name=f"{folder.name} {prefix}".rstrip(" -"),
            group=f"languages of {folder.name}" if split else "sets",
            collection=folder.name if together else f"{folder.name}-{prefix}".rstrip("-"),
            corpus=folder / CORPUS,
            prefix="" if together else prefix,
            queries=random.Random(0).sample(some, min(queries, len(some))),
            judgments=judgments,
        )
        for prefix, some in asked.items()
    ]


def prefix_of(name: str) -> str:
    """The language at the start of an id, such as "de-" in "de-17"; empty if there is none."""
    found = LANGUAGE.match(name)
    return found[0] if found else ""


async def measure_parts(url: str, parts: Sequence[JudgedPart], say: Say) -> tuple[list[Values], list[str]]:
    """The values of each part, and a note on each collection, which is written and rebuilt before it is searched."""
    notes: dict[str, str] = {}
    found = []
    async with AsyncClient(url) as client:
        for part in parts:
            if part.collection not in notes:
                notes[part.collection] = await fill(client, part)
                say(notes[part.collection])
            found.append(await ask(Asker(client, part.collection), part))
    return found, list(notes.values())


async def fill(client: AsyncClient, part: JudgedPart) -> str:
    await client.ensure_collection(part.collection)
    report = SourceReport()
    corpus = read_documents([part.corpus], report=report)
    documents = (one for one in corpus if one.id.startswith(part.prefix))
    done = await ingest(client, part.collection, documents, lambda _: None, report)
    held = await client.count(part.collection)
    while True:
        try:
            capacity = max(1, round(HOT * held["passages"]))
            await client.finished(await client.reindex(part.collection, hot_capacity=capacity))
            break
        except ServiceError as error:
            if error.kind != "conflict":  # with a rebuild that an upgrade started
                raise
            await asyncio.sleep(1)
    return (
        f"{part.collection}: {held['documents']} documents, {held['passages']} passages; {done.documents} documents "
        f"were written by this run, {report.failures} refused"
    )


async def ask(asker: Asker, part: JudgedPart) -> Values:
    """Run all searches concurrently, each question by question."""

    async def values(name: str, search: JSON) -> NDArray[np.float64]:
        measure = MEASURES[search["k"]]
        (found,) = (
            await score_queries(asker, name, part.queries, part.judgments, measure, **search)
        ).values()
        return np.array(found)

    found = await asyncio.gather(*(values(*search) for search in SEARCHES_ASKED.items()))
    return dict(zip(SEARCHES_ASKED, found))


def scores(parts: Sequence[JudgedPart], found: Sequence[Values], kind: type[Score]) -> list[Row]:
    return [
        {"set": name, **{search: interval([one[search] for one in some], kind) for search in SEARCHES_ASKED}}
        for name, some in group_parts(parts, found)
    ]


def group_parts(parts: Sequence[JudgedPart], found: Sequence[Values]) -> list[tuple[str, list[Values]]]:
    """Name and values of each row: every part alone, then the means of groups with several parts."""
    groups: dict[str, list[Values]] = defaultdict(list)
    for part, values in zip(parts, found):
        groups[part.group].append(values)
    rows = [(part.name, [values]) for part, values in zip(parts, found)]
    return rows + [(f"mean of {len(some)} {name}", some) for name, some in groups.items() if len(some) > 1]


def compare_default(some: Sequence[Values]) -> Row:
    """The default minus rank fusion, and minus the better of the two lists, which may differ by part."""
    better = [max(LISTS, key=lambda name: float(one[name].mean())) for one in some]
    rank = [one["default"] - one["hybrid rrf"] for one in some]
    lists = [one["default"] - one[name] for one, name in zip(some, better)]
    return {
        "less hybrid rrf": interval(rank, Difference),
        "less the better list": interval(lists, Difference),
        "which is": " or ".join(sorted(set(better))),
    }


def interval(groups: Sequence[NDArray[np.float64]], kind: type[Score] = Score) -> Score:
    """The mean of the groups' means, with percentile bounds from resampling each group's questions."""
    rng = np.random.default_rng(0)
    drawn = [one[rng.integers(len(one), size=(RESAMPLES, len(one)))].mean(axis=1) for one in groups]
    low, high = np.percentile(np.mean(drawn, axis=0), (2.5, 97.5))
    return kind(value=float(np.mean([one.mean() for one in groups])), low=float(low), high=float(high))
