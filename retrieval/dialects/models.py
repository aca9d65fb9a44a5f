"""The models that clients may name: those exported, and the aliases that the configuration gives them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from retrieval.dialects.errors import ModelNotFound
from retrieval.embedding.models import MANIFEST, Manifest
from retrieval.keys import CONFIG, EMBEDDERS


@dataclass(frozen=True, slots=True)
class Listed:
    """A name, the exported model it stands for (itself, where it is no alias), and when that was exported."""

    name: str
    model: str
    manifest: Manifest
    exported: datetime


def model_of(app: web.Application, name: str) -> str:
    """What an alias stands for; any other name stands for itself. Nothing says that it exists."""
    return app[CONFIG].models.aliases.get(name, name)


async def list_models(app: web.Application) -> list[Listed]:
    """Every exported model and every alias of one, by name. An alias of what is not there is left out."""
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
    return sorted(
        name for name in {*exported, *app[CONFIG].models.aliases} if model_of(app, name) in exported
    )


def found(app: web.Application, name: str) -> Listed:
    model = model_of(app, name)
    path = Path(app[CONFIG].models.folder) / model / MANIFEST
    exported = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return Listed(name, model, app[EMBEDDERS].manifest(model), exported)
