"""What the rounds of one search share, each deeper than the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from indexes.base.model import Spared, StoredPassage
from indexes.base.work import OnStep, do_nothing
from indexes.collection.view import CollectionView
from retrieval.admission.ceiling import BudgetShare
from retrieval.search.collapsing import FREELY_READ, Group, Traits
from retrieval.search.plan import EmbeddedQuery
from retrieval.search.ranking import Fused, Positions
from retrieval.search.stopwatch import Stopwatch

VALUES_COST = 3  # of the values of a candidate under one key, times that of the candidate


@dataclass(slots=True)
class Rounds:
    """What the rounds of one search share, each deeper than the one before.

    documents         how many there are in all; None if a filter leaves out some
    traits            what decides how the passages that were read collapse
    left_out          passages that were read and are not hits
    rerank_scores     what the reranker said, until `rerank_until` (monotonic)
    on_step           raises what ends the search: its caller has left, or its deadline has passed
    last, groups      the last round's plan and candidates, and the groups on its page
    collections       what the client calls the shards, if there are several
    decided           the positions of the candidates that decided a full page, None if it is not full
    phrases_whole     no hit is missing because the work budget for phrases was used up
    copies_whole      the same for that of copies
    depth_whole       the same for that of deeper searches
    highlights_whole  all hits have their highlights
    spared            what the cold policy learns from the first round
    """

    budget: BudgetShare
    documents: int | None = None
    traits: dict[int, Traits] = field(default_factory=dict)
    left_out: set[int] = field(default_factory=set)
    phrases_whole: bool = True
    copies_whole: bool = True
    depth_whole: bool = True
    highlights_whole: bool = True
    rerank_scores: dict[int, float] = field(default_factory=dict)
    rerank_until: float | None = None
    on_step: OnStep = do_nothing
    last: tuple[EmbeddedQuery, Fused] | None = None
    groups: list[Group] = field(default_factory=list)
    decided: Positions | None = None
    collections: Sequence[str] = ()
    spared: Spared | None = None

    def leaves_out(self, embedded: EmbeddedQuery, passage: StoredPassage) -> bool:
        """Whether a candidate is not a hit, which is remembered for later rounds."""
        if left_out := embedded.leaves_out(passage, self.budget.work):
            self.left_out.add(passage.id)
        return left_out

    def may_read_on(self, embedded: EmbeddedQuery) -> bool:
        """Whether another candidate may be read, which costs work if the query has phrases."""
        self.phrases_whole = embedded.plan.operators is None or self.budget.work.phrase_chars >= 0
        return self.phrases_whole

    def may_pass_copies(self, embedded: EmbeddedQuery, read: int) -> bool:
        """Whether more candidates than the `read` first ones may be read to find some that are no copies."""
        self.copies_whole = self.budget.work.copies >= 0 or read < FREELY_READ * embedded.plan.last
        return self.copies_whole

    def may_deepen(self, embedded: EmbeddedQuery) -> bool:
        """Whether a deeper search may rank as many candidates as it finds. If so, that is taken off the budget."""
        request, work = embedded.request, self.budget.work
        keys = len(request.boosts or ()) + len(request.sort or ())
        rankings = 2 if embedded.plan.mode == "hybrid" else 1
        ranked = rankings * embedded.deeper().query.depth * (1 + VALUES_COST * keys)
        self.depth_whole = ranked <= work.ranked
        if self.depth_whole:
            work.ranked -= ranked
        return self.depth_whole


def rounds_of(
    collection: CollectionView, embedded: EmbeddedQuery, budget: BudgetShare, watch: Stopwatch
) -> Rounds:
    others = collection.documents - len(embedded.examples.documents if embedded.examples else ())
    return Rounds(budget, others if embedded.query.condition is None else None, on_step=watch.on_step)
