"""Checkpoints: a log's state as parts that outlive many checkpoints, so that restoring reads little more than what
lives, and slots and deleted texts can go.

    checkpoint/<slot>-<milliseconds>       the state after a slot, and which parts make it
    part/<first>-<last>-<random>           the rows of the documents with these numbers that lived when it was made

Documents only get greater numbers, so a part never changes: it only loses documents, and a checkpoint says which of
them live. One that has lost a third is written again, without them. Small parts are written together, each time into
one at least as large as they were, so that a row is written again about as often as the log doubles.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pyroaring import BitMap64

from indexes.log.reader import LogReader
from indexes.store.objects import Objects
from indexes.store.rows import PART_BYTES, LoggedState, Rows, parts_between
from indexes.store.slots import FORMAT, name_of, seal, unseal

CHECKPOINTS, PARTS = "checkpoint", "part"
LIVE_MIN = 2 / 3
DAY_MS = 86_400_000
LIVE = "SELECT pk FROM documents"


class StoredPart(msgspec.Struct, frozen=True):
    """The object with the documents after one and up to another, and how many of them, and bytes, it has."""

    name: str
    after: int
    upto: int
    documents: int
    bytes: int


class SealedParts(msgspec.Struct):
    """The content of a part."""

    format: int
    rows: Rows


class StoredCheckpoint(msgspec.Struct, frozen=True):
    """A state after a slot, whose digest is `digest`, and whose last operation is of `last_ms`; made at `at_ms`.
    `live` are the numbers of the live documents, as a serialized BitMap64. Slots before `oldest_slot` are gone."""

    format: int
    slot: int
    digest: bytes
    last_ms: int
    at_ms: int
    state: LoggedState
    live: bytes
    parts: list[StoredPart]
    oldest_slot: int

    @property
    def name(self) -> str:
        return f"{name_of(self.slot)}-{self.at_ms:015}"


@dataclass(frozen=True, slots=True)
class Moment:
    """What the name of a checkpoint says."""

    name: str
    slot: int
    at_ms: int

    @staticmethod
    def of(name: str) -> Moment:
        slot, _, at_ms = name.partition("-")
        return Moment(name, int(slot), int(at_ms))


class StoredCheckpoints:
    """The checkpoints of one log, in a folder of a store."""

    def __init__(self, objects: Objects, folder: str) -> None:
        self.objects, self.folder = objects, folder

    def moments(self) -> list[Moment]:
        """The checkpoints, oldest first."""
        return [Moment.of(name) for name in self.objects.names(f"{self.folder}/{CHECKPOINTS}")]

    def read(self, moment: Moment) -> StoredCheckpoint:
        name = f"{self.folder}/{CHECKPOINTS}/{moment.name}"
        return unseal(name, self.objects.read(name), StoredCheckpoint)

    def rows(self, part: StoredPart, live: BitMap64) -> Rows:
        """The rows of a part, of live documents only."""
        name = f"{self.folder}/{PARTS}/{part.name}"
        rows = unseal(name, self.objects.read(name), SealedParts).rows
        documents = [row for row in rows.documents if row[0] in live]
        if len(documents) == len(rows.documents):
            return rows
        passages = [row for row in rows.passages if row[1] in live]
        kept = {row[0] for row in passages}
        return Rows(documents, passages, [row for row in rows.vectors if row[0] in kept])

    def put_part(self, after: int, upto: int, rows: Rows) -> StoredPart:
        name = f"{after + 1:012}-{upto:012}-{secrets.token_hex(8)}"
        content = seal(SealedParts(FORMAT, rows))
        self.objects.create(f"{self.folder}/{PARTS}/{name}", content)
        return StoredPart(name, after, upto, len(rows.documents), len(content))

    def make_parts(
        self, log: LogReader, parts: Sequence[StoredPart], upto: int, least_live: float
    ) -> Iterator[StoredPart]:
        """Make the parts for all documents up to a number, in order, most of them as they are. Those of which less than
        `least_live` is alive are written again, as are small ones at the end."""
        with log.transaction() as db:
            live = live_documents(db)
        for after, end, kept in ranges(parts, live, upto, least_live):
            if kept is not None:
                yield kept
                continue
            begin = after
            for reached, rows in parts_between(log, after, end):
                yield self.put_part(begin, reached, rows)
                begin = reached

    def put(self, checkpoint: StoredCheckpoint) -> None:
        self.objects.create(f"{self.folder}/{CHECKPOINTS}/{checkpoint.name}", seal(checkpoint))


def ranges(
    parts: Sequence[StoredPart], live: BitMap64, upto: int, least_live: float
) -> list[tuple[int, int, StoredPart | None]]:
    """Documents after one and up to another, in order, and the part that may stay; None where one has to be made."""
    end = parts[-1].upto if parts else 0
    found: list[tuple[int, int, StoredPart | None]] = []
    for part in parts:
        alive = live.range_cardinality(part.after + 1, part.upto + 1)
        stays = alive >= least_live * part.documents and alive > 0
        found.append((part.after, part.upto, part if stays else None))
    if upto > end:
        found.append((end, upto, None))
    joined: list[tuple[int, int, StoredPart | None]] = []
    for after, reached, kept in found:
        if kept is None and joined and joined[-1][2] is None:
            joined[-1] = (joined[-1][0], reached, None)
        else:
            joined.append((after, reached, kept))
    # What is new at the end takes small parts before it along, as long as it is not less than they are.
    while len(joined) > 1 and joined[-1][2] is None and (before := joined[-2][2]) is not None:
        after, reached, _ = joined[-1]
        size = live.range_cardinality(after + 1, reached + 1)
        if before.bytes >= PART_BYTES or before.documents > 2 * size:
            break
        joined[-2:] = [(before.after, reached, None)]
        if len(joined) > 1 and joined[-2][2] is None:
            joined[-2:] = [(joined[-2][0], reached, None)]
    return joined


def live_documents(db: Any) -> BitMap64:
    return BitMap64(pk for (pk,) in db.execute(LIVE))


def kept_moments(moments: list[Moment], since_ms: int) -> list[Moment]:
    """Which checkpoints to keep so that every moment since a time can be restored, newest first: the last two, one of
    each day, and the newest one from before that time, or else the oldest one."""
    newest_first = moments[::-1]
    kept, days = newest_first[:2], {one.at_ms // DAY_MS for one in newest_first[:2]}
    for one in newest_first[2:]:
        if kept[-1].at_ms <= since_ms:
            break
        if one.at_ms // DAY_MS not in days or one.at_ms <= since_ms or one is newest_first[-1]:
            days.add(one.at_ms // DAY_MS)
            kept.append(one)
    return kept
