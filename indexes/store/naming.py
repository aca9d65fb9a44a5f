"""The names, aliases and access keys of a data directory, and the store's copy of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from indexes.directory.catalog import Catalog
from indexes.directory.marker import KEYS, MARKER
from indexes.store.collection_log import CollectionLog, changes_of
from indexes.store.directory import NAMES, Directory, describe_directory, note_put
from indexes.store.session import Session
from indexes.store.slots import LogExtent


class NamesUpload:
    """Uploads the names as they change. One thread at a time; `stored` may be read by any."""

    def __init__(self, session: Session, data: Path, clock: Callable[[], int]) -> None:
        self._session, self._data, self._clock = session, data, clock
        self.stored = Directory()
        self._stored_from: object = None  # what `stored` was described from
        self._cleared: set[str] = set()

    def upload(self, catalog: Catalog) -> int | None:
        """Bring the store up to date; returns the slot that it is at, None while names are being changed. Raises
        Unavailable, Superseded."""
        session, opened = self._session, self._session.opened
        assert opened is not None
        with catalog.names_at_rest() as at_rest:
            if not at_rest:
                return None
            described, source = self._describe(catalog)
        if described != self.stored:
            session.require_present(opened.names)
            opened.names.settle()
            last = opened.names.last.slot
            note_put(self._data, NAMES, last.number + 1, last.reached.content, described.digest)
            reached = LogExtent(opened.names.last.slot.reached.operations + 1, content=described.digest)
            opened.names.append(msgspec.msgpack.encode(described), reached, self._clock())
            self.stored = described
            session.on_append()
            session.available.recovered()
        self._stored_from = source
        return opened.names.last.slot.number

    def require_last(self) -> None:
        """Raises Superseded if another service writes to the store now, and Unavailable."""
        assert self._session.opened is not None
        self._session.opened.names.require_last()

    def is_level(self, catalog: Catalog) -> bool:
        return self._describe(catalog)[0] == self.stored

    def _describe(self, catalog: Catalog) -> tuple[Directory, object]:
        """The directory as it is, and what that was read from. A collection that cannot be opened stays as it was, and
        one of which the store has nothing yet comes later."""
        before, opened = self.stored, self._session.opened
        collections = {
            name: before.collections[name] for name in {*catalog.quarantined} & {*before.collections}
        }
        for name, one in catalog.collections.items():
            writer = opened.writers.get(one.uid) if opened else None
            if writer is not None and writer.slots.last.slot.reached.content:
                collections[name] = one.uid
        source = changes_of(self._data, (MARKER, KEYS)), collections, len(self._cleared)
        if source == self._stored_from:
            return before, source
        found = describe_directory(self._data, collections, before, self._clock())
        removed = {uid: at_ms for uid, at_ms in found.removed.items() if uid not in self._cleared}
        return msgspec.structs.replace(found, removed=removed), source

    def clear_removed(self) -> None:
        """Remove collections from the store that were deleted `keep_days` ago."""
        before_ms = self._clock() - self._session.keep_ms
        for uid, at_ms in self.stored.removed.items():
            if at_ms <= before_ms and uid not in self._cleared:
                objects = self._session.objects
                objects.remove(CollectionLog(objects, uid).objects_held())
                self._cleared.add(uid)
