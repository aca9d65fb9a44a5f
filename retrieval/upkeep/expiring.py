"""Deletes documents that have expired. From their instant on searches hide them; this makes it so on the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from indexes.base.errors import NearlineError
from indexes.collection.collection import Collection

logger = logging.getLogger(__name__)


async def keep_deleting(collections: Callable[[], Mapping[str, Collection]], every_s: float) -> None:
    """Until cancelled. A collection whose deletion fails is tried again the next time."""
    while True:
        await asyncio.sleep(every_s)
        for name, collection in sorted(collections().items()):
            try:
                if deleted := await delete_expired(collection):
                    logger.info("deleted %d expired documents of %s", deleted, name)
            except NearlineError as error:
                logger.warning("expired documents of %s are not deleted yet: %s", name, error.message)
            except Exception:
                logger.exception("expired documents of %s are not deleted yet", name)


async def delete_expired(collection: Collection) -> int:
    """How many documents it deleted, in commits of at most `commit_ops_max` passages and their documents. One that is
    replaced or patched meanwhile has new passages and stays."""
    passages, most = collection.snapshot.expired, collection.options.commit_ops_max
    deleted = 0
    for at in range(0, len(passages), most):
        done = await asyncio.wrap_future(collection.delete_holding(passages[at : at + most]))
        deleted += done.deleted
    return deleted
