"""Access keys over HTTP: those of the caller's tenant, or of all tenants if the caller has no tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from aiohttp import web

from indexes.directory.catalog import Catalog
from retrieval.access.auth import PRINCIPAL, Principal
from retrieval.access.key_file import Key, Scope
from retrieval.access.privacy import SCOPE, require_vectors
from retrieval.access.schemas import CreateKey, KeyBody, KeyList, KeyMade, RotateKey, key_of
from retrieval.handlers.state import CATALOG, KEYS, LIMITER
from retrieval.handlers.wire import answer, body, names_stored
from retrieval.wire.errors import Forbidden


async def create(request: web.Request) -> web.Response:
    """Create a key. A key cannot grant rights that it does not have; limits are per key and not inherited."""
    wanted = await body(request, CreateKey)
    key = msgspec.structs.replace(key_of(wanted), tenant=reachable_tenant(wanted.tenant))
    require_grantable(wanted.scopes)
    made, text = await asyncio.to_thread(request.app[KEYS].create, key)
    await names_stored(request.app)
    return made_answer(request.app[CATALOG], made, text)


async def list_keys(request: web.Request) -> web.Response:
    keys = await asyncio.to_thread(request.app[KEYS].all, reachable_tenant(""))
    limiter = request.app[LIMITER]
    return answer(KeyList([KeyBody.of(key, limiter.used_today(key.id)) for key in keys]))


async def rotate(request: web.Request) -> web.Response:
    wanted = await body(request, RotateKey)
    key_id, keys, tenant = request.match_info["key"], request.app[KEYS], reachable_tenant("")

    def work() -> tuple[Key, str]:
        require_grantable(scope for key in keys.all(tenant) if key.id == key_id for scope in key.scopes)
        return keys.rotate(key_id, tenant, wanted.grace_s)

    made, text = await asyncio.to_thread(work)
    await names_stored(request.app)
    return made_answer(request.app[CATALOG], made, text)


async def revoke(request: web.Request) -> web.Response:
    await asyncio.to_thread(request.app[KEYS].revoke, request.match_info["key"], reachable_tenant(""))
    await names_stored(request.app)
    return web.Response(status=204)


def made_answer(catalog: Catalog, made: Key, text: str) -> web.Response:
    holder = Principal(tenant=made.tenant)
    present = {*catalog.collections, *catalog.quarantined, *catalog.aliases}
    absent = [name for name in made.collections if holder.full(name) not in present]
    return answer(KeyMade(text, KeyBody.of(made), absent), status=201)


def require_grantable(scopes: Iterable[Scope]) -> None:
    """Raises Forbidden if the scopes include the one that `admin` does not imply and the caller lacks it."""
    if SCOPE in scopes:
        require_vectors()


def reachable_tenant(tenant: str) -> str:
    """Return the tenant whose keys the caller may change, or "" for all tenants.

    Raises Forbidden for another tenant, for callers bound to collections, and for callers without a key: the first
    key is created on the machine itself.
    """
    caller = PRINCIPAL.get()
    if not caller.key:
        raise Forbidden(
            "create the first key with `nearline keys create` on the machine that has the data directory"
        )
    caller.require_unbound()
    if caller.tenant and tenant not in ("", caller.tenant):
        raise Forbidden("this key cannot create keys for another tenant")
    return caller.tenant or tenant
