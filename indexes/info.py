"""What a collection says of itself to whoever operates it."""

from __future__ import annotations

from dataclasses import dataclass

from indexes.build.placement import Moves
from indexes.dense.skipping import ColdState
from indexes.model import Tier


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How the live generation is searched. `tuned`: chosen after it was built, by `Collection.set_search`."""

    ef: int
    probes: int
    rescored: int
    filtered_share: float
    tuned: bool


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """Counts and sizes of one collection. `memory_bytes` leaves mapped files out, `mapped_bytes` is those.

    `moves` is what the rebuild of the live generation moved between tiers; `cold` how often queries needed that one;
    `recall` what that rebuild measured; `recall_target` what the next one aims for.
    """

    documents: int
    passages: dict[Tier, int]
    dead_passages: int
    segments: int
    seq: int
    generation: int
    generations: list[int]
    recall: dict[str, float]
    recall_target: float
    search: SearchSettings | None
    memory_bytes: int
    tier_bytes: dict[Tier, int]
    mapped_bytes: int
    moves: Moves | None
    cold: ColdState | None
