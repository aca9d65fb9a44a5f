"""From candidates to hits: fuse them into one order, then fetch the first k from the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from indexes.base.model import TIERS, Floats, StoredPassage
from indexes.base.work import OnStep, do_nothing
from indexes.lexical.spans import Marks
from indexes.parts.query import Candidates
from indexes.reading.surroundings import Surroundings
from retrieval.admission.ceiling import BudgetShare, size_of
from retrieval.search.fusion import clip_to_levels, fuse_weighted, levels_of, order_by_score, reciprocal_rank
from retrieval.search.highlighting import snippet
from retrieval.search.plan import SPARE_HITS, Plan
from retrieval.search.relevance import Columns, features_of, relevance_of
from retrieval.search.shard import Shard, What
from retrieval.wire.options import Expanded, Highlight
from retrieval.wire.search import Hit, Ranks, RelevanceEvidence, Scores

DECIMALS = 6
DEPTH_MAX = 32_768  # of a ranking; a search that still lacks hits at this depth returns those it has
HITS_READ_MAX = 128  # at once, so that an oversized answer is refused before all of it is in memory
# Fetching a passage costs as much as searching PASSAGE_CHARS characters for phrases. A character costs as much as
# FOLDED_CHARS if the passage is not all ASCII.
PASSAGE_CHARS, FOLDED_CHARS = 1000, 8

Positions = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Fused:
    """Candidates with their final order: positions into them, best first. The columns hold for each candidate its
    score, its relevance (NaN if unknown) with the features behind it, the cross-encoder's score, and its boost factor.

    In a hybrid search each candidate has both of its scores. `levels` (`levels_of`) keep every order the same, however
    deep the search went: None if it was never deepened.
    """

    candidates: Candidates
    order: Positions
    scores: NDArray[np.float64]
    features: Columns
    relevance: Columns
    reranked: NDArray[np.float64] | None = None
    boosts: NDArray[np.float64] | None = None
    levels: NDArray[np.int64] | None = None

    def ordered_by(self, scores: NDArray[np.float64]) -> Positions:
        """Return its order by other scores, within each level."""
        levels = None if self.levels is None else self.levels[self.order]
        return self.order[order_by_score(self.candidates.ids[self.order], scores[self.order], levels)]


def fuse(plan: Plan, candidates: Candidates) -> Fused:
    """Rank the candidates by one score, and compute their relevance."""
    ranks = [candidates.dense_ranks, candidates.lexical_ranks]
    # What a deeper ranking adds comes after the candidates of the first page.
    levels = levels_of(ranks, plan.page_depth) if plan.query.steps else None
    if plan.mode == "hybrid":
        if plan.weight_dense is None:
            fused = reciprocal_rank(
                ranks if levels is None else clip_to_levels(levels, ranks, plan.page_depth), plan.rrf_k
            )
        else:
            fused = fuse_scores(plan, plan.weight_dense, candidates, candidates.dense, candidates.lexical)
        order, scores = order_by_score(candidates.ids, fused, levels), round_scores(fused)
    else:
        order = np.arange(len(candidates))
        scores = round_scores(candidates.dense if plan.mode == "dense" else candidates.lexical)
    if plan.examples is not None:
        order = order[~np.isin(candidates.ids[order], plan.examples.passages)]
    features = features_of(candidates, candidates.dense, candidates.lexical, plan.similarity_floor)
    return Fused(candidates, order, scores, features, relevance_of(features, plan.calibration), levels=levels)


def fuse_scores(plan: Plan, weight: float, found: Candidates, dense: Floats, lexical: Floats) -> Columns:
    floor, bound = plan.similarity_floor, found.lexical_bound
    return fuse_weighted(dense, lexical, weight=weight, floor=floor, bound=bound)


@dataclass(slots=True)
class Rounds:
    """What the rounds of one search share, each deeper than the one before.

    documents         how many there are in all; None if a filter leaves out some
    document_of       the documents of the passages that were read
    left_out          passages that were read and are not hits
    rerank_scores     what the reranker said, until `rerank_until` (monotonic)
    on_step           raises what ends the search: its caller has left, or its deadline has passed
    last, shown       the last round's plan and candidates, and the positions of its hits among them
    phrases_whole     no hit is missing because the work budget for phrases was used up
    highlights_whole  all hits have their highlights
    """

    budget: BudgetShare
    documents: int | None = None
    document_of: dict[int, str] = field(default_factory=dict)
    left_out: set[int] = field(default_factory=set)
    phrases_whole: bool = True
    highlights_whole: bool = True
    rerank_scores: dict[int, float] = field(default_factory=dict)
    rerank_until: float | None = None
    on_step: OnStep = do_nothing
    last: tuple[Plan, Fused] | None = None
    shown: list[int] = field(default_factory=list)

    def leaves_out(self, plan: Plan, passage: StoredPassage) -> bool:
        """Whether a candidate is not a hit, which is remembered for later rounds."""
        if plan.operators is not None:
            text, title = passage.text, passage.title
            each = 1 if text.isascii() and title.isascii() else FOLDED_CHARS
            self.budget.work.phrase_chars -= PASSAGE_CHARS + each * (len(text) + len(title))
        if left_out := plan.leaves_out(passage):
            self.left_out.add(passage.id)
        return left_out

    def may_read_on(self, plan: Plan) -> bool:
        """Whether another candidate may be read, which costs work if the query has phrases."""
        self.phrases_whole = plan.operators is None or self.budget.work.phrase_chars >= 0
        return self.phrases_whole


async def hydrate(
    plan: Plan, fused: Fused, shard: Shard, terms: frozenset[str], rounds: Rounds
) -> tuple[list[Hit], bool] | None:
    """Fetch the k candidates of the page that are still live, one per document if asked. Also returns whether some were
    gone. `terms` are those to highlight.

    Returns None if there are fewer than k and a deeper search may find more. Raises TooLarge as soon as they exceed the
    budget.
    """
    ids, order, grouped = fused.candidates.ids, fused.order, plan.request.group_by_document
    if plan.request.min_score is not None:
        order = order[fused.scores[order] >= plan.request.min_score]
    if plan.request.min_relevance is not None:
        order = order[fused.relevance[order] >= plan.request.min_relevance]
    chosen: list[tuple[int, StoredPassage]] = []
    seen: set[str] = set()
    vanished = False
    first, wanted, at, size = plan.request.offset, plan.last, 0, 0
    while at < len(order) and len(chosen) < wanted and rounds.may_read_on(plan):
        rounds.on_step()
        # Read no spares at first: a candidate is rarely deleted between the search and this point.
        step = min(wanted if at == 0 else wanted + SPARE_HITS, HITS_READ_MAX)
        positions = [
            position
            for position in order[at : at + step].tolist()
            if int(ids[position]) not in rounds.left_out
            and not (grouped and rounds.document_of.get(int(ids[position])) in seen)
        ]
        stored = (await shard.fetch(ids[positions].tolist(), What(passages=True))).passages
        already = max(len(chosen), first)
        for position in positions:
            passage = stored.get(int(ids[position]))
            vanished |= passage is None
            if passage is None or rounds.leaves_out(plan, passage):
                continue
            if grouped:
                rounds.document_of[passage.id] = passage.document_id
                if passage.document_id in seen:
                    continue
            seen.add(passage.document_id)
            chosen.append((position, passage))
        size += sum(size_of(passage) for _, passage in chosen[already:wanted])
        rounds.budget.reach(size)
        at += step
    lacking = len(chosen) < wanted and (not grouped or len(seen) != rounds.documents)
    if lacking and rounds.may_read_on(plan) and may_find_more(plan, fused):
        return None
    chosen = chosen[first:wanted]
    rounds.shown = [position for position, _ in chosen]
    hits = hits_of(plan, fused, chosen)
    around: Mapping[int, Surroundings] = {}
    if plan.counted or plan.reach is not None:
        numbers = [passage.id for _, passage in chosen]
        around = (await shard.fetch(numbers, What(reach=plan.reach, hits=plan.counted))).around
    if plan.reach is not None:
        rounds.budget.reach(size + sum(len(one.text) for one in around.values()))
        expand(hits, [around.get(passage.id) for _, passage in chosen])
    if plan.request.highlight:
        rounds.highlights_whole = highlight(plan, hits, terms, rounds)
    return hits, vanished


def may_find_more(plan: Plan, fused: Fused) -> bool:
    """Whether passages beyond the depth of this search may pass its score floors.

    That is so if a ranking continues, and a passage with the last scores of both would pass: no later one scores
    higher.
    """
    found, depth = fused.candidates, plan.query.depth
    rankings = (found.dense, found.dense_ranks), (found.lexical, found.lexical_ranks)
    lasts = [scores[ranks >= 0] for scores, ranks in rankings]
    if depth >= DEPTH_MAX or all(len(listed) < depth for listed in lasts):
        return False
    dense, lexical = (np.array([listed.min(initial=np.inf)], np.float32) for listed in lasts)
    dense[np.isinf(dense)], lexical[np.isinf(lexical)] = np.nan, 0.0
    if plan.request.min_relevance is not None:
        features = features_of(found, dense, lexical, plan.similarity_floor)
        if relevance_of(features, plan.calibration)[0] < plan.request.min_relevance:
            return False
    if plan.request.min_score is None or fused.reranked is not None:
        return True
    if fused.boosts is not None:
        return False  # the metadata of later passages is unknown
    best = last_score(plan, found, dense, lexical)
    return bool(best >= plan.request.min_score)


def last_score(plan: Plan, found: Candidates, dense: Floats, lexical: Floats) -> float:
    """Return what a passage with these scores, or at the ranks just past the end, would score."""
    if plan.mode != "hybrid":
        return float((dense if plan.mode == "dense" else lexical)[0])
    if plan.weight_dense is None:
        place = np.array([plan.query.depth], np.int32)
        return float(reciprocal_rank([place, place], plan.rrf_k)[0])
    return float(fuse_scores(plan, plan.weight_dense, found, dense, lexical)[0])


def hits_of(plan: Plan, fused: Fused, chosen: list[tuple[int, StoredPassage]]) -> list[Hit]:
    candidates = fused.candidates
    at = np.array([position for position, _ in chosen], np.intp)
    evidence = [
        RelevanceEvidence(*row[1:]) if plan.request.explain else None
        for row in round_scores(fused.features[at]).tolist()
    ]
    read = [UNSET] * len(at) if fused.reranked is None else map(none_if_nan, fused.reranked[at].tolist())
    boosts = [UNSET] * len(at) if fused.boosts is None else round_scores(fused.boosts[at]).tolist()
    dense = round_scores(np.clip(candidates.dense[at], -1, 1))
    shown = dense, round_scores(candidates.lexical[at]), fused.scores[at], fused.relevance[at]
    columns = zip(*(one.tolist() for one in shown), read, boosts, evidence, strict=True)
    return [
        Hit(
            document_id=passage.document_id,
            passage=passage.ordinal,
            start=passage.start,
            end=passage.end,
            text=passage.text,
            title=passage.title,
            metadata=passage.metadata,
            score=score,
            scores=Scores(none_if_nan(by_meaning), none_if_nan(by_words), by_reading, boost),
            tier=TIERS[candidates.tiers[position]],
            ranks=ranks_of(candidates, position) if plan.request.explain else None,
            heading=passage.heading,
            tokens=passage.tokens,
            language=passage.language,
            relevance=none_if_nan(likely),
            evidence=why,
        )
        for (position, passage), (by_meaning, by_words, score, likely, by_reading, boost, why) in zip(
            chosen, columns, strict=True
        )
    ]


def expand(hits: list[Hit], around: list[Surroundings | None]) -> None:
    """Attach its surroundings to each hit; just its own passage if it was deleted a moment ago."""
    for hit, found in zip(hits, around, strict=True):
        hit.expanded = (
            Expanded((found.first, found.last), found.start, found.end, found.text, found.cut)
            if found
            else Expanded((hit.passage, hit.passage), hit.start, hit.end, hit.text)
        )


def highlight(plan: Plan, hits: list[Hit], terms: frozenset[str], rounds: Rounds) -> bool:
    """Mark the words of the query in each hit. Returns False if only the first hits were marked, because the work
    budget was used up."""
    work = rounds.budget.work
    wanted = Highlight() if plan.request.highlight is True else plan.request.highlight
    assert wanted
    marks = Marks(terms)
    for hit in hits:
        rounds.on_step()
        before = marks.read
        hit.highlights = marks.of(hit.text, hit.language, before + work.highlight_words)
        work.highlight_words -= marks.read - before
        if hit.highlights is None:
            return False
        hit.snippet = snippet(hit.text, hit.highlights, wanted.snippet_chars)
    return True


def ranks_of(candidates: Candidates, position: int) -> Ranks:
    dense, lexical = int(candidates.dense_ranks[position]), int(candidates.lexical_ranks[position])
    return Ranks(dense + 1 if dense >= 0 else None, lexical + 1 if lexical >= 0 else None)


def round_scores(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Round as clients see them, so that `min_score` compares with what they see."""
    shown: NDArray[np.float64] = np.round(scores, DECIMALS, out=np.empty(scores.shape, np.float64))
    return shown


def none_if_nan(score: float) -> float | None:
    return None if np.isnan(score) else score
