"""Standing queries: server-sent events for the hits that writes bring into a search's first k.

    event: watching  id: 41-3f9c02ab   data: {"seq": 41}                  everything up to this operation is known
    event: hits      id: 42-3f9c02ab   data: {"seq": 42, "hits": [{"rank": 3, "hit": {...}}]}
    event: error                       data: the error body; the stream ends

A client that reconnects with `Last-Event-ID` gets what was written since and is still among the first k. The id holds
the operation and the collection, because a recreated collection of the same name counts from 1 again. The search is
repeated after each write, from the cache: an answer that the write does not affect stays cached. The streams of one key
take turns (`admission.pace`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Annotated

import msgspec
from aiohttp import web

from indexes.base.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    NearlineError,
    NotReady,
    Overloaded,
)
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.ceiling import AnswerBudget
from retrieval.admission.pace import Pace
from retrieval.base.cancellation import RETRY_AFTER_S
from retrieval.cache import REDIS_WAIT, RedisWait
from retrieval.handlers.state import CONFIG, KEYS, METRICS, PACES, PIPELINE, READY
from retrieval.handlers.streams import event, event_stream
from retrieval.handlers.wire import body, collection_of, in_callers_words
from retrieval.observe.request_log import note_queries
from retrieval.wire.decoding import Doc
from retrieval.wire.errors import body_of
from retrieval.wire.search import Hit, SearchRequest, seq_in

LOOK_EVERY_S = 1.0  # check that the key is valid, the collection exists and the service is not stopping
KEEP_ALIVE_S = 15.0  # proxies close connections that are silent for longer
PAUSE_S = 0.05  # between two searches: at most twenty a second under a flood of writes
KEEP_ALIVE = b": nothing new\n\n"
DIGITS_MAX = 18


class RankedHit(msgspec.Struct):
    """A hit and its rank."""

    rank: Annotated[int, Doc("Rank among the hits, from 1")]
    hit: Hit


class Entered(msgspec.Struct):
    """Hits that writes have brought into the first k."""

    seq: Annotated[int, Doc("The operation up to which everything is known")]
    hits: Annotated[list[RankedHit], Doc("Best first")]


async def watch(request: web.Request) -> web.StreamResponse:
    """Stream a standing query. The stream begins with the first answer, so a refusal has its HTTP status."""
    wanted = await body(request, SearchRequest)
    note_queries(request, [wanted.query])
    name, collection = collection_of(request)
    check(wanted)
    async with aclosing(
        Watch(request, name, collection, wanted).events(last_event(request, collection))
    ) as events:
        first = await anext(events)
        async with event_stream(request) as stream:
            await stream.write(first)
            async for content in events:
                await stream.write(content)
        return stream.reply


class Watch:
    """One standing query."""

    def __init__(
        self, request: web.Request, name: str, collection: Collection, wanted: SearchRequest
    ) -> None:
        if wanted.collapse is None:  # what is written again is news
            wanted = msgspec.structs.replace(wanted, collapse=False)
        self._request, self._name, self._collection, self._wanted = request, name, collection, wanted
        self._pace = request.app[PACES].setdefault(PRINCIPAL.get().key, Pace())

    async def events(self, after: int | None) -> AsyncGenerator[bytes]:
        """Yield encoded events. `after` is the operation the client knows already, or None for a new client. Raises
        only before the first event; later errors become an event."""
        loop, begun, shown, looked = asyncio.get_running_loop(), False, None, 0.0
        searching = None
        if after is not None and after > (last := self._collection.snapshot.seq):
            raise Conflict(
                f"the collection has {last} operations, and the client knows {after}: it was recreated or restored; "
                "watch again without Last-Event-ID",
                param="Last-Event-ID",
            )
        try:
            seq, hits = await self._hits(patient=False)
            while True:
                known = seq if after is None else after
                new = [] if hits == shown else await self._written_between(hits, known, seq)
                after, shown = max(known, seq), hits
                if new or not begun:
                    said, begun = loop.time(), True
                    self._request.app[METRICS].pushed.inc(len(new))
                    name, data = ("hits", Entered(after, new)) if new else ("watching", {"seq": after})
                    yield event(name, data, f"{after}-{id_of(self._collection)}")
                await asyncio.sleep(PAUSE_S)
                searching = asyncio.ensure_future(self._next_hits(seq + 1))
                while not searching.done():
                    if loop.time() - said > KEEP_ALIVE_S:
                        said = loop.time()
                        yield KEEP_ALIVE
                    await asyncio.wait({searching}, timeout=LOOK_EVERY_S)
                    if loop.time() - looked > LOOK_EVERY_S:  # even while writes keep arriving
                        looked = loop.time()
                        self._look()
                seq, hits = searching.result()
        except NearlineError as error:
            if not begun:
                raise
            yield event("error", body_of(in_callers_words(self._request.app, error)))
        finally:
            if searching is not None:
                searching.cancel()

    async def _next_hits(self, seq: int) -> tuple[int, list[Hit]]:
        """Wait for this operation, then for the turn of a search, and return what `_hits` does."""
        await asyncio.wrap_future(self._collection.arrivals.at(seq))
        async with self._pace.turn():
            return await self._hits(patient=True)

    async def _hits(self, *, patient: bool) -> tuple[int, list[Hit]]:
        """Return the current hits and the operation they include. If `patient`, wait out an overload of the service."""
        app = self._request.app
        while True:
            REDIS_WAIT.set(RedisWait())
            try:
                budget = AnswerBudget(app[CONFIG].limits.answer_bytes_max)
                search = partial(app[PIPELINE].search, self._name, self._collection, self._wanted)
                found = await search(budget=budget, counted=False)  # the answer to exactly this request
                return seq_in(found.receipt.seq), found.hits
            except (Overloaded, DeadlineExceeded):
                if not patient:
                    raise
                await asyncio.sleep(LOOK_EVERY_S)
                self._look()

    async def _written_between(self, hits: list[Hit], after: int, upto: int) -> list[RankedHit]:
        """Return the hits whose documents were written after operation `after` and up to `upto`."""
        ids = list({hit.document_id for hit in hits})
        seqs = await asyncio.to_thread(self._collection.log.seqs_of, ids)
        return [
            RankedHit(rank, hit)
            for rank, hit in enumerate(hits, 1)
            if after < seqs.get(hit.document_id, 0) <= upto
        ]

    def _look(self) -> None:
        """Raises if the stream must end: the key is no longer valid, the collection is gone, or the service is
        stopping."""
        request = self._request
        PRINCIPAL.set(request.app[KEYS].admit(request.headers, "search"))
        if (now := collection_of(request)[1]) is not self._collection:
            same = now.uid == self._collection.uid
            what = "was renamed or restored" if same else "is another collection now"
            raise Conflict(f"{self._name!r} {what}; watch again", param="collection")
        if not request.app[READY]["ready"]:
            raise NotReady("the service is stopping; watch again later", retry_after_s=RETRY_AFTER_S)


def check(wanted: SearchRequest) -> None:
    """Raises InvalidInput for options that a standing query does not support."""
    for param in ("exact", "offset", "facets", "min_seq", "deadline_ms"):
        if getattr(wanted, param):
            raise InvalidInput(f"a watched search has no {param}", param=param)
    if not wanted.cache:
        raise InvalidInput(
            "a watched search needs the cache, because it is repeated after each write", param="cache"
        )


def last_event(request: web.Request, collection: Collection) -> int | None:
    """Return the last operation that a reconnecting client knows, or None for a new client. Raises InvalidInput, and
    Conflict if the event came from another collection."""
    text = request.headers.get("Last-Event-ID")
    if text is None:
        return None
    seq, _, known = text.partition("-")
    if len(seq) > DIGITS_MAX or not (seq.isascii() and seq.isdigit()):
        raise InvalidInput(
            f"Last-Event-ID must be the id of an event, found {text[:40]!r}", param="Last-Event-ID"
        )
    if known and known != id_of(collection):
        raise Conflict(
            "this is another collection now; watch again without Last-Event-ID", param="Last-Event-ID"
        )
    return int(seq)


def id_of(collection: Collection) -> str:
    return collection.uid[:8]
