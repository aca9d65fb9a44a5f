"""A bounded sample of what users ask, kept for `nearline evaluate`. Off unless the operator switches it on.

    data/<collection>/queries.jsonl      mode 0600
        {"version": 1, "uid": "9f...", "seen": {"2026-03-01": 48211, "2026-03-02": 310}}
        {"time_ms": 1772323200000, "query": "how do refunds work", "k": 10, "mode": null, "filter": null}

What is kept of a query: its text, collection (by the file it is in), k, mode, filter and time. Nothing tells who
asked. Left out are searches without a text, exact ones, those with `"cache": false`, which measure rather than ask,
and any that would take more than 8 KiB. A query is one of at most `queries_per_day_max` of its day, each as likely as
any other (reservoir sampling: Vitter 1985, algorithm R). Days are those of UTC.

Privacy: texts of users are personal data wherever they are. The file is readable by the service's user only, is not
part of a backup, is forgotten day by day, and goes with its collection, or at once by `nearline erase`. Switching the
log off stops it growing; what was kept stays until the file is deleted.

The log is a convenience: noting takes no lock and no disk, and no trouble with the disk reaches a search. The file is
replaced whole and never synced, so a crash loses at most what came since it was last written.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from indexes.base.durable import replace_unsynced
from indexes.base.errors import StorageError
from indexes.collection.collection import Collection
from retrieval.base.settings import QueryLog as Settings
from retrieval.wire.search import Mode, SearchRequest

logger = logging.getLogger(__name__)

FILE = "queries.jsonl"
VERSION = 1
ENTRY_BYTES_MAX = 8192  # a filter may list thousands of values
MODE = 0o600


class LoggedQuery(msgspec.Struct, frozen=True):
    """One query as it was asked; what the request left open is None."""

    time_ms: int
    query: str
    k: int | None
    mode: Mode | None
    filter: dict[str, Any] | None


class Header(msgspec.Struct, frozen=True):
    """`seen`: how many queries came on each day, of which the file holds a sample."""

    version: int
    uid: str
    seen: dict[str, int]


@dataclass(slots=True)
class Day:
    seen: int = 0
    kept: list[LoggedQuery] = field(default_factory=list)


@dataclass(slots=True)
class Sample:
    """What is kept of one collection, by day. `unwritten`: the file does not have all of it yet."""

    days: dict[str, Day] = field(default_factory=dict)
    unwritten: bool = False


class QueryLog:
    """The samples of a service's collections. `note` belongs to the event loop; files are written on a thread."""

    def __init__(
        self, settings: Settings, *, now: Callable[[], float], rng: random.Random | None = None
    ) -> None:
        self._settings = settings
        self._now = now
        self._rng = rng or random.Random()
        self._samples: dict[str, Sample] = {}  # by the uid of the collection: names may be used again
        self._in_trouble = False
        self._writing = asyncio.Lock()  # or a forgotten file could be written again from a copy made before

    def load(self, collections: Sequence[Collection]) -> None:
        """Take up what was kept before. A file that cannot be read is begun anew."""
        for collection in collections if self._settings.enabled else ():
            try:
                header, queries = read(collection.folder / FILE)
                days = {day: Day(seen) for day, seen in header.seen.items()}
                for one in queries:
                    days.setdefault(day_of(one.time_ms), Day()).kept.append(one)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, OverflowError, msgspec.MsgspecError) as error:
                logger.warning("%s is begun anew: %s", collection.folder / FILE, error)
                continue
            if header.uid != collection.uid:
                continue  # of a collection that had this name before
            self._samples[collection.uid] = sample = Sample(days)
            for day in days.values():
                if len(day.kept) > (most := self._settings.queries_per_day_max):  # it was lowered
                    day.kept, sample.unwritten = self._rng.sample(day.kept, most), True

    def note(self, collection: Collection, search: SearchRequest) -> None:
        """Take a query into the day's sample, perhaps. Never raises, never waits."""
        if not self._settings.enabled or search.query is None or search.exact or not search.cache:
            return
        if search.offset:
            return  # the query was noted with its first page
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
            if len(line(one)) <= ENTRY_BYTES_MAX:
                # At the end where fewer are left: the file is bounded too.
                day.kept[place : place + 1] = [one]

    def texts(self, collection: Collection, most: int) -> list[str]:
        """Different queries of a collection, the newest ones."""
        sample = self._samples.get(collection.uid, Sample())
        kept = [one for day in sample.days.values() for one in day.kept]
        kept.sort(key=lambda one: -one.time_ms)
        return list(dict.fromkeys(one.query for one in kept))[:most]

    async def keep_writing(self, collections: Callable[[], Sequence[Collection]]) -> None:
        """Write what is new every so often, for ever."""
        while True:
            await asyncio.sleep(self._settings.write_every_s)
            await self.write(collections())

    async def write(self, collections: Sequence[Collection]) -> None:
        """Write the files of these collections where there is something new; forget old days, and collections that are
        gone."""
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
                await asyncio.to_thread(self._write, collection, days)
                self._in_trouble = False
            except StorageError as error:
                sample.unwritten = True
                if not self._in_trouble:  # once, not every minute
                    logger.warning("the query log of %s is not written: %s", collection.folder.name, error)
                self._in_trouble = True

    async def forget(self, collection: Collection) -> None:
        """Drop what was kept of a collection, its file too."""
        async with self._writing:
            self._samples.pop(collection.uid, None)
            await asyncio.to_thread((collection.folder / FILE).unlink, missing_ok=True)

    def _forget(self, sample: Sample) -> None:
        """Days that are too old."""
        today = datetime.fromtimestamp(self._now(), UTC).date()
        first = (today - timedelta(days=self._settings.days - 1)).isoformat()
        for day in [day for day in sample.days if day < first]:
            del sample.days[day]
            sample.unwritten = True

    def _write(self, collection: Collection, days: dict[str, Day]) -> None:
        content = encoded(collection.uid, days, self._settings.file_bytes_max)
        replace_unsynced(collection.folder / FILE, content, MODE)


def read(path: Path) -> tuple[Header, list[LoggedQuery]]:
    """What a file holds, oldest first. Raises OSError, or ValueError or MsgspecError if it is not such a file."""
    first, *others = path.read_bytes().splitlines() or [b""]
    header = msgspec.json.decode(first, type=Header)
    if header.version != VERSION:
        raise ValueError(f"version {header.version}, expected {VERSION}")
    return header, [msgspec.json.decode(one, type=LoggedQuery) for one in others]


def encoded(uid: str, days: dict[str, Day], bytes_max: int) -> bytes:
    """The file: the newest queries that fit into it, oldest first."""
    seen = {name: day.seen for name, day in sorted(days.items())}
    first = msgspec.json.encode(Header(VERSION, uid, seen)) + b"\n"
    queries = sorted((one for day in days.values() for one in day.kept), key=lambda one: one.time_ms)
    lines, left = [], bytes_max - len(first)
    for one in reversed(queries):
        lines.append(line(one))
        left -= len(lines[-1])
        if left < 0:
            lines.pop()
            break
    return b"".join([first, *reversed(lines)])


def line(one: LoggedQuery) -> bytes:
    return msgspec.json.encode(one) + b"\n"


def day_of(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).date().isoformat()
