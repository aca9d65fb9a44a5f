"""The typed keys of everything the application carries, each defined once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from aiohttp import web

from indexes.directory.catalog import Catalog
from indexes.store.following import Follower
from indexes.store.uploading import Uploader
from retrieval.access.auth import Keys, Needed
from retrieval.access.limits import Limiter
from retrieval.admission.ceiling import Ceiling, Held
from retrieval.admission.gates import AdmittedRequest, Gates, Load
from retrieval.admission.pace import Pace
from retrieval.base.cancellation import Stopping
from retrieval.base.config import Config
from retrieval.cache import SharedStore
from retrieval.context.llm import LanguageModel
from retrieval.documents.extracting import TextExtractor
from retrieval.documents.uploads import Uploads
from retrieval.embedding.embedders import Embedders
from retrieval.observe.metrics import Metrics
from retrieval.processes.asking import InProcesses
from retrieval.processes.pool import SearchProcesses
from retrieval.search.pipeline import Pipeline
from retrieval.search.reranking import Reranker
from retrieval.upkeep.feedback import Feedback
from retrieval.upkeep.frequent import Frequent
from retrieval.upkeep.query_log import QueryLog
from retrieval.upkeep.starting import Start
from retrieval.upkeep.tasks import Tasks

CONFIG = web.AppKey("CONFIG", Config)
FOLDERS = web.AppKey[tuple[Path, ...]]("FOLDERS")  # of data and models; answers must not reveal these paths
METRICS = web.AppKey("METRICS", Metrics)
KEYS = web.AppKey("KEYS", Keys)
LIMITER = web.AppKey("LIMITER", Limiter)
SCOPES = web.AppKey[Mapping[object, Needed]]("SCOPES")  # the scope each handler requires
CEILING = web.AppKey("CEILING", Ceiling)
BODY = web.RequestKey("BODY", bytes)  # the body, if it was read before the handler
HELD = web.RequestKey("HELD", Held)
GATES = web.AppKey("GATES", Gates)
ENTRY = web.RequestKey("ENTRY", AdmittedRequest)  # the admission of a request that has a load class
LOADS = web.AppKey[Mapping[object, Load]]("LOADS")  # the load class of each handler that has one
CATALOG = web.AppKey("CATALOG", Catalog)
STORE = web.AppKey[Uploader | Follower | None]("STORE")  # None without a store
SHARED = web.AppKey[SharedStore | None]("SHARED")  # state shared between services; None without Redis
EMBEDDERS = web.AppKey("EMBEDDERS", Embedders)
PIPELINE = web.AppKey("PIPELINE", Pipeline)
PROCESSES = web.AppKey("PROCESSES", SearchProcesses)
IN_PROCESSES = web.AppKey("IN_PROCESSES", InProcesses)
RERANKER = web.AppKey[Reranker | None]("RERANKER")  # None if none is configured or it cannot be loaded
LLM = web.AppKey("LLM", LanguageModel)
QUERY_LOG = web.AppKey("QUERY_LOG", QueryLog)
FREQUENT = web.AppKey("FREQUENT", Frequent)
FEEDBACK = web.AppKey("FEEDBACK", Feedback)
UPLOADS = web.AppKey("UPLOADS", Uploads)
TEXTS = web.AppKey("TEXTS", TextExtractor)  # texts of uploads
# When collections were last used, until store_expiry has stored it.
USED = web.AppKey("USED", dict[str, float])
TASKS = web.AppKey("TASKS", Tasks)
API = web.AppKey[Callable[[], dict[str, Any]]]("API")  # the description of all operations
PARAMETERS = web.AppKey(  # allowed in the query string, by handler; others are refused
    "PARAMETERS", dict[object, tuple[str, ...]]
)
PACES = web.AppKey[MutableMapping[str, Pace]]("PACES")  # of the standing queries of each key
READY = web.AppKey("READY", dict[str, bool])
RELOADED = web.AppKey[list[Callable[[], None]]]("RELOADED")  # called when CONFIG has changed
START = web.AppKey("START", Start)
STOPPING = web.AppKey("STOPPING", Stopping)
FAILED = web.AppKey("FAILED", asyncio.Event)  # set when storage has failed and the service must exit
