"""One round of a search: from candidates to an answer, and the grounds for caching it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from indexes.base.model import Ranking, Tier
from indexes.base.work import WorkBudget
from indexes.collection.collection import Collection
from indexes.parts.snapshot import Snapshot
from retrieval.admission.ceiling import AnswerBudget, BudgetShare
from retrieval.search.boosting import arrange, values_queries
from retrieval.search.diversity import diversify
from retrieval.search.facets import facet_body
from retrieval.search.highlighting import corrected_words
from retrieval.search.plan import Plan
from retrieval.search.relevance import is_supported
from retrieval.search.reranking import Reranker, rerank
from retrieval.search.shard import Ask, Searched, Shard
from retrieval.search.stages import Rounds, fuse, hydrate
from retrieval.search.stopwatch import Stopwatch
from retrieval.search.survival import grounds_of
from retrieval.wire.options import FacetBody, OverBudget, Reranked
from retrieval.wire.search import CacheOutcome, Hit, Receipt, SearchAnswer


class CachedAnswer(msgspec.Struct):
    """The part of an answer that is cached: everything but how long it took and where it came from."""

    hits: list[Hit]
    tiers: list[Tier]
    cold_skipped: str | None
    share_read: float | None
    weight_dense: float | None
    supported: bool | None
    support_from: float | None
    corrected: dict[str, str] | UnsetType = UNSET
    facets: list[FacetBody] | UnsetType = UNSET
    reranked: Reranked | None = None
    over_budget: list[OverBudget] | UnsetType = UNSET

    @property
    def whole(self) -> bool:
        """Whether no budget cut it short, so that another try would give the same answer."""
        return self.reranked is None or self.reranked.passages == self.reranked.of


@dataclass(frozen=True, slots=True)
class Found:
    """An answer; whether candidates were missing from the log; and the grounds on which it may outlive writes, empty if
    it may not."""

    answer: CachedAnswer
    vanished: bool
    grounds: bytes


def rounds_of(collection: Collection, plan: Plan, budget: BudgetShare, watch: Stopwatch) -> Rounds:
    others = collection.documents - len(plan.examples.documents if plan.examples else ())
    return Rounds(budget, others if plan.query.condition is None else None, on_step=watch.on_step)


async def run_stages(
    plan: Plan,
    shard: Shard,
    watch: Stopwatch,
    rounds: Rounds,
    known: Ranking | None = None,
    reranker: Reranker | None = None,
) -> Found | None:
    """Run the stages in order. Returns None if the search has to go deeper, see `hydrate`.

    `known` is the ranking of an exact scan, which replaces the search.
    """
    plan, request = plan.with_share_read(), plan.request
    found = await shard.search(
        Ask(
            plan.query,
            known,
            values_queries(request),
            highlight=request.query if request.highlight else None,
            grounds=request.cache,
        )
    )
    ranked = fused = watch.time_stage("fuse", lambda: fuse(plan, found.candidates))
    reranked = None
    if plan.rerank is not None and reranker is not None:
        fused, reranked = await watch.time_await(
            "rerank", rerank(plan, fused, shard, reranker, rounds, watch.deadline)
        )
    arranged = fused
    if request.boosts or request.sort:
        arranged = watch.time_stage("fuse", partial(arrange, plan, fused, found.values))
    if request.mmr is not None:
        arranged = await watch.time_await("fuse", diversify(plan, arranged, shard))
    rounds.last = plan, arranged
    hydrated = await watch.time_await("hydrate", hydrate(plan, arranged, shard, found.terms, rounds))
    if hydrated is None:
        return None
    hits, vanished = hydrated
    grounds = b""
    if found.grounds is not None and not vanished:
        grounds = grounds_of(plan, found.grounds, ranked, rounds.shown)
    answer = CachedAnswer(
        hits=hits,
        tiers=list(found.candidates.searched),
        cold_skipped=found.candidates.cold_skipped,
        share_read=None if plan.share_read is None else round(plan.share_read, 3),
        weight_dense=None if plan.weight_dense is None else round(plan.weight_dense, 3),
        supported=is_supported(fused.relevance[fused.order], plan.calibration),
        support_from=plan.calibration.support if plan.calibration else None,
        reranked=reranked,
        corrected=corrected_words(found.corrected, hits),
        over_budget=over_budget(rounds, found),
    )
    return Found(answer, vanished, grounds)


def over_budget(rounds: Rounds, searched: Searched) -> list[OverBudget] | UnsetType:
    found: list[OverBudget] = []
    if not searched.typos_whole:
        found.append("typos")
    if not rounds.phrases_whole:
        found.append("operators")
    if not rounds.highlights_whole:
        found.append("highlight")
    return found or UNSET


async def count_facets_of(plan: Plan, shard: Shard, work: WorkBudget, answer: CachedAnswer) -> None:
    """Add its facets to an answer, or report that other searches of the request used up its work budget."""
    if work.facet_counts < 0:
        answer.over_budget = [*(answer.over_budget or ()), "facets"]
        return
    counts = await shard.facets(plan.query.condition, [query for _, query in plan.facets])
    answer.facets = [facet_body(facet, found) for (facet, _), found in zip(plan.facets, counts, strict=True)]
    work.facet_counts -= sum(
        one.documents * (1 + len(one.ranges) // 16) + one.distinct for one in answer.facets
    )


def decode_and_charge(stored: bytes, budget: AnswerBudget) -> CachedAnswer | None:
    """Decode a cached answer and charge it to the budget. Returns None if another version of this service stored it."""
    budget.take(len(stored))
    try:
        return msgspec.msgpack.decode(stored, type=CachedAnswer)
    except msgspec.DecodeError:
        return None


def answer_of(
    name: str,
    collection: Collection,
    snapshot: Snapshot,
    plan: Plan,
    answer: CachedAnswer,
    watch: Stopwatch,
    cache: CacheOutcome,
) -> SearchAnswer:
    """Return the answer with its receipt. `name` is what the client calls the collection."""
    receipt = Receipt(
        collection=name,
        generation=snapshot.generation,
        seq=snapshot.seq,
        tiers=answer.tiers,
        cold_skipped=answer.cold_skipped,
        share_read=answer.share_read,
        weight_dense=answer.weight_dense,
        cache=cache,
        model=collection.settings.model,
        reranked=answer.reranked,
        supported=answer.supported,
        support_from=answer.support_from,
        corrected=answer.corrected,
        over_budget=answer.over_budget,
        degraded=UNSET if cache in {"hit", "semantic"} or not plan.degraded else list(plan.degraded),
    )
    return SearchAnswer(answer.hits, receipt, watch.stop(), answer.facets)
