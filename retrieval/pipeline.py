"""One search, from text to hits.

    result cache -> embed, and BM25 meanwhile -> dense -> fuse -> read from the log -> answer with its receipt

The event loop only coordinates: embedding runs on the batcher's thread, searching on a small pool. Everything one
search reads comes from one snapshot; every hit is read from the log last, so that nothing deleted is returned.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.catalog import Catalog
from indexes.collection import Collection
from indexes.dense.vectors import search_with_one_thread
from indexes.errors import DeadlineExceeded
from indexes.model import DenseResult, Floats, Ids, Ranking, StoredPassage, Tier
from indexes.parts.snapshot import Snapshot
from retrieval.cache import ResultCache, ResultKey
from retrieval.embedders import Embedders
from retrieval.fusion import reciprocal_rank, weighted
from retrieval.plan import Plan, plan
from retrieval.room import Room, size_of
from retrieval.scanning import JointScan, Place, Scanner
from retrieval.schemas import Hit, Ranks, Receipt, Scores, SearchAnswer, SearchRequest
from retrieval.settings import Config
from retrieval.stopwatch import Stopwatch

T = TypeVar("T")

MIN_SEQ_WAIT_S = 5.0
DECIMALS = 6
HITS_READ_MAX = 128  # at once: what is too much is noticed before all of it is held
# More get no more done, and each pass of the event loop, which everybody else waits for, takes longer.
ACTIVE_PER_THREAD = 8
SPARE_HITS = 16  # read beyond k, for candidates that died since the snapshot was taken


class CachedAnswer(msgspec.Struct):
    """What of an answer the cache keeps: everything but how long it took and where it came from."""

    hits: list[Hit]
    tiers: list[Tier]
    cold_skipped: str | None


@dataclass(frozen=True, slots=True)
class Fused:
    """Candidates in final order with their fused scores, and what each searcher said."""

    ids: Ids
    scores: NDArray[np.float64]
    dense: Ranking
    lexical: Ranking


class Pipeline:
    """Answers searches over the collections of a catalog."""

    def __init__(self, catalog: Catalog, embedders: Embedders, results: ResultCache, config: Config) -> None:
        self._catalog = catalog
        self._embedders = embedders
        self._results = results
        self._config = config
        self._scanner = Scanner()
        self._pool = ThreadPoolExecutor(
            config.search.threads, thread_name_prefix="search", initializer=search_with_one_thread
        )

        self._active = asyncio.Semaphore(ACTIVE_PER_THREAD * config.search.threads)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def joint_scan(self, collection: Collection, members: int) -> JointScan:
        """One scan for so many exact searches of a collection; each gives its place in it to `search`."""
        return self._scanner.joint(collection, members)

    async def search(
        self, name: str, request: SearchRequest, place: Place | None = None, room: Room | None = None
    ) -> SearchAnswer:
        """Raises NotFound, InvalidInput, Unavailable and their kin; never returns a partial answer.

        Hits that have no `room`, by default that of one answer, are TooLarge.
        """
        room = room or Room(self._config.limits.answer_bytes_max)
        watch = Stopwatch()
        collection = self._catalog.get(name)
        planned = plan(request, collection.settings.dimensions, self._config)
        if planned.deadline_ms is not None:
            watch.deadline = asyncio.get_running_loop().time() + planned.deadline_ms / 1000
        try:
            async with asyncio.timeout_at(watch.deadline):
                return await self._answer(name, collection, planned, watch, place, room)
        except TimeoutError:
            raise DeadlineExceeded(
                f"no answer within deadline_ms={planned.deadline_ms}", param="deadline_ms"
            ) from None

    async def _answer(
        self,
        name: str,
        collection: Collection,
        planned: Plan,
        watch: Stopwatch,
        place: Place | None,
        room: Room,
    ) -> SearchAnswer:
        snapshot = await reached(collection, planned.min_seq)
        settings = collection.settings
        key = self._key(collection, snapshot, planned)
        cached = await watch.awaited("cache", self._cached(key, room)) if planned.cache else None
        answer = cached
        if answer is None:
            answer, vanished = await self._search(collection, snapshot, planned, watch, place, room)
            if vanished and collection.snapshot.seq > snapshot.seq:
                # Hits were replaced or deleted meanwhile; their new versions are in the newer snapshot.
                snapshot = collection.snapshot
                key = self._key(collection, snapshot, planned)
                answer, _ = await self._search(collection, snapshot, planned, watch, place, room)
        # One that met a later commit (a hit gone from the log, an exact scan) would be wrong when this content is back.
        if planned.cache and cached is None and not collection.moved_since(snapshot):
            await watch.awaited("cache", self._results.put(key, msgspec.msgpack.encode(answer)))
        receipt = Receipt(
            collection=name,
            generation=snapshot.generation,
            seq=snapshot.seq,
            tiers=answer.tiers,
            cold_skipped=answer.cold_skipped,
            cache="hit" if cached else ("miss" if planned.cache else "bypass"),
            model=settings.model,
        )
        return SearchAnswer(answer.hits, receipt, watch.stop())

    def _key(self, collection: Collection, snapshot: Snapshot, planned: Plan) -> ResultKey:
        settings = collection.settings
        return self._results.key(
            snapshot.content,
            msgspec.json.encode((settings.fingerprint, settings.bm25)),
            planned.identity,
            uid=collection.uid,
            generation=snapshot.generation,
            tuned_ms=collection.chosen.chosen_ms if collection.chosen else 0,
        )

    def forget_answers(self) -> None:
        """Drop the answers kept in this process."""
        self._results.clear()

    async def _cached(self, key: ResultKey, room: Room) -> CachedAnswer | None:
        stored = await self._results.get(key)
        if stored is None:
            return None
        room.take(len(stored))
        try:
            return msgspec.msgpack.decode(stored, type=CachedAnswer)
        except msgspec.DecodeError:
            return None  # written by another version of this service

    async def _search(
        self,
        collection: Collection,
        snapshot: Snapshot,
        planned: Plan,
        watch: Stopwatch,
        place: Place | None,
        room: Room,
    ) -> tuple[CachedAnswer, bool]:
        """The answer, and whether candidates were gone from the log."""
        # An exact search waits for the others that share its scan: all of them have to get there.
        async with nullcontext() if planned.exact else self._active:
            lexical, vector = await self._rank_and_embed(collection, snapshot, planned, watch)
            exact: Ranking | None = None
            if planned.exact and vector is not None:
                scan = place or self._scanner
                ranked = scan.rank(collection, vector, depth_of(planned), planned.condition)
                exact = await watch.awaited("dense", ranked)
            return await self._run(
                lambda: finish(collection, snapshot, planned, vector, lexical, watch, room, exact=exact)
            )

    async def _rank_and_embed(
        self, collection: Collection, snapshot: Snapshot, planned: Plan, watch: Stopwatch
    ) -> tuple[Ranking, Floats | None]:
        """BM25 runs on the pool while the query is embedded."""

        def rank() -> Ranking:
            return snapshot.lexical(planned.query, planned.candidates, planned.condition)

        ranked = (
            asyncio.ensure_future(self._run(lambda: watch.timed("lexical", rank)))
            if planned.lexical
            else None
        )
        try:
            vector = await self._vector(collection, planned, watch) if planned.dense else None
            return (await ranked if ranked else Ranking.empty()), vector
        finally:
            if ranked is not None and not ranked.done():
                ranked.cancel()

    async def _vector(self, collection: Collection, planned: Plan, watch: Stopwatch) -> Floats:
        if planned.vector is not None:
            return planned.vector
        embedder = await self._embedders.of(collection)
        query = embedder.query(planned.query, watch.deadline, cached=planned.cache)
        return await watch.awaited("embed", query)

    async def _run(self, work: Callable[[], T]) -> T:
        context = copy_context()  # for what is logged there
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: context.run(work))


async def reached(collection: Collection, min_seq: int) -> Snapshot:
    """The present snapshot, once it holds operation `min_seq`. Raises DeadlineExceeded if that does not come."""
    if collection.snapshot.seq < min_seq:
        try:
            async with asyncio.timeout(MIN_SEQ_WAIT_S):
                await asyncio.wrap_future(collection.arrivals.at(min_seq))
        except TimeoutError:
            raise DeadlineExceeded(
                f"the log is at seq {collection.snapshot.seq}, before min_seq={min_seq}", param="min_seq"
            ) from None
    return collection.snapshot


# --- on the pool ----------------------------------------------------------------------------------------------


def finish(
    collection: Collection,
    snapshot: Snapshot,
    planned: Plan,
    vector: Floats | None,
    lexical: Ranking,
    watch: Stopwatch,
    room: Room,
    *,
    exact: Ranking | None = None,
) -> tuple[CachedAnswer, bool]:
    """Dense search, unless the `exact` ranking is there already, fusion, and the hits from the log; and whether some
    candidates were gone from it."""
    dense = DenseResult(Ranking.empty(), (), None)
    if exact is not None:
        dense = DenseResult(exact, snapshot.tiers, None)
    elif vector is not None:
        dense = watch.timed("dense", lambda: search_dense(snapshot, planned, vector))
    tiers = dense.tiers if vector is not None else snapshot.tiers
    fused = watch.timed("fuse", lambda: fuse(snapshot, planned, vector, dense.ranking, lexical))
    hits, vanished = watch.timed(
        "hydrate", lambda: hydrate(collection, snapshot, planned, vector, fused, room)
    )
    return CachedAnswer(hits, list(tiers), dense.cold_skipped), vanished


def search_dense(snapshot: Snapshot, planned: Plan, vector: Floats) -> DenseResult:
    depth = depth_of(planned)
    return snapshot.dense(vector, depth, planned.condition, k=planned.k, counted=planned.counted)


def depth_of(planned: Plan) -> int:
    """How many passages the dense ranking holds."""
    return planned.candidates if planned.lexical or planned.group_by_document else planned.k + SPARE_HITS


def fuse(snapshot: Snapshot, planned: Plan, vector: Floats | None, dense: Ranking, lexical: Ranking) -> Fused:
    if planned.mode != "hybrid" or vector is None:
        only = dense if planned.dense else lexical
        return Fused(only.ids, rounded(only.scores), dense, lexical)
    ids, scores = reciprocal_rank([dense.ids, lexical.ids], planned.rrf_k)
    if planned.method == "weighted":
        # Both searchers score all candidates, also those only the other one found: absent is not the same as zero.
        both = {
            "dense": snapshot.dense_scores(vector, ids),
            "lexical": snapshot.lexical_scores(planned.query, ids),
        }
        ids, scores = weighted(ids, both, planned.weights)
    return Fused(ids, rounded(scores), dense, lexical)


def hydrate(
    collection: Collection,
    snapshot: Snapshot,
    planned: Plan,
    vector: Floats | None,
    fused: Fused,
    room: Room,
) -> tuple[list[Hit], bool]:
    """The first k candidates that still live, from the log, one a document if asked; and whether some did not.

    Raises TooLarge as soon as they have no room.
    """
    kept = len(fused.ids) if planned.min_score is None else int(np.sum(fused.scores >= planned.min_score))
    chosen: list[tuple[int, StoredPassage]] = []
    seen: set[str] = set()
    vanished = False
    at, step = 0, min(planned.k + (0 if planned.group_by_document else SPARE_HITS), HITS_READ_MAX)
    while at < kept and len(chosen) < planned.k:
        upto = min(at + step, kept)
        stored = collection.passages(fused.ids[at:upto].tolist())
        already = len(chosen)
        for position in range(at, upto):
            passage = stored.get(int(fused.ids[position]))
            vanished |= passage is None
            if passage is None or (planned.group_by_document and passage.document_id in seen):
                continue
            seen.add(passage.document_id)
            chosen.append((position, passage))
        room.take(sum(size_of(passage) for _, passage in chosen[already : planned.k]))
        at = upto
    if planned.counted:
        collection.hits.count(passage.id for _, passage in chosen[: planned.k])
    return make_hits(snapshot, planned, vector, fused, chosen[: planned.k]), vanished


def make_hits(
    snapshot: Snapshot,
    planned: Plan,
    vector: Floats | None,
    fused: Fused,
    chosen: list[tuple[int, StoredPassage]],
) -> list[Hit]:
    ids = np.array([passage.id for _, passage in chosen], np.int64)
    dense = snapshot.dense_scores(vector, ids) if vector is not None else None
    lexical = snapshot.lexical_scores(planned.query, ids) if planned.lexical else None
    tiers = snapshot.tiers_of(ids)
    hits = []
    for at, (position, passage) in enumerate(chosen):
        hits.append(
            Hit(
                document_id=passage.document_id,
                passage=passage.ordinal,
                start=passage.start,
                end=passage.end,
                text=passage.text,
                title=passage.title,
                metadata=passage.metadata,
                score=float(fused.scores[position]),
                scores=Scores(one_score(dense, at), one_score(lexical, at)),
                tier=tiers[at] or "delta",  # written after the snapshot: it can only be in the delta
                ranks=ranks_of(fused, passage.id) if planned.explain else None,
                heading=passage.heading,
                tokens=passage.tokens,
            )
        )
    return hits


def ranks_of(fused: Fused, passage: int) -> Ranks:
    def rank(ranking: Ranking) -> int | None:
        at = np.flatnonzero(ranking.ids == passage)
        return int(at[0]) + 1 if len(at) else None

    return Ranks(rank(fused.dense), rank(fused.lexical))


def rounded(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """As they are shown, so that `min_score` compares with what the client sees."""
    shown: NDArray[np.float64] = np.round(scores, DECIMALS, out=np.empty(len(scores), np.float64))
    return shown


def one_score(scores: Floats | None, at: int) -> float | None:
    return None if scores is None or np.isnan(scores[at]) else round(float(scores[at]), DECIMALS)


def elapsed_ms(since: float) -> float:
    return round((time.perf_counter() - since) * 1000, 3)
