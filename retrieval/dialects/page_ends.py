"""Where pages of a vector store's files ended.

OpenAI's clients name the next page by the last file of the one before. A file that is changed in between, as by a loop
that sets attributes of what it lists, is written again and moves to the end; what it stood for is remembered here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from aiohttp import web

ENDS_MAX = 10_000

# A collection, and the groups of the callers for whom the page was made: others may not see its last file.
Listing = tuple[str, tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class PageEnd:
    """The position of the last file of a page that others follow, and the operation at which its listing began: what
    was written later is not part of it."""

    position: int
    seq: int


class PageEnds:
    """Thread-safe. Of a listing that comes long after others, or after a restart, nothing is known."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: OrderedDict[tuple[Listing, str], PageEnd] = OrderedDict()  # least recently noted first

    def note(self, listing: Listing, file_id: str, end: PageEnd) -> None:
        with self._lock:
            self._ends[listing, file_id] = end
            self._ends.move_to_end((listing, file_id))
            if len(self._ends) > ENDS_MAX:
                self._ends.popitem(last=False)

    def at(self, listing: Listing, file_id: str) -> PageEnd | None:
        with self._lock:
            return self._ends.get((listing, file_id))

    def forget(self, listing: Listing, file_id: str) -> None:
        """Forget a page that no other follows: what is written next belongs to the page after it."""
        with self._lock:
            self._ends.pop((listing, file_id), None)


PAGE_ENDS = web.AppKey("PAGE_ENDS", PageEnds)
