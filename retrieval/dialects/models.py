"""The models that clients may name: exported models, their configured aliases, and the names that other servers use for
the same model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from retrieval.embedding.models import MANIFEST, ModelManifest
from retrieval.handlers.error_shapes import ModelNotFound
from retrieval.handlers.state import CONFIG, EMBEDDERS

# Ollama's tags of the 22M model (33m and l12-v2 are another model), and its name on Hugging Face.
USUAL_NAMES = dict.fromkeys(
    (
        "all-minilm",
        "all-minilm:22m",
        "all-minilm:l6-v2",
        "all-minilm:22m-l6-v2-fp16",
        "sentence-transformers/all-MiniLM-L6-v2",
    ),
    "all-MiniLM-L6-v2",
)


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A name, the exported model it refers to (itself if it is not an alias), and when that model was exported."""

    name: str
    model: str
    manifest: ModelManifest
    exported: datetime


def model_of(app: web.Application, name: str) -> str:
    """Resolve a configured alias, or a usual name that no exported model has; return any other name unchanged. The
    model may not exist."""
    if (configured := app[CONFIG].models.aliases.get(name)) is not None:
        return configured
    usual = USUAL_NAMES.get(name)
    return usual if usual is not None and not app[EMBEDDERS].is_exported(name) else name


async def list_models(app: web.Application) -> list[NamedModel]:
    """List every exported model and alias, sorted by name, without aliases of models that do not exist."""
    return await asyncio.to_thread(lambda: [read_model(app, name) for name in known_names(app)])


async def find_model(app: web.Application, name: str) -> NamedModel:
    """Find the model with this name or alias. Raises ModelNotFound."""

    def work() -> NamedModel:
        known = known_names(app)
        if name not in known:
            raise ModelNotFound(name, known)
        return read_model(app, name)

    return await asyncio.to_thread(work)


def known_names(app: web.Application) -> list[str]:
    """Return all names that clients may use, sorted. Reads the models folder: call it on a thread."""
    exported = app[EMBEDDERS].names()
    names = {*exported, *app[CONFIG].models.aliases, *USUAL_NAMES}
    return sorted(name for name in names if model_of(app, name) in exported)


def read_model(app: web.Application, name: str) -> NamedModel:
    model = model_of(app, name)
    path = Path(app[CONFIG].models.folder) / model / MANIFEST
    exported = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return NamedModel(name, model, app[EMBEDDERS].manifest(model), exported)
