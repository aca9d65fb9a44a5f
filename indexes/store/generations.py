"""Generations in a store: what one machine has built, others need not build again.

    generation/<milliseconds>-<random>-<piece>    piece 0 lists the files, and their bytes follow, one after another

The state of a log says which one is live. So it is never newer than the log in the store, a writer that was superseded
cannot publish one, and it fits every later state. A generation is verified by its own manifest, when it is fetched and
when it is loaded.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec

from indexes.base.durable import disk_errors, publish_folder, sync_file, with_checksum
from indexes.base.errors import Damaged, NearlineError, NotFound, message_of
from indexes.base.model import Progress
from indexes.base.work import do_nothing
from indexes.collection.collection import DRAFT_PREFIX
from indexes.parts.manifest import MANIFEST, read_manifest, verify_files
from indexes.parts.shelf import Shelf
from indexes.store.checkpoints import DAY_MS
from indexes.store.objects import Objects
from indexes.store.reading import in_order
from indexes.store.slots import FORMAT, seal, unseal

logger = logging.getLogger(__name__)

GENERATIONS = "generation"  # the folder, and the name among the files of a state
PIECE_BYTES = 16 << 20


class StoredGeneration(msgspec.Struct, frozen=True):
    """Where a generation is, and which one: its number where it was built, the last operation in it, and when it was
    built. `pieces` are those with the bytes of its files."""

    name: str
    number: int
    seq: int
    built_ms: int
    pieces: int

    def is_of(self, folder: Path) -> bool:
        """Whether the generation in a folder is this one; its number may differ."""
        try:
            manifest = read_manifest(folder)
        except (NotFound, Damaged):
            return False
        return (manifest.seq, manifest.built_ms) == (self.seq, self.built_ms)


class Contents(msgspec.Struct):
    """Piece 0: the files, as (name, bytes), in the order in which they follow."""

    format: int
    files: list[tuple[str, int]]


def generation_in(files: dict[str, bytes]) -> StoredGeneration | None:
    """The live generation by the state of a log; None if the store has none."""
    content = files.get(GENERATIONS)
    return None if content is None else msgspec.msgpack.decode(content, type=StoredGeneration)


class StoredGenerations:
    """The generations of one collection, in a folder of a store."""

    def __init__(self, objects: Objects, folder: str) -> None:
        self._objects, self.folder = objects, f"{folder}/{GENERATIONS}"

    def put(self, folder: Path, now_ms: int, on_piece: Callable[[], None] = do_nothing) -> StoredGeneration:
        """Upload a sealed generation; `on_piece` is called before each piece. Raises NotFound if it is removed while it
        is read."""
        manifest, files = read_manifest(folder), files_in(folder)
        name = f"{now_ms:015}-{secrets.token_hex(8)}"
        pieces = 0
        for pieces, content in enumerate(pieces_of(folder, files), 1):
            on_piece()
            self._objects.create(self._piece(name, pieces), content)
        self._objects.create(self._piece(name, 0), seal(Contents(FORMAT, files)))
        return StoredGeneration(name, manifest.number, manifest.seq, manifest.built_ms, pieces)

    def fetch(self, stored: StoredGeneration, shelf: Shelf, number: int, progress: Progress) -> None:
        """Put a generation on a shelf under a number, durable on return. Progress counts pieces.

        Raises NotFound if it is gone from the store, Damaged, Unavailable, DiskFull.
        """
        first = self._piece(stored.name, 0)
        files = unseal(first, self._objects.read(first), Contents).files
        names = [self._piece(stored.name, piece) for piece in range(1, stored.pieces + 1)]

        def pieces() -> Iterator[bytes]:
            for done, content in enumerate(in_order(self._objects.read, names), 1):
                progress("generation", done, stored.pieces)
                yield content

        put_on_shelf(shelf, number, files, pieces())

    def clear(self, live: StoredGeneration | None, now_ms: int, *, only_this: bool) -> None:
        """Remove all but the live generation and the newest before it. Later ones may be on their way from another
        machine, for a day; with `only_this` they go, too."""
        names = self._objects.names(self.folder)
        found = sorted({name.rpartition("-")[0] for name in names})
        current = live.name if live else ""
        kept = {current}
        if not only_this:
            kept |= {name for name in found if name > current and int(name[:15]) > now_ms - DAY_MS}
            kept |= set([name for name in found if name < current][-1:])
        self._objects.remove(f"{self.folder}/{name}" for name in names if name.rpartition("-")[0] not in kept)

    def remove(self, stored: StoredGeneration) -> None:
        self._objects.remove(self._piece(stored.name, piece) for piece in range(stored.pieces + 1))

    def _piece(self, name: str, piece: int) -> str:
        return f"{self.folder}/{name}-{piece:06}"


def restore_generation(
    stored: StoredGenerations, files: dict[str, bytes], folder: Path, progress: Progress
) -> None:
    """Give a restored log the generation that its state names, if the store still has it. Without, the first start
    builds one."""
    if (live := generation_in(files)) is None:
        return
    shelf = Shelf(folder)
    try:
        stored.fetch(live, shelf, live.number, progress)
        shelf.set_current(live.number)
    except NearlineError as error:
        name = folder.name.removeprefix(DRAFT_PREFIX)
        logger.warning("the indexes of %s will be built again: %s", name, message_of(error))


def put_on_shelf(
    shelf: Shelf, number: int, files: Sequence[tuple[str, int]], pieces: Iterator[bytes]
) -> None:
    """Put the generation that has these files, by name and size, on a shelf under a number, durable on return.
    `pieces` are their bytes, one file after another. Raises Damaged, DiskFull."""
    draft = shelf.folder / f".draft-stored-{number:06d}-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with disk_errors(draft):
            write_files(draft, files, pieces)
            manifest = read_manifest(draft)
            verify_files(draft, manifest.files)
            if number != manifest.number:
                (draft / MANIFEST).write_bytes(
                    with_checksum(msgspec.structs.replace(manifest, number=number))
                )
            for file, _ in files:
                sync_file(draft / file)
            publish_folder(draft, shelf.path(number))
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_files(folder: Path, files: Sequence[tuple[str, int]], pieces: Iterator[bytes]) -> None:
    rest = memoryview(b"")
    for file, size in files:
        path = folder / require_inside(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out:
            while (wanted := size - out.tell()) > 0:
                rest = rest or memoryview(next(pieces, b""))
                if not rest:
                    raise Damaged(f"the files of a generation end within {file}")
                out.write(rest[:wanted])
                rest = rest[wanted:]


def require_inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise Damaged(f"a generation has a file named {name!r}")
    return name


def files_in(folder: Path) -> list[tuple[str, int]]:
    """List the files of a sealed generation, and their sizes."""
    sealed = read_manifest(folder).files
    return [
        (MANIFEST, (folder / MANIFEST).stat().st_size),
        *((file, one.bytes) for file, one in sealed.items()),
    ]


def pieces_of(folder: Path, files: Sequence[tuple[str, int]]) -> Iterator[bytes]:
    """The bytes of files, one after another, in pieces of PIECE_BYTES."""
    piece = bytearray()
    for name, size in files:
        try:
            with (folder / name).open("rb") as file:
                for block in blocks_of(file, size):
                    piece += block
                    if len(piece) >= PIECE_BYTES:
                        yield bytes(piece[:PIECE_BYTES])
                        del piece[:PIECE_BYTES]
        except FileNotFoundError as error:
            raise NotFound(f"{folder} was removed while it was uploaded") from error
    if piece:
        yield bytes(piece)


def blocks_of(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        block = file.read(min(size, 1 << 20))
        if not block:
            raise Damaged(f"{file.name} is shorter than its manifest says")
        size -= len(block)
        yield block
