"""The models that clients may name: those exported, the aliases that the configuration gives them, and the names under
which other servers know the same model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from retrieval.embedding.models import MANIFEST, Manifest
from retrieval.handlers.error_shapes import ModelNotFound
from retrieval.handlers.state import CONFIG, EMBEDDERS

# Ollama's tags of the 22M model (33m and l12-v2 are another one), and its name on Hugging Face.
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
class Listed:
    """A name, the exported model it stands for (itself, where it is no alias), and when that was exported."""

    name: str
    model: str
    manifest: Manifest
    exported: datetime


def model_of(app: web.Application, name: str) -> str:
    """What a configured alias stands for, or a usual name that no exported model has; any other name stands for itself.
    Nothing says that it exists."""
    if (configured := app[CONFIG].models.aliases.get(name)) is not None:
        return configured
    usual = USUAL_NAMES.get(name)
    return usual if usual is not None and not app[EMBEDDERS].is_exported(name) else name


async def list_models(app: web.Application) -> list[Listed]:
    """Every exported model and every name of one, by name. An alias of what is not there is left out."""
    return await asyncio.to_thread(lambda: [found(app, name) for name in known_names(app)])


async def find_model(app: web.Application, name: str) -> Listed:
    """What a name stands for. Raises ModelNotFound."""

    def work() -> Listed:
        known = known_names(app)
        if name not in known:
            raise ModelNotFound(name, known)
        return found(app, name)

    return await asyncio.to_thread(work)


def known_names(app: web.Application) -> list[str]:
    """Reads the folder of models: call it on a thread."""
    exported = app[EMBEDDERS].names()
    names = {*exported, *app[CONFIG].models.aliases, *USUAL_NAMES}
    return sorted(name for name in names if model_of(app, name) in exported)


def found(app: web.Application, name: str) -> Listed:
    model = model_of(app, name)
    path = Path(app[CONFIG].models.folder) / model / MANIFEST
    exported = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return Listed(name, model, app[EMBEDDERS].manifest(model), exported)
