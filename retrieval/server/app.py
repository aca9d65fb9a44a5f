"""Assembles the application. What each part does is documented where it is defined."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from aiohttp import web

from retrieval.access.auth import Keys
from retrieval.access.limits import Limiter
from retrieval.admission.ceiling import Ceiling
from retrieval.admission.gates import Gates
from retrieval.base.cancellation import Stopping
from retrieval.base.config import Config
from retrieval.cluster.routing import add_shard_routes, nodes_ctx, settling_ctx
from retrieval.dialects.page_ends import PAGE_ENDS, PageEnds
from retrieval.documents.extracting import Extract, TextExtractor
from retrieval.handlers.browsers import protective_headers
from retrieval.handlers.state import (
    CEILING,
    CONFIG,
    FOLDERS,
    GATES,
    KEYS,
    LIMITER,
    METRICS,
    PACES,
    PROCESSES,
    READY,
    RELOADED,
    START,
    STOPPING,
    TEXTS,
    USED,
)
from retrieval.observe.metrics import Metrics
from retrieval.observe.tracing import trace
from retrieval.processes.pool import SearchProcesses, as_many_as_serve
from retrieval.server import lifecycle
from retrieval.server.door import DOOR, Door
from retrieval.server.middlewares import admit, cross_origin, errors_as_json, observe, within_grace
from retrieval.server.routes import ROUTES, add_routes
from retrieval.server.writer import tell_slot, writer_ctx
from retrieval.upkeep.starting import Start

FORM_FIELDS_MAX = 16  # an upload has four


def create_app(
    config: Config,
    data: Path,
    extract: Extract | None = None,
    search_command: Sequence[str] = (),
) -> web.Application:
    """Return a service over the data directory `data`, which is opened when the application starts.

    `extract` extracts the text of uploaded files that are not plain text; without it they are refused.
    `search_command` starts a search process (`SearchProcesses`); without it the service searches itself.

    Startup raises Damaged for unreadable keys, and NotADataDirectory, Locked or Damaged as `Catalog` documents.
    """
    app = web.Application(
        client_max_size=config.server.body_bytes_max,
        client_max_fields=FORM_FIELDS_MAX,
        middlewares=[
            observe,
            cross_origin,
            errors_as_json,
            within_grace,
            admit,
        ],
    )
    app.on_response_prepare.append(protective_headers)
    app.on_response_prepare.append(tell_slot)
    put_state(app, config, data, extract, search_command)
    app.cleanup_ctx.extend(contexts(data))
    if config.tracing.enabled:
        trace(app)
    add_routes(app)
    add_shard_routes(app)
    app[DOOR] = Door(
        app[GATES],
        app[KEYS],
        app[METRICS],
        {one.path: one.load for one in ROUTES if one.load and one.method == "POST"},
    )
    return app


def contexts(data: Path) -> list[Callable[[web.Application], AsyncIterator[None]]]:
    """List what opens and closes with the application. It is closed in reverse order: jobs first, then searches, then
    the models and the shared cache, and the log last."""
    return [
        lifecycle.catalog_ctx(data),
        writer_ctx,
        nodes_ctx,
        lifecycle.processes_ctx,
        lifecycle.privacy_ctx,
        lifecycle.shared_ctx,
        lifecycle.embedders_ctx,
        lifecycle.reranker_ctx,
        lifecycle.llm_ctx,
        lifecycle.query_log_ctx,
        lifecycle.feedback_ctx,
        lifecycle.uploads_ctx,
        lifecycle.pipeline_ctx,
        lifecycle.tasks_ctx,
        settling_ctx,
        lifecycle.expiry_ctx,
        lifecycle.loop_lag_ctx,
        lifecycle.memory_ctx,
        lifecycle.resting_ctx,
        lifecycle.ready_ctx,
        lifecycle.warm_ctx,
    ]


def put_state(
    app: web.Application,
    config: Config,
    data: Path,
    extract: Extract | None,
    search_command: Sequence[str],
) -> None:
    """Set what the application holds before its data directory is open. Raises Damaged for unreadable keys."""
    app[CONFIG] = config
    folders = (data, Path(config.models.folder))
    app[FOLDERS] = (*folders, *(folder.resolve() for folder in folders))
    app[METRICS] = Metrics()
    app[KEYS] = Keys(data, config.auth.groups_secret, cluster_secret=config.cluster.secret)
    app[LIMITER] = Limiter(data)
    app[CEILING] = Ceiling(config.server.memory_bytes_max)
    asked = config.server.search_processes
    count = as_many_as_serve(app[CEILING].bytes_max) if asked < 0 else asked
    app[PROCESSES] = SearchProcesses(search_command, count if search_command else 0, config, data)
    app[GATES] = Gates(config.admission)
    app[RELOADED] = [lambda: app[GATES].reload(config.admission), app[KEYS].reload]
    app[READY] = {"ready": False}
    app[START] = Start()
    app[STOPPING] = Stopping()
    app[TEXTS] = TextExtractor(extract)
    app[USED] = {}
    app[PAGE_ENDS] = PageEnds()
    app[PACES] = WeakValueDictionary()
