"""Settings of a collection in files beside its log: how it ranks, learned or set by hand, its synonyms, the aliases
of a collection in several shards, and what OpenAI's interface keeps of a vector store.

`ranking.json` holds the settings that override the configuration, and the evidence for them. A damaged file is left in
place and ignored: that costs ranking quality, not data.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec

from indexes.base.durable import decode_checked, publish, remove, with_checksum
from indexes.base.errors import Damaged
from indexes.lexical.synonyms import Synonyms

logger = logging.getLogger(__name__)

FORMAT = 1
RANKING, SYNONYMS, ALIASES = "ranking.json", "synonyms.json", "aliases.json"
VECTOR_STORE = "vector_store.json"


class RankingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranking settings; None or absent ones come from the configuration. `weight_dense` is from 0 to 1, BM25 has the
    rest. With `rerank`, searches that do not say whether to are reranked.

    The evidence is the gain in nDCG@10 on held-out queries with its 95 percent interval, and the number of judged
    `queries`; 0 and None if the settings were set by hand.
    """

    format: int = FORMAT
    method: Literal["rrf", "weighted"] | None = None
    weight_dense: float | None = None
    rerank: bool | None = None
    coefficients: dict[str, list[float]] = {}
    queries: int = 0
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    set_ms: int
    sha256: str = ""


class SynonymSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int = FORMAT
    synonyms: Synonyms
    set_ms: int
    sha256: str = ""

    @staticmethod
    def of(lists: Sequence[Sequence[str]], set_ms: int) -> SynonymSettings:
        return SynonymSettings(synonyms=Synonyms(tuple(map(tuple, lists))), set_ms=set_ms)


class AliasSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other names of a collection that this is the first shard of, each with the time at which it was given."""

    format: int = FORMAT
    names: dict[str, int] = {}
    sha256: str = ""


class VectorStoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a collection lacks as a vector store of OpenAI's. `used_at` is when one that expires was last used, in
    seconds since 1970, accurate to a few minutes.
    """

    format: int = FORMAT
    name: str | None = None
    description: str = ""
    metadata: dict[str, str] = {}
    expires_days: int | None = None
    used_at: int = 0
    sha256: str = ""


S = TypeVar("S", bound=msgspec.Struct)


class SettingsFile(Generic[S]):
    """Settings of one collection. `current` may be read from any thread."""

    def __init__(self, path: Path, kind: type[S]) -> None:
        self._path = path
        self._kind: type[S] = kind
        self._change = threading.Lock()
        self.current: S | None = None
        try:
            self.current = read_settings(path, kind)
        except (Damaged, OSError) as error:
            logger.error("%s is not used: %s", self._path, error)

    def set(self, settings: S) -> None:
        """Publish the settings. They are durable once this returns, and used by every search that starts afterwards."""
        self.change(lambda _: settings)

    def change(self, change: Callable[[S | None], S]) -> None:
        """Publish what is made of the current settings, with no other change in between."""
        with self._change:
            settings = change(self.current)
            publish(self._path, with_checksum(settings))
            self.current = settings

    def take(self, content: bytes | None) -> None:
        """Replace the file by that of another machine; None: there is none. Raises Damaged."""
        with self._change:
            if content != (self._path.read_bytes() if self._path.exists() else None):
                remove(self._path) if content is None else publish(self._path, content)
                self.current = read_settings(self._path, self._kind)

    def clear(self) -> None:
        """Remove the settings, durably. Idempotent."""
        with self._change:
            remove(self._path)
            self.current = None


def read_settings(path: Path, kind: type[S]) -> S | None:
    """Read settings; None if nothing was set. Raises Damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return decode_checked(path, content, kind, FORMAT)
