"""Verifies the files of a backup, or of a data directory, whether the service is running or stopped.

    log file, documents, texts, vectors, history    see `log.checks`
    generation N     size and SHA-256 of every file, before anything is parsed; then a child process loads and searches
                     it, because a damaged index can crash the process; and every passage must be live, or removed
                     according to the log. An unreadable log does not count against a generation
    CURRENT          names one of these
    ranking.json, synonyms.json, vector_store.json    their checksums, where there are such files
    files           of a data directory: whether this process may write what the service must

Read-only; nothing is repaired. Generations that a live service deletes during the check are skipped.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from indexes.base.child import Child, answer
from indexes.base.durable import verify
from indexes.base.errors import Damaged, NearlineError, message_of
from indexes.base.model import Progress
from indexes.directory.backup.backup import (
    MANIFEST,
    CollectionBackup,
    aliases_of,
    choose,
    collections_in,
    read_backup,
)
from indexes.directory.marker import MARKER, MARKER_COPY, decode_marker
from indexes.lexical import analysis
from indexes.log.checks import LOG, RESTORE, Check, check_log
from indexes.log.mark import FILE as MARK
from indexes.log.pinned import pin
from indexes.log.reader import LogPosition
from indexes.parts.ahead import ahead_of
from indexes.parts.generation import Generation
from indexes.parts.learned import (
    RANKING,
    SYNONYMS,
    VECTOR_STORE,
    RankingSettings,
    SynonymSettings,
    VectorStoreSettings,
    read_settings,
)
from indexes.parts.manifest import read_manifest, verify_files
from indexes.parts.segment_shelf import SEGMENTS, check_segment_files, segment_folders
from indexes.parts.shelf import Shelf
from indexes.parts.unrestored import require_restored

LOAD_S_MAX = 1800
GOING_S = 2.0  # grace period for a damaged generation that is not live: it may just be in the middle of being deleted
SEARCHES, NEIGHBORS = 20, 10  # test searches of a loaded generation: some damage only shows during a search
LEAVE = "leave {} as it is until the log is repaired: nothing can be rebuilt without it"
AGAIN = "make a new backup; this one cannot be restored whole"
RANK_AGAIN = (
    "the configuration ranks instead; delete it with the service stopped, or run nearline learn --reset"
)
SYNONYMS_AGAIN = "searches use no synonyms; set them again, or delete it with the service stopped"
STORE_AGAIN = "it has its collection's name, and never expires; set its name, metadata and expiry again"


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The generation that the child loads and compares with the log."""

    collection: str
    number: int
    frozen: bool
    log_whole: bool


def verify_data(data: Path, names: Sequence[str], progress: Progress) -> Iterator[Check]:
    """Check the collections with these names or aliases, or all, yielding results as they come.

    Raises NotADataDirectory, Damaged if the directory's marker is damaged, NotFound for an unknown collection.
    """
    aliases = aliases_of(data)
    known = collections_in(data)
    markers = {name: decode_marker(data / name) for name in (MARKER, MARKER_COPY)}
    marker = markers[MARKER] or markers[MARKER_COPY]
    coming = marker.renaming or () if marker else ()  # the next start finishes it
    astray = sorted(
        f"{alias} -> {name}" for alias, name in aliases.items() if name not in known and name not in coming
    )
    for name, whole in markers.items():
        if whole is None and (name == MARKER or (data / name).exists()):
            yield Check(
                "", name, False, "is damaged or gone", "start the service: it mends it from what is whole"
            )
    if not names:
        detail = f"name nothing: {', '.join(astray)}" if astray else f"{len(aliases)} names"
        yield Check("", "aliases", not astray, detail, "remove them, or let them name a collection")
    for name in choose(known, names, aliases):
        advice = "let the user that runs nearline read and write it"
        try:
            yield from verify_collection(data / name, frozen=False, progress=progress)
        except OSError as error:
            yield Check(name, "files", False, message_of(error), advice)
        else:
            for path in (data / name, data / name / "log.db", data / name / MARK):
                if path.exists() and not os.access(path, os.W_OK):
                    yield Check(name, "files", False, f"{path} may not be written", advice)


def verify_backup(folder: Path, names: Sequence[str], progress: Progress) -> Iterator[Check]:
    """Check a backup: every checksum first, then the contents of the collections whose checksums match."""
    try:
        backup = read_backup(folder)
    except Damaged as error:
        yield Check("", MANIFEST, False, error.message, AGAIN)
        return
    yield Check("", MANIFEST, True, f"made {backup.created} by nearline {backup.nearline_version}")
    collections = {one.name: one for one in backup.collections}
    for name in choose(list(collections), names, backup.aliases):
        files = check_files(folder / name, collections[name], progress)
        yield files
        if files.ok:
            yield from verify_collection(folder / name, frozen=True, progress=progress)


def check_files(folder: Path, one: CollectionBackup, progress: Progress) -> Check:
    done = 0
    try:
        for name, sealed in one.files.items():
            progress("checksums", done, one.bytes)
            verify(folder / name, sealed.bytes, sealed.sha256)
            done += sealed.bytes
    except Damaged as error:
        return Check(one.name, "files", False, error.message, AGAIN)
    return Check(one.name, "files", True, f"{len(one.files)} files, {one.bytes} bytes")


def verify_collection(folder: Path, *, frozen: bool, progress: Progress) -> Iterator[Check]:
    try:
        require_restored(folder)
    except Damaged as error:
        yield Check(
            folder.name, LOG, False, error.message, "mend the store, or restore an earlier moment of it"
        )
        return
    log_whole = True
    for check in check_log(folder.name, folder / "log.db", frozen=frozen, progress=progress):
        log_whole = log_whole and check.ok
        lost = check.name == LOG and check.advice == RESTORE and not frozen
        yield replace(check, advice=f"{check.advice}; {accept_advice(folder)}") if lost else check
    shelf = Shelf(folder)
    whole: dict[int, bool] = {}
    for number in shelf.numbers():
        progress(f"generation {number}", 0, 1)
        if found := check_generation(folder, number, frozen=frozen, log_whole=log_whole):
            yield found
            whole[number] = found.ok
    segments = segment_folders(folder / SEGMENTS)
    ahead = ahead_of_log(folder) if segments else set()
    for path in segments:
        if found := check_segment(path, ahead, log_whole=log_whole):
            yield found
    current = check_current(folder, whole, frozen)
    if current is None:  # CURRENT moved during the check
        number = shelf.current()
        if found := check_generation(folder, number, frozen=frozen, log_whole=log_whole):
            yield found
            whole[number] = found.ok
        current = check_current(folder, whole, frozen) or Check(
            folder.name, "CURRENT", True, "changed during the check"
        )
    yield current
    kinds: tuple[tuple[Path, type[msgspec.Struct], str, str], ...] = (
        (folder / RANKING, RankingSettings, "ranking settings of its own", RANK_AGAIN),
        (folder / SYNONYMS, SynonymSettings, "synonyms of its own", SYNONYMS_AGAIN),
        (folder / VECTOR_STORE, VectorStoreSettings, "the settings of a vector store", STORE_AGAIN),
    )
    for path, kind, what, advice in kinds:
        if path.is_file():
            yield check_settings(path, kind, what, advice)


def check_settings(path: Path, kind: type[msgspec.Struct], what: str, advice: str) -> Check:
    try:
        read_settings(path, kind)
    except (Damaged, OSError) as error:
        return Check(path.parent.name, path.name, False, message_of(error), advice)
    return Check(path.parent.name, path.name, True, what)


# --- generations --------------------------------------------------------------------------------------------


def check_generation(collection: Path, number: int, *, frozen: bool, log_whole: bool) -> Check | None:
    """None if it was deleted during the check. The advice depends on whether the log is intact."""
    folder = Shelf(collection).path(number)
    try:
        verify_files(folder, read_manifest(folder).files)
        detail = load_in_child(LoadRequest(str(collection), number, frozen, log_whole))
    except (NearlineError, OSError) as error:
        if goes_away(Shelf(collection), number):
            return None
        advice = advice_for(folder, log_whole)
        if not frozen and folder in ahead_of_log(collection):
            advice = f"it knows of writes that the log has lost: {RESTORE}; {accept_advice(collection)}"
        return Check(collection.name, f"generation {number}", False, message_of(error), advice)
    return Check(collection.name, f"generation {number}", True, detail)


def check_segment(folder: Path, ahead: AbstractSet[Path], *, log_whole: bool) -> Check | None:
    """None if it was removed during the check. `ahead` are those that hold more than the log."""
    collection, name = folder.parent.parent, f"segment {folder.name}"
    try:
        check_segment_files(folder)
    except (NearlineError, OSError) as error:
        if not folder.is_dir():
            return None
        advice = (
            LEAVE.format(folder)
            if not log_whole
            else f"start the service: it reads the log instead of {folder}"
        )
        return Check(collection.name, name, False, message_of(error), advice)
    if folder in ahead:
        advice = f"{RESTORE}; {accept_advice(collection)}"
        return Check(collection.name, name, False, "it knows of writes that the log has lost", advice)
    return Check(collection.name, name, True, "its checksums match")


def accept_advice(collection: Path) -> str:
    data, name = shlex.quote(str(collection.parent)), collection.name
    return f"without a backup, nearline accept --data {data} -c {name} says what is left, and serves it"


def ahead_of_log(collection: Path) -> set[Path]:
    """The generations and segments that hold more than the log does; none if the log cannot be read."""
    with contextlib.suppress(NearlineError), pin(collection / "log.db") as log:
        state = log.state()
        return {*ahead_of(collection, LogPosition(state.seq, state.last_passage))}
    return set()


def goes_away(shelf: Shelf, number: int) -> bool:
    """Whether the service has deleted or is deleting this generation: its files go one by one, then the folder."""
    deadline = time.monotonic() + (GOING_S if shelf.current() != number else 0)
    while (there := shelf.path(number).is_dir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not there


def advice_for(folder: Path, log_whole: bool) -> str:
    if not log_whole:
        return LEAVE.format(folder)
    return (
        f"stop the service and delete {folder}: the log has all of it, and nearline reindex builds a new one"
    )


def load_in_child(request: LoadRequest) -> str:
    """The child's findings as text. Raises StorageError with its reason, or if it crashed."""
    child = Child("indexes.directory.backup.verifying", str, what="loading it", timeout_s=LOAD_S_MAX)
    return child.run(request, lambda *_: None)


def load_and_compare(request: LoadRequest, progress: Progress) -> str:
    """Runs in the child. Raises Damaged if the generation cannot be served with its collection's log."""
    collection = Path(request.collection)
    progress("load", 0, 1)
    generation = Generation.load(Shelf(collection).path(request.number))
    manifest = generation.manifest
    tiers = f"{manifest.hot} hot, {manifest.cold} cold"
    ids = np.sort(generation.ids_of(np.arange(generation.size)))
    for query in generation.vectors.take(np.arange(0, generation.size, generation.size // SEARCHES + 1)):
        generation.nearest_warm(query, NEIGHBORS, None, 0)  # a damaged graph can bring the process down
        if not len(generation.nearest(query, NEIGHBORS, None, 0)[0]):
            raise Damaged("it finds nothing")
    try:
        with pin(collection / "log.db", frozen=request.frozen) as log:
            state = log.state()
            live = log.live_ids(manifest.last_passage)
            removed = log.dead_ids(manifest.seq)
    except NearlineError:
        if request.log_whole:
            raise
        return f"{len(ids)} passages ({tiers}), not compared with the log, which cannot be read"
    settings = state.settings
    if (manifest.fingerprint, manifest.dimensions) != (settings.fingerprint, settings.dimensions):
        raise Damaged("it was built for another model")
    if manifest.seq > state.seq:
        raise Damaged(f"it was built at seq {manifest.seq}, and the log ends at {state.seq}")
    if (twice := len(ids) - len(np.unique(ids))) > 0:
        raise Damaged(f"it contains {twice} duplicate passages")
    if missing := len(np.setdiff1d(live, ids, assume_unique=True)):
        raise Damaged(f"it lacks {missing} of {len(live)} live passages")
    dead = np.setdiff1d(ids, live, assume_unique=True)
    # A log that was restored may not know what was removed: the service takes what it does not hold for that.
    if state.covers(manifest.seq) and (unknown := int(np.count_nonzero(~np.isin(dead, removed)))):
        raise Damaged(f"it holds {unknown} passages that the log does not know")
    detail = f"{len(ids)} passages ({tiers}), {len(dead)} of them removed since, seq {manifest.seq}"
    if manifest.analysis != analysis.ANALYSIS_VERSION:  # an upgrade starts a rebuild, which replaces it
        detail += f", of text analysis {manifest.analysis}: this version does not search it"
    return detail


def check_current(collection: Path, whole: dict[int, bool], frozen: bool) -> Check | None:
    """None if it names an existing generation that has not been checked yet."""
    name, path = collection.name, collection / "CURRENT"
    shelf = Shelf(collection)
    reindex = "the service takes an older generation or the log alone; nearline reindex builds a new one"
    try:
        number = int(path.read_bytes())
    except FileNotFoundError:
        if whole and was_swapped(collection, frozen):
            return Check(name, "CURRENT", False, "is missing, and a generation was live before", reindex)
        return Check(name, "CURRENT", True, "none yet: the log alone is searched")
    except ValueError:
        return Check(name, "CURRENT", False, "does not hold a number", reindex)
    if number not in whole and shelf.path(number).is_dir():
        return None
    if number not in whole:
        return Check(name, "CURRENT", False, f"names generation {number}, which is not there", reindex)
    state = "" if whole[number] else ", which is damaged"
    return Check(name, "CURRENT", whole[number], f"generation {number}{state}", reindex)


def was_swapped(collection: Path, frozen: bool) -> bool:
    """Whether a generation has ever been live: operations are dropped from the log only after a swap."""
    try:
        with pin(collection / "log.db", frozen=frozen) as log:
            return log.state().forgotten > 0
    except NearlineError:
        return False


if __name__ == "__main__":
    sys.exit(answer(LoadRequest, load_and_compare))
