"""Text of uploaded files: plain text as it is, PDF and office files through an extractor.

Extraction runs native code on files that may be broken or hostile. The extractor is therefore passed in from outside
the service, runs in its own process with time and memory limits, and is cancelled with the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import PurePath
from typing import Protocol

from indexes.base.errors import TooLarge
from indexes.base.model import ACL_HEAD_CHARS, NAMES_ACL
from retrieval.documents.uploads import text_of

AT_ONCE = 2  # each takes up to a core and some memory; others wait
CHARS_FREE = 65_536  # that any file may have, however small


class Extraction(Protocol):
    """The extraction of one file's text."""

    def run(self) -> str:
        """Block until the text is extracted. Raises InvalidInput with the reason for a failure, such as a missing
        program."""

    def end(self) -> None:
        """Cancel, from any thread: `run` raises soon."""


def names_acl(text: str, filename: str) -> bool:
    """Whether front matter, or a column of a workbook, says which groups may see the text. Only `nearline ingest` reads
    that, so as a document of one text everybody could see it."""
    if PurePath(filename).suffix.lower() == ".xlsx":
        return NAMES_ACL.search(text) is not None
    mark = text[:3]
    if mark not in ("---", "+++"):
        return False
    end = text.find(f"\n{mark}", len(mark))
    return NAMES_ACL.search(text, 0, end if end >= 0 else ACL_HEAD_CHARS) is not None


# Takes a file's bytes, its name and the maximum bytes of its text; returns None for an unsupported type.
Extract = Callable[[bytes, str, int], Extraction | None]


class TextExtractor:
    """Extracts the text of files, a few at a time. Use it on one event loop."""

    def __init__(self, extract: Extract | None) -> None:
        self._extract = extract or (lambda content, filename, bytes_max: None)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def find(self, content: bytes, filename: str, bytes_max: int, factor_max: int) -> str:
        """Return the text. Raises InvalidInput, and TooLarge for a file that unpacks to more than `factor_max`
        characters for each of its bytes. Cancelling the caller cancels the extraction."""
        extraction = self._extract(content, filename, bytes_max)
        if extraction is None:
            return await asyncio.to_thread(text_of, content, filename)
        text = await self._run(extraction)
        allowed = max(CHARS_FREE, factor_max * len(content))
        if len(text) > allowed:
            raise TooLarge(
                f"the file {filename!r} unpacks to {len(text)} characters of text, and {allowed} are allowed for its "
                f"{len(content)} bytes (files.text_factor_max)",
                param="file_id",
            )
        return text

    async def _run(self, extraction: Extraction) -> str:
        async with self._turns:
            running = asyncio.ensure_future(asyncio.to_thread(extraction.run))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                extraction.end()
                await asyncio.wait([running])
                if not running.cancelled():
                    running.exception()  # retrieve it so that asyncio does not log it
                raise
