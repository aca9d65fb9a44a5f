"""Durable, atomic publishing of files and folders: write, sync, rename, sync the parent folder.

Once `publish` or `publish_folder` returns, the new name and all its bytes survive a power loss; until the rename, a
reader sees the complete old state. A full disk raises DiskFull, any other disk error StorageError, both leaving the
old state or the new one, whole. After a failed sync this process publishes nothing more (`failures`).
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
from typing import Any, BinaryIO, TypeVar

import msgspec

from indexes.base import failpoints, failures
from indexes.base.errors import Damaged, DiskFull, Locked, OlderFormat, OutOfDescriptors, StorageError

T = TypeVar("T", bound=msgspec.Struct)

READ_BYTES = 1 << 20
# The disk, the quota or the process's own limit is exhausted.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
LOCK_WAIT_S, LOCK_POLL_S = 2.0, 0.02


def with_checksum(document: msgspec.Struct) -> bytes:
    """The content of a JSON file whose `sha256` field is the SHA-256 of the rest."""
    return sealed(msgspec.json.encode(msgspec.structs.replace(document, sha256="")))


def sealed(unsealed: bytes) -> bytes:
    """The same for the JSON of a document whose `sha256` is empty, or left out and the last."""
    fields: dict[str, Any] = msgspec.json.decode(unsealed)
    fields["sha256"] = hashlib.sha256(unsealed).hexdigest()
    return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"


def format_of(content: bytes) -> int | None:
    """The `format` of a JSON file, the one field common to all formats. None for a file from before 0.1.0. Raises
    msgspec.DecodeError."""
    numbered = msgspec.json.decode(content, type=Numbered)
    return None if numbered.format_version else numbered.format


def decode_checked(path: Path, content: bytes, kind: type[T], known: int) -> T:
    """Decode a file that `with_checksum` made, in the known format, perhaps before the type had all of its fields.
    Raises Damaged for any other format, OlderFormat for a file from before 0.1.0."""
    try:
        if (found := format_of(content)) is None:
            raise OlderFormat.of(path)
        if found != known:
            raise Damaged(f"{path}: format {found}; this version reads {known}")
        document = msgspec.json.decode(content, type=kind)
        fields = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"{path}: {error}") from error
    if content != sealed(msgspec.json.encode({**fields, "sha256": ""})):
        raise Damaged(f"{path} is damaged: its checksum differs")
    return document


class Numbered(msgspec.Struct, frozen=True):
    format: int = 0
    format_version: int = 0  # before 0.1.0


class Disk:
    """The disk operations of publishing. Tests replace `disk` with one that fails or loses writes.

    Methods raise OSError, like the calls they wrap.
    """

    def write(self, file: BinaryIO, content: bytes) -> None:
        file.write(content)
        file.flush()

    def sync(self, descriptor: int, path: Path) -> None:
        """Sync a file or folder that is open as `descriptor`."""
        os.fsync(descriptor)

    def replace(self, draft: Path, path: Path) -> None:
        draft.replace(path)

    def rename(self, draft: Path, final: Path) -> None:
        draft.rename(final)


disk = Disk()


def keep_private() -> None:
    """Make new files of this process and its children readable only by their owner."""
    os.umask(0o077)


def publish(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace `path` with `content`, atomically and durably; the new file has `mode`, less the umask."""
    draft = draft_of(path)
    try:
        with disk_errors(path):
            draft.unlink(missing_ok=True)  # a leftover would keep its old mode
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
        with contextlib.suppress(OSError):  # the error that is under way says more
            draft.unlink(missing_ok=True)


def draft_of(path: Path) -> Path:
    """The path of a file's next content until it is complete; a killed process may leave it there."""
    return path.with_name(f".{path.name}.draft")


def remove(path: Path) -> None:
    """Remove a file durably, with any draft left by a killed process. Idempotent."""
    with disk_errors(path):
        draft_of(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        sync_folder(path.parent)


def append(path: Path, content: bytes, at: int) -> None:
    """Write `content` to an existing file from byte `at` on, dropping what follows; durable once this returns.

    After a failure or a crash, the file holds any part of `content` after its first `at` bytes, which are unchanged.
    """
    with disk_errors(path), path.open("r+b") as file:
        file.truncate(at)
        file.seek(at)
        disk.write(file, content)
        sync(file.fileno(), path)


def replace_unsynced(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace `path` with `content`, atomically but not durably; a new file has `mode`, less the umask.

    For files that can be recreated or missed: they are not worth a failed sync, which stops the service.
    """
    draft = draft_of(path)
    with disk_errors(path):
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
                disk.write(file, content)
            disk.replace(draft, path)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)


def replace_synced(draft: Path, path: Path) -> None:
    """Rename the synced file `draft` to `path` in the same folder, atomically and durably.

    Earlier removals from the folder become durable before the rename.
    """
    with disk_errors(path):
        sync_folder(path.parent)
        failpoints.reach("replace.folder_synced")
        disk.replace(draft, path)
        failpoints.reach("replace.renamed")
        sync_folder(path.parent)


def publish_folder(draft: Path, final: Path) -> None:
    """Sync every file in the folder `draft`, then rename it to `final`, which must not exist."""
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


def move_folder(old: Path, new: Path) -> None:
    """Rename a folder whose files are as durable as they have to be."""
    with disk_errors(new):
        disk.rename(old, new)
        failpoints.reach("move_folder.renamed")
        sync_folder(new.parent)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor, path)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Sync a folder's entries: a rename is not durable until its parent folder is synced."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor, path)
    finally:
        os.close(descriptor)


def sync(descriptor: int, path: Path) -> None:
    """Sync once, never retry: after a failure the OS may drop the dirty pages and let the next sync succeed."""
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
    """Hex digest of a file's bytes, read in one sequential pass."""
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
    """Translate OSError: a full disk, a lack of file descriptors, or a failing disk."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(f"no space left for {path}") from error
        if error.errno in NO_DESCRIPTORS:
            raise OutOfDescriptors("out of file descriptors", retry_after_s=5) from error
        raise StorageError(f"{path}: {error.strerror or error}") from error


class FolderLock:
    """Exclusive lock on a folder for one process, from construction to `close`. The kernel releases it at exit.

    If the holder is killed between fork and exec of a child, the child holds the lock until its exec. So acquiring
    retries for LOCK_WAIT_S before it raises Locked.
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

    def stands(self, path: Path) -> bool:
        """Whether the file is still there: if somebody removed it, another process could lock a new one."""
        with contextlib.suppress(OSError):
            return os.path.samestat(path.stat(), os.fstat(self._file.fileno()))
        return False

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
