"""Vector stores that expire: one that was not used for the days that its `expires_after` names is deleted.

Use is any request to the collection but a GET, in OpenAI's dialect or in ours: a search, a listing that follows a
cursor, a write. It is noted in memory, and kept beside the collection (`Details.used_at`) with each look, so a kill
loses some minutes of it. Only stores that were given an expiry are ever deleted.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
from aiohttp import web

from indexes.base.errors import NearlineError
from indexes.collection.collection import Collection
from retrieval.dialects.vector_stores import DAY_S, Details, change_details, details_of, last_written_s
from retrieval.handlers.collections import remove
from retrieval.handlers.state import CATALOG, USED

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 600.0


async def keep_expiring(app: web.Application) -> None:
    """Every so often, for ever."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        await delete_expired(app, time.time())


async def delete_expired(app: web.Application, now: float) -> None:
    """Delete each store whose time has come. One that cannot be deleted now is tried again with the next look."""
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


def is_due(collection: Collection, used_at: int, now: float) -> bool:
    """Keeps `used_at`, seconds since 1970, where it is news. Reads and writes the disk: for a thread."""
    days = details_of(collection).expires_days
    if days is None:
        return False

    def note(details: Details) -> Details:
        return msgspec.structs.replace(details, used_at=used_at) if used_at > details.used_at else details

    kept = change_details(collection, note)
    return max(kept.used_at, last_written_s(collection)) + days * DAY_S <= now
