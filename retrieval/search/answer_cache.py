"""Answers to searches: known ones from the cache, or from the same search under way.

The cache wraps a search function and knows nothing of how it searches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from indexes.base.model import Settings
from indexes.base.work import WorkBudget
from indexes.collection.view import CollectionView
from retrieval.admission.ceiling import AnswerBudget
from retrieval.base.flights import Flight, Flights
from retrieval.cache import Judge, ResultCache, ResultKey
from retrieval.search.plan import Plan
from retrieval.search.stages import CachedAnswer, Found
from retrieval.search.stopwatch import Stopwatch
from retrieval.wire.search import CacheOutcome, Receipt, SearchAnswer


class State(msgspec.Struct, frozen=True):
    """The state of a collection that was searched. `content` identifies its documents; `settled` is false if there was
    a later commit by the end of the search, which the hits may already show."""

    generation: int
    seq: int
    content: bytes
    settled: bool


class Answered(msgspec.Struct, frozen=True):
    """An answer, the state it is for, and where it came from."""

    state: State
    found: Found
    cache: CacheOutcome


@dataclass(frozen=True, slots=True)
class Asked:
    """A search as the cache sees it.

    state     the state of the collection that it is asked of
    key_of    the key of the answer to a plan in this state
    judge_of  tells whether an answer to a plan holds in this state
    shared    whether it may wait for the same search of another caller
    """

    state: State
    plan: Plan
    key_of: Callable[[Plan], ResultKey]
    judge_of: Callable[[Plan], Judge]
    shared: bool
    budget: AnswerBudget
    watch: Stopwatch


class AnswerCache:
    """Wraps the searches of a service. For one event loop."""

    def __init__(self, results: ResultCache) -> None:
        self._results = results
        self._flights: Flights[bytes] = Flights()

    def forget(self) -> None:
        self._results.clear()

    async def answer(self, asked: Asked, search: Callable[[], Awaitable[Answered]]) -> Answered:
        """Return the known answer if there is one, else call `search` and keep what it returns."""
        plan, watch = asked.plan, asked.watch
        if not plan.request.cache:
            self._results.counts.bypassed += 1
            answered = await search()
            return replace(answered, cache="bypass")
        key = asked.key_of(plan)
        flight = key.near + key.content
        # An exact search moves no passages, but a user waits for it.
        counted = plan.counted or plan.request.exact
        known = self._results.get(key, asked.judge_of(plan), counted=counted)
        stored = await watch.time_await("cache", known)
        if stored is None and asked.shared:
            stored = await watch.time_await("cache", self._flights.join(flight))
            self._results.counts.joined += stored is not None
        if stored is not None and (answer := decode_and_charge(stored, asked.budget)) is not None:
            return Answered(asked.state, Found(answer), "hit")
        with self._flights.lead(flight) as leading:
            return await self._search(asked, key, search, leading)

    async def _search(
        self,
        asked: Asked,
        key: ResultKey,
        search: Callable[[], Awaitable[Answered]],
        leading: Flight[bytes],
    ) -> Answered:
        """Search, and keep the answer."""
        begun = asked.watch.elapsed_ms
        answered = await search()
        state, grounds = answered.state, answered.found.grounds
        encoded = encode_lasting(answered, asked.plan, asked.budget.work)
        leading.land(encoded if state.content == key.content else None)
        if encoded is not None:
            key = replace(key, content=state.content if state.settled else b"")
            took_ms = asked.watch.elapsed_ms - begun
            await asked.watch.time_await("cache", self._results.put(key, encoded, grounds, took_ms))
        return answered


def encode_lasting(answered: Answered, plan: Plan, work: WorkBudget) -> bytes | None:
    """Return the answer in the form that is cached, or None if it may not be given to another request."""
    found = answered.found
    # An answer that saw a later commit (a hit gone from the log, an exact scan) would be wrong if this content came
    # back, unless all that it rests on is known and checked then.
    lasting = answered.state.settled or (found.grounds and plan.reach is None)
    # Another request may have the work budget that other searches of this request used up.
    starved = found.answer.over_budget and work.searches > 1
    if starved or not (found.answer.whole and not plan.degraded and lasting):
        return None
    return msgspec.msgpack.encode(found.answer)


def decode_and_charge(stored: bytes, budget: AnswerBudget) -> CachedAnswer | None:
    """Decode a cached answer and charge it to the budget. Returns None if another version of this service stored it."""
    budget.take(len(stored))
    try:
        return msgspec.msgpack.decode(stored, type=CachedAnswer)
    except msgspec.DecodeError:
        return None


def answer_of(
    name: str, collection: CollectionView, plan: Plan, answered: Answered, watch: Stopwatch
) -> SearchAnswer:
    """Return the answer with its receipt. `name` is what the client calls the collection."""
    answer = answered.found.answer
    return SearchAnswer(
        answer.hits, receipt_of(name, collection, plan, answered), watch.stop(), answer.facets
    )


def receipt_of(name: str, collection: CollectionView, plan: Plan, answered: Answered) -> Receipt:
    age_s = collection.options.replication.age_s(collection.uid)
    return receipt_in(name, collection.settings, plan, answered, age_s)


def receipt_in(
    name: str, settings: Settings, plan: Plan, answered: Answered, age_s: float | None = None
) -> Receipt:
    answer, state = answered.found.answer, answered.state
    return Receipt(
        collection=name,
        generation=state.generation,
        seq=state.seq,
        tiers=answer.tiers,
        cold_skipped=answer.cold_skipped,
        share_read=answer.share_read,
        weight_dense=answer.weight_dense,
        cache=answered.cache,
        model=settings.model or None,
        reranked=answer.reranked,
        evidence=answer.evidence,
        evidence_from=answer.evidence_from,
        corrected=answer.corrected,
        over_budget=answer.over_budget,
        query_cut=answer.query_cut,
        degraded=UNSET if answered.cache == "hit" or not plan.degraded else list(plan.degraded),
        age_s=UNSET if age_s is None else round(age_s, 2),
    )
