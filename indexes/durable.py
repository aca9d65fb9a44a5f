"""The one place that publishes files: write, sync, rename, sync the folder.

After `publish` or `publish_folder` returns, the new name survives a power loss with all its bytes; before it
returns, a reader sees the old state whole. A full disk raises DiskFull, any other trouble StorageError, and
the old state stands. After a failed sync nothing more is published by this process (`failures`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from indexes import failpoints, failures
from indexes.errors import Damaged, DiskFull, Locked, OutOfDescriptors, StorageError

READ_BYTES = 1 << 20
# The disk, the quota or the process's own limit is used up.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
LOCK_WAIT_S, LOCK_POLL_S = 2.0, 0.02


def with_checksum(document: msgspec.Struct) -> bytes:
    """The content of a JSON file that carries, as `sha256`, the SHA-256 of all else in it."""
    digest = hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(document, sha256=""))).hexdigest()
    final = msgspec.structs.replace(document, sha256=digest)
    return msgspec.json.format(msgspec.json.encode(final), indent=2) + b"\n"


def format_of(content: bytes) -> int:
    """The `format_version` of a JSON file, the one field that every format has. Raises msgspec.DecodeError."""
    return msgspec.json.decode(content, type=Versioned).format_version


class Versioned(msgspec.Struct, frozen=True):
    format_version: int


class Disk:
    """What publishing asks of the disk. All of it goes through `disk`, where a test may put one that fails or forgets.

    Methods raise OSError, as the calls below them do.
    """

    def write(self, file: BinaryIO, content: bytes) -> None:
        file.write(content)
        file.flush()

    def sync(self, descriptor: int, path: Path) -> None:
        """Of a file or a folder, which is open as `descriptor`."""
        os.fsync(descriptor)

    def replace(self, draft: Path, path: Path) -> None:
        draft.replace(path)

    def rename(self, draft: Path, final: Path) -> None:
        draft.rename(final)


disk = Disk()


def keep_private() -> None:
    """From now on only its own user can read the files that this process and its children make."""
    os.umask(0o077)


def publish(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Make `path` hold exactly `content`, atomically and durably; a new file has `mode`, less the umask."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with disk_errors(path):
            draft.unlink(missing_ok=True)  # one that was left behind would keep its mode
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                disk.write(file, content)
                failpoints.reach("publish.written")
                sync(file.fileno(), draft)
            failpoints.reach("publish.synced")
            disk.replace(draft, path)
            failpoints.reach("publish.renamed")
            sync_folder(path.parent)
            failpoints.reach("publish.folder_synced")
    finally:
        draft.unlink(missing_ok=True)


def replace_unsynced(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Make `path` hold exactly `content`, atomically but not durably; a new file has `mode`, less the umask.

    For what can be made again, or done without: a failed sync ends the service, and such a file is worth no service.
    """
    draft = path.with_name(f".{path.name}.draft")
    with disk_errors(path):
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
                disk.write(file, content)
            disk.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)


def replace_synced(draft: Path, path: Path) -> None:
    """Give the file `draft`, which is synced, the name `path` in the same folder, atomically and durably.

    What was removed from the folder before is gone durably before the new file is there.
    """
    with disk_errors(path):
        sync_folder(path.parent)
        failpoints.reach("replace.folder_synced")
        disk.replace(draft, path)
        failpoints.reach("replace.renamed")
        sync_folder(path.parent)


def publish_folder(draft: Path, final: Path) -> None:
    """Give the folder `draft`, with every file in it synced, the name `final`, which must not exist yet."""
    with disk_errors(final):
        failpoints.reach("publish_folder.written")
        for path in sorted(draft.rglob("*")):
            sync_folder(path) if path.is_dir() else sync_file(path)
        sync_folder(draft)
        failpoints.reach("publish_folder.synced")
        disk.rename(draft, final)
        failpoints.reach("publish_folder.renamed")
        sync_folder(final.parent)
        failpoints.reach("publish_folder.folder_synced")


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor, path)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """A rename is only a promise until the folder that holds the name is synced too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor, path)
    finally:
        os.close(descriptor)


def sync(descriptor: int, path: Path) -> None:
    """Never tried twice: after a failure the system may forget the bytes and call the next sync a success."""
    failures.require_none()
    try:
        with disk_errors(path):
            failpoints.reach("sync.begin")
            disk.sync(descriptor, path)
    except DiskFull:
        raise
    except StorageError as error:
        failures.report(error)
        raise


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes, read once from start to end."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def verify(path: Path, expected_bytes: int, expected_sha256: str) -> None:
    """Raise Damaged unless the file holds exactly the bytes that were sealed."""
    if not path.is_file():
        raise Damaged(f"{path} is missing; expected {expected_bytes} bytes")
    if (found := path.stat().st_size) != expected_bytes:
        raise Damaged(f"{path} holds {found} bytes; expected {expected_bytes}")
    if (digest := sha256(path)) != expected_sha256:
        raise Damaged(f"{path} has SHA-256 {digest}; expected {expected_sha256}")


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Tell a full disk, and a lack of file descriptors, from a failing disk."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(f"no space left for {path}") from error
        if error.errno in NO_DESCRIPTORS:
            raise OutOfDescriptors("out of file descriptors", retry_after_s=5) from error
        raise StorageError(f"{path}: {error.strerror or error}") from error


class FolderLock:
    """Exclusive use of a folder by one process, from construction to `close`. The kernel drops it at exit.

    A holder that was killed while it started a child leaves the lock with the child until that has executed its
    program, hence the attempts for LOCK_WAIT_S before Locked is raised.
    """

    def __init__(self, path: Path) -> None:
        with disk_errors(path):
            self._file = path.open("a+")
        give_up_at = time.monotonic() + LOCK_WAIT_S
        while not self._acquired():
            if time.monotonic() > give_up_at:
                self._file.seek(0)
                owner = self._file.read().strip() or "unknown"
                self._file.close()
                raise Locked(f"{path.parent} is in use by another nearline process (pid {owner})")
            time.sleep(LOCK_POLL_S)
        with disk_errors(path):
            self._file.truncate(0)
            self._file.write(f"{os.getpid()}\n")
            self._file.flush()
        self._release = failures.hold()

    def _acquired(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Idempotent."""
        self._release()
        self._file.close()
