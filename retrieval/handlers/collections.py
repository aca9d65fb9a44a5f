"""Collections and aliases: create, list, describe, rename, rank, delete."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import msgspec
from aiohttp import web
from msgspec.structs import replace

from indexes.base.errors import InvalidInput, NotFound
from indexes.base.languages import check_language
from indexes.base.model import FieldWeights, Settings, now_ms
from indexes.collection.collection import Collection
from indexes.directory.marker import SHARD_MARK
from indexes.lexical.operators import count_words
from indexes.parts.learned import RankingSettings, SynonymSettings
from retrieval.access.auth import NODE, PRINCIPAL
from retrieval.handlers.state import CATALOG, CONFIG, EMBEDDERS, FOLDERS, METRICS, PROCESSES, TASKS
from retrieval.handlers.wire import (
    answer,
    answer_from,
    body,
    collection_of,
    describe,
    names_stored,
    settings_stored,
)
from retrieval.search.plan import NO_RERANKER
from retrieval.search.relevance import check_coefficients
from retrieval.wire.collections import (
    AliasBody,
    CollectionList,
    CreateCollection,
    HeldBody,
    HoldWrites,
    QuarantinedBody,
    RenameCollection,
    SetAlias,
    SetRanking,
    SetSynonyms,
    SynonymsBody,
)
from retrieval.wire.errors import without_folders

SYNONYM_WORDS_MAX, SYNONYM_CHARS_MAX = 8, 100_000


async def create(request: web.Request) -> web.Response:
    collection = await make(request.app, await body(request, CreateCollection))
    return await answer_from(lambda: describe(request.app, collection), status=201)


async def make(app: web.Application, wanted: CreateCollection) -> Collection:
    """Create a collection. Raises InvalidInput naming the field, Conflict for a name in use, and Forbidden for a key
    that may not create collections."""
    PRINCIPAL.get().require_unbound()
    require_whole_name(wanted.name, "name")
    config, catalog = app[CONFIG], app[CATALOG]
    if wanted.shards > 1:
        raise InvalidInput(
            "several shards need nodes to be divided among, named in [cluster] nodes of the configuration",
            param="shards",
        )
    language = check_language(wanted.language, "language")
    if wanted.dimensions is not None:
        if wanted.model is not None:
            raise InvalidInput(
                "dimensions is for vectors of your own; a model has its own: leave one of them out",
                param="dimensions",
            )
        # Vectors of two such collections may be of different models.
        model, dimensions, fingerprint = "", wanted.dimensions, uuid.uuid4().hex
    else:
        model = wanted.model or config.models.default
        embedder = await app[EMBEDDERS].get(model)
        dimensions, fingerprint = embedder.encoder.dimensions, embedder.fingerprint
    settings = Settings(
        dimensions=dimensions,
        fingerprint=fingerprint,
        model=model,
        hot_capacity=config.index.hot_capacity if wanted.hot_capacity is None else wanted.hot_capacity,
        language=language,
        field_weights=FieldWeights(wanted.field_weights.title, wanted.field_weights.heading),
    )
    collection = await asyncio.to_thread(catalog.create, PRINCIPAL.get().full(wanted.name), settings)
    await names_stored(app)
    return collection


async def list_collections(request: web.Request) -> web.Response:
    return await answer_from(lambda: list_own(request.app))


def list_own(app: web.Application) -> CollectionList:
    """List the collections of this service that the caller sees. Reads their folders: run it on a thread."""
    catalog, folders, caller = app[CATALOG], app[FOLDERS], PRINCIPAL.get()
    aliases = catalog.aliases
    return CollectionList(
        collections=[
            describe(app, one)
            for name, one in sorted(catalog.collections.items())
            if caller.sees(name, aliases)
        ],
        quarantined=[
            QuarantinedBody(
                caller.own(name),
                caller.aliases_of(name, aliases),
                caller.hide_tenant(without_folders(reason, folders)),
            )
            for name, reason in sorted(catalog.quarantined.items())
            if caller.sees(name, aliases)
        ],
    )


async def show(request: web.Request) -> web.Response:
    _, collection = collection_of(request)
    return await answer_from(lambda: describe(request.app, collection))


async def delete(request: web.Request) -> web.Response:
    """Delete a collection by its own name only: an alias must not delete whatever it points to today."""
    await remove(request.app, request.match_info["collection"])
    return web.Response(status=204)


async def remove(app: web.Application, name: str) -> None:
    """Delete the collection that the caller knows by this name. Raises NotFound for one that the caller may not see."""
    full = own_name(app, name)
    with app[TASKS].reserved(full):
        async with app[PROCESSES].released(full):
            await asyncio.to_thread(app[CATALOG].delete, full)
        forget(app, full)
    await names_stored(app)


def require_whole_name(name: str, param: str) -> None:
    """Raise InvalidInput for the name of a shard, which only nodes give."""
    if SHARD_MARK in name and PRINCIPAL.get() is not NODE:
        raise InvalidInput(f"{name[:100]!r} would be a shard: expected the name of a collection", param=param)


def own_name(app: web.Application, name: str) -> str:
    """Return the full name of a collection or alias. Raises NotFound for one that the caller may not see."""
    caller, aliases = PRINCIPAL.get(), app[CATALOG].aliases
    full = caller.full(name)
    if not caller.sees(aliases.get(full, full), aliases):
        raise NotFound(f"no collection {full!r}", param="collection")
    return full


def forget(app: web.Application, name: str) -> None:
    """Drop what is kept under the name: the next collection with this name is a different one."""
    app[METRICS].forget(name)
    app[TASKS].forget(name)


async def rename(request: web.Request) -> web.Response:
    """Rename a collection, by its own name only, like deleting."""
    wanted = await body(request, RenameCollection)
    name = own_name(request.app, request.match_info["collection"])
    PRINCIPAL.get().require_unbound()
    require_whole_name(wanted.name, "name")
    new_name = PRINCIPAL.get().full(wanted.name)
    if (held := request.app[CATALOG].collections.get(name)) is not None:
        held.require_here()
    with request.app[TASKS].reserved(name):
        async with request.app[PROCESSES].released(name):
            collection = await asyncio.to_thread(request.app[CATALOG].rename, name, new_name)
        forget(request.app, name)
    await names_stored(request.app)
    return await answer_from(lambda: describe(request.app, collection))


async def set_ranking(request: web.Request) -> web.Response:
    wanted = await body(request, SetRanking)
    _, collection = collection_of(request)
    if {wanted.method, wanted.weight_dense, wanted.rerank} == {None} and not wanted.coefficients:
        raise InvalidInput(
            "nothing to set: expected method, weight_dense, rerank or coefficients", param="method"
        )
    if wanted.rerank and not request.app[CONFIG].rerank.model:
        raise InvalidInput(NO_RERANKER, param="rerank")
    if wanted.weight_dense is not None:
        if wanted.method == "rrf":
            raise InvalidInput("weight_dense is for method weighted, found rrf", param="weight_dense")
        wanted = replace(wanted, method="weighted")
    check_coefficients(wanted.coefficients)
    settings = RankingSettings(**msgspec.structs.asdict(wanted), set_ms=now_ms())
    await asyncio.to_thread(collection.ranking.set, settings)
    await settings_stored(request.app, collection)
    return await answer_from(lambda: describe(request.app, collection))


async def remove_ranking(request: web.Request) -> web.Response:
    """Remove the ranking. Idempotent: succeeds if there is none."""
    _, collection = collection_of(request)
    await asyncio.to_thread(collection.ranking.clear)
    await settings_stored(request.app, collection)
    return web.Response(status=204)


async def hold(request: web.Request) -> web.Response:
    """Refuse writes for a while, so that what is read then is all there is; what was under way is written, or refused
    later."""
    wanted = await body(request, HoldWrites)
    _, collection = collection_of(request)
    return answer(HeldBody(await asyncio.to_thread(collection.hold, wanted.seconds)))


async def set_synonyms(request: web.Request) -> web.Response:
    """Set the synonyms. Every search that starts afterwards uses them; nothing is indexed again."""
    wanted = await body(request, SetSynonyms)
    _, collection = collection_of(request)
    check_synonyms(wanted.synonyms)
    settings = SynonymSettings.of(wanted.synonyms, now_ms())
    await asyncio.to_thread(collection.set_synonyms, settings)
    await settings_stored(request.app, collection)
    return answer(synonyms_body(collection.synonyms.current))


async def show_synonyms(request: web.Request) -> web.Response:
    """Show the synonyms, but not to a key with groups: they may name what only hidden documents are about."""
    _, collection = collection_of(request)
    PRINCIPAL.get().require_whole()
    return answer(synonyms_body(collection.synonyms.current))


async def remove_synonyms(request: web.Request) -> web.Response:
    """Remove the synonyms. Idempotent: succeeds if there are none."""
    _, collection = collection_of(request)
    await asyncio.to_thread(collection.set_synonyms, None)
    await settings_stored(request.app, collection)
    return web.Response(status=204)


def synonyms_body(current: SynonymSettings | None) -> SynonymsBody:
    if current is None:
        return SynonymsBody([], None)
    return SynonymsBody([list(one) for one in current.synonyms.lists], current.set_ms)


def check_synonyms(lists: Sequence[Sequence[str]]) -> None:
    """Raise InvalidInput naming an alternative that has no words, or more than fit."""
    chars = sum(len(one) for alternatives in lists for one in alternatives)
    if chars > SYNONYM_CHARS_MAX:
        raise InvalidInput(
            f"synonyms have {chars:,} characters, at most {SYNONYM_CHARS_MAX:,} are allowed", param="synonyms"
        )
    for at, alternatives in enumerate(lists):
        for place, one in enumerate(alternatives):
            if not 1 <= (found := count_words(one)) <= SYNONYM_WORDS_MAX:
                raise InvalidInput(
                    f"{one!r} has {found or 'no'} words, expected 1 to {SYNONYM_WORDS_MAX}",
                    param=f"synonyms[{at}][{place}]",
                )


async def set_alias(request: web.Request) -> web.Response:
    alias, wanted, caller = request.match_info["alias"], await body(request, SetAlias), PRINCIPAL.get()
    caller.require_unbound()
    require_whole_name(alias, "alias")
    catalog = request.app[CATALOG]
    await asyncio.to_thread(catalog.set_alias, caller.full(alias), caller.full(wanted.collection))
    await names_stored(request.app)
    return answer(AliasBody(alias, wanted.collection))


async def remove_alias(request: web.Request) -> web.Response:
    PRINCIPAL.get().require_unbound()
    alias = PRINCIPAL.get().full(request.match_info["alias"])
    await asyncio.to_thread(request.app[CATALOG].remove_alias, alias)
    await names_stored(request.app)
    request.app[METRICS].forget(alias)
    return web.Response(status=204)
