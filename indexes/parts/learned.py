"""A collection's own ranking settings, learned or set by hand: `ranking.json` beside its log.

The file holds the settings that override the configuration, and the evidence for them. A damaged file is left in place
and ignored: that costs ranking quality, not data.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Literal

import msgspec

from indexes.base.durable import decode_checked, publish, remove, with_checksum
from indexes.base.errors import Damaged

logger = logging.getLogger(__name__)

FORMAT = 1
FILE = "ranking.json"


class RankingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranking settings; None or absent ones come from the configuration. `weight_dense` is from 0 to 1, BM25 has the
    rest.

    The evidence is the gain in nDCG@10 on held-out queries with its 95 percent interval, and the number of judged
    `queries`; 0 and None if the settings were set by hand.
    """

    format: int = FORMAT
    method: Literal["rrf", "weighted"] | None = None
    weight_dense: float | None = None
    coefficients: dict[str, list[float]] = {}
    queries: int = 0
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    set_ms: int
    sha256: str = ""


class RankingFile:
    """The ranking settings of one collection. `current` may be read from any thread."""

    def __init__(self, collection: Path) -> None:
        self._path = collection / FILE
        self._change = threading.Lock()
        self.current: RankingSettings | None = None
        try:
            self.current = read_ranking(collection)
        except (Damaged, OSError) as error:
            logger.error("%s is not used: %s", self._path, error)

    def set(self, settings: RankingSettings) -> None:
        """Publish the settings. They are durable once this returns, and used by every search that starts afterwards."""
        with self._change:
            publish(self._path, with_checksum(settings))
            self.current = settings

    def clear(self) -> None:
        """Go back to the configuration, durably. Idempotent."""
        with self._change:
            remove(self._path)
            self.current = None


def read_ranking(collection: Path) -> RankingSettings | None:
    """Read a collection's ranking settings; None if nothing was set. Raises Damaged."""
    path = collection / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return decode_checked(path, content, RankingSettings, FORMAT)
