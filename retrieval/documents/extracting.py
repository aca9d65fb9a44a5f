"""Text of uploaded files: of those that are text as they come, and of PDF and office files by an extractor.

Extraction runs native code on files that may be broken or hostile. So it is passed in from outside the service, works
in a process of its own with bounds on time and memory, and ends with the request that wants it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from retrieval.documents.uploads import text_of

AT_ONCE = 2  # each takes up to a core and some memory; more requests wait


class Extraction(Protocol):
    """How the text of one file is found."""

    def run(self) -> str:
        """Blocks until the text is there. Raises InvalidInput with the reason why there is none, such as what this
        machine lacks."""

    def end(self) -> None:
        """From any thread: `run` raises soon."""


# From a file's bytes, its name and the most bytes that its text may have; None for a file of another kind.
Extract = Callable[[bytes, str, int], Extraction | None]


class Texts:
    """Finds the text of files, a few at a time. For one event loop."""

    def __init__(self, extract: Extract | None) -> None:
        self._extract = extract or (lambda content, filename, bytes_max: None)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def find(self, content: bytes, filename: str, bytes_max: int) -> str:
        """Raises InvalidInput. A caller that leaves ends the extraction."""
        extraction = self._extract(content, filename, bytes_max)
        if extraction is None:
            return await asyncio.to_thread(text_of, content, filename)
        async with self._turns:
            running = asyncio.ensure_future(asyncio.to_thread(extraction.run))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                extraction.end()
                await asyncio.wait([running])
                if not running.cancelled():
                    running.exception()  # it is of no interest any more
                raise
