"""Search settings that were chosen for a collection after its generation was built: `search.json` beside `CURRENT`.

The file holds the recall that the collection wants, to which every later generation is built, and settings for one
generation, named by the checksum of its manifest. Another generation, older or newer, searches with what its own
manifest says. A file that is damaged is left alone and not used: it costs speed or recall, no data.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from indexes.dense.cold import ColdSettings
from indexes.durable import publish, with_checksum
from indexes.parts.generation import Generation

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
FILE = "search.json"


class TunedSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`recall` at 10 on queries the settings were not chosen by, by tier; `seal`: SHA-256 in the manifest."""

    format_version: int = FORMAT_VERSION
    recall_target: float
    generation: int
    seal: str
    ef: int
    search: ColdSettings
    recall: dict[str, float]
    chosen_ms: int
    sha256: str = ""

    def fits(self, generation: Generation) -> bool:
        return generation.manifest.sha256 == self.seal

    def apply(self, generation: Generation) -> None:
        """To the generation they were chosen for; another one stays as it is."""
        if self.fits(generation):
            generation.tune(ef=self.ef, cold=self.search)


def save_chosen(collection: Path, chosen: TunedSettings) -> None:
    """Durable once this returns."""
    publish(collection / FILE, with_checksum(chosen))


def read_chosen(collection: Path) -> TunedSettings | None:
    """None where nothing was chosen, or where the file cannot be believed."""
    path = collection / FILE
    try:
        content = path.read_bytes()
        chosen = msgspec.json.decode(content, type=TunedSettings)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.error("%s is not used: %s", path, error)
        return None
    if chosen.format_version != FORMAT_VERSION or with_checksum(chosen) != content:
        logger.error("%s is not used: another format, or its checksum differs", path)
        return None
    return chosen
