"""Ranking quality on judged collections, over HTTP, in every way of searching; one model beside another.

FOLDER/SET/corpus.jsonl.gz  queries.jsonl.gz  qrels.tsv

A set is one collection, unless its ids begin with their language ("de-17") and questions are judged against documents
of their own language alone: then each language is one. Collections stay in a data directory for each model, so that
another run embeds what has changed alone.
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
from jobs.benchmark.report import Found, Row, Say
from jobs.benchmark.texts import model_folder, model_settings
from jobs.evaluation.asking import Asker
from jobs.evaluation.rankings import NDCG, SEARCHES, judged_queries, scored
from jobs.evaluation.report import Score
from jobs.ingestion.ingesting import ingest
from jobs.serving.process import serving
from jobs.sources import SourceReport, read_documents
from jobs.sources.judgments import Judgement, Query, read_judgements, read_queries
from nearline import JSON, AsyncClient, ServiceError
from retrieval.embedding.models import read_manifest

CORPUS, QUERIES, QRELS = "corpus.jsonl.gz", "queries.jsonl.gz", "qrels.tsv"
LANGUAGE = re.compile(r"[a-z]{2,3}-|")
MEASURES = {10: NDCG, 100: {"recall@100": R @ 100}}  # by k
# A column each. Add here what else is to be compared, such as a search with a reranker.
SEARCHES_ASKED: dict[str, JSON] = {
    **{name: {"k": 10, **search} for name, search in SEARCHES.items()},
    "dense, exact": {"k": 10, "mode": "dense", "exact": True},
    "default": {"k": 10, "mode": "hybrid"},
    "default, recall@100": {"k": 100, "mode": "hybrid"},
}
LISTS = ("lexical", "dense")
HOT = 0.1  # of the passages
RESAMPLES = 2000
NOTE = f"In parentheses: 95 percent, by {RESAMPLES} resamples of the questions of each set."

Values = dict[str, NDArray[np.float64]]  # of each search, one for each question


class Difference(Score, frozen=True):
    """Of two means over the same questions."""

    def __str__(self) -> str:
        return f"{self.value:+.4f} ({self.low:+.3f} to {self.high:+.3f})"


@dataclass(frozen=True)
class Part:
    """What makes a row: judged questions, and the documents of `corpus` whose ids begin with `prefix`."""

    name: str
    group: str  # what its mean is taken with
    collection: str
    corpus: Path
    prefix: str
    queries: Sequence[Query]
    judgements: Sequence[Judgement]


def run(
    data: Path, out: Path, say: Say, *, sets: Sequence[str], queries: int, together: bool, against: str | None
) -> Found:
    """`together`: all languages of a set in one collection; `against`: another model."""
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
            values, written = asyncio.run(measured(server.url, parts, say))
        notes += [f"{model}: {note}" for note in written]
        found.append(values)
        tables[f"nDCG@10, {model}"] = scores(parts, values, Score)
        tables[f"The default on the same questions, {model}"] = [
            {"set": name, **compared(some)} for name, some in grouped(parts, values)
        ]
    if against:
        less = [{search: one[search] - other[search] for search in one} for one, other in zip(*found)]
        tables[" less ".join(models)] = scores(parts, less, Difference)
    return Found(tables, notes)


def read_parts(folder: Path, queries: int, together: bool) -> list[Part]:
    """A set's rows, of at most `queries` questions each, the same in every run."""
    judgements = read_judgements(folder / QRELS)
    languages = {(prefix_of(one.query), prefix_of(one.document)) for one in judgements}
    split = len(languages) > 1 and all(asked and asked == judged for asked, judged in languages)
    asked: dict[str, list[Query]] = defaultdict(list)
    for query in judged_queries(read_queries(folder / QUERIES), judgements):
        asked[prefix_of(query.id) if split else ""].append(query)
    return [
        Part(
            name=f"{folder.name} {prefix}".rstrip(" -"),
            group=f"languages of {folder.name}" if split else "sets",
            collection=folder.name if together else f"{folder.name}-{prefix}".rstrip("-"),
            corpus=folder / CORPUS,
            prefix="" if together else prefix,
            queries=random.Random(0).sample(some, min(queries, len(some))),
            judgements=judgements,
        )
        for prefix, some in asked.items()
    ]


def prefix_of(name: str) -> str:
    """The language at the beginning of an id: "de-" of "de-17"; empty where there is none."""
    found = LANGUAGE.match(name)
    return found[0] if found else ""


async def measured(url: str, parts: Sequence[Part], say: Say) -> tuple[list[Values], list[str]]:
    """The values of each part, and a note on each collection, which is written and rebuilt before it is asked."""
    notes: dict[str, str] = {}
    found = []
    async with AsyncClient(url) as client:
        for part in parts:
            if part.collection not in notes:
                notes[part.collection] = await fill(client, part)
                say(notes[part.collection])
            found.append(await ask(Asker(client, part.collection), part))
    return found, list(notes.values())


async def fill(client: AsyncClient, part: Part) -> str:
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
            if error.kind != "conflict":  # with a rebuild that an upgrade began by itself
                raise
            await asyncio.sleep(1)
    return (
        f"{part.collection}: {held['documents']} documents, {held['passages']} passages; {done.documents} documents "
        f"were written by this run, {report.failures} refused"
    )


async def ask(asker: Asker, part: Part) -> Values:
    """All searches side by side, each question by question."""

    async def values(name: str, search: JSON) -> NDArray[np.float64]:
        measure = MEASURES[search["k"]]
        (found,) = (await scored(asker, name, part.queries, part.judgements, measure, **search)).values()
        return np.array(found)

    found = await asyncio.gather(*(values(*search) for search in SEARCHES_ASKED.items()))
    return dict(zip(SEARCHES_ASKED, found))


def scores(parts: Sequence[Part], found: Sequence[Values], kind: type[Score]) -> list[Row]:
    return [
        {"set": name, **{search: interval([one[search] for one in some], kind) for search in SEARCHES_ASKED}}
        for name, some in grouped(parts, found)
    ]


def grouped(parts: Sequence[Part], found: Sequence[Values]) -> list[tuple[str, list[Values]]]:
    """Name and values of each row: every part alone, then the means of the groups of several."""
    groups: dict[str, list[Values]] = defaultdict(list)
    for part, values in zip(parts, found):
        groups[part.group].append(values)
    rows = [(part.name, [values]) for part, values in zip(parts, found)]
    return rows + [(f"mean of {len(some)} {name}", some) for name, some in groups.items() if len(some) > 1]


def compared(some: Sequence[Values]) -> Row:
    """The default less rank fusion, and less the better of the two lists, which each part has its own of."""
    better = [max(LISTS, key=lambda name: float(one[name].mean())) for one in some]
    rank = [one["default"] - one["hybrid rrf"] for one in some]
    lists = [one["default"] - one[name] for one, name in zip(some, better)]
    return {
        "less hybrid rrf": interval(rank, Difference),
        "less the better list": interval(lists, Difference),
        "which is": " or ".join(sorted(set(better))),
    }


def interval(groups: Sequence[NDArray[np.float64]], kind: type[Score] = Score) -> Score:
    """The mean of the groups' means; its bounds are percentiles over resampled questions of each group."""
    rng = np.random.default_rng(0)
    drawn = [one[rng.integers(len(one), size=(RESAMPLES, len(one)))].mean(axis=1) for one in groups]
    low, high = np.percentile(np.mean(drawn, axis=0), (2.5, 97.5))
    return kind(value=float(np.mean([one.mean() for one in groups])), low=float(low), high=float(high))
