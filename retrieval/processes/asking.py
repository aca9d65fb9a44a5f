"""Gives a planned search to a search process, with the values that it needs. When the reply arrives, updates the
caches, the budgets and the counts of hits, which this process keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields

import msgspec
import numpy as np
from msgspec import structs

from indexes.base.errors import InvalidInput
from indexes.base.work import WorkBudget
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.ceiling import AnswerBudget
from retrieval.admission.turns import PATIENT, Flow, Turns
from retrieval.base.settings import Config
from retrieval.embedding.embedders import Embedders
from retrieval.processes.frames import AskSearch, AskShard, SearchReply, ShardReply
from retrieval.processes.pool import SearchProcesses
from retrieval.search.answer_cache import Answered, State
from retrieval.search.calls import CallReply, PartitionCall, ReadDocument, ScanShard
from retrieval.search.plan import Plan
from retrieval.search.shard import LocalShard
from retrieval.search.stages import Found
from retrieval.search.stopwatch import Stopwatch
from retrieval.search.travel import pack
from retrieval.wire.options import OverBudget

ACTIVE_PER_PROCESS = 4  # as many as share a run of the model
HERE = (ScanShard, ReadDocument)  # calls that read the log and no index
WORK = [field for field in fields(WorkBudget) if field.name != "searches"]
UNDIVIDED = {"comparisons", "prefix_terms"}
WORK_OF: Mapping[OverBudget, tuple[str, ...]] = {
    "typos": ("comparisons",),
    "operators": ("phrase_chars",),
    "collapse": ("copies",),
    "highlight": ("highlight_words", "highlight_tokens"),
    "facets": ("facet_counts",),
    "min_score": ("ranked",),
    "min_relevance": ("ranked",),
    "group_by_document": ("ranked",),
}


class InProcesses:
    """Answers the searches of a service in its search processes, a few at a time in each. For one event loop."""

    def __init__(
        self,
        processes: SearchProcesses,
        embedders: Embedders,
        config: Config,
        crowded: Callable[[str], bool],
    ) -> None:
        self._processes = processes
        self._embedders = embedders
        self._at_once = ACTIVE_PER_PROCESS * max(1, processes.count)
        self._active = Turns(self._at_once, lambda: config.admission, crowded)

    async def search(
        self, collection: Collection, plan: Plan, watch: Stopwatch, budget: AnswerBudget
    ) -> Answered | None:
        """Answer a search; None if it scans or reranks, or if no process can answer it."""
        if plan.request.exact or plan.rerank is not None or not self._processes.takes(collection):
            return None
        embedder = None if plan.text is None else await self._embedders.of(collection)
        vector = None
        if embedder is not None and plan.request.cache:
            vector = await embedder.known(str(plan.text))
        answer = await self._ask(
            collection, plan, watch, budget, None if vector is None else vector.tobytes()
        )
        if answer is None:
            return None
        if embedder is not None and plan.request.cache and answer.vector is not None:
            await embedder.keep(str(plan.text), np.frombuffer(answer.vector, np.float32))
        await reach(collection, answer.seq)
        collection.hits.count(answer.hits)
        settled = collection.log.newest_seq == answer.seq
        state = State(answer.generation, answer.seq, answer.content, settled)
        return Answered(state, Found(answer.answer, answer.vanished, answer.grounds, answer.spared), "miss")

    async def ask_shard(
        self, shard: LocalShard, calls: Sequence[PartitionCall], deadline: float | None
    ) -> list[CallReply] | None:
        """Answer calls of a shard at its state or a later one, in order; None if no process can answer them, or not all
        of their kinds."""
        collection = shard.collection
        assert isinstance(collection, Collection)
        if any(isinstance(call, HERE) for call in calls) or not self._processes.takes(collection):
            return None
        asked = AskShard(
            id=0,
            collection=collection.name,
            calls=pack(calls),
            seq=shard.seq,
            documents=collection.documents,
            key=PRINCIPAL.get().key,
            deadline=deadline,
        )
        answer = await self._processes.answer(collection, asked)
        if answer is None:
            return None
        assert isinstance(answer, ShardReply)
        await reach(collection, answer.seq)
        collection.hits.count(answer.hits)
        for spared in answer.spared:
            shard.snapshot.learn(spared)
        return answer.replies

    async def _ask(
        self, collection: Collection, plan: Plan, watch: Stopwatch, budget: AnswerBudget, vector: bytes | None
    ) -> SearchReply | None:
        """Ask a process, and charge what it did; None if no process can answer.

        A single search may do all the work of its budget. Several of one request share it: each is asked with a small
        part, and again, one at a time, with all that is left, if it lacked some.
        """

        async def ask(parts: int) -> tuple[AskSearch, SearchReply | None]:
            async with self._active.turn(Flow(PRINCIPAL.get().key, PATIENT.get())):
                asked = ask_of(collection, plan, watch, budget, lend(budget.work, parts), vector)
                answer: SearchReply | None = None
                try:
                    found = await self._processes.answer(collection, asked)
                    assert not isinstance(found, ShardReply)
                    answer = found
                finally:
                    take_back(budget.work, asked.work if answer is None else answer.work)
                return asked, answer

        await asyncio.sleep(0)  # until all searches of the request have begun
        lacking: Iterable[OverBudget] = ()
        if budget.work.searches > 1:
            try:
                asked, answer = await ask(self._at_once)
                lacking = [] if answer is None else answer.answer.over_budget or []
                if not lacking:
                    return charge(answer, asked, watch, budget)
            except InvalidInput:  # more prefixes than it may look up
                if plan.operators is None:
                    raise
        async with budget.working:
            if lacking and not has_left(budget.work, lacking):
                return charge(answer, asked, watch, budget)
            asked, answer = await ask(1)
            return charge(answer, asked, watch, budget)


async def reach(collection: Collection, seq: int) -> None:
    """Wait until this service has a state that a process has answered from, or the next search, if the service itself
    answers it, would go back in time."""
    if seq > collection.snapshot.seq:
        await asyncio.wrap_future(collection.arrivals.at(seq))


def lend(budget: WorkBudget, parts: int) -> WorkBudget:
    """Take a part of the work that is left, or all of it. Of a budget whose first step costs much already, a part is
    nothing."""
    lent = {
        field.name: left if parts == 1 else -1 if field.name in UNDIVIDED else left // parts or -1
        for field in WORK
        for left in (getattr(budget, field.name),)
    }
    for name, work in lent.items():
        setattr(budget, name, getattr(budget, name) - work)
    return WorkBudget(searches=budget.searches, **lent)


def take_back(budget: WorkBudget, left: WorkBudget) -> None:
    for field in WORK:
        setattr(budget, field.name, getattr(budget, field.name) + getattr(left, field.name))


def has_left(budget: WorkBudget, lacking: Iterable[OverBudget]) -> bool:
    """Whether some of the work is left that a search has lacked for these options."""
    return any(
        all(getattr(budget, name) > 0 for name in WORK_OF[option]) for option in lacking if option in WORK_OF
    )


def ask_of(
    collection: Collection,
    plan: Plan,
    watch: Stopwatch,
    budget: AnswerBudget,
    work: WorkBudget,
    vector: bytes | None,
) -> AskSearch:
    caller, synonyms = PRINCIPAL.get(), collection.synonyms.current
    return AskSearch(
        id=0,
        collection=collection.name,
        request=msgspec.json.encode(structs.replace(plan.request, query=plan.request.query or None)),
        seq=collection.snapshot.seq,
        documents=collection.documents,
        ranking=collection.ranking.current,
        synonyms_ms=None if synonyms is None else synonyms.set_ms,
        caller=(caller.key, caller.tenant, caller.groups),
        strained=bool(plan.degraded),
        counted=plan.counted,
        deadline=watch.deadline,
        vector=vector,
        sparing=plan.query.sparing,
        work=work,
        taken=budget.taken,
        bytes_max=budget.bytes_max,
        param=budget.param,
    )


def charge(
    answer: SearchReply | None, ask: AskSearch, watch: Stopwatch, budget: AnswerBudget
) -> SearchReply | None:
    """Charge what a search took elsewhere, and return its answer. Raises TooLarge, as `AnswerBudget.take` does."""
    if answer is not None:
        watch.spans += answer.spans
        watch.cpu_s += answer.cpu_s
        budget.take(answer.taken - ask.taken)
    return answer
