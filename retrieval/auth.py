"""Access keys: who asks, what each key may do, and which documents its callers may see.

    data/keys.json                          every key, hashed; read again within RELOAD_S of a change
    Authorization: Bearer nl_<id>_<secret>  what a client sends
    X-Nearline-Groups: <JWT>                the groups of an end user, from a caller that is trusted to name them

Without a file of keys everything is allowed to everybody, and the service listens on loopback only. From the first key
on each request needs one, also when all of them are revoked.

A key of a tenant sees the tenant's collections alone, by their names without the tenant: the collection `docs` of the
tenant `acme` is stored as `docs@acme`. A key with groups sees only documents whose metadata `acl` names one of these,
or that have none.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from indexes import (
    NAME,
    Catalog,
    Collection,
    Comparison,
    Compound,
    Conflict,
    Damaged,
    Exists,
    Filter,
    FolderLock,
    InvalidInput,
    Metadata,
    NearlineError,
    NotFound,
    Unchecked,
    now_ms,
    publish,
)
from retrieval.errors import Forbidden, Unauthorized
from retrieval.limits import Limits

logger = logging.getLogger(__name__)

Scope = Literal["search", "write", "admin", "metrics", "vectors"]
# What a route asks for: one of the scopes, `key` for any valid key, `public` for none.
Needed = Scope | Literal["key", "public"]

FILE, LOCK = "keys.json", "keys.lock"
FORMAT_VERSION = 1
RELOAD_S = 0.25
TOKEN = re.compile(r"nl_(?P<id>[0-9a-f]{12})_(?P<secret>[A-Za-z0-9_-]{43})")
TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
ACL = "acl"  # the key of metadata that lists the groups which may see a document
GROUPS_MAX, GROUP_CHARS_MAX = 100, 200
GROUPS_HEADER = "X-Nearline-Groups"


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key as it is stored: the SHA-256 of its secret, which has 256 random bits, and its rights.

    No `tenant`: all collections. No `collections`: all of the tenant. `groups` None: all documents; `signed_groups`:
    those that each request brings in a signed header, none without it. Times are milliseconds since 1970.
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


class KeyFile(msgspec.Struct, frozen=True):
    format_version: int = FORMAT_VERSION
    keys: list[Key] = []


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request is made for. The default may do everything: what a service without keys takes all callers for."""

    key: str = ""
    scopes: frozenset[Scope] = frozenset(get_args(Scope))
    tenant: str = ""
    collections: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None
    limits: Limits | None = None

    def full(self, name: str) -> str:
        """The name in the catalog of a collection or alias that this caller calls `name`."""
        return f"{name}@{self.tenant}" if self.tenant else name

    def own(self, full: str) -> str:
        """What this caller calls it."""
        return full.removesuffix(f"@{self.tenant}") if self.tenant else full

    def in_own_words(self, message: str) -> str:
        """With names as this caller knows them."""
        return message.replace(f"@{self.tenant}", "") if self.tenant else message

    def sees(self, full: str, aliases: Mapping[str, str]) -> bool:
        """Whether a collection, by its own full name, exists for this caller."""
        if self.tenant and not full.endswith(f"@{self.tenant}"):
            return False
        bound = (self.full(name) for name in self.collections)
        return not self.collections or any(full == aliases.get(one, one) for one in bound)

    def collection(self, catalog: Catalog, name: str) -> Collection:
        """Raises NotFound, also for a collection that exists for others alone, Quarantined, and NotReady."""
        aliases, full = catalog.aliases, self.full(name)
        if not self.sees(aliases.get(full, full), aliases):
            raise NotFound(f"no collection {name!r}", param="collection")
        return catalog.get(full)

    def require_unbound(self) -> None:
        """Raises Forbidden for a key that is bound to collections, where something is of none or of all of them."""
        if self.collections:
            raise Forbidden("this key is bound to some collections and may use those alone")

    def require_whole(self) -> None:
        """Raises Forbidden for a key with groups: counts would tell of documents that it may not see."""
        if self.groups is not None:
            raise Forbidden("this key sees some documents only, and counts of a collection are of all")

    def allowed(self, condition: Filter | None) -> Filter | None:
        """The filter, and of what matches only documents that this caller may see.

        Errors about unknown keys would tell of documents that it may not see, so such a caller gets none.
        """
        if self.groups is None:
            return condition
        visible: Filter = Exists(ACL, value=False)
        if self.groups:
            visible = Compound("or", [visible, Comparison("in", ACL, list(self.groups))])
        return Unchecked(visible if condition is None else Compound("and", [visible, condition]))

    def may_read(self, metadata: Metadata) -> bool:
        """Whether it may see a document of this metadata; the same rule as `allowed`."""
        listed = metadata.get(ACL)
        if self.groups is None or listed is None:
            return True
        return bool({*self.groups} & {*(listed if isinstance(listed, list) else [listed])})


# Of the request that the present task or thread works for. Nothing has to pass it on, so nothing can forget to.
ANYBODY = Principal()
PRINCIPAL: ContextVar[Principal] = ContextVar("PRINCIPAL", default=ANYBODY)


class Keys:
    """The keys of one data directory. `groups_secret` verifies signed groups; "" refuses them. Thread-safe.

    The constructor raises Damaged for a file that cannot be read.
    """

    def __init__(
        self, data: Path, groups_secret: str = "", now: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = data / FILE
        self._groups_secret = groups_secret
        self._now = now
        self._stamp: tuple[int, int, int] | None = None
        self._keys: dict[str, Key] = {}
        self._looked_at = float("-inf")
        # Left by the first key: without its file nobody is let in, rather than everybody.
        self._lost = (data / LOCK).exists() and not self._path.exists()
        if self._lost:
            logger.warning(
                "%s is gone: all requests are refused until `nearline keys create` makes a key", FILE
            )
        self._look()

    @property
    def required(self) -> bool:
        """Whether requests need a key: from the first one on, also if the file has gone since."""
        return bool(self._keys) or self._lost

    def admit(self, headers: Mapping[str, str], needed: Needed) -> Principal:
        """Raises Unauthorized without a valid key, Forbidden for one that may not do this."""
        if self._now() - self._looked_at > RELOAD_S:
            self._reload()
        if not self.required or needed == "public":
            return ANYBODY
        key = self._valid(headers.get("Authorization", ""))
        allowed = {"search", "write", "admin"} if needed == "key" else {needed, "admin"}
        if not allowed & {*key.scopes}:
            raise Forbidden(
                f"this key does not have the scope {' or '.join(sorted(allowed)) if needed == 'key' else needed}"
            )
        if needed == "metrics" and key.tenant:
            raise Forbidden("metrics are of all tenants, and this key is of one")
        groups = self._groups_of(key, headers.get(GROUPS_HEADER))
        if groups is not None and needed not in ("search", "key"):
            raise Forbidden("a key that sees some documents only can search and read, nothing else")
        scopes = frozenset(key.scopes)
        return Principal(key.id, scopes, key.tenant, tuple(key.collections), groups, key.limits)

    def holder(self, header: str) -> str | None:
        """The id of the key in an Authorization header, to count by; None on a service without keys. Raises
        Unauthorized."""
        return self._valid(header).id if self.required else None

    def _valid(self, header: str) -> Key:
        scheme, _, token = header.partition(" ")
        parts = TOKEN.fullmatch(token.strip())
        if token and parts is None:
            raise Unauthorized("the access key is not valid: expected Authorization: Bearer nl_...")
        if scheme.lower() != "bearer" or parts is None:
            raise Unauthorized(
                "this needs an access key: send Authorization: Bearer nl_... (commands take it from NEARLINE_KEY)"
            )
        key = self._keys.get(parts["id"])
        # Compared also where there is no such key: how long it takes must not tell.
        right = hmac.compare_digest(hash_of(parts["secret"]), key.sha256 if key else hash_of(""))
        if key is None or not right or key.revoked_ms is not None:
            raise Unauthorized("the access key is not valid")
        if key.expires_ms is not None and now_ms() >= key.expires_ms:
            raise Unauthorized("the access key has expired")
        return key

    def _groups_of(self, key: Key, header: str | None) -> tuple[str, ...] | None:
        own = None if key.groups is None else tuple(key.groups)
        if not key.signed_groups:
            if header is not None:
                raise Forbidden(f"this key is not trusted to name groups: {GROUPS_HEADER} is not taken")
            return own
        if header is None:
            return ()
        import jwt  # with its cryptography 60 ms, for the few services that use it

        if not self._groups_secret:
            raise Forbidden(f"{GROUPS_HEADER} cannot be verified: auth.groups_secret is not set")
        try:
            claims = jwt.decode(
                header, self._groups_secret, algorithms=["HS256"], options={"require": ["exp"]}
            )
            named = check_groups(msgspec.convert(claims.get("groups"), list[str]), GROUPS_HEADER)
        except (jwt.InvalidTokenError, msgspec.ValidationError) as error:
            raise Unauthorized(f"{GROUPS_HEADER} is not valid: {error}") from None
        return tuple(named if own is None else [one for one in named if one in own])

    # --- changes ------------------------------------------------------------------------------------------------

    def all(self, tenant: str = "") -> list[Key]:
        """Those of one tenant; "" for all. Oldest first."""
        return [key for key in read_keys(self._path) if not tenant or key.tenant == tenant]

    def create(self, key: Key) -> tuple[Key, str]:
        """Store a key with these rights. Returns it and the text that a client sends, which nothing can tell again.

        Raises InvalidInput naming the field.
        """
        check(key)
        secret = secrets.token_urlsafe(32)
        made = msgspec.structs.replace(
            key, id=secrets.token_hex(6), sha256=hash_of(secret), created_ms=now_ms(), revoked_ms=None
        )
        with self._changed() as keys:
            keys[made.id] = made
        return made, f"nl_{made.id}_{secret}"

    def rotate(self, key_id: str, tenant: str = "", grace_s: float = 0) -> tuple[Key, str]:
        """A new key with the rights of another, for as long as that was made for; the old one ends after `grace_s`.

        Raises NotFound, or Conflict for one that has ended already.
        """
        old = self._of(key_id, tenant)
        now = now_ms()
        if old.revoked_ms is not None or (old.expires_ms is not None and old.expires_ms <= now):
            raise Conflict(f"the key {key_id} has ended: make a new one", param="id")
        lasts_ms = None if old.expires_ms is None else now + old.expires_ms - old.created_ms
        made = self.create(msgspec.structs.replace(old, expires_ms=lasts_ms))
        ends_ms = now + round(grace_s * 1000)
        with self._changed() as keys:
            ends_ms = min(ends_ms, old.expires_ms or ends_ms)
            end = {"expires_ms": ends_ms} if grace_s else {"revoked_ms": ends_ms}
            keys[key_id] = msgspec.structs.replace(keys[key_id], **end)
        return made

    def revoke(self, key_id: str, tenant: str = "") -> Key:
        """End a key now; its record stays. Idempotent. Raises NotFound, also for one of another tenant."""
        revoked = self._of(key_id, tenant)
        if revoked.revoked_ms is None:
            revoked = msgspec.structs.replace(revoked, revoked_ms=now_ms())
            with self._changed() as keys:
                keys[key_id] = revoked
        return revoked

    def _of(self, key_id: str, tenant: str) -> Key:
        for key in self.all(tenant):
            if key.id == key_id:
                return key
        raise NotFound(f"no key {key_id!r}", param="id")

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Key]]:
        """All keys, to be changed; then published. Commands and the service may change them at the same time."""
        lock = FolderLock(self._path.with_name(LOCK))
        try:
            keys = {key.id: key for key in read_keys(self._path)}
            yield keys
            content = msgspec.json.encode(KeyFile(keys=list(keys.values())))
            publish(self._path, msgspec.json.format(content, indent=2) + b"\n", mode=0o600)
        finally:
            lock.close()
        self._look()

    # --- what is in use -----------------------------------------------------------------------------------------

    def _reload(self) -> None:
        try:
            self._look()
        except (NearlineError, OSError) as error:
            logger.error("keys cannot be read again, those read before stay: %s", error)

    def _look(self) -> None:
        self._looked_at = self._now()
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return  # never there, or gone: keys that were required stay required
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self._stamp:
            self._keys = {key.id: key for key in read_keys(self._path)}
            self._stamp = stamp


def read_keys(path: Path) -> list[Key]:
    """None if there is no file. Raises Damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    try:
        found = msgspec.json.decode(content, type=KeyFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"{path}: {error}") from None
    if found.format_version != FORMAT_VERSION:
        raise Damaged(f"{path} has format {found.format_version}; this version reads {FORMAT_VERSION}")
    return found.keys


def check(key: Key) -> None:
    """Raises InvalidInput naming the field, for rights that make no sense together."""
    if not key.scopes:
        raise InvalidInput(
            "scopes is empty, expected search, write, admin, metrics or vectors", param="scopes"
        )
    if "vectors" in key.scopes and not {"search", "admin"} & {*key.scopes}:
        raise InvalidInput("vectors come with documents: add the scope search", param="scopes")
    if key.tenant and not TENANT.fullmatch(key.tenant):
        raise InvalidInput(
            f"tenant {key.tenant!r} cannot be a name; expected 1 to 63 of a-z, 0-9, '-' and '_'",
            param="tenant",
        )
    if key.tenant and "metrics" in key.scopes:
        raise InvalidInput("metrics are of all tenants: a key for them has none", param="scopes")
    if key.limits is not None:
        try:  # commands make them without decoding
            msgspec.convert(msgspec.to_builtins(key.limits), Limits)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"limits: {error}", param="limits") from None
    for name in key.collections:
        if not NAME.fullmatch(name):
            raise InvalidInput(f"collections: {name!r} cannot be a name", param="collections")
    if key.groups is not None:
        check_groups(key.groups, "groups")
    if (key.groups is not None or key.signed_groups) and {*key.scopes} - {"vectors"} != {"search"}:
        raise InvalidInput("a key with groups can search and read, nothing else", param="scopes")


def check_groups(groups: Sequence[str], where: str) -> list[str]:
    if len(groups) > GROUPS_MAX or any(not 0 < len(one) <= GROUP_CHARS_MAX for one in groups):
        raise InvalidInput(
            f"{where}: expected at most {GROUPS_MAX} groups of 1 to {GROUP_CHARS_MAX} characters", param=where
        )
    return list(groups)


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
