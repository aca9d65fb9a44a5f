"""Standing queries: server-sent events for the hits that writes bring into a search's first k.

    event: watching  id: 41-3f9c02ab   data: {"seq": 41}                  everything up to this operation is known
    event: hits      id: 42-3f9c02ab   data: {"seq": 42, "hits": [{"rank": 3, "hit": {...}}]}
    event: error                       data: the error body; the stream ends

A client that reconnects with `Last-Event-ID` gets what was written since and is still among the first k. The id holds
the operation and the collection, because a recreated collection of the same name counts from 1 again. The search is
repeated after each write, from the cache: an answer that the write does not affect stays cached. The streams of one key
take turns (`admission.pace`).

What is searched is a `Watchable`: a `WatchedCollection`, or one in shards (`retrieval/cluster/watching.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Protocol

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
from retrieval.access.auth import PRINCIPAL
from retrieval.admission.ceiling import AnswerBudget
from retrieval.admission.pace import Pace
from retrieval.base.cancellation import RETRY_AFTER_S
from retrieval.cache import REDIS_WAIT, RedisWait
from retrieval.handlers.state import CONFIG, KEYS, METRICS, PACES, PIPELINE, READY
from retrieval.handlers.streams import event, event_stream
from retrieval.handlers.wire import body, collection_of, in_callers_words
from retrieval.observe.request_log import note_queries
from retrieval.search.shard import Seqs
from retrieval.wire.decoding import Doc
from retrieval.wire.errors import body_of
from retrieval.wire.search import Hit, SearchRequest, Seq, seq_in

LOOK_EVERY_S = 1.0  # check that the key is valid, the collection exists and the service is not stopping
KEEP_ALIVE_S = 15.0  # proxies close connections that are silent for longer
PAUSE_S = 0.05  # between two searches: at most twenty a second under a flood of writes
KEEP_ALIVE = b": nothing new\n\n"
DIGITS_MAX = 18
ID_CHARS = 8


class RankedHit(msgspec.Struct):
    """A hit and its rank."""

    rank: Annotated[int, Doc("Rank among the hits, from 1")]
    hit: Hit


class Entered(msgspec.Struct):
    """Hits that writes have brought into the first k."""

    seq: Annotated[Seq, Doc("The operation up to which everything is known")]
    hits: Annotated[list[RankedHit], Doc("Best first")]


class Watchable(Protocol):
    """What a standing query searches. `id` tells it from another collection of the same name."""

    @property
    def id(self) -> str: ...

    async def require_known(self, after: Seqs | None) -> None:
        """Raise Conflict if there are no such operations, which a client knows."""
        ...

    def write_down(self, seqs: Seqs) -> int | str: ...

    def read(self, text: str) -> Seqs:
        """Read what was written down. Raises InvalidInput."""
        ...

    async def arrival(self, known: Seqs) -> None:
        """Wait until there are later operations than those known."""
        ...

    async def search(self, wanted: SearchRequest, budget: AnswerBudget) -> tuple[Seqs, list[Hit]]:
        """Return the hits, and operations that they include."""
        ...

    async def written(self, documents: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Return the shard of each document, and the operation there that wrote it."""
        ...

    def require_same(self) -> None:
        """Raise NotFound or Conflict if this is no longer what the name means."""
        ...


async def watch(request: web.Request) -> web.StreamResponse:
    return await stream_hits(request, WatchedCollection(request))


async def stream_hits(request: web.Request, watched: Watchable) -> web.StreamResponse:
    """Stream a standing query. The stream begins with the first answer, so a refusal has its HTTP status."""
    wanted = await body(request, SearchRequest)
    note_queries(request, [wanted.query])
    check(wanted)
    async with aclosing(Watch(request, watched, wanted).events(last_event(request, watched))) as events:
        first = await anext(events)
        async with event_stream(request) as stream:
            await stream.write(first)
            async for content in events:
                await stream.write(content)
        return stream.reply


class WatchedCollection:
    """A collection in one piece."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._name, self._collection = collection_of(request)
        self.id = self._collection.uid[:ID_CHARS]

    async def require_known(self, after: Seqs | None) -> None:
        last = self._collection.snapshot.seq
        if after is not None and after[0] > last:
            raise unknown(after[0], last)

    def write_down(self, seqs: Seqs) -> int:
        return seqs[0]

    def read(self, text: str) -> Seqs:
        if len(text) > DIGITS_MAX or not (text.isascii() and text.isdigit()):
            raise InvalidInput(f"Last-Event-ID must be the id of an event, found {text[:40]!r}")
        return {0: int(text)}

    async def arrival(self, known: Seqs) -> None:
        await asyncio.wrap_future(self._collection.arrivals.at(known[0] + 1))

    async def search(self, wanted: SearchRequest, budget: AnswerBudget) -> tuple[Seqs, list[Hit]]:
        search = self._request.app[PIPELINE].search
        found = await search(self._name, self._collection, wanted, budget=budget, counted=False)
        return {0: seq_in(found.receipt.seq)}, found.hits

    async def written(self, documents: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        seqs = await asyncio.to_thread(self._collection.log.seqs_of, documents)
        return {document: (0, seq) for document, seq in seqs.items()}

    def require_same(self) -> None:
        if (now := collection_of(self._request)[1]) is not self._collection:
            same = now.uid == self._collection.uid
            what = "was renamed or restored" if same else "is another collection now"
            raise Conflict(f"{self._name!r} {what}; watch again", param="collection")


class Watch:
    """One standing query."""

    def __init__(self, request: web.Request, watched: Watchable, wanted: SearchRequest) -> None:
        if wanted.collapse is None:  # what is written again is news
            wanted = msgspec.structs.replace(wanted, collapse=False)
        self._request, self._watched, self._wanted = request, watched, wanted
        self._pace = request.app[PACES].setdefault(PRINCIPAL.get().key, Pace())

    async def events(self, after: Seqs | None) -> AsyncGenerator[bytes]:
        """Yield encoded events. `after` are the operations the client knows already, or None for a new client. Raises
        only before the first event; later errors become an event."""
        loop, begun, shown, looked = asyncio.get_running_loop(), False, None, 0.0
        watched, searching = self._watched, None
        await watched.require_known(after)
        try:
            seqs, hits = await self._hits(patient=False)
            while True:
                known, new, later = seqs if after is None else after, list[RankedHit](), False
                if hits != shown:
                    new, later = await self._written_between(hits, known, seqs)
                after = {at: max(known.get(at, 0), seq) for at, seq in seqs.items()}
                shown = None if later else hits
                if new or not begun:
                    said, begun = loop.time(), True
                    self._request.app[METRICS].pushed.inc(len(new))
                    label = watched.write_down(after)
                    name, data = ("hits", Entered(label, new)) if new else ("watching", {"seq": label})
                    yield event(name, data, f"{label}-{watched.id}")
                await asyncio.sleep(PAUSE_S)
                searching = asyncio.ensure_future(self._next_hits(seqs))
                while not searching.done():
                    if loop.time() - said > KEEP_ALIVE_S:
                        said = loop.time()
                        yield KEEP_ALIVE
                    await asyncio.wait({searching}, timeout=LOOK_EVERY_S)
                    if loop.time() - looked > LOOK_EVERY_S:  # even while writes keep arriving
                        looked = loop.time()
                        self._look()
                seqs, hits = searching.result()
        except NearlineError as error:
            if not begun:
                raise
            yield event("error", body_of(in_callers_words(self._request.app, error)))
        finally:
            if searching is not None:
                searching.cancel()

    async def _next_hits(self, known: Seqs) -> tuple[Seqs, list[Hit]]:
        """Wait for the next operation, then for the turn of a search, and return what `_hits` does."""
        await self._watched.arrival(known)
        async with self._pace.turn():
            return await self._hits(patient=True)

    async def _hits(self, *, patient: bool) -> tuple[Seqs, list[Hit]]:
        """Return the current hits and operations they include. If `patient`, wait out an overload of the service."""
        while True:
            REDIS_WAIT.set(RedisWait())
            try:
                budget = AnswerBudget(self._request.app[CONFIG].limits.answer_bytes_max)
                return await self._watched.search(self._wanted, budget)  # the answer to exactly this request
            except (Overloaded, DeadlineExceeded):
                if not patient:
                    raise
                await asyncio.sleep(LOOK_EVERY_S)
                self._look()

    async def _written_between(
        self, hits: list[Hit], after: Seqs, upto: Seqs
    ) -> tuple[list[RankedHit], bool]:
        """Return the hits whose documents were written after the operations in `after` and up to those in `upto`, and
        whether some were written later."""
        written = await self._watched.written(list({hit.document_id for hit in hits}))
        new, later = list[RankedHit](), False
        for rank, hit in enumerate(hits, 1):
            shard, seq = written.get(hit.document_id, (0, 0))
            if seq > upto.get(shard, 0):
                later = True
            elif seq > after.get(shard, 0):
                new.append(RankedHit(rank, hit))
        return new, later

    def _look(self) -> None:
        """Raises if the stream must end: the key is no longer valid, the collection is gone, or the service is
        stopping."""
        request = self._request
        PRINCIPAL.set(request.app[KEYS].admit(request.headers, "search"))
        self._watched.require_same()
        if not request.app[READY]["ready"]:
            raise NotReady("the service is stopping; watch again later", retry_after_s=RETRY_AFTER_S)


def unknown(after: int | str, last: int | str) -> Conflict:
    return Conflict(
        f"the collection is at operation {last}, and the client knows {after}: it was recreated or restored; "
        "watch again without Last-Event-ID",
        param="Last-Event-ID",
    )


def check(wanted: SearchRequest) -> None:
    """Raises InvalidInput for options that a standing query does not support."""
    for param in ("exact", "offset", "facets", "min_seq", "deadline_ms", "partial"):
        if getattr(wanted, param):
            raise InvalidInput(f"a watched search has no {param}", param=param)
    if not wanted.cache:
        raise InvalidInput(
            "a watched search needs the cache, because it is repeated after each write", param="cache"
        )


def last_event(request: web.Request, watched: Watchable) -> Seqs | None:
    """Return the last operations that a reconnecting client knows, or None for a new client. Raises InvalidInput, and
    Conflict if the event came from another collection."""
    text = request.headers.get("Last-Event-ID")
    if text is None:
        return None
    seqs, _, known = text.rpartition("-")
    if not seqs or "." in known:  # a bare `seq`
        seqs, known = text, ""
    if known and known != watched.id:
        raise Conflict(
            "this is another collection now; watch again without Last-Event-ID", param="Last-Event-ID"
        )
    try:
        return watched.read(seqs)
    except InvalidInput as error:
        error.param = "Last-Event-ID"
        raise
