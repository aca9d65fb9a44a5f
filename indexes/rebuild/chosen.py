"""Search settings chosen by tuning after a generation was built: `search.json` beside `CURRENT`.

The file holds the collection's recall target, for every later build, and settings for one generation, identified by
its manifest's checksum. Other generations use the settings in their own manifests. A damaged file is left in place and
ignored: that costs speed or recall, not data.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from indexes.base.durable import publish, with_checksum
from indexes.dense.cold import ColdSettings
from indexes.parts.generation import Generation
from indexes.parts.manifest import RecallEvidence

logger = logging.getLogger(__name__)

FORMAT = 1
FILE = "search.json"


class TunedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`recall`: recall@10 by tier, on held-out queries, with its `evidence`; `seal`: the manifest's SHA-256."""

    format: int = FORMAT
    recall_target: float
    generation: int
    seal: str
    ef: int
    search: ColdSettings
    recall: dict[str, float]
    evidence: RecallEvidence | None = None
    chosen_ms: int
    sha256: str = ""

    def fits(self, generation: Generation) -> bool:
        return generation.manifest.sha256 == self.seal

    def apply(self, generation: Generation) -> None:
        """Apply to the generation they were chosen for; any other is left unchanged."""
        if self.fits(generation):
            generation.tune(ef=self.ef, cold=self.search)


def save_chosen(collection: Path, chosen: TunedSettings) -> None:
    """Save the settings. They are durable once this returns."""
    publish(collection / FILE, with_checksum(chosen))


def read_chosen(collection: Path) -> TunedSettings | None:
    """Read the chosen settings; None if nothing was chosen or the file is damaged."""
    path = collection / FILE
    try:
        content = path.read_bytes()
        chosen = msgspec.json.decode(content, type=TunedSettings)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.error("%s is not used: %s", path, error)
        return None
    if chosen.format != FORMAT or with_checksum(chosen) != content:
        logger.error("%s is not used: another format, or its checksum differs", path)
        return None
    return chosen
