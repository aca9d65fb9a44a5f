"""One collection: its log, its parts, and the snapshot that searches read.

Opening: open the log, which no generation may be ahead of; load the live generation, else the newest whole one, if any;
map the segments after it, and replay from the log what is in none; hide what was removed since; publish the snapshot.
Lost indexes only cost time.

Threads: searches read `snapshot` from any thread. Writes and all changes to the parts run on the writer thread.
Segments are built on background threads (`sealing`) and installed by the writer.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw
import numpy as np

from indexes.base import failpoints
from indexes.base.arrivals import Arrivals
from indexes.base.durable import disk_errors, publish_folder
from indexes.base.errors import (
    Conflict,
    Damaged,
    InvalidInput,
    NearlineError,
    NotFound,
    NotReady,
    StorageError,
)
from indexes.base.model import (
    Delete,
    Ids,
    IndexOptions,
    Operation,
    Settings,
    Upsert,
    WriteResult,
)
from indexes.base.moving import Moving, read_moving, write_moving
from indexes.base.work import OnStep, do_nothing
from indexes.collection.info import CollectionInfo, describe
from indexes.collection.view import CollectionView, end_of, gaps_of
from indexes.filters.checks import check_upserts, with_language
from indexes.filters.grammar import Filter
from indexes.lexical.postings import LONG_CHARS, analyze
from indexes.log.applying import Applied
from indexes.log.log import Log
from indexes.log.writer import Operations, Writer
from indexes.parts.ahead import require_none_ahead
from indexes.parts.assembly import rebuild_reason
from indexes.parts.generation import Generation
from indexes.parts.learned import AliasSettings, SynonymSettings
from indexes.parts.memory import give_back
from indexes.parts.sealing import Sealing
from indexes.parts.segment_shelf import DRAFT
from indexes.parts.snapshot import Snapshot
from indexes.parts.unrestored import require_restored
from indexes.rebuild.builder import BuildRequest
from indexes.rebuild.chosen import TunedSettings, save_chosen
from indexes.rebuild.foretelling import require_delta_room, require_generation_room
from indexes.rebuild.hits import Hits

logger = logging.getLogger(__name__)

DRAFT_PREFIX = ".creating-"
CHANGED_CHARS_MAX = 8_000_000  # in one commit; a single text may be longer
T = TypeVar("T")


class Collection(CollectionView):
    """An open collection. `Collection.create` makes one, `Collection(folder, options)` opens one. Call `close`."""

    def __init__(self, folder: Path, options: IndexOptions) -> None:
        require_restored(folder)
        self.log: Log = (log := Log(folder / "log.db", options.now_ms))
        self._writer = Writer(
            folder.name, self._commit, operations_max=options.commit_ops_max, on_idle=log.rest
        )
        try:
            super().__init__(folder, options, log)
            self.moving: Moving | None = read_moving(folder)  # then it takes no writes
            self.opening = uuid.uuid4().bytes  # passage ids mean the same as long as it is open
            self._adopting, self._numbering = threading.Lock(), threading.Lock()
            self._numbered = 0
            self._lost_generation: str | None = None  # why the generation named by CURRENT was unusable
            self.hits: Hits = Hits(folder / "hits.msgpack", hot_capacity=self.settings.hot_capacity)
            self.documents = self.log.document_count()
            self._sealing = Sealing(
                folder.name,
                self._assembly,
                self.segments,
                on_writer=self._writer.call,
                publish=self._publish,
                seq=lambda: self._snapshot.seq,
            )
            require_none_ahead(folder, self.log.position())
            self.shelf.sweep()
            self.segments.clear(DRAFT)
            failpoints.reach("open.swept")
            self._snapshot = self._recover()
            self.arrivals = Arrivals(self._last_seq)
            # Called with the seq of a write once it is durable, before it can be searched.
            self.on_commit: list[Callable[[int], None]] = []
            self.on_segments = self._sealing.on_files  # called when other segments are on disk
            failpoints.reach("open.recovered")
        except BaseException:
            self._writer.close()
            self.log.close(as_is=True)
            raise
        # After losing a generation, its passages are replayed into deltas and a rebuild follows. Sealing those deltas
        # during the rebuild would only raise peak memory.
        if self._lost_generation is None:
            self._sealing.seal_full()

    @staticmethod
    def create(folder: Path, settings: Settings, options: IndexOptions) -> Collection:
        """Make an empty collection in a new folder. Raises Conflict if the folder exists."""
        if folder.exists():
            raise Conflict(f"{folder.name} exists already")
        draft = folder.with_name(f"{DRAFT_PREFIX}{folder.name}")
        shutil.rmtree(draft, ignore_errors=True)
        try:
            with disk_errors(draft):
                draft.mkdir()
            failpoints.reach("create.folder_made")
            Log.create(draft / "log.db", settings, uuid.uuid4().hex).close()
            failpoints.reach("create.log_made")
            publish_folder(draft, folder)
            failpoints.reach("create.published")
            try:
                with disk_errors(folder):
                    return Collection(folder, options)
            except BaseException:
                folder.rename(draft)  # or an unusable folder would keep the name taken
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def close(self) -> None:
        """Finish queued writes, stop the threads, close the log. Searches in progress may still finish."""
        with contextlib.ExitStack() as steps:  # runs in reverse order, and continues past a failing step
            steps.callback(self._release)
            steps.callback(self.log.close)
            steps.callback(self._sealing.close)
            steps.callback(self.hits.save)
            steps.callback(self._writer.close)

    # -- reading

    def moved_since(self, snapshot: Snapshot) -> bool:
        """Whether a log read, or the writer's counters, may reflect a later commit than the snapshot does."""
        return self.log.newest_seq != snapshot.seq

    def info(self) -> CollectionInfo:
        return describe(
            self.snapshot,
            documents=self.documents,
            generations=self.shelf.numbers(),
            recall_target=self.recall_target,
            chosen=self.chosen,
            owed=self.log.owed,
        )

    def rest(self, idle_s: float) -> bool:
        """Let the indexes of the live generation that are read again when needed leave memory, if no search has used
        them for so long. Returns whether they left."""
        generation = self._assembly.generation
        return generation is not None and generation.rest(idle_s)

    # -- writing

    def write(self, operations: Sequence[Operation]) -> Future[WriteResult]:
        """Apply operations in order, atomically. The future resolves when they are synced and searchable.

        Raises InvalidInput immediately if a vector has the wrong shape, contains NaN, or is not a unit vector.
        """
        check_upserts([one for one in operations if isinstance(one, Upsert)], self.settings.dimensions)
        language = self.settings.language
        return self._write(
            [with_language(one, language) if isinstance(one, Upsert) else one for one in operations]
        )

    def has_long(self, upserts: Sequence[Upsert]) -> bool:
        """Whether there are passages for `analyzed`."""
        return any(one.end - one.start >= LONG_CHARS for upsert in upserts for one in upsert.passages)

    def analyzed(self, upserts: Sequence[Upsert], on_step: OnStep = do_nothing) -> list[Upsert]:
        """Analyze the long passages of what `write` is to write, because others wait for its thread. Detects
        languages."""
        return [analyze_long(one, self.settings, on_step) for one in upserts]

    def _write(self, operations: Operations) -> Future[WriteResult]:
        self.options.replication.require_up()
        self.require_here()
        return self.options.replication.confirm(self.uid, self._writer.write(operations))

    def delete_holding(self, passages: Ids) -> Future[WriteResult]:
        """Delete the documents that hold these passages, in one commit.

        A replaced document has new passage ids, so a document found by a filter is deleted only if it is unchanged.
        """
        ids = passages.tolist()
        return self._write(lambda: [Delete(one) for one in self.log.documents_of(ids)])

    def change(self, document_id: str, change: Callable[[Upsert], Upsert]) -> Future[WriteResult]:
        """Atomic read-modify-write: replace a document with `change(document)`, called on the writer thread.

        `change` receives the document with its passages and vectors; if it returns the same object, nothing is
        written. Its errors, and NotFound, are raised by the future.
        """

        def choose() -> list[Operation]:
            stored = self.log.upsert_of(document_id)
            if stored is None:
                raise NotFound(f"no document {document_id!r}", param="id")
            return self._changes(stored, change)

        return self._write(choose)

    def delete_among(self, documents: dict[str, int], condition: Filter) -> Future[WriteResult]:
        """Delete those of these documents that match now, in one commit, and empty the mapping.

        It has their first passages, by id, from when they matched.
        """

        def choose() -> list[Operation]:
            matching = self._still_matching(documents, condition)
            documents.clear()
            return [Delete(one) for one in matching]

        return self._write(choose)

    def change_among(
        self,
        documents: dict[str, int],
        condition: Filter | None,
        change: Callable[[Upsert], Upsert],
        chars_max: int = CHANGED_CHARS_MAX,
    ) -> Future[WriteResult]:
        """Do as `change` with those of these documents that match now, in one commit.

        It stops when it has texts of `chars_max` characters, and leaves in the mapping, which is like that of
        `delete_among`, what is left to do.
        """

        def choose() -> list[Operation]:
            matching = self._still_matching(documents, condition)
            chosen, chars = list[Operation](), 0
            while documents and chars < chars_max:
                document_id = next(iter(documents))
                del documents[document_id]
                if document_id in matching and (stored := self.log.upsert_of(document_id)) is not None:
                    changes = self._changes(stored, change)
                    chosen += changes
                    chars += len(stored.text) * len(changes)
            return chosen

        return self._write(choose)

    def _still_matching(self, documents: Mapping[str, int], condition: Filter | None) -> list[str]:
        """The ids of those that match now, in order. A document with the same first passage is as it was."""
        now = self.log.first_passages_of(documents)
        replaced = {one for one, first in now.items() if first != documents[one]}
        if condition is None or not replaced:
            return [one for one in documents if one in now]
        try:
            ids = self.snapshot.matching(condition)
        except InvalidInput:  # no document has the key any more
            ids = np.empty(0, np.int64)
        matching = set(ids[np.isin(ids, [now[one] for one in replaced])].tolist())
        return [one for one in documents if one in now and (one not in replaced or now[one] in matching)]

    def _changes(self, stored: Upsert, change: Callable[[Upsert], Upsert]) -> list[Operation]:
        changed = change(stored)
        if changed is stored:
            return []
        check_upserts([changed], self.settings.dimensions)
        return [changed]

    def on_writer(self, step: Callable[[], T]) -> T:
        """Run a function on the writer thread, between commits, and return its result."""
        return self._writer.call(step).result()

    def set_synonyms(self, settings: SynonymSettings | None) -> None:
        """Set the synonyms, durably, or remove them. Raises WritesHeld while writes are held: a copy that is finished
        then must have the last ones."""
        synonyms = self.synonyms
        self._writer.change(synonyms.clear if settings is None else partial(synonyms.set, settings)).result()

    def hold(self, seconds: float) -> int:
        """Refuse writes for so many seconds, or end that with 0 (`Writer.hold`); returns the last operation, once it
        can be read."""
        self._writer.hold(seconds)
        return self.on_writer(lambda: self.log.newest_seq)

    def settle(self) -> None:
        """Wait until every full delta is sealed and all due merges are done. Assumes no concurrent writes."""
        before = None
        while before is not self.snapshot:
            before = self.snapshot
            self._sealing.wait()
            self.on_writer(lambda: None)

    def require_here(self) -> None:
        """Raise NotReady while the collection is being moved, because it takes no writes then."""
        if (moving := self.moving) is not None:
            way = "from" if moving.role == "copy" else "to"
            raise NotReady(f"{self.name} is being moved {way} {moving.node}; nothing was written")

    def give(self, node: str) -> int:
        """Give the collection to another place: no write that was not acknowledged before is kept, and none is taken
        from now on. Returns the last operation. Raises Conflict if it moves already."""

        def mark() -> int:
            if self.moving is not None:
                raise Conflict(f"{self.name} is being moved already")
            seq = self.log.newest_seq
            self._mark(Moving("given", node, seq))
            return seq

        return self.on_writer(mark)

    def part_with(self) -> None:
        """Note that the place it was given to writes: what is here is no longer the newest, whatever happens there."""
        if (moving := self.moving) is not None:
            self.on_writer(lambda: self._mark(Moving("gone", moving.node, moving.seq)))

    def change_aliases(self, change: Callable[[AliasSettings | None], AliasSettings]) -> None:
        """Change what else the collection is called, unless it is being moved."""

        def step() -> None:
            self.require_here()
            self.aliases.change(change)

        self.on_writer(step)

    def take(self) -> None:
        """Take writes from now on: what was given stays after all, or a copy is complete."""
        self.on_writer(lambda: self._mark(None))

    def follow_move(self, moving: Moving | None) -> None:
        """Have the mark that the collection has where it is written."""
        if moving != self.moving:
            self.on_writer(lambda: self._mark(moving))

    @property
    def _last_seq(self) -> float:
        """The last operation that can be searched; infinity once it was given away, for there will be none to wait
        for."""
        away = self.moving is not None and self.moving.role != "copy"
        return math.inf if away else self._snapshot.seq

    def _mark(self, moving: Moving | None) -> None:
        write_moving(self.folder, moving)
        self.moving = moving
        self.arrivals.arrived(self._last_seq)

    def _commit(self, writes: list[Sequence[Operation]]) -> list[WriteResult]:
        self.require_here()  # also those that were waiting when it was given
        results, applied = self.log.commit(writes)
        for listener in self.on_commit if applied else ():
            listener(applied[-1].seq)
        failpoints.reach("commit.before_show")
        try:
            self._show(applied)
        except Exception as error:
            # The log has the write, but the indexes may have only part of it: they agree again after a reopen.
            raise StorageError(f"{self.name}: written, but the indexes failed: {error!r}; restart") from error
        return results

    def _show(self, applied: list[Applied]) -> None:
        self.documents += sum((one.upsert is not None) - (len(one.dead) > 0) for one in applied)
        self._assembly.apply(applied)
        if applied:
            self._snapshot = self._assembly.snapshot(applied[-1].seq, self.log.content)
            self.arrivals.arrived(self._snapshot.seq)

    def replay(self, write: Callable[[apsw.Connection], int]) -> None:
        """Commit what the log of another machine holds after the last operation of this one (`Log.replay`); it is
        searchable on return. Not on the writer thread."""

        def work() -> None:
            before = self.log.position()
            self.log.replay(write)
            changes = self.log.changes(before)
            assert changes is not None
            seq = changes.position.seq
            for listener in self.on_commit:
                listener(seq)
            written = len({entry.place.document_id for entry in changes.entries})
            self.documents += written - sum(one.start <= before.last_passage for one in changes.dead)
            self._assembly.follow(changes.entries, changes.dead)
            self._snapshot = self._assembly.snapshot(seq, self.log.content)
            self.arrivals.arrived(seq)

        self.on_writer(work)

    def _publish(self) -> None:
        """Publish the current parts at an unchanged seq."""
        self._snapshot = self._assembly.snapshot(self._snapshot.seq, self._snapshot.content)

    # -- generations

    def wants_rebuild(self) -> str | None:
        """Why a rebuild is due under the options' rules, or None. Cheap enough to call after every write."""
        if self._lost_generation is None and not self.options.replication.builds(self.uid):
            return None
        return self._lost_generation or rebuild_reason(self.snapshot, self.options)

    @property
    def live_seq(self) -> int:
        """The last operation in the live generation; 0 if there is none."""
        return end_of(self._assembly.generation)[1]

    def begin_build(self, hot_capacity: int | None = None) -> BuildRequest:
        """Fix the next generation's contents: everything written so far. Later passages go to separate parts."""

        def fix() -> BuildRequest:
            self._assembly.rotate()
            position = self.log.position()
            self._assembly.build_ends = position.last_passage
            return BuildRequest(
                collection=str(self.folder),
                number=self.take_number(),
                seq=position.seq,
                last_passage=position.last_passage,
                hot_capacity=self.settings.hot_capacity if hot_capacity is None else hot_capacity,
                recall_target=self.recall_target,
                threads=self.options.build_threads,
                recall_floor=self.options.floor,
            )

        self.hits.save()  # the builder reads them
        request = self.on_writer(fix)
        self.hits.fade()
        return request

    def take_number(self, at_least: int = 1) -> int:
        """A number for a generation that is to be built, or to come from elsewhere."""
        with self._numbering:
            self._numbered = max(at_least, self._numbered + 1, self.shelf.next_number())
            return self._numbered

    def rebuild_failed(self) -> None:
        """Seal the deltas left unsealed for the rebuild to replace: it may be a long time until one succeeds."""
        self.on_writer(self._sealing.seal_full)

    def adopt(self, number: int) -> Generation:
        """Make a sealed generation live, newer or older: verify, load, replay later passages, move CURRENT, swap.

        Searches in progress finish on the old snapshot. On any failure the old generation stays live. If measured
        recall is below the floor, moves the generation aside and raises RecallTooLow.
        """
        with self._adopting:
            self.shelf.require_recall(number, self.options.floor)
            generation = self._usable(number)
            failpoints.reach("adopt.verified")
            live, last = self._assembly.generation, generation.manifest.last_passage
            reached = self.on_writer(lambda: self._assembly.separate(last))
            reached = max(reached, live.manifest.last_passage if live else 0)
            tail = self._assembly.read_back(self.log.entries(last, reached))

            def install() -> None:
                # On the writer thread, so nothing is removed between reading the deletions and publishing.
                arranged = self._assembly.arrange(generation, tail, self._dead_since(generation), reached)
                failpoints.reach("adopt.arranged")
                self.shelf.set_current(number)
                self._lost_generation = None
                failpoints.reach("adopt.current_moved")
                self._assembly.install(arranged)
                self._publish()
                self._sealing.keep_files()

            self.on_writer(install)
            failpoints.reach("adopt.shown")
            for view in tail:
                if view.delta.full:
                    self._sealing.seal(view)
            self._prune(before=live.number if live else 0)
        if live is None:
            give_back()
        return generation

    def rollback(self) -> Generation:
        """Go back to the newest generation before the live one. Later writes are kept: they are replayed."""
        return self.adopt(self.shelf.before(self.snapshot.generation, self.options.floor))

    def discard(self, number: int) -> None:
        """Delete a sealed generation that could not be adopted. The live one is never deleted."""
        if number != self.snapshot.generation and number in self.shelf.numbers():
            self.shelf.remove(number)

    def forget_generations(self) -> None:
        """Delete every generation but the live one, including a refused one, and the segments that are not searched.

        Raises StorageError for a segment that cannot be removed.
        """
        self.on_writer(self._sealing.keep_files)
        self._sealing.wait()  # until that is done, and what was being written, too
        self.segments.require_gone(self._assembly.on_disk())
        with self._adopting:
            live = self._assembly.generation
            self.shelf.sweep()
            self.shelf.keep([live.number] if live else [], aside_from=self.shelf.next_number())
            if live:
                self._forget_operations(live.manifest.seq)

    def set_search(self, chosen: TunedSettings) -> None:
        """Search the live generation with these settings, and build later ones to their recall target.

        Durable once this returns. Raises Conflict if they were chosen for a generation that is no longer live.
        """
        with self._adopting:
            live = self._assembly.generation
            if live is None or not chosen.fits(live):
                raise Conflict(f"generation {chosen.generation} is not live any more; tune the present one")
            save_chosen(self.folder, chosen)
            failpoints.reach("tune.published")
            chosen.apply(live)
            self.chosen = chosen  # last: answers cached under these settings must come from them

    @property
    def recall_target(self) -> float:
        """Recall target of rebuilds: this collection's own, else the options'; never below the floor."""
        wish = self.chosen.recall_target if self.chosen else self.options.recall_target
        return max(wish, self.options.floor)

    def _usable(self, number: int) -> Generation:
        """Verify and load a generation. Raises Damaged if this version cannot serve it, Unavailable for no room."""
        require_generation_room(self.shelf.path(number), self.options)
        generation = Generation.load(self.shelf.path(number), self._assembly.new_files())
        generation.manifest.require_fit(self.settings.fingerprint)
        generation.spare_cold(self.options.cold)
        if self.chosen:
            self.chosen.apply(generation)
        return generation

    def _prune(self, *, before: int) -> None:
        """Keep the live generation, the one before it, and the newest. Errors are only logged: the swap is done."""
        live = self.snapshot.generation
        kept = self.shelf.newest(self.options.generations_kept, first=(live, before))
        try:
            self.shelf.keep(kept, aside_from=live)
            self._forget_operations(min(kept.values()))
        except (NearlineError, OSError) as error:
            logger.warning("old generations of %s were not cleared away: %s", self.folder.name, error)

    def _forget_operations(self, upto: int) -> None:
        last = int(min(upto, self.options.replication.last_copied(self.uid)))
        self.on_writer(lambda: self.log.forget_operations(last))

    # -- recovery

    def _recover(self) -> Snapshot:
        position = self.log.position()
        generation = self._load_generation()
        segments = self._load_segments(generation, position.last_passage)
        require_delta_room(self.log, gaps_of(generation, segments, position.last_passage), self.options)
        tail, dead = self._read_after(generation, segments, position.last_passage)
        self._assembly.install(self._assembly.arrange(generation, tail, dead, position.last_passage))
        self._assembly.reopen()
        self._sealing.keep_files()
        return self._assembly.snapshot(position.seq, self.log.content)

    def _load_generation(self) -> Generation | None:
        """The live generation, or the newest older one that is usable."""
        current = self.shelf.current()
        older = [number for number in reversed(self.shelf.numbers()) if number < current]
        for number in [current, *older] if current else []:
            try:
                return self._usable(number)
            except (Damaged, NotFound, OSError) as error:
                logger.error("generation %d of %s cannot be used: %s", number, self.folder.name, error)
                if number == current:
                    self._lost_generation = f"generation {number} could not be used: {error}"
        return None


def analyze_long(upsert: Upsert, settings: Settings, on_step: OnStep) -> Upsert:
    """Return a document with its language, and with the terms of its long passages."""
    upsert = with_language(upsert, settings.language)
    passages = []
    for one in upsert.passages:
        own = upsert.text[one.start : one.end]
        text = settings.field_weights.text_of(upsert.title, one.heading, own)
        is_long = len(text) >= LONG_CHARS
        passages.append(replace(one, terms=analyze(text, upsert.language, on_step)) if is_long else one)
    return replace(upsert, passages=tuple(passages))
