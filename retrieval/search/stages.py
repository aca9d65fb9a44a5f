"""One round of a search: from candidates to an answer, and the grounds for caching it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from indexes.base.errors import InvalidInput
from indexes.base.model import Ranking, Spared, Tier
from indexes.base.work import WorkBudget
from indexes.parts.query import Query
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.ceiling import BudgetShare
from retrieval.search.boosting import arrange, values_queries
from retrieval.search.diversity import diversify
from retrieval.search.facets import facet_body
from retrieval.search.highlighting import corrected_words
from retrieval.search.hydrating import above_floors, hydrate
from retrieval.search.plan import EmbeddedQuery
from retrieval.search.ranking import Fused, Positions, fuse
from retrieval.search.relevance import evidence_of
from retrieval.search.reranking import Reranker, rerank
from retrieval.search.rounds import Rounds, rounds_of
from retrieval.search.shard import Ask, LocalShard, Partition, Searchable, Searched, run_at_once
from retrieval.search.stopwatch import Stopwatch
from retrieval.search.survival import grounds_of
from retrieval.wire.options import FacetBody, OverBudget, Reranked
from retrieval.wire.search import Evidence, EvidenceFrom, Hit


class CachedAnswer(msgspec.Struct):
    """The part of an answer that is cached: everything but how long it took and where it came from."""

    hits: list[Hit]
    tiers: list[Tier]
    cold_skipped: str | None
    share_read: float | None
    weight_dense: float | None
    evidence: Evidence | None
    evidence_from: EvidenceFrom | None
    corrected: dict[str, str] | UnsetType = UNSET
    facets: list[FacetBody] | UnsetType = UNSET
    reranked: Reranked | None = None
    over_budget: list[OverBudget] | UnsetType = UNSET
    query_cut: bool | UnsetType = UNSET

    @property
    def whole(self) -> bool:
        """Whether the reranker read all that it was to read, so that another try would give the same answer."""
        return self.reranked is None or self.reranked.passages == self.reranked.of


SEARCHES_MAX = 5  # for an answer whose hits are replaced while they are searched for
PINNED_MAX = 50  # tries to read the log at the operation with which the newest snapshot ends


@dataclass(frozen=True, slots=True)
class Found:
    """An answer; whether candidates were missing from the log; the grounds on which it may outlive writes, empty if it
    may not; and what the cold policy learns from it."""

    answer: CachedAnswer
    vanished: bool = False
    grounds: bytes = b""
    spared: Spared | None = None


async def run_stages(
    embedded: EmbeddedQuery,
    shard: Searchable,
    watch: Stopwatch,
    rounds: Rounds,
    exact: Ranking | None = None,
    reranker: Reranker | None = None,
) -> Found | None:
    """Run the stages in order. Returns None if the search has to go deeper, see `hydrate`.

    `exact` is the ranking of an exact scan, which replaces the search.
    """
    embedded, request = embedded.with_share_read(), embedded.request
    found = await shard.search(
        Ask(
            embedded.query,
            exact,
            values_queries(request),
            highlight=request.query if request.highlight else None,
            grounds=request.cache,
        )
    )
    if embedded.query.counted:
        rounds.spared = found.candidates.spared
    ranked = fused = watch.time_stage("fuse", lambda: fuse(embedded, found.candidates))
    reranked = None
    if embedded.plan.rerank is not None and reranker is not None:
        fused, reranked = await watch.time_await(
            "rerank", rerank(embedded.plan, fused, shard, reranker, rounds, watch.deadline)
        )
    arranged = fused
    if request.boosts or request.sort:
        arranged = watch.time_stage("fuse", partial(arrange, embedded.request, fused, found.values))
    if request.mmr is not None:
        arranged = await watch.time_await("fuse", diversify(embedded.plan, arranged, shard))
    rounds.last = embedded, arranged
    hydrated = await watch.time_await("hydrate", hydrate(embedded, arranged, shard, found.terms, rounds))
    if hydrated is None:
        return None
    hits, vanished = hydrated
    grounds = b""
    if found.grounds is not None and not vanished:
        grounds = grounds_of(embedded, found.grounds, ranked, rounds.decided)
    calibration = embedded.calibration(fused.candidates)
    answer = CachedAnswer(
        hits=hits,
        tiers=list(found.candidates.searched),
        cold_skipped=found.candidates.cold_skipped,
        share_read=None if embedded.share_read is None else round(embedded.share_read, 3),
        weight_dense=None if embedded.weight_dense is None else round(embedded.weight_dense, 3),
        evidence=evidence_of(fused.relevance[judged_by(embedded, fused, arranged, rounds)], calibration),
        evidence_from=calibration.bounds if calibration else None,
        reranked=reranked,
        corrected=corrected_words(found.corrected, hits, rounds.budget.work),
        over_budget=over_budget(embedded, rounds, found),
        query_cut=embedded.query_cut or UNSET,
    )
    return Found(answer, vanished, grounds, rounds.spared)


def search_at_once(embedded: EmbeddedQuery, shard: LocalShard, watch: Stopwatch, share: BudgetShare) -> Found:
    """Search on this thread, with every round and all facets."""

    def scan(query: Query) -> Ranking:
        assert query.vector is not None
        [found] = run_at_once(partial(shard.scan, query.vector[None], query.depth, query.condition))
        return found

    is_exact = embedded.request.exact and embedded.query.vector is not None
    rounds = rounds_of(shard.collection, embedded, share, watch)
    found = run_rounds(embedded, shard, watch, rounds, scan if is_exact else None)
    if embedded.plan.facets:
        run_at_once(partial(count_facets_of, embedded, shard, shard.work, found.answer))
    return found


def run_rounds(
    embedded: EmbeddedQuery,
    shard: Searchable,
    watch: Stopwatch,
    rounds: Rounds,
    scan: Callable[[Query], Ranking] | None = None,
) -> Found:
    """Search ever deeper on this thread, by `scan` instead of the indexes if given."""
    while True:
        exact = scan(embedded.query) if scan else None
        found = run_at_once(partial(run_stages, embedded, shard, watch, rounds, exact))
        if found is not None:
            return found
        embedded = embedded.deeper()


def judged_by(embedded: EmbeddedQuery, fused: Fused, arranged: Fused, rounds: Rounds) -> Positions:
    """Return the candidates by which the evidence is judged: those that may be hits, best first as they were before
    boosts, `sort` and `mmr`, which change no relevance."""
    order = fused.order[np.isin(fused.order, above_floors(embedded, arranged))]
    return order[~np.isin(fused.candidates.ids[order], list(rounds.left_out))] if rounds.left_out else order


def over_budget(embedded: EmbeddedQuery, rounds: Rounds, searched: Searched) -> list[OverBudget] | UnsetType:
    found: list[OverBudget] = []
    if not searched.typos_whole:
        found.append("typos")
    if not searched.synonyms_whole:
        found.append("synonyms")
    if not rounds.phrases_whole:
        found.append("operators")
    if not rounds.highlights_whole:
        found.append("highlight")
    if not rounds.copies_whole:
        found.append("collapse")
    if not rounds.depth_whole:
        found += leaving_out(embedded)
    return list(dict.fromkeys(found)) or UNSET


def leaving_out(embedded: EmbeddedQuery) -> list[OverBudget]:
    """Return the options that leave out candidates, so that a search lacks hits."""
    request = embedded.request
    asked: dict[OverBudget, bool] = {
        "min_score": request.min_score is not None,
        "min_relevance": request.min_relevance is not None,
        "operators": embedded.plan.operators is not None,
        "group_by_document": request.group_by_document,
    }
    return [option for option, is_asked in asked.items() if is_asked] or ["collapse"]


async def count_facets_of(
    embedded: EmbeddedQuery, shard: Partition, work: WorkBudget, answer: CachedAnswer
) -> None:
    """Add its facets to an answer, or report that other searches of the request used up its work budget. Raises
    InvalidInput for a key that no document has, and for ranges of a key that has no such values; not to a caller with
    groups, whom that would tell which keys hidden documents have."""
    if work.facet_counts < 0:
        answer.over_budget = [*(answer.over_budget or ()), "facets"]
        return
    counts = await shard.facets(embedded.query.condition, [query for _, query in embedded.plan.facets])
    for (_, query), found in zip(embedded.plan.facets, counts, strict=True):
        if found.fault and PRINCIPAL.get().groups is None:
            raise InvalidInput(found.fault, param=query.where)
    answer.facets = [
        facet_body(facet, found) for (facet, _), found in zip(embedded.plan.facets, counts, strict=True)
    ]
    work.facet_counts -= sum(
        one.documents * (1 + len(one.ranges) // 16) + one.distinct for one in answer.facets
    )
