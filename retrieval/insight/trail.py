"""A document's trail through one search: where its passages were lost, and by how much."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.base.model import Floats, Ids, Metadata, StoredDocument, StoredPassage
from indexes.base.paths import leaves
from indexes.base.suggestions import similar
from indexes.base.work import OnStep
from indexes.collection.collection import Collection
from indexes.dense.vectors import search_with_one_thread
from indexes.filters.grammar import Filter
from indexes.lexical.analysis import query_terms, terms
from indexes.log.reader import searchable_text
from indexes.parts.prepared import Prepared
from indexes.parts.query import Query
from indexes.parts.snapshot import Snapshot
from indexes.parts.standing import Standing, holds, standings
from retrieval.search.fusion import reciprocal_rank
from retrieval.search.pipeline import TracedSearch
from retrieval.search.plan import Plan
from retrieval.search.stages import fuse_scores, none_if_nan, ranks_of
from retrieval.wire.explain import FollowedPassage, FollowedWord
from retrieval.wire.search import Hit, Ranks, Scores

BEST = 3  # passages examined per score
ALIKE = 0.75  # word similarity from 0 to 1 above which a word is an inflection or a typo
DECIMALS = 4
WORD = re.compile(r"\w+")
Ranked = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Target:
    """What is followed: a document of the log, all its passages, and the requested passage, if any."""

    document: StoredDocument
    ids: range
    passage: int | None

    @property
    def followed(self) -> Ids:
        ids = self.ids if self.passage is None else self.ids[self.passage : self.passage + 1]
        return np.array(ids, np.int64)

    def rank_in(self, hits: list[Hit]) -> int | None:
        """Return its rank among the hits, from 1, or None."""
        return next((rank for rank, passage in self._own(hits) if self.passage in (None, passage)), None)

    def other_in(self, hits: list[Hit]) -> tuple[int, int] | None:
        """Return rank and passage of the first hit that is another passage of the document."""
        return next((one for one in self._own(hits) if one[1] != self.passage), None)

    def _own(self, hits: list[Hit]) -> Iterator[tuple[int, int]]:
        """Yield rank and passage of the hits that are passages of the document."""
        for rank, hit in enumerate(hits, 1):
            if hit.document_id == self.document.id:
                yield rank, hit.passage


@dataclass(frozen=True, slots=True)
class Trail:
    """One followed search. `best` holds the highest-scoring passages, a hit first; it is empty if the snapshot has
    none. `words` maps the words of the query to its terms."""

    target: Target
    search: TracedSearch
    prepared: Prepared
    best: list[Standing]
    stored: Mapping[int, StoredPassage]
    words: Mapping[str, list[str]]
    query_language: str
    rank: int | None

    @property
    def plan(self) -> Plan:
        return self.search.plan

    @property
    def first(self) -> Standing:
        return self.best[0]

    @property
    def passage(self) -> StoredPassage:
        """The best passage's text and position."""
        return self.stored[self.first.id]

    def position(self, one: Standing) -> int | None:
        """Return the position of a passage among the candidates, or None."""
        return first_index(self.search.fused.candidates.ids, one.id)

    def place(self, one: Standing) -> int | None:
        """Return the place of a passage in the final order, from 1, before floors and grouping."""
        at = first_index(self.search.fused.candidates.ids[self.search.fused.order], one.id)
        return None if at is None else at + 1

    def score_with(self, dense: float | None, lexical: float | None) -> float:
        """Return the score of a passage with these two scores. Rank fusion ranks it among the present candidates."""
        plan, found = self.plan, self.search.fused.candidates
        if plan.mode != "hybrid":
            score = dense if plan.mode == "dense" else lexical
            return -np.inf if score is None else score
        both = [np.array([np.nan if one is None else one], np.float32) for one in (dense, lexical)]
        if plan.weight_dense is not None:
            return float(fuse_scores(plan, plan.weight_dense, found, *both)[0])
        rankings = (found.dense, found.dense_ranks), (found.lexical, found.lexical_ranks)
        places = [before(score, *ranking) for score, ranking in zip(both, rankings)]
        return float(reciprocal_rank(places, plan.rrf_k)[0])

    @property
    def last_score(self) -> float:
        """The score of the last hit, which a passage must reach; minus infinity while there is room."""
        hits = self.search.answer.hits
        return hits[-1].score if len(hits) >= self.plan.k else -np.inf

    def satisfies(self, condition: Filter) -> bool:
        return holds(self.prepared, self.first.id, condition)

    def word_rows(self, one: Standing) -> list[FollowedWord]:
        """Return what each word of the query contributes to a passage, matching words first."""
        passage = self.stored[one.id]
        own = {word.lower() for word in WORD.findall(searchable_text(passage.title, passage.text))}
        total = sum(one.gains.values()) or 1.0
        rows = []
        named = {term for of_word in self.words.values() for term in of_word}
        others = {term: [term] for term in one.gains if term not in named}
        for word, of_word in {**self.words, **others}.items():
            gain = sum(one.gains.get(term, 0.0) for term in of_word)
            near = None if gain else next(iter(similar(word.lower(), own, 1, ALIKE)), None)
            rows.append(FollowedWord(word, round(gain, DECIMALS), round(gain / total, DECIMALS), near))
        return sorted(rows, key=lambda row: -row.score)

    def rows(self) -> list[FollowedPassage]:
        candidates, fused = self.search.fused.candidates, self.search.fused
        found = []
        for one in self.best:
            position = self.position(one)
            found.append(
                FollowedPassage(
                    passage=self.stored[one.id].ordinal,
                    tier=one.tier,
                    scores=Scores(round_score(one.dense), round_score(one.lexical)),
                    exact=Ranks(one.dense_rank, one.lexical_rank),
                    candidate=Ranks() if position is None else ranks_of(candidates, position),
                    score=None if position is None else none_if_nan(float(fused.scores[position])),
                    place=self.place(one),
                    words=self.word_rows(one),
                )
            )
        return found


def trail_of(collection: Collection, search: TracedSearch, target: Target, on_step: OnStep) -> Trail:
    """Follow a document. Scores everything that the filter allows: keep it off the event loop. Calls `on_step` in
    between."""
    search_with_one_thread()
    plan, snapshot = search.plan, search.snapshot
    words, language = words_of(snapshot, plan.query)
    counts: dict[str, float] = {}
    for of_word in words.values():
        counts.update(of_word)
    prepared = search.prepared.again(plan.query, on_step)
    best = standings(prepared, furthest(prepared, search, target.followed), counts, on_step)
    stored = collection.passages([one.id for one in best])
    trail = Trail(
        target=target,
        search=search,
        prepared=prepared,
        best=[one for one in best if one.id in stored],
        stored=stored,
        words={word: list(of_word) for word, of_word in words.items()},
        query_language=language,
        rank=target.rank_in(search.answer.hits),
    )
    shown = {hit.passage for hit in search.answer.hits if hit.document_id == target.document.id}

    def order(one: Standing) -> tuple[bool, float, int]:
        found = trail.rank is not None and stored[one.id].ordinal in shown
        return not found, -trail.score_with(one.dense, one.lexical), one.id

    trail.best.sort(key=order)
    return trail


def furthest(prepared: Prepared, search: TracedSearch, ids: Ids) -> Ids:
    """Return a few of these passages: the best by each score, and those ranked first by the search."""
    chosen: set[int] = set()
    for scores in prepared.scores(ids):
        order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
        chosen.update(ids[order[:BEST]].tolist())
    final = search.fused.candidates.ids[search.fused.order]
    chosen.update(final[np.isin(final, ids)][:BEST].tolist())
    return np.array(sorted(chosen), np.int64)


def words_of(snapshot: Snapshot, query: Query) -> tuple[dict[str, dict[str, float]], str]:
    """Return the query's words that count, each with its terms and their counts, and the query's language."""
    if query.text is None:
        return {}, ""
    spoken = snapshot.language_of(query.text, query.language)
    counts = query_terms(query.text, spoken.language, spoken.others)
    words: dict[str, dict[str, float]] = {}
    for token in dict.fromkeys(query.text.split()):
        own = query_terms(token, spoken.language, spoken.others)
        if kept := {term: counts[term] for term in own if term in counts}:
            words[token.strip(".,;:!?\"'()[]") or token] = kept
    return words, spoken.language


def terms_in(text: str, language: str) -> set[str]:
    return set(terms(text, language))


def strings_in(metadata: Metadata) -> list[str]:
    """Return the strings in a document's metadata."""
    return [value for _, value in leaves(metadata) if isinstance(value, str)]


def first_index(values: Ids, wanted: int) -> int | None:
    """Return where `wanted` first occurs, or None."""
    at = np.flatnonzero(values == wanted)
    return int(at[0]) if len(at) else None


def before(score: Floats, scores: Floats, ranks: Ranked) -> Ranked:
    """Return the place, from 0, that each score would take in a ranking; -1 for none."""
    if np.isnan(score[0]):
        return np.array([-1], np.int32)
    return np.array([np.count_nonzero(scores[ranks >= 0] > score[0])], np.int32)


def round_score(score: float | None) -> float | None:
    return None if score is None else round(score, DECIMALS)


def as_json(request: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, object]:
    """Return the fields of `kind` that a request sets, ready for encoding."""
    found = {}
    for field in msgspec.structs.fields(kind):
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if (value := getattr(request, field.name)) != default:
            found[field.encode_name] = value
    return found
