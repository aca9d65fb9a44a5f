"""Asks a search process what a plan asks: the values that it needs go along, and those that come back are accounted for
here, where the caches, the budgets and the counts of hits are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace

import msgspec
import numpy as np
from msgspec import structs

from indexes.base.work import WorkBudget
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.ceiling import AnswerBudget
from retrieval.admission.turns import PATIENT, Flow, Turns
from retrieval.base.settings import Config
from retrieval.embedding.embedders import Embedders
from retrieval.processes.frames import AskSearch, SearchReply
from retrieval.processes.pool import SearchProcesses
from retrieval.search.answer_cache import Answered, State
from retrieval.search.plan import Plan
from retrieval.search.stages import Found
from retrieval.search.stopwatch import Stopwatch

ACTIVE_PER_PROCESS = 4  # as many as share a run of the model


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
        self._active = Turns(ACTIVE_PER_PROCESS * max(1, processes.count), lambda: config.admission, crowded)

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
        async with self._active.turn(Flow(PRINCIPAL.get().key, PATIENT.get())):
            ask = ask_of(collection, plan, watch, budget, None if vector is None else vector.tobytes())
            answer = await self._processes.answer(collection, ask)
        if answer is None:
            return None
        if embedder is not None and plan.request.cache and answer.vector is not None:
            await embedder.keep(str(plan.text), np.frombuffer(answer.vector, np.float32))
        if answer.seq > collection.snapshot.seq:
            # Or the next search, if the service itself answers it, would go back in time.
            await asyncio.wrap_future(collection.arrivals.at(answer.seq))
        charge(answer, ask, watch, budget)
        collection.hits.count(answer.hits)
        settled = collection.log.newest_seq == answer.seq
        state = State(answer.generation, answer.seq, answer.content, settled)
        return Answered(state, Found(answer.answer, answer.vanished, answer.grounds, answer.spared), "miss")


def ask_of(
    collection: Collection, plan: Plan, watch: Stopwatch, budget: AnswerBudget, vector: bytes | None
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
        work=replace(budget.work),
        taken=budget.taken,
        bytes_max=budget.bytes_max,
        param=budget.param,
    )


def charge(answer: SearchReply, ask: AskSearch, watch: Stopwatch, budget: AnswerBudget) -> None:
    """Charge what a search took elsewhere. Raises TooLarge, as `AnswerBudget.take` does."""
    watch.spans += answer.spans
    watch.cpu_s += answer.cpu_s
    for field in fields(WorkBudget):
        spent = getattr(ask.work, field.name) - getattr(answer.work, field.name)
        setattr(budget.work, field.name, getattr(budget.work, field.name) - spent)
    budget.take(answer.taken - ask.taken)
