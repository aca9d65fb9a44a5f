"""Which requests are for collections in several shards, and what answers them."""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from aiohttp import web

from indexes.base.errors import Conflict, NotFound
from retrieval.access.auth import NODE, PRINCIPAL
from retrieval.cluster import (
    aliases,
    collections,
    documents,
    explaining,
    feedback,
    giving,
    jobs,
    moves,
    renaming,
    searching,
    serving,
    state,
    taking,
    watching,
)
from retrieval.cluster.names import ShardName
from retrieval.cluster.nodes import Nodes
from retrieval.cluster.running import RUNNING, end_all, keep_running
from retrieval.cluster.targets import NODES
from retrieval.dialects import vector_stores
from retrieval.handlers import answers as whole_answers
from retrieval.handlers import assess as whole_assess
from retrieval.handlers import collections as whole_collections
from retrieval.handlers import documents as whole_documents
from retrieval.handlers import evaluation as whole_evaluation
from retrieval.handlers import explain as whole_explaining
from retrieval.handlers import feedback as whole_feedback
from retrieval.handlers import jobs as whole_jobs
from retrieval.handlers import search as whole_searching
from retrieval.handlers import watch as whole_watching
from retrieval.handlers.state import CATALOG, CONFIG, METRICS, RELOADED, SCOPES

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OF_SHARDS: dict[object, Handler] = {
    whole_searching.search: searching.search,
    whole_searching.search_batch: searching.search_batch,
    whole_searching.context: searching.context,
    vector_stores.search: searching.search_store,
    whole_explaining.explain: explaining.explain,
    whole_watching.watch: watching.watch,
    whole_answers.answer: searching.answer_question,
    whole_assess.assess: searching.assess,
    whole_documents.write: documents.write,
    whole_documents.show: documents.show,
    whole_documents.patch: documents.patch,
    whole_documents.delete: documents.delete,
    whole_documents.delete_many: documents.delete_many,
    whole_documents.patch_many: documents.patch_many,
    whole_documents.list_page: documents.list_page,
    whole_documents.scroll: documents.scroll,
    whole_documents.count: documents.count,
    whole_jobs.reindex: jobs.reindex,
    whole_jobs.tune: jobs.tune,
    whole_jobs.erase: jobs.erase,
    whole_jobs.rollback: jobs.rollback,
    whole_collections.show: collections.show,
    whole_collections.delete: collections.delete,
    whole_collections.rename: renaming.rename,
    whole_collections.set_ranking: collections.set_ranking,
    whole_collections.remove_ranking: collections.remove_ranking,
    whole_collections.hold: collections.hold,
    whole_collections.set_synonyms: collections.set_synonyms,
    whole_collections.show_synonyms: collections.show_synonyms,
    whole_collections.remove_synonyms: collections.remove_synonyms,
    whole_feedback.write: feedback.write,
    whole_feedback.list_feedback: feedback.list_feedback,
    whole_feedback.delete: feedback.delete,
    whole_evaluation.keep: collections.keep_evaluation,
    whole_evaluation.show: collections.show_evaluation,
}
OF_A_SHARD = {whole_jobs.reindex, whole_jobs.tune, whole_jobs.erase, whole_jobs.rollback}  # its own indexes
# Of two collections of one name, that in one piece, which only this service knows.
OF_EITHER = {whole_collections.show, whole_collections.rename, whole_collections.delete}
OF_ALL: dict[object, Handler] = {
    whole_searching.search_collections: searching.search_collections,
    whole_collections.create: collections.create,
    whole_collections.set_alias: aliases.set_alias,
    whole_collections.remove_alias: aliases.remove_alias,
    whole_jobs.show: jobs.show,
    whole_jobs.list_jobs: jobs.list_jobs,
    whole_collections.list_collections: collections.list_collections,
}


async def handler_for(request: web.Request, usual: Handler) -> Handler:
    """Return what answers a request: its usual handler, or that of collections in several shards. If an alias goes from
    one kind of collection to the other before its collection is found, the other one answers."""
    chosen = await _handler_for_shards(request)
    if request.app[NODES] is None or "collection" not in request.match_info:
        return chosen or usual

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await (chosen or usual)(request)
        except NotFound as error:
            again = await _handler_for_shards(request) if error.param == "collection" else chosen
            if again is chosen:
                raise
        return await (again or usual)(request)

    return answer


async def _handler_for_shards(request: web.Request) -> Handler | None:
    """Return what answers a request instead of its handler, because it is for a collection in several shards. Raises
    Conflict for what such collections do not have."""
    nodes, handler = request.app[NODES], request.match_info.handler
    if nodes is None:
        return None
    if (name := request.match_info.get("collection")) is None:
        return OF_ALL.get(handler)
    caller, catalog = PRINCIPAL.get(), request.app[CATALOG]
    full = caller.full(name)
    if not caller.may_use(full, ChainMap(catalog.aliases, nodes.aliases())):
        return None  # its handler says what it says of any name that the caller does not see
    if catalog.holds(full):
        shard = ShardName.parse(full)
        if shard is not None and changes(request) and caller is not NODE:
            raise Conflict(
                f"{name!r} is a shard: what changes is its collection, {shard.collection!r}",
                param="collection",
            )
        if shard is not None:
            held = catalog.collections.get(full)
            serving.require_newest(request.app, held.moving if held else None)
        elif full in catalog.collections and full in nodes.collections() and handler not in OF_EITHER:
            raise Conflict(
                f"{name!r} is a collection here, and one in shards at other nodes: rename or delete this one",
                param="collection",
            )
        return None
    found = await nodes.find(full)
    if found is None:
        nodes.require_known(full)
        return None
    if handler not in OF_SHARDS:
        raise Conflict(
            f"{name!r} is divided into {found.of} shards, and this is not for such collections yet; "
            f"a shard is a collection of its own at its node, such as {found.shard(0)}",
            param="collection",
        )
    return OF_SHARDS[handler]


def changes(request: web.Request) -> bool:
    """Whether a request changes what is in a collection, or how it answers."""
    handler = request.match_info.handler
    scopes = {"write", "admin"} if request.method != "GET" else set[str]()
    return request.app[SCOPES].get(handler) in scopes and handler not in OF_A_SHARD


def add_shard_routes(app: web.Application) -> None:
    """Add the paths on which nodes ask each other. They are no part of the API, so it does not describe them."""
    scopes = app[SCOPES]
    assert isinstance(scopes, dict)
    for method, path, handler in (
        ("GET", "/v1/shards", serving.connect),
        ("PUT", "/v1/shards/{shard}", taking.begin),
        ("GET", "/v1/shards/{shard}", taking.show),
        ("POST", "/v1/shards/{shard}/changes", giving.changes),
        ("GET", "/v1/shards/{shard}/indexes", giving.indexes),
        ("GET", "/v1/shards/{shard}/feedback", giving.feedback),
        ("PUT", f"/v1/shards/{{shard}}/{aliases.PATH}", aliases.keep),
    ):
        app.router.add_route(method, path, handler)
        scopes[handler] = "node"
    app[serving.CONNECTIONS], app[serving.ON_THREADS] = {}, set()
    app[giving.GIVEN] = asyncio.Event()
    app.on_shutdown.append(serving.close_all)


async def nodes_ctx(app: web.Application) -> AsyncIterator[None]:
    settings = app[CONFIG].cluster
    nodes = app[NODES] = Nodes(settings) if settings.nodes else None
    app[jobs.SHARD_JOBS], app[moves.MOVES], app[taking.TAKES], app[RUNNING] = {}, {}, {}, set()
    app[renaming.GOING_BACK] = {}
    app[RELOADED].append(partial(reload, app))
    if nodes is None:
        yield
        return
    app[METRICS].watch(partial(state.metrics, nodes))
    await taking.remove_copies(app)
    keep_running(app, nodes.keep_looking())
    yield
    await end_all(app)
    await nodes.close()


async def settling_ctx(app: web.Application) -> AsyncIterator[None]:
    """Settle what was given to other nodes. It needs all that deletes collections."""
    if (nodes := app[NODES]) is not None:
        keep_running(app, giving.keep_settling(app, nodes))
    yield


def reload(app: web.Application) -> None:
    """Take over the nodes that the configuration names now."""
    if (nodes := app[NODES]) is not None:
        nodes.reload()
    elif app[CONFIG].cluster.nodes:
        logger.warning("[cluster] nodes: a service that was started without any needs a restart")
