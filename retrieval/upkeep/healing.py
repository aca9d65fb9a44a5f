"""Reopens quarantined collections once their files are readable: disk and network errors may be temporary."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final

from indexes.directory.catalog import Catalog

logger = logging.getLogger(__name__)

# A retry reads the whole log, so retries back off.
FIRST_S: Final = 1.0
LONGEST_S: Final = 600.0


async def keep_healing(catalog: Catalog, asked: asyncio.Event) -> None:
    """Retry quarantined collections until cancelled. Each is retried after a second, then after twice as long each
    time, up to ten minutes; all at once when `asked` is set."""
    waits: dict[str, tuple[float, float]] = {}  # by name: the delay, and when it ends
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), FIRST_S)
        await asyncio.to_thread(catalog.keep_locked)
        at_once = asked.is_set()
        asked.clear()
        now = time.monotonic()
        waits = {name: waits.get(name, (FIRST_S, now + FIRST_S)) for name in catalog.quarantined}
        for name, (wait_s, due) in list(waits.items()):
            if now < due and not at_once:
                continue
            if await asyncio.to_thread(catalog.retry, name):
                logger.warning("collection %s is readable and serving again", name)
            longer_s = min(2 * wait_s, LONGEST_S)
            waits[name] = longer_s, time.monotonic() + longer_s
