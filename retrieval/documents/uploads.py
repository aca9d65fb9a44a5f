"""Files that clients upload through OpenAI's API, kept until they are deleted or expire.

    data/openai.files/file-<24 hex digits>      mode 0600; no collection can have the folder's name
        {"version": 1, "id": "file-...", "filename": "refunds.md", ...}     one line, then the bytes as received

A file attached to a vector store becomes a document of that collection, and remains one when its upload expires.

Durability: a file is synced when `keep` returns. Bounds: `bytes_max` for all files on disk, `uploads_max` and `days`.
The first lines of all are read once: only this process changes the folder.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import logging
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeGuard

import msgspec

from indexes.base.durable import disk_errors, publish, remove, sync_folder
from indexes.base.errors import Damaged, InvalidInput, NearlineError, NotFound, TooLarge, message_of
from retrieval.access.auth import PRINCIPAL
from retrieval.base.settings import FilesSection as Settings

logger = logging.getLogger(__name__)

# Longest first: the UTF-32 mark begins with the UTF-16 mark. These decoders leave the mark out.
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

FOLDER = "openai.files"
VERSION = 1
MODE = 0o600
ID = re.compile(r"file-[0-9a-f]{24}")
BLOCK_BYTES = 4096  # the disk space of the smallest file
DAY_S = 86_400
FORGET_EVERY_S = 3600.0
GONE_MAX = 10_000  # removed files whose place in a listing is remembered


class Upload(msgspec.Struct, frozen=True):
    """The metadata of a file. Times are seconds since 1970. `tenant` is that of the key it was uploaded with, `sha256`
    the checksum of the bytes as received."""

    version: int
    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int
    tenant: str = ""
    sha256: str = ""


class Uploads:
    """All uploaded files of a service. Files of other tenants are invisible. Thread-safe; every method waits for the
    disk."""

    def __init__(self, data: Path, settings: Settings, *, now: Callable[[], float]) -> None:
        self._folder = data / FOLDER
        self._settings = settings
        self._now = now
        self._changing = threading.Lock()
        self._kept: dict[str, tuple[Upload | None, int]] | None = None  # by id, with the size on disk
        self._gone: OrderedDict[str, Upload] = OrderedDict()  # the last ones removed, oldest first

    def keep(self, filename: str, content: bytes, purpose: str, expires_s: int | None = None) -> Upload:
        """Store a file. Raises TooLarge if there is no room. Without `expires_s` it is kept for the `days` of the
        settings."""
        now = self._now()
        created = int(now)
        kept_s = self._settings.days * DAY_S if expires_s is None else expires_s
        made = Upload(
            VERSION,
            f"file-{int(now * 1000):012x}{secrets.token_hex(6)}",  # in order within a second, too
            filename,
            purpose,
            len(content),
            created,
            created + kept_s,
            PRINCIPAL.get().tenant,
            hashlib.sha256(content).hexdigest(),
        )
        with self._changing:
            if not self._folder.is_dir():
                with disk_errors(self._folder):
                    self._folder.mkdir(mode=0o700)
                    sync_folder(self._folder.parent)
            kept, most = self._index(), self._settings.uploads_max
            self._require_share(made, kept)
            if len(kept) >= most:
                raise TooLarge(
                    f"no room left among the {most} uploaded files that are allowed (files.uploads_max); "
                    "delete some, or wait until they expire",
                    param="file",
                )
            held = sum(max(size, BLOCK_BYTES) for _, size in kept.values())
            if held + max(len(content), BLOCK_BYTES) > self._settings.bytes_max:
                raise TooLarge(
                    f"no room left in the {self._settings.bytes_max} bytes allowed for all uploaded files "
                    "(files.bytes_max); delete some, or wait until they expire",
                    param="file",
                )
            stored = msgspec.json.encode(made) + b"\n" + content
            publish(self._folder / made.id, stored, MODE)
            kept[made.id] = made, len(stored)
        return made

    def _require_share(self, made: Upload, kept: Mapping[str, tuple[Upload | None, int]]) -> None:
        """Raise TooLarge if a tenant would have more than it leaves to others: then there is room for a new one."""
        if not made.tenant:
            return
        size = max(made.bytes, BLOCK_BYTES)
        sizes = {one: max(held, BLOCK_BYTES) for one, (_, held) in kept.items()}
        own = [sizes[one] for one, (upload, _) in kept.items() if upload and upload.tenant == made.tenant]
        files_left = self._settings.uploads_max - len(kept)
        bytes_left = self._settings.bytes_max - sum(sizes.values())
        if len(own) + 1 > files_left or sum(own) + size > bytes_left:
            name = "files.uploads_max" if len(own) + 1 > files_left else "files.bytes_max"
            raise TooLarge(
                f"the tenant has {len(own)} uploaded files, and may have no more than it leaves to others ({name}); "
                "delete some, or wait until they expire",
                param="file",
            )

    def find(self, file_id: str) -> Upload:
        """Return a file's metadata. Raises NotFound, also for an expired file."""
        # Only a valid id may become part of a path.
        found = self._upload(file_id) if ID.fullmatch(file_id) else None
        if found is None:
            raise gone(file_id)
        return found

    def read(self, file_id: str) -> tuple[Upload, bytes]:
        """Return the metadata and the bytes of a file. Raises NotFound, Damaged."""
        found, path = self.find(file_id), self._folder / file_id
        with disk_errors(path):
            try:
                return found, content_of(path, found)
            except FileNotFoundError:
                raise gone(file_id) from None

    def all(self) -> list[Upload]:
        """Return the files that have not expired, oldest first."""
        with self._changing:
            found = [upload for upload, _ in self._index().values()]
        visible = self._visibility()
        return sorted(filter(visible, found), key=order_of_upload)

    def place(self, file_id: str) -> tuple[int, str] | None:
        """Return where a file stands, or stood, in the order of all: None if it is not known, as after a restart."""
        with self._changing:
            upload, _ = self._index().get(file_id, (None, 0))
            found = upload or self._gone.get(file_id)
        tenant = PRINCIPAL.get().tenant
        return order_of_upload(found) if found and tenant in ("", found.tenant) else None

    def remove(self, file_id: str) -> bool:
        """Delete a file durably. Returns whether it existed."""
        if not ID.fullmatch(file_id) or self._upload(file_id) is None:
            return False
        with self._changing:
            remove(self._folder / file_id)
            self._drop(file_id)
        return True

    def forget_old(self) -> None:
        """Remove expired files, and drafts that a killed process left behind."""
        with self._changing:
            if self._folder.is_dir():
                with disk_errors(self._folder):
                    for leftover in self._folder.glob(".*.draft"):
                        leftover.unlink(missing_ok=True)
            kept, visible = self._index(), self._visibility()
            for name in [name for name, (upload, _) in kept.items() if not visible(upload)]:
                remove(self._folder / name)
                self._drop(name)

    async def keep_forgetting(self) -> None:
        """Remove expired files now and then periodically, forever."""
        while True:
            try:
                await asyncio.to_thread(self.forget_old)
            except NearlineError as error:
                logger.warning("cannot remove expired files: %s", error)
            await asyncio.sleep(FORGET_EVERY_S)

    def _drop(self, name: str) -> None:
        """Take a file out of the index. Hold the lock."""
        upload, _ = self._index().pop(name, (None, 0))
        if upload is not None:
            self._gone[name] = upload
            if len(self._gone) > GONE_MAX:
                self._gone.popitem(last=False)

    def _upload(self, name: str) -> Upload | None:
        upload = self._read(name)
        return upload if self._visibility()(upload) else None

    def _read(self, name: str) -> Upload | None:
        path = self._folder / name
        with disk_errors(path):
            try:
                with path.open("rb") as file:
                    return decode_header(file.readline())
            except FileNotFoundError:
                return None

    def _visibility(self) -> Callable[[Upload | None], TypeGuard[Upload]]:
        """Return what says whether the caller sees an upload now."""
        tenant, now = PRINCIPAL.get().tenant, self._now()

        def visible(upload: Upload | None) -> TypeGuard[Upload]:
            return upload is not None and upload.expires_at > now and (not tenant or upload.tenant == tenant)

        return visible

    def _index(self) -> dict[str, tuple[Upload | None, int]]:
        """Return all files, read from the disk at the first call. Hold the lock."""
        if self._kept is None:
            self._kept = {name: (self._read(name), size) for name, size in self._sizes().items()}
        return self._kept

    def _sizes(self) -> dict[str, int]:
        """Return the size on disk of each file."""
        with disk_errors(self._folder):
            try:
                with os.scandir(self._folder) as entries:
                    return {one.name: one.stat().st_size for one in entries if ID.fullmatch(one.name)}
            except FileNotFoundError:
                return {}


def order_of_upload(upload: Upload) -> tuple[int, str]:
    return upload.created_at, upload.id


def gone(file_id: str) -> NotFound:
    message = f"no file {file_id[:64]!r}; it was never uploaded, or has expired"
    return NotFound(message, param="file_id")


def content_of(path: Path, upload: Upload) -> bytes:
    """Read the bytes as received. Raises Damaged if they are not; those of an early version have no checksum."""
    content = path.read_bytes().partition(b"\n")[2]
    if len(content) != upload.bytes or upload.sha256 not in ("", hashlib.sha256(content).hexdigest()):
        raise Damaged(f"{path} is damaged: its checksum differs")
    return content


def read_all(data: Path) -> tuple[int, list[str]]:
    """Read every uploaded file of a data directory. Returns how many there are, and what is wrong with some."""
    folder, files, wrong = data / FOLDER, 0, []
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        if not ID.fullmatch(path.name):
            continue
        try:
            with path.open("rb") as file:
                upload = decode_header(file.readline())
            if upload is None:
                raise Damaged(f"{path} does not say what it is")
            content_of(path, upload)
        except FileNotFoundError:
            continue  # it has just been deleted
        except (Damaged, OSError) as error:
            wrong.append(message_of(error))
        files += 1
    return files, wrong


def decode_header(line: bytes) -> Upload | None:
    """Decode a file's first line; None for a file of another kind or a later version."""
    try:
        upload = msgspec.json.decode(line, type=Upload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return upload if upload.version == VERSION else None


def text_of(content: bytes, filename: str) -> str:
    """Decode the text of a file by its byte order mark, else as UTF-8. Raises InvalidInput if that fails."""
    encoding = next((name for mark, name in MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidInput(
            f"the file {filename!r} is neither text in UTF-8, nor in UTF-16 with a byte order mark, nor named as a PDF "
            "or office file",
            param="file",
        )
    if not text.strip():
        raise InvalidInput(f"the file {filename!r} is empty", param="file")
    return text
