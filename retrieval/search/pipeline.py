"""One search of a collection, from text to hits: plan, cache, and the stages that are not run in a search process.

    plan -> result cache -> embed -> shard: BM25, dense -> fuse (-> rerank) -> hydrate
         -> answer with its receipt, which the result cache keeps

Most searches run in search processes (`retrieval/processes`), where a plan is made again from the request. What they do
not take runs here: the event loop coordinates, embedding runs on the batcher's threads, and the later stages of a round
in one step on a search thread.
Examples, facets and a deeper round are steps of their own. A search reads from one snapshot throughout; its hits are
read from the log last, so that nothing deleted is returned.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import operator
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from indexes.base.errors import DeadlineExceeded, InvalidInput, Unavailable
from indexes.base.model import Floats, Ranking, Settings
from indexes.base.work import WorkBudget
from indexes.collection.collection import Collection
from indexes.collection.view import CollectionView
from indexes.dense.vectors import search_with_one_thread
from indexes.filters.grammar import Filter
from indexes.parts.learned import RankingSettings, SynonymSettings
from indexes.parts.snapshot import Snapshot, rounded
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.ceiling import AnswerBudget, BudgetShare
from retrieval.admission.turns import PATIENT, Flow, Turns
from retrieval.base.cancellation import gather_or_cancel
from retrieval.base.settings import Config
from retrieval.cache import ResultCache, ResultKey
from retrieval.embedding.embedders import Described, Embedders
from retrieval.search.answer_cache import (
    AnswerCache,
    Answered,
    Asked,
    State,
    answer_of,
    receipt_in,
    receipt_of,
)
from retrieval.search.collapsing import Group
from retrieval.search.joint import JointShard
from retrieval.search.known_counts import KnownCounts
from retrieval.search.plan import EmbeddedQuery, Plan, make_plan
from retrieval.search.ranking import Fused
from retrieval.search.reranking import PAIRS_A_RUN, PairsRead, Reranker
from retrieval.search.rounds import Rounds, rounds_of
from retrieval.search.scanning import JointScan, Place, Scanner
from retrieval.search.shard import DocumentRead, LocalShard, Partition, Searchable, Seqs, run_at_once
from retrieval.search.similar import read_examples
from retrieval.search.stages import (
    PINNED_MAX,
    SEARCHES_MAX,
    CachedAnswer,
    Found,
    count_facets_of,
    run_rounds,
    run_stages,
    search_at_once,
)
from retrieval.search.steps import Away, run_here, run_in_steps
from retrieval.search.stopwatch import Stopwatch, in_time
from retrieval.search.survival import is_light, renew_grounds
from retrieval.wire.options import Collapse
from retrieval.wire.search import Receipt, SearchAnswer, SearchCollectionsAnswer, SearchRequest, seq_in

MIN_SEQ_WAIT_S = 5.0
# More would not raise throughput, and would make each pass of the event loop longer for every caller.
ACTIVE_PER_THREAD = 4
AWAY_MAX = 64  # searches of shards, which mostly wait for other machines
T = TypeVar("T")
AskAway = Callable[[Sequence[Away[Any]]], Awaitable[Sequence[Any]]]
Scan = Callable[[Floats, int, Filter | None], Coroutine[Any, Any, Ranking]]


@dataclass(frozen=True, slots=True)
class TracedSearch:
    """A search with its intermediate results: the shard in the state it searched, the query of its last round, the
    candidates in their final order, and the groups of its page. Also the CPU time it took here, and the last operations
    it saw, by shard. `run` does work on the shard, which ends once `watch.left` is set."""

    shard: Partition
    watch: Stopwatch
    embedded: EmbeddedQuery
    fused: Fused
    groups: list[Group]
    answer: CachedAnswer
    cpu_s: float
    seqs: Seqs
    run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]


class Divided(Protocol):
    """A collection in shards that may be on other machines. `seqs` says, after a search, which operation of each the
    answer knows of, and `seen` as text, for `min_seq`."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def ranking(self) -> RankingSettings | None: ...
    @property
    def synonyms(self) -> SynonymSettings | None: ...
    @property
    def documents(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def searched(self) -> Sequence[Partition]:
        """The shards, without those that are left out."""
        ...

    @property
    def missing(self) -> Sequence[int]:
        """The shards that searches leave out, by number: no node answers for them."""
        ...

    @property
    def known_counts(self) -> KnownCounts: ...
    @property
    def seqs(self) -> Seqs: ...
    @property
    def seen(self) -> str: ...

    def spoken(self) -> Mapping[str, int]:
        """How many passages are in each language."""
        ...

    def expect(self, hits: int, *, partial: bool) -> None:
        """Have searches bring along the passages that are likely to be among so many hits. With `partial`, they leave
        out shards that do not answer, unless none is left."""
        ...

    def count_hits(self) -> None:
        """Have the passages that were returned counted as hits where they are."""
        ...

    def keep_up(self) -> None:
        """Have later answers of each part know of all that its answers knew of so far."""
        ...

    async def ask(self, calls: Sequence[Away[Any]], deadline: float | None = None) -> Sequence[Any]:
        """Answer what the parts wait for, in order, with an exception for each that failed."""
        ...


class Elsewhere(Protocol):
    """Answers searches in other processes."""

    async def search(
        self, collection: Collection, plan: Plan, watch: Stopwatch, budget: AnswerBudget
    ) -> Answered | None:
        """Answer a search of a collection at its present state or a later one; None if that cannot be done there.
        Raises as `Pipeline.search` does."""
        ...


class Pipeline:
    """Answers searches."""

    def __init__(
        self,
        embedders: Embedders,
        results: ResultCache,
        config: Config,
        reranker: Reranker | None = None,
        crowded: Callable[[str], bool] = lambda key: False,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """`crowded` tells whether requests of an access key are being refused. `elsewhere` answers searches in other
        processes."""
        self._elsewhere = elsewhere
        self._reranker = reranker
        self._embedders = embedders
        self._results = results
        self._answers = AnswerCache(results)
        self._config = config
        self._scanner = Scanner()
        self.under_way = 0
        self._threads = ThreadPoolExecutor(
            config.search.threads, "search", initializer=search_with_one_thread
        )
        # A look whether a kept answer still holds takes .3 ms, and must not wait for an explanation.
        self._judges = ThreadPoolExecutor(1, "judge", initializer=search_with_one_thread)
        self._active = Turns(ACTIVE_PER_THREAD * config.search.threads, lambda: config.admission, crowded)
        self._away = Turns(AWAY_MAX, lambda: config.admission, crowded)
        # Reranking holds a thread for a long time, so one is left for other searches if there are several.
        self._rerank_turns = Turns(max(1, config.search.threads - 1), lambda: config.admission, crowded)

    def close(self) -> None:
        """Cancel what has not begun, and wait for what has."""
        for threads in (self._threads, self._judges):
            threads.shutdown(cancel_futures=True)

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
        asked = await self.on_thread(partial(reranker.encoder.read_query, query))
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        for at in range(0, len(order), PAIRS_A_RUN):
            some = order[at : at + PAIRS_A_RUN]
            batch = [texts[one] for one in some]
            async with self._rerank_turns.turn(Flow(PRINCIPAL.get().key, patient=True)):
                work = partial(reranker.read, asked, batch, refuse=refuse)
                scores[some], more = await self.on_thread(work)
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

        Raises InvalidInput, Unavailable, DeadlineExceeded (at once if `min_seq` is to come) and others, and TooLarge
        for hits that exceed `budget`, by default the limit of one answer. `counted` is false for searches that no user
        asked for: they do not move hits to the hot tier, and do not count in the cache statistics.
        """
        budget = budget or AnswerBudget(self._config.limits.answer_bytes_max)
        strained = counted and 0 < self._config.search.strained_from <= self.under_way
        watch, plan = Stopwatch(), self._plan(collection, request, strained=strained)
        if not counted:
            plan = plan.uncounted()
        self.under_way += 1
        budget.work.searches += 1
        try:
            async with self._in_time(plan, watch):
                return await self._answer(name, collection, plan, watch, place, budget)
        finally:
            self.under_way -= 1
            watch.left = True

    async def search_together(
        self,
        names: Sequence[str],
        collections: Sequence[Collection | Divided],
        request: SearchRequest,
        budget: AnswerBudget,
    ) -> SearchCollectionsAnswer:
        """Answer a search of several collections, which the client calls `names`. No cache is read or filled, and the
        configuration ranks, not what one of the collections has learned.

        Raises as `search` does, and InvalidInput for vectors that do not compare.
        """
        watch, work, first = Stopwatch(), budget.work, collections[0]
        embeds = any(one.settings.embeds for one in collections)
        plan = make_plan(request, first.settings.dimensions, self._config, embeds=embeds)
        require_one_model(collections, plan)
        spoken = reduce(operator.add, (Counter(spoken_in(one)) for one in collections))
        plan = replace(plan, query=replace(plan.query, spoken=rounded(dict(spoken.most_common()))))
        documents = None if plan.query.condition else sum(one.documents for one in collections)
        share, divided = BudgetShare(budget), [one for one in collections if not isinstance(one, Collection)]
        for one in divided:
            one.expect(plan.last, partial=plan.request.partial)
        # All of them ask the same nodes.
        ask = partial(ask_within, divided[0], watch) if divided else None

        def begin(parts: Sequence[Sequence[Partition]]) -> tuple[JointShard, Rounds]:
            called = [name for name, some in zip(names, parts, strict=True) for _ in some]
            rounds = Rounds(share, documents, on_step=watch.on_step, collections=called)
            return JointShard([one for some in parts for one in some]), rounds

        self.under_way += 1
        work.searches += 1
        try:
            async with self._in_time(plan, watch), self._turn(plan, self._away if divided else None):
                embedded = await self._embed_text(first, lambda: spoken, plan, watch, {})
                search = partial(self._search_parts, collections, embedded, watch, work, begin, ask)
                joint, parts, found = await without_silent(divided, search)
        finally:
            self.under_way -= 1
            watch.left = True
        for one in divided:
            one.count_hits()
        answers = joint.answers_by_collection(found.answer, [len(some) for some in parts])
        receipts = [
            joint_receipt(name, one, some, plan, Found(answer))
            for name, one, some, answer in zip(names, collections, parts, answers, strict=True)
        ]
        return SearchCollectionsAnswer(found.answer.hits, receipts, watch.stop())

    async def _search_parts(
        self,
        collections: Sequence[Collection | Divided],
        embedded: EmbeddedQuery,
        watch: Stopwatch,
        work: WorkBudget,
        begin: Callable[[Sequence[Sequence[Partition]]], tuple[JointShard, Rounds]],
        ask: AskAway | None,
    ) -> tuple[JointShard, list[Sequence[Partition]], Found]:
        """Search the parts of several collections as one, and again on newer states if hits were replaced during that,
        as `_search_latest` does. `begin` makes one shard of them."""

        def search_pinned(
            shards: list[LocalShard],
        ) -> tuple[JointShard, list[Sequence[Partition]], Found]:
            joint, rounds = begin(parts := list[Sequence[Partition]]([one] for one in shards))
            return joint, parts, run_rounds(embedded, joint, watch, rounds)

        for left in reversed(range(SEARCHES_MAX)):
            parts = [parts_of(one, watch, work) for one in collections]
            joint, rounds = begin(parts)
            found = await self._search_deeper(joint, embedded, watch, rounds, ask=ask)
            if not (found.vanished and left):
                break
            states = zip(collections, parts, strict=True)
            if not any([await reach_newer_state(one, some, watch) for one, some in states]):
                break
            here = [one for one in collections if isinstance(one, Collection)]
            if len(here) == len(collections) and embedded.plan.rerank is None:
                return await self._pinned(here, watch, work, search_pinned) or (joint, parts, found)
        return joint, parts, found

    async def search_shards(
        self,
        name: str,
        sharded: Divided,
        request: SearchRequest,
        budget: AnswerBudget,
        *,
        counted: bool = True,
    ) -> SearchAnswer:
        """Answer a search of a collection whose shards may be on other machines, which the client calls `name`. No
        cache is read or filled. `counted` and what it raises are as of `search`."""
        watch, share = Stopwatch(), BudgetShare(budget)
        plan = self._plan_shards(sharded, request, counted=counted)
        self.under_way += 1
        budget.work.searches += 1
        vectors: dict[str, Floats] = {}

        async def search() -> Found:
            joint, embedded, found, _ = await self._search_shards(sharded, plan, watch, share, vectors)
            if plan.facets:
                count = partial(count_facets_of, embedded, joint, budget.work, found.answer)
                await self._run(count, watch, partial(ask_within, sharded, watch))
            return found

        try:
            async with self._in_time(plan, watch), self._turn(plan, self._away):
                found = await without_silent([sharded], search)
        finally:
            self.under_way -= 1
            watch.left = True
        sharded.count_hits()
        receipt = joint_receipt(name, sharded, sharded.searched, plan, found)
        return SearchAnswer(found.answer.hits, receipt, watch.stop(), found.answer.facets)

    async def _search_shards(
        self,
        sharded: Divided,
        plan: Plan,
        watch: Stopwatch,
        share: BudgetShare,
        vectors: dict[str, Floats],
    ) -> tuple[JointShard, EmbeddedQuery, Found, Rounds]:
        """Search until no hit is replaced beside the search."""
        documents = None if plan.query.condition else sharded.documents
        sharded.expect(plan.last, partial=plan.request.partial)
        ask = partial(ask_within, sharded, watch)
        known = None if sharded.missing else sharded.known_counts
        begin = partial(JointShard, sharded.searched, even=True, known=known)
        joint = begin()
        # While the text is embedded here, its words are counted there.
        embedding = self._embed_text(sharded, sharded.spoken, plan, watch, vectors)
        counting = run_in_steps(partial(joint.count_terms, plan.query), run_here, ask)
        embedded, _ = await gather_or_cancel([embedding, counting])
        assert embedded is not None
        if plan.request.like or plan.request.unlike:
            read = partial(read_examples, joint, plan.request, sharded.settings.dimensions)
            embedded = embedded.with_examples(await self._run(read, watch, ask))

        async def scan(vector: Floats, depth: int, condition: Filter | None) -> Ranking:
            [found] = await self._run(partial(joint.scan, vector[None], depth, condition), watch, ask)
            return found

        exact = scan if plan.request.exact else None
        for left in reversed(range(SEARCHES_MAX)):
            rounds = Rounds(share, documents, on_step=watch.on_step)
            found = await self._search_deeper(joint, embedded, watch, rounds, exact, ask)
            if not (found.vanished and left):
                break
            sharded.keep_up()  # and as in `_search_latest`
            joint = begin()
        return joint, embedded, found, rounds

    def _plan_shards(self, sharded: Divided, request: SearchRequest, *, counted: bool) -> Plan:
        plan = make_plan(
            request,
            sharded.settings.dimensions,
            self._config,
            sharded.ranking,
            sharded.synonyms,
            embeds=sharded.settings.embeds,
        )
        plan = replace(plan, query=replace(plan.query, spoken=sharded.spoken()))
        return plan if counted else plan.uncounted()

    def _plan(self, collection: Collection, request: SearchRequest, *, strained: bool = False) -> Plan:
        return make_plan(
            request,
            collection.settings.dimensions,
            self._config,
            collection.ranking.current,
            collection.synonyms.current,
            embeds=collection.settings.embeds,
            strained=strained,
        )

    def _in_time(self, plan: Plan, watch: Stopwatch) -> AbstractAsyncContextManager[None]:
        """Return the deadline as a context manager, and set it on `watch`, where the stages read it."""
        if plan.deadline_ms is not None:
            watch.deadline = asyncio.get_running_loop().time() + plan.deadline_ms / 1000
        return in_time(watch.deadline, plan.deadline_ms)

    def _turn(self, plan: Plan, turns: Turns | None = None) -> AbstractAsyncContextManager[None]:
        """Return a context within which a search may run. An exact search takes no turn here: the searches that share
        its scan wait for each other, so all of them must get there."""
        key = PRINCIPAL.get().key
        turns = turns or self._active
        active = nullcontext() if plan.request.exact else turns.turn(Flow(key, PATIENT.get()))
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
        """Answer from the cache, or by searching."""
        snapshot = snapshot_with(collection, plan.request.min_seq)
        plan = replace(plan, query=snapshot.with_cold_policy(plan.query))

        async def search() -> Answered:
            answered = await search_now()
            snapshot.learn(answered.found.spared)
            return answered

        async def search_now() -> Answered:
            if self._elsewhere is not None and place is None:
                answered = await self._elsewhere.search(collection, plan, watch, budget)
                if answered is not None:
                    return answered
            async with self._turn(plan):
                shard = LocalShard(collection, snapshot, watch, budget.work)
                embedded = await self._embed(shard, plan, watch)
                shard, found = await self._search_latest(
                    collection, shard, embedded, watch, place, BudgetShare(budget)
                )
            return Answered(state_of(collection, shard.snapshot), found, "miss")

        asked = Asked(
            state=state_of(collection, snapshot),
            plan=plan,
            key_of=partial(self._key, collection, snapshot),
            judge_of=lambda plan: partial(self._judge, collection, snapshot, plan, budget.work),
            shared=place is None,  # a joint scan waits for all of its members
            budget=budget,
            watch=watch,
        )
        answered = await self._answers.answer(asked, search)
        return answer_of(name, collection, plan, answered, watch)

    async def _search_latest(
        self,
        collection: Collection,
        shard: LocalShard,
        embedded: EmbeddedQuery,
        watch: Stopwatch,
        place: Place | None,
        share: BudgetShare,
    ) -> tuple[LocalShard, Found]:
        """Return the answer, and the state it was computed on: a newer one if hits were replaced during the search.
        Reranking waits for its model, and does not keep the log from being checkpointed for so long."""
        found = await self._search(shard, embedded, watch, place, share)
        if embedded.request.exact and not found.vanished and collection.log.newest_seq > shard.seq:
            # What was replaced while the log was read may have been found neither here nor there.
            died = await self.on_thread(partial(collection.log.dead_since, shard.seq))
            found = dataclasses.replace(found, vanished=bool(died))
        if not (found.vanished and await reaches_newer(collection, shard.snapshot, watch)):
            return shard, found
        if embedded.plan.rerank is None:
            searched = await self._pinned(
                [collection],
                watch,
                shard.work,
                lambda shards: (shards[0], search_at_once(embedded, shards[0], watch, share)),
                scans=embedded.request.exact,
            )
            return searched or (shard, found)
        for _ in range(SEARCHES_MAX - 1):
            shard = LocalShard(collection, collection.snapshot, watch, shard.work)
            found = await self._search(shard, embedded, watch, place, share)
            if not (found.vanished and await reaches_newer(collection, shard.snapshot, watch)):
                break
        return shard, found

    async def _pinned(
        self,
        collections: Sequence[Collection],
        watch: Stopwatch,
        work: WorkBudget,
        search: Callable[[list[LocalShard]], T],
        *,
        scans: bool = False,
    ) -> T | None:
        """Search the newest snapshots beside the logs as they were then, so that no hit can be gone. None if the logs
        are written too fast for that. A search that `scans` takes long, and waits for its turn."""

        def attempt() -> tuple[tuple[Collection, int] | None, T | None]:
            with ExitStack() as logs:
                seqs = [logs.enter_context(one.log.pinned()) for one in collections]
                shards = [LocalShard(one, one.snapshot, watch, work) for one in collections]
                for one, shard, seq in zip(collections, shards, seqs, strict=True):
                    if shard.seq != seq:
                        return (one, seq), None
                return None, search(shards)

        for _ in range(PINNED_MAX):
            run = self._scanner.on_thread if scans else self.on_thread
            behind, found = await run(partial(watch.charge_cpu, attempt))
            if behind is None:
                return found
            await wait_for_seq(*behind, watch.deadline or math.inf)
        return None

    async def _judge(
        self, collection: Collection, snapshot: Snapshot, plan: Plan, work: WorkBudget, grounds: bytes
    ) -> bytes | None:
        """Return the grounds that an answer to this plan has on this snapshot; None if it does not hold."""
        floor = self._embedders.similarity_floor(collection.settings.model)
        shard = LocalShard(collection, snapshot, Stopwatch(), work)
        renew = partial(renew_grounds, grounds, plan, floor, shard)
        return await (
            renew() if is_light(grounds) else self.on_thread(partial(run_at_once, renew), self._judges)
        )

    async def follow(
        self,
        collection: Collection,
        request: SearchRequest,
        vectors: dict[str, Floats] | None = None,
        work: WorkBudget | None = None,
    ) -> TracedSearch:
        """Search for an explanation, and return what the last round chose from. No cache is read or filled, and nothing
        is counted. `vectors` holds those of the texts that this explanation has embedded; `work` is what it may do, by
        default that of a search."""
        watch, budget = Stopwatch(), AnswerBudget(self._config.limits.answer_bytes_max)
        budget.work, share = work or budget.work, BudgetShare(budget)
        plan = self._plan(collection, replace(request, cache=False))
        try:
            async with self._in_time(plan, watch):
                snapshot = snapshot_with(collection, request.min_seq)
                plan = replace(plan, query=snapshot.with_cold_policy(plan.query))
                async with self._turn(plan):
                    shard = LocalShard(collection, snapshot, watch)
                    embedded = await self._embed(shard, plan, watch, vectors)
                    rounds = rounds_of(collection, embedded, share, watch)
                    found = await self._search(shard, embedded, watch, None, share, rounds)
        finally:
            watch.left = True
        assert rounds.last is not None
        shard.watch, traced = Stopwatch(), (*rounds.last, rounds.groups, found.answer, watch.cpu_s)
        return TracedSearch(shard, shard.watch, *traced, {0: snapshot.seq}, run_on_thread)

    async def follow_shards(
        self,
        sharded: Divided,
        request: SearchRequest,
        vectors: dict[str, Floats],
        work: WorkBudget | None = None,
    ) -> TracedSearch:
        """Do as `follow` does, in a collection whose shards may be on other machines. What is done there is no part of
        the CPU time."""
        watch, budget = Stopwatch(), AnswerBudget(self._config.limits.answer_bytes_max)
        budget.work, share = work or budget.work, BudgetShare(budget)
        plan = self._plan_shards(sharded, replace(request, cache=False), counted=False)
        try:
            async with self._in_time(plan, watch), self._turn(plan, self._away):
                joint, _, found, rounds = await self._search_shards(sharded, plan, watch, share, vectors)
        finally:
            watch.left = True
        assert rounds.last is not None
        after, traced = Stopwatch(), (*rounds.last, rounds.groups, found.answer, watch.cpu_s)
        run = partial(self._run, watch=after, ask=sharded.ask)
        return TracedSearch(joint, after, *traced, sharded.seqs, run)

    async def read_document(self, sharded: Divided, document_id: str, alike: int) -> DocumentRead:
        """Read a document, and up to so many similar ids, of a collection whose shards may be on other machines."""
        read = partial(JointShard(sharded.searched).read, document_id, alike)
        return await self._run(read, Stopwatch(), sharded.ask)

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
        self._answers.forget()

    async def _embed(
        self, shard: LocalShard, plan: Plan, watch: Stopwatch, vectors: dict[str, Floats] | None = None
    ) -> EmbeddedQuery:
        """Embed the text of the query, unless `vectors` holds its vector, and read the examples that it names."""
        known, spoken = {} if vectors is None else vectors, lambda: shard.snapshot.spoken
        embedded = await self._embed_text(shard.collection, spoken, plan, watch, known)
        if not plan.request.like and not plan.request.unlike:
            return embedded
        read = partial(read_examples, shard, plan.request, shard.collection.settings.dimensions)
        return embedded.with_examples(await self.on_thread(partial(run_at_once, read)))

    async def _embed_text(
        self,
        collection: Described,
        spoken: Callable[[], Mapping[str, int]],
        plan: Plan,
        watch: Stopwatch,
        vectors: dict[str, Floats],
    ) -> EmbeddedQuery:
        if plan.mode == "lexical":
            return EmbeddedQuery(plan, plan.query)
        if plan.text is None:
            floor = self._embedders.similarity_floor(collection.settings.model)
            return EmbeddedQuery(plan, plan.query, floor)
        embedder, text, language = await self._embedders.of(collection), plan.text, plan.query.language
        if text not in vectors:
            vector = embedder.query(text, watch.deadline, cached=plan.request.cache)
            vectors[text] = await watch.time_await("embed", vector)

        def read() -> tuple[float, bool]:
            return embedder.share_read(text, language, spoken), embedder.is_cut(text)

        query, floor = replace(plan.query, vector=vectors[text]), embedder.manifest.similarity_floor
        return EmbeddedQuery(plan, query, floor, read)

    async def _search(
        self,
        shard: LocalShard,
        embedded: EmbeddedQuery,
        watch: Stopwatch,
        place: Place | None,
        budget: BudgetShare,
        rounds: Rounds | None = None,
    ) -> Found:
        """Answer from one collection. The deadline may fall between two rounds."""
        rounds = rounds or rounds_of(shard.collection, embedded, budget, watch)
        scan = partial((place or self._scanner).rank, shard.collection) if embedded.request.exact else None
        found = await self._search_deeper(shard, embedded, watch, rounds, scan)
        if embedded.plan.facets:
            await self._run(partial(count_facets_of, embedded, shard, shard.work, found.answer), watch)
        return found

    async def _search_deeper(
        self,
        shard: Searchable,
        embedded: EmbeddedQuery,
        watch: Stopwatch,
        rounds: Rounds,
        scan: Scan | None = None,
        ask: AskAway | None = None,
    ) -> Found:
        """Search ever deeper until there are k hits or the rankings end; by `scan` instead of the indexes if given.
        `ask` asks the shards that are elsewhere."""
        while True:
            ranking, query = None, embedded.query
            if scan is not None and query.vector is not None:
                ranking = await watch.time_await("dense", scan(query.vector, query.depth, query.condition))
            stages = partial(run_stages, embedded, shard, watch, rounds, ranking, self._reranker)
            found = await self._run(stages, watch, ask)
            if found is not None:
                return found
            embedded = embedded.deeper()

    async def _run(
        self, stages: Callable[[], Coroutine[Any, Any, T]], watch: Stopwatch, ask: AskAway | None = None
    ) -> T:
        """Run stages of a search on a search thread: in one step if the shard is in this process, else in as many as
        it waits for others, with `ask`."""
        if ask is not None:
            return await run_in_steps(
                stages, lambda step: self.on_thread(partial(watch.charge_cpu, step)), ask
            )
        return await self.on_thread(partial(watch.charge_cpu, partial(run_at_once, stages)))

    async def on_thread(self, work: Callable[[], T], threads: Executor | None = None) -> T:
        """Run work on a search thread, in this context, so that its log lines name the request."""
        return await asyncio.get_running_loop().run_in_executor(
            threads or self._threads, copy_context().run, work
        )


async def run_on_thread(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return await asyncio.to_thread(partial(run_at_once, work))


async def without_silent(divided: Sequence[Divided], search: Callable[[], Awaitable[T]]) -> T:
    """Search again without shards that did not answer, where they may be left out. Raises Unavailable if none was."""
    while True:
        searched = [len(one.searched) for one in divided]
        try:
            return await search()
        except Unavailable:
            if [len(one.searched) for one in divided] == searched:
                raise


async def ask_within(sharded: Divided, watch: Stopwatch, calls: Sequence[Away[Any]]) -> Sequence[Any]:
    """Have the shards answer calls before the deadline of a search, of which this is a stage."""
    return await watch.time_await("shards", sharded.ask(calls, watch.deadline))


def parts_of(collection: Collection | Divided, watch: Stopwatch, work: WorkBudget) -> Sequence[Partition]:
    if isinstance(collection, Collection):
        return [LocalShard(collection, collection.snapshot, watch, work)]
    return collection.searched


def parts_snapshot(parts: Sequence[Partition]) -> Snapshot:
    """Return the state of a collection in one piece that is searched with others."""
    [shard] = parts
    assert isinstance(shard, LocalShard)
    return shard.snapshot


def spoken_in(collection: Collection | Divided) -> Mapping[str, int]:
    """How many passages are in each language."""
    return collection.snapshot.languages() if isinstance(collection, Collection) else collection.spoken()


def joint_receipt(
    name: str, collection: Collection | Divided, parts: Sequence[Partition], plan: Plan, found: Found
) -> Receipt:
    """Return the receipt of a collection that is in shards, or was searched with others, in the state of `parts`."""
    if isinstance(collection, Collection):
        state = state_of(collection, parts_snapshot(parts))
        return receipt_of(name, collection, plan, Answered(state, found, "bypass"))
    answered = Answered(State(collection.generation, 0, b"", settled=True), found, "bypass")
    receipt = receipt_in(name, collection.settings, plan, answered)
    return replace(receipt, seq=collection.seen, shards_missing=list(collection.missing) or UNSET)


def require_one_model(collections: Sequence[Collection | Divided], plan: Plan) -> None:
    """Raise InvalidInput if the vectors of the collections do not compare, unless only words are searched, and hits are
    not compared with each other."""
    first, *others = (one.settings for one in collections)
    other = next((one for one in others if one.fingerprint != first.fingerprint), None)
    if other is None:
        return
    differ = (
        f"the collections have vectors of different models, {first.model!r} and {other.model!r}"
        if first.embeds and other.embeds
        else "the vectors of these collections may come from different models"
    )
    if plan.mode != "lexical":
        raise InvalidInput(f"{differ}: search them with mode lexical, or one by one", param="collections")
    collapse = plan.request.collapse
    if plan.request.mmr is not None:
        raise InvalidInput(f"{differ}, and mmr compares those of the hits", param="mmr")
    if isinstance(collapse, Collapse) and collapse.similarity is not None:
        raise InvalidInput(
            f"{differ}, and similarity compares those of the hits", param="collapse.similarity"
        )


def snapshot_with(collection: Collection, min_seq: int | str | None) -> Snapshot:
    """Return the current snapshot. Raises DeadlineExceeded if it does not hold operation `min_seq` yet."""
    snapshot = collection.snapshot
    if snapshot.seq < seq_in(min_seq):
        raise DeadlineExceeded(f"the log is at seq {snapshot.seq}, before min_seq={min_seq}", param="min_seq")
    return snapshot


async def wait_for_seq(collection: Collection, min_seq: int, until: float = math.inf) -> None:
    """Wait until operation `min_seq` can be searched, at most until `until`, in the loop's time."""
    if collection.snapshot.seq < min_seq:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(until, asyncio.get_running_loop().time() + MIN_SEQ_WAIT_S)):
                await asyncio.wrap_future(collection.arrivals.at(min_seq))


async def reaches_newer(collection: Collection, snapshot: Snapshot, watch: Stopwatch) -> bool:
    """Return whether a newer state than a snapshot can be searched, after a wait if one is being committed. Hits that
    are gone from the log were replaced or deleted during the search: their new versions are in that state."""
    if collection.moved_since(snapshot):
        await wait_for_seq(collection, snapshot.seq + 1, watch.deadline or math.inf)
    return collection.snapshot.seq > snapshot.seq


async def reach_newer_state(
    collection: Collection | Divided, parts: Sequence[Partition], watch: Stopwatch
) -> bool:
    if isinstance(collection, Collection):
        return await reaches_newer(collection, parts_snapshot(parts), watch)
    collection.keep_up()
    return True


def state_of(collection: CollectionView, snapshot: Snapshot) -> State:
    settled = not collection.moved_since(snapshot)
    return State(snapshot.generation, snapshot.seq, snapshot.content, settled)
