"""One round of a search on a search thread: from candidates to an answer, and the grounds for caching it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from indexes.base.model import DenseResult, Ranking, Tier
from indexes.collection.collection import Collection
from indexes.parts.query import Candidates
from indexes.parts.snapshot import Snapshot
from retrieval.admission.ceiling import AnswerBudget, BudgetShare
from retrieval.search.boosting import arrange
from retrieval.search.diversity import diversify
from retrieval.search.executor import Execution, Executor, LocalExecutor
from retrieval.search.facets import facets_of
from retrieval.search.highlighting import corrected_words
from retrieval.search.plan import Plan
from retrieval.search.relevance import is_supported
from retrieval.search.reranking import Reranker, rerank
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


def rounds_of(collection: Collection, plan: Plan, budget: BudgetShare) -> Rounds:
    others = collection.documents - len(plan.examples.documents if plan.examples else ())
    return Rounds(budget, others if plan.query.condition is None else None)


def candidates_of_scan(snapshot: Snapshot, ranking: Ranking) -> Candidates:
    """Turn the ranking of an exact scan into candidates. The scan reads the log, which may be ahead of the snapshot."""
    ranking = replace(ranking, tiers=snapshot.tiers_of(ranking.ids))
    return Candidates.join(DenseResult(ranking, snapshot.tiers, None), Ranking.empty())


def run_stages(
    plan: Plan,
    executor: Executor,
    watch: Stopwatch,
    rounds: Rounds,
    candidates: Candidates | None = None,
    reranker: Reranker | None = None,
    kept_on: Snapshot | None = None,
) -> Found | None:
    """Run the stages in order on a search thread. Returns None if the search has to go deeper, see `hydrate`.

    `candidates` replaces the search if they are already known. `kept_on` is the searched snapshot if the answer is to
    be cached.
    """
    plan = plan.with_share_read()
    execution = executor.prepare(plan.query, watch)
    found = candidates or execution.search()
    ranked = fused = watch.time_stage("fuse", lambda: fuse(plan, found, execution))
    reranked = None
    if plan.rerank is not None and reranker is not None:
        fused, reranked = watch.time_stage(
            "rerank", partial(rerank, plan, fused, execution, reranker, rounds, watch.deadline)
        )
    arranged = fused
    if plan.request.boosts or plan.request.sort:
        arranged = watch.time_stage("fuse", partial(arrange, plan, fused, execution))
    if plan.request.mmr is not None:
        arranged = watch.time_stage("fuse", partial(diversify, plan, arranged, execution))
    rounds.last = plan, arranged
    hydrated = watch.time_stage("hydrate", lambda: hydrate(plan, arranged, execution, rounds))
    if hydrated is None:
        return None
    hits, vanished = hydrated
    grounds = b""
    if kept_on is not None and not vanished:
        grounds = grounds_of(plan, kept_on, execution.scoring, ranked, rounds.shown, light=execution.light)
    answer = CachedAnswer(
        hits=hits,
        tiers=list(found.searched),
        cold_skipped=found.cold_skipped,
        share_read=None if plan.share_read is None else round(plan.share_read, 3),
        weight_dense=None if plan.weight_dense is None else round(plan.weight_dense, 3),
        supported=is_supported(fused.relevance[fused.order], plan.calibration),
        support_from=plan.calibration.support if plan.calibration else None,
        reranked=reranked,
        corrected=corrected_words(execution.corrected, hits),
        over_budget=over_budget(rounds, execution),
    )
    return Found(answer, vanished, grounds)


def over_budget(rounds: Rounds, execution: Execution) -> list[OverBudget] | UnsetType:
    found: list[OverBudget] = []
    if not execution.typos_whole:
        found.append("typos")
    if not rounds.phrases_whole:
        found.append("operators")
    if not rounds.highlights_whole:
        found.append("highlight")
    return found or UNSET


def count_facets_of(plan: Plan, executor: LocalExecutor, watch: Stopwatch, answer: CachedAnswer) -> None:
    """Add its facets to an answer, or report that other searches of the request used up its work budget."""
    if executor.work.facet_counts < 0:
        answer.over_budget = [*(answer.over_budget or ()), "facets"]
        return
    condition = plan.query.condition
    answer.facets = facets_of(executor.collection, executor.snapshot, condition, plan.facets, watch.on_step)
    executor.work.facet_counts -= sum(
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
