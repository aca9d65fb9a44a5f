"""Searches that come again and again, made by the service itself where its cache begins anew: after a swap of indexes,
which answers may depend on, and after a start.

Which those are is counted in memory: of each collection the most frequent of the last hours (Misra and Gries 1982),
each with the rights of who asked. After a start nothing is known but the query log, where the operator has switched
that on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from indexes.base.errors import NearlineError
from indexes.collection.collection import Collection
from retrieval.access.auth import PRINCIPAL, Principal
from retrieval.search.pipeline import Pipeline
from retrieval.wire.decoding import is_absent
from retrieval.wire.search import SearchRequest

logger = logging.getLogger(__name__)

HALVED_EVERY_S = 3600.0
LOOK_EVERY_S = 1.0
WARM_S_MAX = 60.0  # of one collection: what is not warm by then comes by itself
GIVE_WAY_S = 0.02
KEY_BYTES_MAX = 8192  # of a search with its filter: a few hundred of them are kept

by_count = attrgetter("count")


@dataclass(slots=True)
class Asked:
    """A search, who may make it, and how often it came lately."""

    key: bytes
    request: SearchRequest
    caller: Principal
    count: float


class Frequent:
    """The `most` most frequent searches of each collection; 0 keeps none. For one event loop."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._asked: dict[bytes, dict[bytes, Asked]] = {}  # by the opened collection
        self._halved_s = clock()
        self.made = 0  # searches for which nobody waited

    def note(self, collection: Collection, request: SearchRequest) -> None:
        """Count a search, if its answer is cached and its first page. Takes a few microseconds."""
        cached = request.cache and not request.exact and not request.offset
        if not self._most or not cached or request.query is None or not is_absent(request.vector):
            return
        request = msgspec.structs.replace(request, min_seq=None, deadline_ms=None)
        caller = PRINCIPAL.get()
        key = msgspec.msgpack.encode((request, caller.tenant, caller.groups))
        if len(key) > KEY_BYTES_MAX:
            return
        known = self._asked.setdefault(collection.opening, {})
        if (asked := known.get(key)) is not None:
            asked.count += 1
            return
        if len(known) >= 2 * self._most:
            self._purge(known)
        # A copy of the filter: it would keep the whole body in memory that it came in.
        own = msgspec.structs.replace(request, filter=request.filter.copy())
        known[key] = Asked(key, own, caller, 1.0)

    def _purge(self, known: dict[bytes, Asked]) -> None:
        """Of twice as many as are kept, take away the rarer half, and from the others as much as the largest of it: so
        who came more often than the share of one stays."""
        rarest = sorted(known.values(), key=by_count)[: self._most]
        for asked in list(known.values()):
            asked.count -= rarest[-1].count
            if asked.count <= 0:
                del known[asked.key]

    def of(self, collection: Collection) -> list[Asked]:
        """The most frequent first."""
        found = sorted(self._asked.get(collection.opening, {}).values(), key=by_count, reverse=True)
        return found[: self._most]

    def tidy(self, collections: Sequence[Collection]) -> None:
        """Forget collections that are closed, and what is hours ago by and by."""
        live = {one.opening for one in collections}
        for gone in self._asked.keys() - live:
            del self._asked[gone]
        if self._clock() - self._halved_s > HALVED_EVERY_S:
            self._halved_s = self._clock()
            for known in self._asked.values():
                for asked in known.values():
                    asked.count /= 2

    async def keep_warm(
        self,
        pipeline: Pipeline,
        collections: Callable[[], Mapping[str, Collection]],
        logged: Callable[[Collection, int], list[str]],
    ) -> None:
        """Search again, for ever, where indexes or settings were swapped, and once for what the log has."""
        seen: dict[bytes, tuple[int, int]] = {}
        while True:
            present = dict(collections())
            self.tidy(list(present.values()))
            for name, collection in present.items():
                chosen = collection.chosen.chosen_ms if collection.chosen else 0
                state, before = (collection.snapshot.generation, chosen), seen.get(collection.opening)
                seen[collection.opening] = state
                if before == state:
                    continue
                texts = logged(collection, self._most) if before is None else []
                found = [Asked(b"", SearchRequest(query=text), Principal(), 1) for text in texts]
                try:
                    await self.warm(pipeline, name, collection, [*self.of(collection), *found])
                except Exception:
                    logger.exception("the frequent searches of %s were not made again", name)
            await asyncio.sleep(LOOK_EVERY_S)

    async def warm(
        self, pipeline: Pipeline, name: str, collection: Collection, searches: Sequence[Asked]
    ) -> None:
        """One by one, when nobody else searches; nobody is told of errors."""
        begun, made, waiting = time.monotonic(), 0, list(reversed(searches))
        while waiting and time.monotonic() - begun < WARM_S_MAX:
            if pipeline.under_way:
                await asyncio.sleep(GIVE_WAY_S)
                continue
            asked, context = waiting.pop(), Context()
            context.run(PRINCIPAL.set, asked.caller)
            search = pipeline.search(name, collection, asked.request, counted=False)
            try:
                await asyncio.create_task(search, context=context)
                made += 1
            except NearlineError:
                continue
        self.made += made
        if made:
            took_s = time.monotonic() - begun
            logger.info("%s: %d frequent searches made again in %.1f s", name, made, took_s)
