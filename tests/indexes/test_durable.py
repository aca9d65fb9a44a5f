"""Publishing files: the order of disk operations, and what failures leave behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from indexes.base import durable
from indexes.base.errors import Damaged, DiskFull, StorageError


def test_the_order_of_disk_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are synced before the rename, the folder after it."""
    events: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        events.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real_fsync(descriptor)

    def replace(path: Path, target: Path) -> Path:
        events.append(f"rename {path.name} {target.name}")
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    durable.publish(tmp_path / "CURRENT", b"7")
    assert events == ["sync .CURRENT.draft", "rename .CURRENT.draft CURRENT", f"sync {tmp_path.name}"]


def test_a_secret_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has its mode from the start, not only once it is there, whatever draft a dead process left behind."""
    (tmp_path / ".secret.draft").write_bytes(b"open to all")
    (tmp_path / ".secret.draft").chmod(0o644)
    modes: list[int] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        modes.append(os.fstat(descriptor).st_mode & 0o777)
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    durable.publish(tmp_path / "secret", b"s", mode=0o600)
    assert modes[0] == (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, StorageError)])
def test_a_failed_sync_keeps_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[StorageError]
) -> None:
    """If the bytes cannot be synced, the old file stands and the error says what failed."""
    target = tmp_path / "CURRENT"
    durable.publish(target, b"old")

    def fsync(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(kind):
        durable.publish(target, b"new")
    assert target.read_bytes() == b"old"


def test_every_file_of_a_folder_is_synced_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """publish_folder syncs all files and folders inside first."""
    draft = tmp_path / "draft"
    (draft / "sub").mkdir(parents=True)
    (draft / "a").write_text("1")
    (draft / "sub" / "b").write_text("2")
    synced: set[str] = set()
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real_fsync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        assert synced == {"a", "b", "sub", "draft"}
        return real_rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    durable.publish_folder(draft, tmp_path / "final")
    assert (tmp_path / "final" / "sub" / "b").read_text() == "2"


def test_verify_tells_what_differs(tmp_path: Path) -> None:
    """Missing, shorter and altered files are each Damaged, with the path."""
    path = tmp_path / "file"
    with pytest.raises(Damaged, match="missing"):
        durable.verify(path, 1, "")
    path.write_bytes(b"abc")
    with pytest.raises(Damaged, match="3 bytes; expected 4"):
        durable.verify(path, 4, "")
    with pytest.raises(Damaged, match="SHA-256"):
        durable.verify(path, 3, "00")
    durable.verify(path, 3, durable.sha256(path))


class Before(msgspec.Struct):
    format: int = 1
    share: float = 0.5
    names: dict[str, list[float]] = {}
    sha256: str = ""


class Now(Before):
    added: str | None = None


def test_a_file_from_before_a_field_was_added_is_whole(tmp_path: Path) -> None:
    """Its checksum is that of what it holds, of which each byte counts."""
    names = {"größe": [1e-300, -0.0, 3.0]}
    content = durable.with_checksum(Before(names=names))
    read = durable.decode_checked(tmp_path, content, Now, 1)
    assert (read.share, read.names, read.added) == (0.5, names, None)
    for at in range(len(content)):
        with pytest.raises(Damaged):
            durable.decode_checked(
                tmp_path, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :], Now, 1
            )
