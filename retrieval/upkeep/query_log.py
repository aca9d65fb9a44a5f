"""A bounded sample of users' queries, kept for `nearline evaluate`. Off unless the operator enables it.

    data/<collection>/queries.jsonl      a `LineFile`
        {"version": 1, "uid": "9f...", "seen": {"2026-03-01": 48211, "2026-03-02": 310}}
        {"time_ms": 1772323200000, "query": "how do refunds work", "k": 10, "mode": null, "filter": null}

A query's text, k, mode, filter and time are kept, and its collection by the file's location; not who made it.
Searches without a text, exact searches, those with `"cache": false` (measurements rather than questions), and any
larger than 8 KiB are left out. Each day has a uniform sample of at most `queries_per_day_max` queries (reservoir
sampling: Vitter 1985, algorithm R). Days are UTC.

Disabling the log stops the file's growth; it stays until it is deleted with its collection, or by `nearline erase`.

The log is best effort: noting a query takes no lock and no disk access, and disk errors never affect a search. The
file is replaced as a whole and never synced, so a crash loses at most what was added since the last write.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from indexes.base.durable import remove, replace_unsynced
from indexes.base.errors import NearlineError, StorageError
from indexes.collection.collection import Collection
from retrieval.base.settings import QueryLogSection as Settings
from retrieval.upkeep.line_file import MODE, VERSION, Header, LineFile, encode, newest
from retrieval.wire.search import Mode, SearchRequest

logger = logging.getLogger(__name__)

FILE = "queries.jsonl"
ENTRY_BYTES_MAX = 8192  # a filter may list thousands of values


class LoggedQuery(msgspec.Struct, frozen=True):
    """One query as it was asked; parameters the request did not set are None."""

    time_ms: int
    query: str
    k: int | None
    mode: Mode | None
    filter: dict[str, Any] | None


@dataclass(slots=True)
class Day:
    seen: int = 0
    kept: list[LoggedQuery] = field(default_factory=list)


@dataclass(slots=True)
class Sample:
    """The sample of one collection, by day. `unwritten` is true if the file lacks some of it."""

    days: dict[str, Day] = field(default_factory=dict)
    unwritten: bool = False


class QueryLog:
    """The samples of a service's collections. Call `note` on the event loop; files are written on a thread."""

    def __init__(
        self, settings: Settings, *, now: Callable[[], float], rng: random.Random | None = None
    ) -> None:
        self._settings = settings
        self._now = now
        self._rng = rng or random.Random()
        self._samples: dict[str, Sample] = {}  # by the collection's uid, because names may be reused
        self._in_trouble = False
        self._writing = asyncio.Lock()  # otherwise a forgotten file could be rewritten from an older copy

    def load(self, collections: Sequence[Collection]) -> None:
        """Load the stored samples. A file that cannot be read is started over."""
        for collection in collections if self._settings.enabled else ():
            try:
                header, queries = LineFile(collection.folder / FILE, collection.uid, LoggedQuery).read()
                days = {day: Day(seen) for day, seen in header.seen.items()}
                for one in queries:
                    days.setdefault(day_of(one.time_ms), Day()).kept.append(one)
            except (NearlineError, ValueError, OverflowError) as error:
                logger.warning("starting %s over: %s", collection.folder / FILE, error)
                continue
            self._samples[collection.uid] = sample = Sample(days)
            for day in days.values():
                if len(day.kept) > (most := self._settings.queries_per_day_max):  # the limit was lowered
                    day.kept, sample.unwritten = self._rng.sample(day.kept, most), True

    def note(self, collection: Collection, search: SearchRequest) -> None:
        """Offer a query to the day's sample. Never raises, never waits."""
        if not self._settings.enabled or search.query is None or search.exact or not search.cache:
            return
        if search.offset:
            return  # noted with its first page
        time_ms = int(self._now() * 1000)
        sample = self._samples.setdefault(collection.uid, Sample())
        day = sample.days.setdefault(day_of(time_ms), Day())
        day.seen += 1
        sample.unwritten = True
        most = self._settings.queries_per_day_max
        place = day.seen - 1 if day.seen <= most else self._rng.randrange(day.seen)
        if place < most and len(search.filter) <= ENTRY_BYTES_MAX:
            condition = msgspec.json.decode(search.filter)
            one = LoggedQuery(time_ms, search.query, search.k, search.mode, condition)
            if len(encode(one)) <= ENTRY_BYTES_MAX:
                # Appends if there are fewer: the file size is limited too.
                day.kept[place : place + 1] = [one]

    def texts(self, collection: Collection, most: int) -> list[str]:
        """Return the newest distinct queries of a collection."""
        sample = self._samples.get(collection.uid, Sample())
        kept = [one for day in sample.days.values() for one in day.kept]
        kept.sort(key=lambda one: -one.time_ms)
        return list(dict.fromkeys(one.query for one in kept))[:most]

    async def keep_writing(self, collections: Callable[[], Sequence[Collection]]) -> None:
        """Write new queries periodically, forever."""
        while True:
            await asyncio.sleep(self._settings.write_every_s)
            await self.write(collections())

    async def write(self, collections: Sequence[Collection]) -> None:
        """Write the files of collections with new queries; drop old days and collections that are gone."""
        async with self._writing:
            await self._write_all(collections)

    async def _write_all(self, collections: Sequence[Collection]) -> None:
        live = {collection.uid for collection in collections}
        for uid in self._samples.keys() - live:
            del self._samples[uid]
        for collection in collections:
            sample = self._samples.get(collection.uid)
            if sample is None:
                continue
            self._forget(sample)
            if not sample.unwritten:
                continue
            sample.unwritten = False
            days = {name: Day(day.seen, list(day.kept)) for name, day in sample.days.items()}
            try:
                content = await asyncio.to_thread(
                    encode_file, collection.uid, days, self._settings.file_bytes_max
                )
                await asyncio.to_thread(replace_unsynced, collection.folder / FILE, content, MODE)
                self._in_trouble = False
            except StorageError as error:
                sample.unwritten = True
                if not self._in_trouble:  # log once, not every minute
                    logger.warning("cannot write the query log of %s: %s", collection.folder.name, error)
                self._in_trouble = True

    async def forget(self, collection: Collection) -> None:
        """Delete the sample of a collection and its file."""
        async with self._writing:
            self._samples.pop(collection.uid, None)
            await asyncio.to_thread(remove, collection.folder / FILE)

    def _forget(self, sample: Sample) -> None:
        """Drop days that are too old."""
        today = datetime.fromtimestamp(self._now(), UTC).date()
        first = (today - timedelta(days=self._settings.days - 1)).isoformat()
        for day in [day for day in sample.days if day < first]:
            del sample.days[day]
            sample.unwritten = True


def encode_file(uid: str, days: dict[str, Day], bytes_max: int) -> bytes:
    """Encode a file with the newest queries that fit, oldest first."""
    first = encode(Header(VERSION, uid, {name: day.seen for name, day in sorted(days.items())}))
    queries = sorted((one for day in days.values() for one in day.kept), key=lambda one: one.time_ms)
    return first + newest([encode(one) for one in queries], bytes_max - len(first))


def day_of(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).date().isoformat()
