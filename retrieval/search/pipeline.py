"""One search, from text to hits.

    plan -> result cache -> embed -> shard: BM25, dense -> fuse (-> rerank) -> hydrate -> answer with its receipt

The event loop only coordinates: embedding runs on the batcher's threads, and all later stages run in one step on a
search thread. A search reads from one snapshot throughout; its hits are read from the log last, so that nothing deleted
is returned.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from indexes.base.errors import DeadlineExceeded, Unavailable
from indexes.base.model import Ranking
from indexes.base.work import WorkBudget
from indexes.collection.collection import Collection
from indexes.parts.prepared import Prepared
from indexes.parts.snapshot import Snapshot
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.ceiling import AnswerBudget, BudgetShare
from retrieval.admission.turns import PATIENT, Flow, Turns
from retrieval.base.flights import Flights
from retrieval.base.settings import Config
from retrieval.cache import ResultCache, ResultKey
from retrieval.cache.semantic import Questions, SemanticCache
from retrieval.embedding.embedders import Embedders
from retrieval.search.plan import Plan, make_plan
from retrieval.search.reranking import PAIRS_A_RUN, PairsRead, Reranker
from retrieval.search.rounds import (
    CachedAnswer,
    Found,
    answer_of,
    count_facets_of,
    decode_and_charge,
    rounds_of,
    run_stages,
)
from retrieval.search.scanning import JointScan, Place, Scanner
from retrieval.search.shard import LocalShard, run_at_once
from retrieval.search.similar import read_examples
from retrieval.search.stages import Fused, Rounds
from retrieval.search.stopwatch import Stopwatch, in_time
from retrieval.search.survival import is_light, renew_grounds
from retrieval.search.threads import SearchThreads
from retrieval.wire.search import SearchAnswer, SearchRequest

MIN_SEQ_WAIT_S = 5.0
# More would not raise throughput, and would make each pass of the event loop longer for every caller.
ACTIVE_PER_THREAD = 4
T = TypeVar("T")
ANYTHING = "*"  # placeholder for the text in the key of a semantic scope


@dataclass(frozen=True, slots=True)
class TracedSearch:
    """A search with its intermediate results: the prepared query, the plan of its last round, and the candidates in
    their final order. Also the CPU time it took."""

    snapshot: Snapshot
    prepared: Prepared
    plan: Plan
    fused: Fused
    answer: CachedAnswer
    cpu_s: float


class Pipeline:
    """Answers searches."""

    def __init__(
        self,
        embedders: Embedders,
        results: ResultCache,
        config: Config,
        reranker: Reranker | None = None,
        semantic: SemanticCache | None = None,
        crowded: Callable[[str], bool] = lambda key: False,
    ) -> None:
        """`crowded` tells whether requests of an access key are being refused."""
        self._reranker = reranker
        self._embedders = embedders
        self._results = results
        self._semantic = semantic or SemanticCache(lambda: config.semantic_cache, Questions(0))
        self._config = config
        self._scanner = Scanner()
        self._flights: Flights[bytes] = Flights()
        self.under_way = 0
        self._threads = SearchThreads(config.search.threads)
        self._active = Turns(ACTIVE_PER_THREAD * config.search.threads, lambda: config.admission, crowded)
        # Reranking holds a thread for a long time, so one is left for other searches if there are several.
        self._rerank_turns = Turns(max(1, config.search.threads - 1), lambda: config.admission, crowded)

    def close(self) -> None:
        self._threads.close()

    @property
    def reranker(self) -> Reranker:
        """The configured reranker. Raises Unavailable if it could not be loaded. Use only where one is configured."""
        if self._reranker is None:
            raise Unavailable(
                f"the reranker {self._config.rerank.model!r} could not be loaded when the service started",
                param="rerank",
            )
        return self._reranker

    async def score_texts(self, query: str, texts: list[str], *, refuse: bool = False) -> PairsRead:
        """Score each text with the reranker, float32 [texts], and count the tokens it read. With `refuse`, raises
        TooLong for a text that would be cut.

        A few texts run at a time, so that searches get their turns in between. Cancelling the caller ends the work.
        """
        reranker = self.reranker
        scores, tokens = np.empty(len(texts), np.float32), 0
        asked = await self._threads.run(partial(reranker.encoder.read_query, query), long=True)
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        for at in range(0, len(order), PAIRS_A_RUN):
            some = order[at : at + PAIRS_A_RUN]
            batch = [texts[one] for one in some]
            async with self._rerank_turns.turn(Flow(PRINCIPAL.get().key, patient=True)):
                work = partial(reranker.read, asked, batch, refuse=refuse)
                scores[some], more = await self._threads.run(work, long=True)
                tokens += more
        return PairsRead(scores, tokens)

    def joint_scan(self, collection: Collection, members: int) -> JointScan:
        """Return one scan for `members` exact searches of a collection. Each passes its place in it to `search`."""
        return self._scanner.joint(collection, members)

    async def search(
        self,
        name: str,
        collection: Collection,
        request: SearchRequest,
        place: Place | None = None,
        budget: AnswerBudget | None = None,
        *,
        counted: bool = True,
    ) -> SearchAnswer:
        """Answer a search. `name` is what the client calls the collection. Never returns a partial answer.

        Raises InvalidInput, Unavailable, DeadlineExceeded and others, and TooLarge for hits that exceed `budget`, by
        default the limit of one answer. `counted` is false for searches that no user asked for: they do not move hits
        to the hot tier, do not count in the cache statistics, and are never answered by a similar question.
        """
        budget = budget or AnswerBudget(self._config.limits.answer_bytes_max)
        strained = counted and 0 < self._config.search.strained_from <= self.under_way
        watch, plan = Stopwatch(), self._plan(collection, request, strained=strained)
        if not counted:
            plan = replace(plan, counted=False, query=replace(plan.query, counted=False))
        self.under_way += 1
        budget.work.searches += 1
        try:
            async with self._in_time(plan, watch):
                return await self._answer(name, collection, plan, watch, place, budget)
        finally:
            self.under_way -= 1
            watch.left = True

    def _plan(self, collection: Collection, request: SearchRequest, *, strained: bool = False) -> Plan:
        settings, ranking = collection.settings, collection.ranking.current
        return make_plan(request, settings.dimensions, self._config, ranking, strained=strained)

    def _in_time(self, plan: Plan, watch: Stopwatch) -> AbstractAsyncContextManager[None]:
        """Return the deadline as a context manager, and set it on `watch`, where the stages read it."""
        if plan.deadline_ms is not None:
            watch.deadline = asyncio.get_running_loop().time() + plan.deadline_ms / 1000
        return in_time(watch.deadline, plan.deadline_ms)

    def _turn(self, plan: Plan) -> AbstractAsyncContextManager[None]:
        """Return a context within which a search may run. An exact search takes no turn here: the searches that share
        its scan wait for each other, so all of them must get there."""
        key = PRINCIPAL.get().key
        active = nullcontext() if plan.request.exact else self._active.turn(Flow(key, PATIENT.get()))
        return self._rerank_turn(key, active) if plan.rerank else active

    @asynccontextmanager
    async def _rerank_turn(self, key: str, active: AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
        """Take the reranking turn first, so that a search that waits for the reranker holds up no other."""
        async with self._rerank_turns.turn(Flow(key, patient=True)), active:
            yield

    async def _answer(
        self,
        name: str,
        collection: Collection,
        plan: Plan,
        watch: Stopwatch,
        place: Place | None,
        budget: AnswerBudget,
    ) -> SearchAnswer:
        """Answer from the cache, else from an identical search under way, else by searching."""
        snapshot = await wait_for_seq(collection, plan.request.min_seq or 0, budget.seq_until)
        if not plan.request.cache:
            self._results.counts.bypassed += 1
            async with self._turn(plan):
                shard = LocalShard(collection, snapshot, watch, budget.work)
                plan = await self._embed(shard, plan, watch)
                snapshot, found = await self._search_latest(shard, plan, watch, place, BudgetShare(budget))
            return answer_of(name, collection, snapshot, plan, found.answer, watch, "bypass")
        key = self._key(collection, snapshot, plan)
        stored = await watch.time_await(
            "cache", self._get_cached(key, collection, snapshot, plan, budget.work)
        )
        flight = key.near + key.content
        if (
            stored is None
            and place is None  # a joint scan waits for all of its members
            and (stored := await watch.time_await("cache", self._flights.join(flight))) is not None
        ):
            self._results.counts.joined += 1
        if stored is not None and (answer := decode_and_charge(stored, budget)) is not None:
            return answer_of(name, collection, snapshot, plan, answer, watch, "hit")
        with self._flights.lead(flight) as leading:
            begun, before = watch.elapsed_ms, key.content
            scope = self._scope(collection, snapshot, plan)
            async with self._turn(plan):
                shard = LocalShard(collection, snapshot, watch, budget.work)
                plan = await self._embed(shard, plan, watch)
                alike = await watch.time_await(
                    "cache", self._find_similar(scope, collection, snapshot, plan, budget.work)
                )
                if (
                    alike is not None
                    and not self._semantic.should_check()
                    and (answer := decode_and_charge(alike, budget))
                ):
                    leading.land(None)
                    return answer_of(name, collection, snapshot, plan, answer, watch, "semantic")
                snapshot, found = await self._search_latest(shard, plan, watch, place, BudgetShare(budget))
            if alike is not None and found.answer.whole and not plan.degraded and snapshot.content == before:
                given = msgspec.msgpack.decode(alike, type=CachedAnswer)
                self._semantic.record_check(collection.name, given.hits, found.answer.hits)
            encoded = self._encode_lasting(collection, snapshot, plan, found, budget.work)
            leading.land(encoded if snapshot.content == before else None)
            if encoded is not None:
                settled = not collection.moved_since(snapshot)
                key = replace(key, content=snapshot.content if settled else b"")
                took_ms = watch.elapsed_ms - begun
                await watch.time_await("cache", self._keep(key, scope, plan, encoded, found.grounds, took_ms))
        return answer_of(name, collection, snapshot, plan, found.answer, watch, "miss")

    async def _keep(
        self, key: ResultKey, scope: bytes | None, plan: Plan, encoded: bytes, grounds: bytes, took_ms: float
    ) -> None:
        """Cache an answer, and remember its question for similar ones."""
        await self._results.put(key, encoded, grounds, took_ms)
        if scope is not None and plan.query.vector is not None:
            self._semantic.keep(scope, plan.request.query or "", plan.query.vector)

    def _encode_lasting(
        self, collection: Collection, snapshot: Snapshot, plan: Plan, found: Found, work: WorkBudget
    ) -> bytes | None:
        """Return the answer in the form that is cached, or None if it may not be given to another request."""
        # An answer that saw a later commit (a hit gone from the log, an exact scan) would be wrong if this content came
        # back, unless all that it rests on is known and checked then.
        lasting = not collection.moved_since(snapshot) or (found.grounds and plan.reach is None)
        # Another request may have the work budget that other searches of this request used up.
        starved = found.answer.over_budget and work.searches > 1
        if starved or not (found.answer.whole and not plan.degraded and lasting):
            return None
        return msgspec.msgpack.encode(found.answer)

    def _lexical_head_start(self, shard: LocalShard, plan: Plan) -> Callable[[], None] | None:
        """Return a callback that starts the lexical search while the text is embedded, if this is the only search and a
        thread is idle."""
        request, idle = plan.request, self._threads.idle
        if self.under_way > 1 or not idle or plan.query.text is None or request.like or request.unlike:
            return None
        return partial(shard.begin, plan.query, self._threads.submit)

    async def _search_latest(
        self, shard: LocalShard, plan: Plan, watch: Stopwatch, place: Place | None, share: BudgetShare
    ) -> tuple[Snapshot, Found]:
        """Return the answer, and the snapshot it was computed on."""
        found = await self._search(shard, plan, watch, place, share)
        newest = shard.collection.snapshot
        if not found.vanished or newest.seq <= shard.seq:
            return shard.snapshot, found
        # Hits were replaced or deleted during the search; their new versions are in the newer snapshot.
        newer = LocalShard(shard.collection, newest, watch, shard.work)
        return newest, await self._search(newer, plan, watch, place, share)

    def _scope(self, collection: Collection, snapshot: Snapshot, plan: Plan) -> bytes | None:
        """Return the key of the questions that may answer this one: those whose answers depend on the same things,
        apart from the text. None if only its own answer will do."""
        if (
            not plan.counted
            or plan.request.operators
            or not self._semantic.serves(collection.name, plan.text)
        ):
            return None
        return self._key(collection, snapshot, self._plan_for_text(ANYTHING, collection, plan)).far

    def _plan_for_text(self, text: str, collection: Collection, plan: Plan) -> Plan:
        return self._plan(collection, replace(plan.request, query=text))

    async def _find_similar(
        self, scope: bytes | None, collection: Collection, snapshot: Snapshot, plan: Plan, work: WorkBudget
    ) -> bytes | None:
        """Return the cached answer to a question that asks the same thing in other words."""
        text, vector = plan.request.query, plan.query.vector
        if scope is None or not text or vector is None:
            return None
        for question in await self._semantic.find_alike(scope, text, vector):
            other = self._plan_for_text(question.text, collection, plan)
            key = self._key(collection, snapshot, other)
            stored = await self._get_cached(key, collection, snapshot, other, work, counted=False)
            if stored is not None:
                self._semantic.counts.hits += 1
                return stored
            self._semantic.forget(scope, question)
        self._semantic.counts.misses += 1
        return None

    async def _get_cached(
        self,
        key: ResultKey,
        collection: Collection,
        snapshot: Snapshot,
        plan: Plan,
        work: WorkBudget,
        *,
        counted: bool = True,
    ) -> bytes | None:
        """Return a cached answer that holds on this snapshot."""

        async def judge(grounds: bytes) -> bytes | None:
            floor = self._embedders.similarity_floor(collection.settings.model)
            shard = LocalShard(collection, snapshot, Stopwatch(), work)
            renew = partial(renew_grounds, grounds, replace(plan, similarity_floor=floor), shard)
            return await (renew() if is_light(grounds) else self._threads.run(partial(run_at_once, renew)))

        # An exact search moves no passages, but a user waits for it.
        return await self._results.get(key, judge, counted=counted and (plan.counted or plan.request.exact))

    async def follow(self, collection: Collection, request: SearchRequest) -> TracedSearch:
        """Run the same search and return what its last round chose from. No cache is read or filled, and nothing is
        counted."""
        watch, share = Stopwatch(), BudgetShare(AnswerBudget(self._config.limits.answer_bytes_max))
        plan = self._plan(collection, replace(request, cache=False))
        try:
            async with self._in_time(plan, watch):
                snapshot = await wait_for_seq(collection, request.min_seq or 0)
                async with self._turn(plan):
                    shard = LocalShard(collection, snapshot, watch)
                    plan = await self._embed(shard, plan, watch)
                    rounds = rounds_of(collection, plan, share, watch)
                    found = await self._search(shard, plan, watch, None, share, rounds)
        finally:
            watch.left = True
        assert rounds.last is not None
        assert shard.first is not None
        return TracedSearch(snapshot, shard.first[0], *rounds.last, answer=found.answer, cpu_s=watch.cpu_s)

    def _key(self, collection: Collection, snapshot: Snapshot, plan: Plan) -> ResultKey:
        settings = collection.settings
        asked = plan.rerank or "rerank" in plan.degraded
        reader = self.reranker.manifest.fingerprint if asked else None
        embeds = plan.mode != "lexical" and plan.request.query
        floor = self._embedders.similarity_floor(settings.model) if embeds else None
        return self._results.key(
            collection.name,
            msgspec.json.encode((settings.fingerprint, settings.bm25, settings.language, reader, floor)),
            plan.identity,
            content=snapshot.content,
            opening=collection.opening,
            generation=snapshot.generation,
            tuned_ms=collection.chosen.chosen_ms if collection.chosen else 0,
        )

    def forget_answers(self) -> None:
        self._results.clear()

    async def _embed(self, shard: LocalShard, plan: Plan, watch: Stopwatch) -> Plan:
        """Return the plan with the query's vector, and with what fusion needs to know of the model."""
        plan = await self._embed_text(shard, plan, watch)
        if not plan.request.like and not plan.request.unlike:
            return plan
        read = partial(read_examples, shard, plan.request, shard.collection.settings.dimensions)
        return plan.with_examples(await self._threads.run(partial(run_at_once, read)))

    async def _embed_text(self, shard: LocalShard, plan: Plan, watch: Stopwatch) -> Plan:
        collection, snapshot = shard.collection, shard.snapshot
        if plan.text is None:
            if plan.mode == "lexical":
                return plan
            floor = self._embedders.similarity_floor(collection.settings.model)
            return replace(plan, similarity_floor=floor)
        embedder = await self._embedders.of(collection)
        head_start = self._lexical_head_start(shard, plan)
        query = embedder.query(plan.text, watch.deadline, cached=plan.request.cache, on_start=head_start)
        return plan.with_vector(
            await watch.time_await("embed", query),
            partial(embedder.share_read, plan.text, plan.query.language, lambda: snapshot.spoken),
            embedder.manifest.similarity_floor,
        )

    async def _search(
        self,
        shard: LocalShard,
        plan: Plan,
        watch: Stopwatch,
        place: Place | None,
        budget: BudgetShare,
        rounds: Rounds | None = None,
    ) -> Found:
        """Search ever deeper until there are k hits or the rankings end. The deadline may fall between two rounds."""
        collection = shard.collection
        rounds = rounds or rounds_of(collection, plan, budget, watch)
        while True:
            known: Ranking | None = None
            if plan.request.exact and plan.query.vector is not None:
                scan = place or self._scanner
                ranked = scan.rank(collection, plan.query.vector, plan.query.depth, plan.query.condition)
                known = await watch.time_await("dense", ranked)
            stages = partial(run_stages, plan, shard, watch, rounds, known, self._reranker)
            found = await self._run(stages, watch, long=plan.rerank is not None)
            if found is not None:
                if plan.facets:
                    await self._run(partial(count_facets_of, plan, shard, shard.work, found.answer), watch)
                return found
            plan = plan.deeper()

    async def _run(
        self, stages: Callable[[], Coroutine[Any, Any, T]], watch: Stopwatch, *, long: bool = False
    ) -> T:
        """Run stages of a search of a shard in this process, in one step on a search thread."""
        return await self._threads.run(partial(watch.charge_cpu, partial(run_at_once, stages)), long=long)


async def wait_for_seq(collection: Collection, min_seq: int, until: float = math.inf) -> Snapshot:
    """Return the current snapshot once it holds operation `min_seq`. Raises DeadlineExceeded if that takes too long, or
    longer than `until`, in the loop's time."""
    if collection.snapshot.seq < min_seq:
        try:
            async with asyncio.timeout_at(min(until, asyncio.get_running_loop().time() + MIN_SEQ_WAIT_S)):
                await asyncio.wrap_future(collection.arrivals.at(min_seq))
        except TimeoutError:
            raise DeadlineExceeded(
                f"the log is at seq {collection.snapshot.seq}, before min_seq={min_seq}", param="min_seq"
            ) from None
    return collection.snapshot
