"""Repeats frequent searches when the cache starts empty: after an index swap, which may change answers, and at
startup.

The most frequent searches of the last hours are counted in memory for each collection (Misra and Gries 1982), each
with the rights of its caller. At startup only the query log is known, if the operator has enabled it.
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
WARM_S_MAX = 60.0  # per collection; the rest is cached as users search
GIVE_WAY_S = 0.02
KEY_BYTES_MAX = 8192  # of a search with its filter; a few hundred are kept

by_count = attrgetter("count")


@dataclass(slots=True)
class FrequentSearch:
    """A search, the caller whose rights it has, and how often it was made recently."""

    key: bytes
    request: SearchRequest
    caller: Principal
    count: float


class Frequent:
    """Tracks the `most` most frequent searches of each collection; 0 tracks none. Use it on one event loop."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._asked: dict[bytes, dict[bytes, FrequentSearch]] = {}  # by the collection's opening id
        self._halved_s = clock()
        self.made = 0  # searches made by the service itself

    def note(self, collection: Collection, request: SearchRequest) -> None:
        """Count a search if its answer is cacheable and on the first page. Takes a few microseconds."""
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
        # Copy the filter: the original would keep the whole request body in memory.
        own = msgspec.structs.replace(request, filter=request.filter.copy())
        known[key] = FrequentSearch(key, own, caller, 1.0)

    def _purge(self, known: dict[bytes, FrequentSearch]) -> None:
        """Drop the rarer half and subtract its largest count from the rest, as in Misra and Gries: a search that is
        more frequent than its share stays."""
        rarest = sorted(known.values(), key=by_count)[: self._most]
        for asked in list(known.values()):
            asked.count -= rarest[-1].count
            if asked.count <= 0:
                del known[asked.key]

    def of(self, collection: Collection) -> list[FrequentSearch]:
        """Return the searches of a collection, most frequent first."""
        found = sorted(self._asked.get(collection.opening, {}).values(), key=by_count, reverse=True)
        return found[: self._most]

    def tidy(self, collections: Sequence[Collection]) -> None:
        """Forget closed collections, and halve the counts every hour."""
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
        """Warm collections forever: after each swap of indexes or settings, and once with searches from the query
        log."""
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
                found = [FrequentSearch(b"", SearchRequest(query=text), Principal(), 1) for text in texts]
                try:
                    await self.warm(pipeline, name, collection, [*self.of(collection), *found])
                except Exception:
                    logger.exception("cannot repeat the frequent searches of %s", name)
            await asyncio.sleep(LOOK_EVERY_S)

    async def warm(
        self, pipeline: Pipeline, name: str, collection: Collection, searches: Sequence[FrequentSearch]
    ) -> None:
        """Make these searches one by one while the pipeline is idle, ignoring errors."""
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
            logger.info("%s: repeated %d frequent searches in %.1f s", name, made, took_s)
