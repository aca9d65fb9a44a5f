"""Deletes vector stores that were not used for the days in their `expires_after`.

Every request to the collection except GET counts as use, in OpenAI's dialect or in ours: a search, a scroll, a write.
Uses are noted in memory and saved at each check and at the end (`VectorStoreSettings.used_at`), so a kill loses the
last few minutes. Only stores with an expiry are ever deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

import msgspec
from aiohttp import web

from indexes.base.errors import NearlineError
from indexes.collection.collection import Collection
from indexes.parts.learned import VectorStoreSettings
from retrieval.dialects.vector_stores import DAY_S, last_used_s
from retrieval.handlers.collections import remove
from retrieval.handlers.state import CATALOG, USED

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 600.0


async def delete_expired_regularly(app: web.Application) -> None:
    """Delete expired stores every LOOK_EVERY_S until cancelled."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        await delete_expired(app, time.time())


async def delete_expired(app: web.Application, now: float) -> None:
    """Delete each expired store. A store that cannot be deleted is tried again at the next check."""
    noted = app[USED]
    used = noted.copy()
    noted.clear()
    for name, collection in list(app[CATALOG].collections.items()):
        due = False
        try:
            due = await asyncio.to_thread(is_due, collection, int(used.get(name, 0)), now)
            if due:
                await remove(app, name)
                logger.warning("the vector store %s has expired, and is deleted with its documents", name)
        except NearlineError as error:
            known = "has expired, and is not deleted yet" if due else "cannot be asked whether it expires"
            logger.warning("the vector store %s %s: %s", name, known, error)


async def save_uses(app: web.Application) -> None:
    """Save the uses that were noted since the last check, before the service ends."""
    for name, used_at in app[USED].items():
        if (collection := app[CATALOG].collections.get(name)) is not None:
            with contextlib.suppress(NearlineError):
                await asyncio.to_thread(is_due, collection, int(used_at), 0.0)


def is_due(collection: Collection, used_at: int, now: float) -> bool:
    """Save `used_at`, in seconds since 1970, if newer, and return whether the store has expired. Reads and writes the
    disk: call it on a thread."""
    settings = collection.vector_store.current
    if settings is None or settings.expires_days is None:
        return False

    def note(current: VectorStoreSettings | None) -> VectorStoreSettings:
        return msgspec.structs.replace(current or VectorStoreSettings(), used_at=used_at)

    if used_at > settings.used_at:
        collection.vector_store.change(note)
    return last_used_s(collection) + settings.expires_days * DAY_S <= now
