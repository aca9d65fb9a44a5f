"""The one place that publishes files: write, sync, rename, sync the folder.

After `publish` or `publish_folder` returns, the new name survives a power loss with all its bytes; before it
returns, a reader sees the old state whole. A full disk raises DiskFull, any other trouble StorageError, and
the old state stands.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from indexes.errors import Damaged, DiskFull, Locked, StorageError

READ_BYTES = 1 << 20


def publish(path: Path, content: bytes) -> None:
    """Make `path` hold exactly `content`, atomically and durably."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with disk_errors(path):
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def publish_folder(draft: Path, final: Path) -> None:
    """Give the folder `draft`, with every file in it synced, the name `final`, which must not exist yet."""
    with disk_errors(final):
        for path in sorted(draft.rglob("*")):
            sync_folder(path) if path.is_dir() else sync_file(path)
        sync_folder(draft)
        draft.rename(final)
        sync_folder(final.parent)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """A rename is only a promise until the folder that holds the name is synced too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    """Tell a full disk from a failing one."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no space left for {path}") from error
        raise StorageError(f"{path}: {error.strerror or error}") from error


class FolderLock:
    """Exclusive use of a folder by one process, from construction to `close`. The kernel drops it at exit."""

    def __init__(self, path: Path) -> None:
        with disk_errors(path):
            self._file = path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            owner = self._file.read().strip() or "unknown"
            self._file.close()
            raise Locked(f"{path.parent} is in use by another nearline process (pid {owner})") from None
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
