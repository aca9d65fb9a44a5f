"""Deletes expired documents. Searches hide a document from the moment it expires; this removes it from disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from indexes.base.errors import NearlineError
from indexes.collection.collection import Collection

logger = logging.getLogger(__name__)


async def keep_deleting(collections: Callable[[], Mapping[str, Collection]], every_s: float) -> None:
    """Delete expired documents until cancelled. A collection whose deletion fails is retried in the next round."""
    while True:
        await asyncio.sleep(every_s)
        for name, collection in sorted(collections().items()):
            try:
                if deleted := await delete_expired(collection):
                    logger.info("deleted %d expired documents of %s", deleted, name)
            except NearlineError as error:
                logger.warning("cannot delete expired documents of %s yet: %s", name, error.message)
            except Exception:
                logger.exception("cannot delete expired documents of %s yet", name)


async def delete_expired(collection: Collection) -> int:
    """Delete expired documents and return how many. Commits have at most `commit_ops_max` passages and their
    documents. A document that is replaced or patched before its turn has new passages and stays."""
    passages, most = collection.snapshot.expired, collection.options.commit_ops_max
    deleted = 0
    for at in range(0, len(passages), most):
        done = await asyncio.wrap_future(collection.delete_holding(passages[at : at + most]))
        deleted += done.deleted
    return deleted
