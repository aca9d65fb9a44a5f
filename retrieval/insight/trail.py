"""A document's trail through one search: where its passages were lost, and by how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import regex
from msgspec import UNSET
from numpy.typing import NDArray

from indexes.base.model import Floats, Ids, Metadata, StoredDocument, StoredPassage
from indexes.base.paths import leaves
from indexes.base.suggestions import similar
from indexes.base.work import WorkBudget
from indexes.lexical.analysis import terms
from indexes.log.reader import searchable_text
from indexes.parts.standing import BEST, Standing
from retrieval.search.fusion import reciprocal_rank
from retrieval.search.hydrating import ranks_of
from retrieval.search.pipeline import TracedSearch
from retrieval.search.plan import EmbeddedQuery, Plan
from retrieval.search.ranking import fuse_scores, none_if_nan, round_scores
from retrieval.search.relevance import features_of, relevance_of
from retrieval.search.shard import Follow, Followed, Seqs, shard_of
from retrieval.wire.explain import FollowedPassage, FollowedWord
from retrieval.wire.search import Hit, Ranks, Scores

ALIKE = 0.75  # word similarity from 0 to 1 above which a word is an inflection or a typo
CHARS_COMPARED = 20_000  # of a passage, in which similar words are looked for
PHRASE_CHARS = 2_000_000  # searched for phrases besides those of the searches
DECIMALS = 4
WORD = regex.compile(r"\w+")
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

    @property
    def written(self) -> Seqs:
        """The operation that wrote it, by its shard."""
        return {shard_of(self.ids.start): self.document.seq}

    def is_later(self, seqs: Seqs) -> bool:
        """Whether it was written after these operations."""
        return any(seq > seqs.get(at, 0) for at, seq in self.written.items())

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
    """One followed search. `best` holds the highest-scoring passages, a hit first; it is empty if the shard has none.
    `own_words` maps passages to words near which those of the query may be."""

    target: Target
    search: TracedSearch
    found: Followed
    best: list[Standing]
    rank: int | None
    own_words: dict[int, set[str]] = field(default_factory=dict)
    work: WorkBudget = field(default_factory=lambda: WorkBudget(phrase_chars=PHRASE_CHARS))

    @property
    def embedded(self) -> EmbeddedQuery:
        return self.search.embedded

    @property
    def plan(self) -> Plan:
        return self.search.embedded.plan

    @property
    def first(self) -> Standing:
        return self.best[0]

    @property
    def passage(self) -> StoredPassage:
        """The best passage's text and position."""
        return self.found.passages[self.first.id]

    def position(self, one: Standing) -> int | None:
        """Return the position of a passage among the candidates, or None."""
        return first_index(self.search.fused.candidates.ids, one.id)

    def place(self, one: Standing) -> int | None:
        """Return the place of a passage in the final order, from 1, before floors and grouping."""
        at = first_index(self.search.fused.candidates.ids[self.search.fused.order], one.id)
        return None if at is None else at + 1

    def name(self, one: Standing) -> float:
        """Return how exactly the query names a passage, from 0 to 1."""
        names, position = self.search.fused.candidates.names, self.position(one)
        return 0.0 if names is None or position is None else float(names[position])

    def score_with(self, dense: float | None, lexical: float | None) -> float:
        """Return the score of a passage with these two scores. Rank fusion ranks it among the present candidates."""
        plan, found = self.plan, self.search.fused.candidates
        if plan.mode != "hybrid":
            score = dense if plan.mode == "dense" else lexical
            return -np.inf if score is None else score
        both = [column(dense), column(lexical)]
        if self.embedded.weight_dense is not None:
            return float(fuse_scores(self.embedded, self.embedded.weight_dense, found, *both)[0])
        rankings = (found.dense, found.dense_ranks), (found.lexical, found.lexical_ranks)
        places = [before(score, *ranking) for score, ranking in zip(both, rankings)]
        return float(reciprocal_rank(places, plan.fusion.rrf_k)[0])

    def compared_with_floors(self, one: Standing) -> dict[str, float]:
        """Return what `min_score` and `min_relevance` compare of a passage. Of one that is no candidate it is what a
        deeper search would compare, or, where places make the score, at least as much. Unknown values are left out."""
        fused, mode = self.search.fused, self.plan.mode
        if (position := self.position(one)) is not None:
            return {"min_score": fused.scores[position], "min_relevance": fused.relevance[position]}
        dense, lexical = None if mode == "lexical" else one.dense, None if mode == "dense" else one.lexical
        if dense is None and lexical is None:
            return {}  # no search ranks it
        found, floor = fused.candidates, self.embedded.similarity_floor
        features = features_of(found, column(dense), column(lexical), floor)
        values = {"min_relevance": float(relevance_of(features, self.embedded.calibration(found))[0])}
        if fused.boosts is None and fused.reranked is None:
            score = self.score_with(dense, lexical)
            if mode == "hybrid" and self.embedded.weight_dense is None:
                places = [
                    np.array([-1 if rank is None else rank - 1], np.int32)
                    for rank in (one.dense_rank, one.lexical_rank)
                ]
                score = float(reciprocal_rank(places, self.plan.fusion.rrf_k)[0])
            values["min_score"] = float(round_scores(np.array([score]))[0])
        return values

    @property
    def last_score(self) -> float:
        """The score of the last hit, which a passage must reach; minus infinity while there is room."""
        hits = self.search.answer.hits
        return hits[-1].score if len(hits) >= self.plan.k else -np.inf

    def word_rows(self, one: Standing) -> list[FollowedWord]:
        """Return what each word of the query contributes to a passage, matching words first."""
        total = sum(one.gains.values()) or 1.0
        rows = []
        named = {term for of_word in self.found.words.values() for term in of_word}
        others = {term: [term] for term in one.gains if term not in named}
        for word, of_word in {**self.found.words, **others}.items():
            gain = sum(one.gains.get(term, 0.0) for term in of_word)
            near = None if gain else self._near(word, one)
            rows.append(FollowedWord(word, round(gain, DECIMALS), round(gain / total, DECIMALS), near))
        return sorted(rows, key=lambda row: -row.score)

    def _near(self, word: str, one: Standing) -> str | None:
        """Return a similar word of a passage, as far as `work` allows to compare its words."""
        if one.id not in self.own_words:
            passage = self.found.passages[one.id]
            beginning = searchable_text(passage.title, passage.text[:CHARS_COMPARED])
            self.own_words[one.id] = {own.lower() for own in WORD.findall(beginning)}
        own = self.own_words[one.id]
        self.work.near_words -= len(own)
        if self.work.near_words < 0:
            return None
        return next(iter(similar(word.lower(), own, 1, ALIKE)), None)

    def rows(self) -> list[FollowedPassage]:
        candidates, fused = self.search.fused.candidates, self.search.fused
        found = []
        for one in self.best:
            position = self.position(one)
            found.append(
                FollowedPassage(
                    passage=self.found.passages[one.id].ordinal,
                    tier=one.tier,
                    scores=Scores(
                        round_score(one.dense), round_score(one.lexical), name=self.name(one) or UNSET
                    ),
                    exact=Ranks(one.dense_rank, one.lexical_rank),
                    candidate=Ranks() if position is None else ranks_of(candidates, position),
                    score=None if position is None else none_if_nan(float(fused.scores[position])),
                    place=self.place(one),
                    words=self.word_rows(one),
                )
            )
        return found


async def trail_of(search: TracedSearch, target: Target, condition: dict[str, Any] | None) -> Trail:
    """Follow a document. `condition` is the filter of the request. Scores everything that the filter allows: keep it
    off the event loop."""
    rank = target.rank_in(search.answer.hits)
    final = search.fused.candidates.ids[search.fused.order]
    found = await search.shard.follow(
        Follow(
            search.embedded.query,
            target.followed,
            final[np.isin(final, target.followed)][:BEST],
            condition,
            whole=rank is None,
        )
    )
    trail = Trail(target, search, found, [one for one in found.standings if one.id in found.passages], rank)
    shown = {hit.passage for hit in search.answer.hits if hit.document_id == target.document.id}

    def order(one: Standing) -> tuple[bool, float, float, int]:
        is_hit = rank is not None and found.passages[one.id].ordinal in shown
        return not is_hit, -trail.name(one), -trail.score_with(one.dense, one.lexical), one.id

    trail.best.sort(key=order)
    return trail


def terms_in(text: str, language: str) -> set[str]:
    return set(terms(text, language))


def strings_in(metadata: Metadata) -> list[str]:
    """Return the strings in a document's metadata."""
    return [value for _, value in leaves(metadata) if isinstance(value, str)]


def first_index(values: Ids, wanted: int) -> int | None:
    """Return where `wanted` first occurs, or None."""
    at = np.flatnonzero(values == wanted)
    return int(at[0]) if len(at) else None


def column(score: float | None) -> Floats:
    return np.array([np.nan if score is None else score], np.float32)


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
    for one in msgspec.structs.fields(kind):
        default = one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()
        if (value := getattr(request, one.name)) != default:
            found[one.encode_name] = value
    return found
