"""Access keys: who is calling, what each key may do, and which documents its callers may see.

    data/keys.json                          every key, hashed; read again within RELOAD_S of a change
    Authorization: Bearer nl_<id>_<secret>  what a client sends
    X-Nearline-Groups: <JWT>                the groups of an end user, from a caller trusted to name them

Without keys every caller may do everything, and the service listens on loopback only. The first key locks the
directory: from then on each request needs one, even if all are revoked, or the file is lost, emptied, or restored from
an earlier time. `nearline.json` remembers the lock and the revision of the newest file; only `Keys.open` ends it.

A key of a tenant sees only the tenant's collections, by their names without the tenant: the collection `docs` of the
tenant `acme` is stored as `docs@acme`. A key with groups sees only documents whose metadata `acl` names one of these,
or that have none.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from indexes.base.errors import NearlineError, NotFound
from indexes.base.model import ACL, Metadata, now_ms
from indexes.collection.collection import Collection
from indexes.directory.catalog import Catalog, tenant_of
from indexes.directory.marker import KEYS, KEYS_LOCK
from indexes.filters.grammar import Comparison, Compound, Exists, Filter, Unchecked, canonical
from retrieval.access.key_file import Key, KeyFile, KeyStore, Scope, check_groups, hash_of, read_key_file
from retrieval.access.limits import Limits
from retrieval.wire.errors import Forbidden, Unauthorized

logger = logging.getLogger(__name__)

# What a route requires: a scope, `key` for any valid key, `node` for another node of the cluster, `public` for none.
Needed = Scope | Literal["key", "node", "public"]

RELOAD_S = 0.25
TOKEN = re.compile(r"nl_(?P<id>[0-9a-f]{12})_(?P<secret>[A-Za-z0-9_-]{43})")
GROUPS_HEADER = "X-Nearline-Groups"
CLUSTER_HEADER = "X-Nearline-Cluster"  # the secret of the cluster, from another node of it
OPEN_CLUSTER = "open"  # in its place where there is none


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request is made for. The default may do everything, as any caller of a service without keys."""

    key: str = ""
    scopes: frozenset[Scope] = frozenset(get_args(Scope))
    tenant: str = ""
    collections: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None
    limits: Limits | None = None

    def full(self, name: str) -> str:
        """Return the name in the catalog of a collection or alias that this caller calls `name`."""
        return f"{name}@{self.tenant}" if self.tenant else name

    def own(self, full: str) -> str:
        """Return this caller's name for it."""
        return full.removesuffix(f"@{self.tenant}") if self.tenant else full

    def hide_tenant(self, message: str) -> str:
        """Replace full names in a message by those that this caller knows."""
        if not self.tenant:
            return message
        return re.sub(rf"(?<=[a-z0-9_@-])@{self.tenant}(?![\w@-]|\.\w)", "", message)

    def sees(self, full: str, aliases: Mapping[str, str]) -> bool:
        """Whether a collection, by its full name, exists for this caller."""
        if self.tenant and tenant_of(full) != self.tenant:
            return False
        bound = (self.full(name) for name in self.collections)
        return not self.collections or any(full == aliases.get(one, one) for one in bound)

    def may_use(self, full: str, aliases: Mapping[str, str]) -> bool:
        """Whether this caller may call a collection by this name or alias. One bound to an alias may not use others."""
        target = aliases.get(full, full)
        if not self.sees(target, aliases) or self.tenant not in ("", tenant_of(full)):
            return False
        free = full == target or not self.collections
        return free or bool({self.own(full), self.own(target)} & {*self.collections})

    def aliases_of(self, full: str, aliases: Mapping[str, str]) -> list[str]:
        """List the aliases of a collection that this caller may use, by its own names."""
        return sorted(
            self.own(alias)
            for alias, target in aliases.items()
            if target == full and self.may_use(alias, aliases)
        )

    def collection(self, catalog: Catalog, name: str) -> Collection:
        """Return a collection. Raises NotFound, also for one that exists only for others, Quarantined, and NotReady."""
        full = self.full(name)
        if not self.may_use(full, catalog.aliases):
            raise NotFound(f"no collection {full!r}", param="collection")
        return catalog.get(full)

    def require_unbound(self) -> None:
        """Raise Forbidden for a key bound to collections, for things that belong to none or to all of them."""
        if self.collections:
            raise Forbidden("this key is bound to some collections and may use those alone")

    def require_service(self) -> None:
        """Raise Forbidden for a key of a tenant, or bound to collections, for what is of the whole service."""
        if self.tenant:
            raise Forbidden("this key is of one tenant, and what it asked for is of all")
        self.require_unbound()

    def require_whole(self) -> None:
        """Raise Forbidden for a key with groups, for what would reveal something of documents that it may not see."""
        if self.groups is not None:
            raise Forbidden("this key sees some documents only, and what it asked for tells of all")

    def restrict(self, condition: Filter | None) -> Filter | None:
        """Restrict a filter to the documents that this caller may see.

        Errors about unknown keys would reveal documents that it may not see, so the restricted filter raises none.
        """
        if self.groups is None:
            return condition
        visible: Filter = Exists(ACL, value=False)
        if self.groups:
            visible = Compound("or", [visible, Comparison("in", ACL, list(self.groups), literal=True)])
        return Unchecked(visible if condition is None else Compound("and", [visible, condition]))

    def may_read(self, metadata: Metadata) -> bool:
        """Whether this caller may see a document with this metadata; the same rule as `restrict`."""
        listed = metadata.get(ACL)
        if self.groups is None or listed is None:
            return True
        groups = {*map(canonical, self.groups)}
        return not groups.isdisjoint(map(canonical, listed if isinstance(listed, list) else [listed]))


# Of the request that the current task or thread works for. Nothing passes it on, so nothing can forget to.
ANYBODY = Principal()
NODE = Principal(key="cluster")  # another node of the cluster, which has checked its own caller
PRINCIPAL: ContextVar[Principal] = ContextVar("PRINCIPAL", default=ANYBODY)


class Keys(KeyStore):
    """The keys of one data directory, as used to admit requests. Thread-safe.

    `groups_secret` verifies signed groups, "" refuses them; `cluster_secret` proves another node. The constructor
    raises Damaged for an unreadable file.
    """

    def __init__(
        self,
        data: Path,
        groups_secret: str = "",
        now: Callable[[], float] = time.monotonic,
        *,
        cluster_secret: str = "",
    ) -> None:
        super().__init__(data)
        self._cluster_secret = cluster_secret
        self._groups_secret = groups_secret
        self._now = now
        self._stamp: tuple[int, int, int] | None = None
        self._keys: dict[str, Key] = {}
        self._looked_at = float("-inf")
        self._locked, self._revision = self.read_lock()
        self._look()
        if self._locked and not self._keys:
            logger.error(
                "%s needs access keys, and %s holds none that count: all requests are refused until `nearline keys "
                "create` makes one, or `nearline keys open` opens the directory to everybody", data, KEYS,
            )  # fmt: skip

    @property
    def required(self) -> bool:
        """Whether requests need a key: from the first one on, even if the file is gone since."""
        return self._locked

    def admit(self, headers: Mapping[str, str], needed: Needed) -> Principal:
        """Return the principal of a request. Raises Unauthorized without a valid key, Forbidden for one that may not do
        this."""
        if self._now() - self._looked_at > RELOAD_S:
            self.reload()
        if (secret := headers.get(CLUSTER_HEADER)) is not None:
            return self._admit_node(secret)
        if needed == "node":
            self.find(headers)
            raise Forbidden(f"only other nodes of the cluster may ask this, which send {CLUSTER_HEADER}")
        if needed == "public" or (key := self.find(headers)) is None:
            return ANYBODY
        allowed = {"search", "write", "admin"} if needed == "key" else {needed, "admin"}
        if not allowed & {*key.scopes}:
            raise Forbidden(
                f"this key does not have the scope {' or '.join(sorted(allowed)) if needed == 'key' else needed}"
            )
        if needed == "metrics" and key.tenant:
            raise Forbidden("metrics are of all tenants, and this key is of one")
        if needed == "metrics" and key.collections:
            raise Forbidden("metrics are of all collections, and this key is bound to some")
        groups = self._groups_of(key, headers.get(GROUPS_HEADER))
        if groups is not None and needed not in ("search", "key"):
            raise Forbidden("a key that sees some documents only can search and read, nothing else")
        scopes = frozenset(key.scopes)
        return Principal(key.id, scopes, key.tenant, tuple(key.collections), groups, key.limits)

    def _admit_node(self, secret: str) -> Principal:
        """Return the principal of another node. Without keys and secret, any caller may be one."""
        if self.required and not self._cluster_secret:
            raise Unauthorized(
                "this service has access keys and no cluster.secret, so no other node may ask it"
            )
        expected = self._cluster_secret or OPEN_CLUSTER
        if not hmac.compare_digest(secret.encode(), expected.encode()):
            raise Unauthorized(f"{CLUSTER_HEADER} is not this service's cluster.secret")
        return NODE

    def find(self, headers: Mapping[str, str]) -> Key | None:
        """Return the key of a request; None on a service without keys. Raises Unauthorized."""
        if not self.required:
            return None
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        parts = TOKEN.fullmatch(token.strip())
        if token and parts is None:
            raise Unauthorized("the access key is not valid: expected Authorization: Bearer nl_...")
        if scheme.lower() != "bearer" or parts is None:
            raise Unauthorized(
                "this needs an access key: send Authorization: Bearer nl_... (commands take it from NEARLINE_KEY)"
            )
        key = self._keys.get(parts["id"])
        # Also compared if there is no such key, so that timing reveals nothing.
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
        import jwt  # imported here: with its cryptography it takes 60 ms, and few services use it

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

    # --- what is in use -----------------------------------------------------------------------------------------

    def remember(self) -> None:
        """Store the lock in a marker that lost it, if the keys or the file next to them show that it existed."""
        if self._locked:
            self.lock(self._revision)

    def read_again(self) -> None:
        """Read what a store has restored since this was made, before anybody is admitted. Raises Damaged."""
        locked, self._revision = self.read_lock()
        self._locked, self._stamp = self._locked or locked, None
        self._look()

    def on_change(self) -> None:
        self._look()

    def reload(self) -> None:
        try:
            self._look()
        except (NearlineError, OSError) as error:
            logger.error("keys cannot be read again, those read before stay: %s", error)

    def _look(self) -> None:
        self._looked_at = self._now()
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):  # never there, or gone: required keys stay required
            self._locked = self._locked or self.path.with_name(KEYS_LOCK).exists()
            return
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp == self._stamp:
            return
        self._locked = True  # whatever its content: an open directory has no such file
        file = read_key_file(self.path) or KeyFile()
        self._stamp = stamp
        if file.revision < self._revision:
            logger.error(
                "%s is not taken, keys read before stay: it has revision %d, and the newest was %d",
                KEYS, file.revision, self._revision,
            )  # fmt: skip
            return
        self._keys, self._revision = {key.id: key for key in file.keys}, file.revision
        if not file.keys:
            logger.error("%s holds no keys: all requests are refused", KEYS)
