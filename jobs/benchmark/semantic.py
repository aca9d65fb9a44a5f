"""Tests the semantic cache on paraphrased questions, and on questions that differ in one word that matters.

The first question of every pair is cached among thousands of others, then the second one is looked up. The answer that
the cache would give is compared with the result of a search.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from indexes.base.model import Floats
from jobs.benchmark.report import Found, Plot, Row, Say
from jobs.benchmark.service import COLLECTION, K, Search, fill_service
from jobs.benchmark.texts import Material, embed, model_folder
from jobs.benchmark.wordings import Pair, pairs
from retrieval.base.settings import SemanticSettings
from retrieval.cache.semantic import Questions, SemanticCache
from retrieval.cache.semantic.cache import is_false
from retrieval.embedding.encoder import Encoder, available_threads
from retrieval.embedding.models import load_model

BESIDE = 3500  # other questions in the cache
WAYS = ("similarity alone", "with words")
THRESHOLDS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.99)
SCOPE = b"bench"
NOTES = f"""\
Each pair's first question is in the cache with those of its kind and {BESIDE:,} others; its second one is looked up.
Paraphrases ask the same, hard negatives need another answer; both are made by rules (jobs/benchmark/wordings.py).
hits: paraphrases answered by their first question, or by another one. false hits: hard negatives answered by theirs.
similarity alone: the nearest question if it is near enough, as semantic caches commonly do.
with words: Nearline's, where words have to agree too and thresholds rise where other questions are near.
searched: what the cache gives, compared with a search. false: it lacks the best passage, or half of all {K}.\
""".splitlines()


@dataclass(slots=True)
class PairResult:
    """A pair, and the cached questions found for its second question, by threshold; None where there is none."""

    pair: Pair
    similarity: float
    nearest: str
    nearest_similarity: float
    answered_by: dict[float, str | None] = field(default_factory=dict)
    false: bool | None = None  # according to a search; None if the cache had no answer

    def answer(self, way: str, threshold: float) -> str | None:
        if way == "with words":
            return self.answered_by[threshold]
        return self.nearest if self.nearest_similarity >= threshold else None


def run(material: Material, scratch: Path, say: Say, *, each: int) -> Found:
    """Measure with `each` pairs of every kind."""
    made = pairs(material.queries, each=each, seed=0)
    encoder = Encoder(load_model(model_folder()), threads=available_threads())
    texts = list(dict.fromkeys([*material.queries, *(one.asked for one in made)]))
    vector_of = dict(zip(texts, embed(texts, encoder, "query", say)))
    default = SemanticSettings().similarity_from
    tried: list[PairResult] = []
    for kind in dict.fromkeys(one.kind for one in made):
        say(f"looking up {kind} ...")
        tried += look_up_pairs([one for one in made if one.kind == kind], material.queries, vector_of)
    with fill_service(material, scratch / "filled", say) as server:
        say("searching for what was answered ...")
        service = Search(server.url, server.pid, "hybrid")
        service.expect(1)
        for one in tried:
            if (text := one.answered_by[default]) is not None:
                one.false = is_false(search_hits(service, text), search_hits(service, one.pair.asked))
    counts = f"{len(material.texts):,} texts, {len(material.queries):,} questions, {len(made):,} pairs."
    rows = by_threshold(tried)
    tables = {"By threshold": rows, f"By kind, at {default:g}": by_kind(tried, default)}
    return Found(tables, [counts, *NOTES], plot(rows, default))


def look_up_pairs(
    kind: Sequence[Pair], questions: Sequence[str], vector_of: dict[str, Floats]
) -> Iterator[PairResult]:
    """Look up every pair's second question, with the first questions of all these pairs in the cache."""
    asked = {one.asked for one in kind}
    others = (one for one in questions if one not in asked)
    cached = list(dict.fromkeys([*(one.kept for one in kind), *itertools.islice(others, BESIDE)]))
    matrix = np.stack([vector_of[text] for text in cached])
    at_threshold = SimpleNamespace(settings=SemanticSettings(enabled=True))
    cache = SemanticCache(lambda: at_threshold.settings, Questions(1 << 28))
    for text in cached:
        cache.keep(SCOPE, text, vector_of[text])
    for pair in kind:
        vector = vector_of[pair.asked]
        similarities = matrix @ vector
        nearest = int(similarities.argmax())
        one = PairResult(
            pair, float(vector_of[pair.kept] @ vector), cached[nearest], float(similarities[nearest])
        )
        for threshold in THRESHOLDS:
            at_threshold.settings = SemanticSettings(enabled=True, similarity_from=threshold)
            serves = cache.serves(COLLECTION, pair.asked)
            found = asyncio.run(cache.find_alike(SCOPE, pair.asked, vector)) if serves else []
            one.answered_by[threshold] = found[0].text if found else None
        yield one


def search_hits(service: Search, query: str) -> list[Any]:
    rows = service.ask({"query": query, "cache": False})
    return [SimpleNamespace(document_id=str(row), passage=0) for row in rows]


def by_threshold(tried: Sequence[PairResult]) -> list[Row]:
    same, other = ([one for one in tried if one.pair.same is wanted] for wanted in (True, False))
    rows = []
    for threshold in THRESHOLDS:
        row: Row = {"similarity_from": threshold}
        for way in WAYS:
            hits = sum(one.answer(way, threshold) is not None for one in same)
            false = sum(one.answer(way, threshold) == one.pair.kept for one in other)
            row[f"{way}: hits %"] = round(100 * hits / len(same), 1)
            row[f"{way}: false hits %"] = round(100 * false / len(other), 2)
        rows.append(row)
    return rows


def by_kind(tried: Sequence[PairResult], threshold: float) -> list[Row]:
    def counts(some: Sequence[PairResult]) -> Row:
        answers = [one.answered_by[threshold] for one in some]
        return {
            "pairs": len(some),
            "answered": sum(text is not None for text in answers),
            "by the first question": sum(text == one.pair.kept for text, one in zip(answers, some)),
            "searched: false": sum(bool(one.false) for one, text in zip(some, answers) if text is not None),
        }

    rows = []
    for kind in dict.fromkeys(one.pair.kind for one in tried):
        own = [one for one in tried if one.pair.kind == kind]
        nearest = sum(one.answer("similarity alone", threshold) == one.pair.kept for one in own)
        row: Row = {
            "kind": kind,
            "asks the same": "yes" if own[0].pair.same else "no",
            "similarity, median": round(float(np.median([one.similarity for one in own])), 3),
            "nearest by similarity %": round(100 * nearest / len(own), 1),
        }
        rows.append(row | counts(own))
    for same, name in ((True, "all that ask the same"), (False, "all that do not")):
        rows.append({"kind": name, **counts([one for one in tried if one.pair.same is same])})
    return rows


def plot(rows: Sequence[Row], default: float) -> Plot:
    """Plot paraphrases answered and hard negatives answered wrongly, over thresholds."""
    lines = {
        f"{what}, {way}": (THRESHOLDS, [row[f"{way}: {what} %"] for row in rows], style + color)
        for way, color in zip(WAYS, ("C1", "C0"))
        for what, style in (("hits", "o-"), ("false hits", "x--"))
    }
    return Plot(
        "similarity_from", {"percent": {**lines, "the default": ([default, default], [0, 100], "k:")}}
    )
