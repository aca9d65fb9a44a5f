"""The file of access keys, `keys.json`: reading it, and every change to it.

Each change is one revision. The marker of the data directory remembers the newest one, and that requests need keys.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from indexes.base.durable import publish, remove
from indexes.base.errors import Conflict, Damaged, InvalidInput, NearlineError, NotFound
from indexes.base.model import now_ms
from indexes.directory.catalog import NAME_RULE
from indexes.directory.marker import (
    KEYS,
    KEYS_LOCK,
    MARKER,
    NAME,
    Marker,
    change_held_marker,
    changing,
    is_data_directory,
    read_marker,
)
from indexes.store.directory import read_record
from retrieval.access.limits import Limits
from retrieval.wire.decoding import check_built

logger = logging.getLogger(__name__)

Scope = Literal["search", "write", "admin", "metrics", "vectors"]

FORMAT = 1
TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
GROUPS_MAX, GROUP_CHARS_MAX = 100, 200


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key as it is stored: the SHA-256 of its secret, which has 256 random bits, and its rights.

    No `tenant` means all collections, no `collections` all of the tenant's. `groups` None means all documents. With
    `signed_groups`, each request brings its groups in a signed header, and has none without it. Times are milliseconds
    since 1970. `lifetime_ms` is kept of a key that a rotation ends earlier; 0 means it had no end.
    """

    id: str
    sha256: str
    scopes: list[Scope]
    name: str = ""
    tenant: str = ""
    collections: list[str] = []
    groups: list[str] | None = None
    signed_groups: bool = False
    limits: Limits | None = None
    created_ms: int
    expires_ms: int | None = None
    revoked_ms: int | None = None
    lifetime_ms: int | None = None


class KeyFile(msgspec.Struct, frozen=True):
    """The stored keys. `revision` grows with each change."""

    format: int = FORMAT
    revision: int = 0
    keys: list[Key] = []


class KeyStore:
    """All keys of a data directory, and changes to them. Thread-safe; commands may change them while the service
    runs."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.path = data / KEYS

    def on_change(self) -> None:
        """Called after each change."""

    def all(self, tenant: str = "") -> list[Key]:
        """List the keys of one tenant, "" for all, oldest first. Raises Conflict for a file from an earlier time."""
        found, _ = self._read()
        return [key for key in (found.keys if found else []) if not tenant or key.tenant == tenant]

    def create(self, key: Key) -> tuple[Key, str]:
        """Store a key with these rights. Returns it and the text that a client sends, which cannot be recovered later.

        Raises InvalidInput naming the field.
        """
        check_key(key)
        made, text = with_secret(key)
        with self._edit_keys() as keys:
            keys[made.id] = made
        return made, text

    def rotate(self, key_id: str, tenant: str = "", grace_s: float = 0) -> tuple[Key, str]:
        """Make a new key with the rights and the lifetime of another; the old one ends after `grace_s`.

        Raises NotFound, or Conflict for one that has already ended.
        """
        with self._edit_keys() as keys:
            made, text = self._replace(keys, self._find(key_id, tenant), grace_s)
        return made, text

    @staticmethod
    def _replace(keys: dict[str, Key], old: Key, grace_s: float) -> tuple[Key, str]:
        now = now_ms()
        if old.revoked_ms is not None or (old.expires_ms is not None and old.expires_ms <= now):
            raise Conflict(f"the key {old.id} has ended: make a new one", param="id")
        lifetime_ms = old.lifetime_ms
        if lifetime_ms is None:  # never rotated before: its end is its own
            lifetime_ms = 0 if old.expires_ms is None else old.expires_ms - old.created_ms
        expires_ms = now + lifetime_ms if lifetime_ms else None
        made, text = with_secret(msgspec.structs.replace(old, expires_ms=expires_ms, lifetime_ms=None))
        ends_ms = now + round(grace_s * 1000)
        ends_ms = min(ends_ms, old.expires_ms or ends_ms)
        end = {"expires_ms": ends_ms} if grace_s else {"revoked_ms": ends_ms}
        keys[old.id] = msgspec.structs.replace(old, lifetime_ms=lifetime_ms, **end)
        keys[made.id] = made
        return made, text

    def revoke(self, key_id: str, tenant: str = "") -> Key:
        """End a key now; its record stays. Idempotent. Raises NotFound, also for one of another tenant."""
        revoked = self._find(key_id, tenant)
        if revoked.revoked_ms is None:
            with self._edit_keys() as keys:
                revoked = msgspec.structs.replace(self._find(key_id, tenant), revoked_ms=now_ms())
                keys[key_id] = revoked
        return revoked

    def _find(self, key_id: str, tenant: str) -> Key:
        for key in self.all(tenant):
            if key.id == key_id:
                return key
        found, newest = self._read()
        lost = newest > 0 and found is None
        kept = f": {KEYS} is lost, and a running service keeps its keys until `nearline keys create` makes a new one"
        raise NotFound(f"no key {key_id!r}{kept if lost else ''}", param="id")

    def _read(self) -> tuple[KeyFile | None, int]:
        """Return the file, None if there is none, and the newest revision that was published. Raises Damaged, and
        Conflict for a file from an earlier time: keys that were revoked since would be valid again."""
        found, newest = read_key_file(self.path), self.read_lock()[1]
        if found is not None and found.revision < newest:
            raise Conflict(
                f"{KEYS} is from an earlier time: it has revision {found.revision}, the newest was {newest}. Put "
                "that back, or delete this file and make new keys"
            )
        return found, newest

    def _require_own(self) -> None:
        if (record := read_record(self.data)) is not None and record.replica:
            raise Conflict(
                f"{self.data} is a replica's: keys are changed where the service is that writes to its store"
            )

    def open(self) -> None:
        """End all keys and the lock. A service notices when it next starts; a running one stays as it is."""
        self._require_own()
        if not self.read_lock()[0] and not self.path.exists():
            return  # and leave no lock file, which would lock a running service
        with changing(self.data):
            remove(self.path)
            if is_data_directory(self.data):
                change_held_marker(self.data, lambda found: msgspec.structs.replace(found, locked=False))
            remove(self.path.with_name(KEYS_LOCK))

    def lock(self, revision: int = 0) -> None:
        """Remember that requests need keys, and that this revision of them was published."""
        with changing(self.data):
            self._lock(revision)

    def _lock(self, revision: int) -> None:
        def lock(found: Marker) -> Marker:
            newest = max(found.keys_revision, revision)
            return msgspec.structs.replace(found, locked=True, keys_revision=newest)

        if is_data_directory(self.data):
            change_held_marker(self.data, lock)
        if not (sign := self.path.with_name(KEYS_LOCK)).exists():
            publish(sign, b"", mode=0o600)

    @contextmanager
    def _edit_keys(self) -> Iterator[dict[str, Key]]:
        """Yield all keys for editing, then publish them. Commands and the service may do so at the same time.

        The keys are changed once their file is published: the other signs that requests need them may follow with the
        next change or start. A first file that is not published whole leaves the directory open.

        Raises Conflict for a file from an earlier time.
        """
        self._require_own()
        with changing(self.data):
            found, newest = self._read()
            keys = {} if found is None else {key.id: key for key in found.keys}
            yield keys
            revision = max(newest, 0 if found is None else found.revision) + 1
            content = msgspec.json.encode(KeyFile(revision=revision, keys=list(keys.values())))
            try:
                publish(self.path, msgspec.json.format(content, indent=2) + b"\n", mode=0o600)
            except NearlineError:
                if found is None:
                    self.path.unlink(missing_ok=True)
                raise
            try:
                self._lock(revision)
            except NearlineError as error:
                logger.error("%s is changed, and %s does not record it yet: %s", KEYS, MARKER, error)
        self.on_change()

    def read_lock(self) -> tuple[bool, int]:
        """Return whether keys are needed, and their newest revision."""
        left = self.path.with_name(KEYS_LOCK).exists()
        if not is_data_directory(self.data):
            return left, 0
        marker = read_marker(self.data)
        return left or marker.locked, marker.keys_revision


def with_secret(key: Key) -> tuple[Key, str]:
    """Return a new key with these rights, and the text that a client sends."""
    secret = secrets.token_urlsafe(32)
    made = msgspec.structs.replace(
        key, id=secrets.token_hex(6), sha256=hash_of(secret), created_ms=now_ms(), revoked_ms=None
    )
    return made, f"nl_{made.id}_{secret}"


def read_key_file(path: Path) -> KeyFile | None:
    """Read the file; None if there is none. Raises Damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(content, type=KeyFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"{path}: {error}") from None
    if found.format != FORMAT:
        raise Damaged(f"{path} has format {found.format}; this version reads {FORMAT}")
    return found


def check_key(key: Key) -> None:
    """Raise InvalidInput naming the field, for rights that make no sense together."""
    if not key.scopes:
        raise InvalidInput(
            "scopes is empty, expected search, write, admin, metrics or vectors", param="scopes"
        )
    if key.limits is not None:  # may have been built without decoding
        try:
            check_built(key.limits)
        except InvalidInput as error:
            raise InvalidInput(f"limits.{error.message}", param=f"limits.{error.param}") from None
    if "vectors" in key.scopes and not {"search", "admin"} & {*key.scopes}:
        raise InvalidInput("vectors come with documents: add the scope search", param="scopes")
    if key.tenant and not TENANT.fullmatch(key.tenant):
        raise InvalidInput(
            f"tenant {key.tenant!r} cannot be a name; expected 1 to 63 of a-z, 0-9, '-' and '_', beginning with a "
            "letter or digit",
            param="tenant",
        )
    if key.tenant and "metrics" in key.scopes:
        raise InvalidInput("metrics are of all tenants: a key for them has none", param="scopes")
    if key.collections and "metrics" in key.scopes:
        raise InvalidInput("metrics are of all collections: a key for them is bound to none", param="scopes")
    check_collections(key)
    if key.groups is not None:
        check_groups(key.groups, "groups")
    if (key.groups is not None or key.signed_groups) and {*key.scopes} - {"vectors"} != {"search"}:
        raise InvalidInput("a key with groups can search and read, nothing else", param="scopes")


def check_collections(key: Key) -> None:
    """Raises InvalidInput for a name that no collection of the key could have."""
    for name in key.collections:
        if not NAME.fullmatch(name):
            raise InvalidInput(
                f"collections: {name!r} cannot be a name; expected {NAME_RULE}", param="collections"
            )
        if key.tenant and "@" in name:
            words = f"collections: {name!r} names a tenant; a key of one calls its collections without it"
            raise InvalidInput(words, param="collections")


def check_groups(groups: Sequence[str], where: str) -> list[str]:
    if len(groups) > GROUPS_MAX or any(not 0 < len(one) <= GROUP_CHARS_MAX for one in groups):
        raise InvalidInput(
            f"{where}: expected at most {GROUPS_MAX} groups of 1 to {GROUP_CHARS_MAX} characters", param=where
        )
    return list(groups)


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
