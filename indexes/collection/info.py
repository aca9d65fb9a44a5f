"""Counts, sizes and settings of a collection, for operators."""

from __future__ import annotations

from dataclasses import dataclass

from indexes.base.model import Tier
from indexes.dense.cold_skips import ColdState
from indexes.log.owed import Owed
from indexes.parts.assembly import segment_passages
from indexes.parts.generation import Generation
from indexes.parts.manifest import Moves, RecallEvidence
from indexes.parts.segment import Segment
from indexes.parts.snapshot import Snapshot
from indexes.parts.visible import sum_by_tier
from indexes.rebuild.chosen import TunedSettings


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Search settings of the live generation. `tuned`: set after the build, by `Collection.set_search`."""

    ef: int
    probes: int
    reach: float
    rescored: int
    tuned: bool


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """Counts and sizes of one collection. `memory_bytes` excludes index files loaded through `residency`:
    `resident_bytes` of them are copied into memory, and `mapped_bytes` are memory-mapped.

    `moves`: passages that the live generation's rebuild moved between tiers; `cold`: how often queries needed the cold
    tier; `recall`: measured by that rebuild, or by tuning since, on the queries of `recall_evidence` (None: there
    was nothing to measure); `recall_target`: for the next rebuild. `owed_bytes`:
    deleted or replaced content that is not erased yet, the oldest since `owed_since_ms`.
    """

    documents: int
    languages: dict[str, int]
    passages: dict[Tier, int]
    dead_passages: int
    segments: int
    seq: int
    generation: int
    generations: list[int]
    recall: dict[str, float]
    recall_evidence: RecallEvidence | None
    recall_target: float
    search: SearchSettings | None
    memory_bytes: int
    tier_bytes: dict[Tier, int]
    resident_bytes: int
    mapped_bytes: int
    moves: Moves | None
    cold: ColdState | None
    owed_bytes: int
    owed_since_ms: int | None


def describe(
    snapshot: Snapshot,
    *,
    documents: int,
    generations: list[int],
    recall_target: float,
    chosen: TunedSettings | None,
    owed: Owed,
) -> CollectionInfo:
    """The info for a snapshot. `chosen` is used only if it is for the snapshot's generation."""
    parts = [visible.part for visible in snapshot.parts]
    generation = next((part for part in parts if isinstance(part, Generation)), None)
    files = [one.files for one in parts if isinstance(one, (Generation, Segment)) and one.files]
    tuned = chosen if chosen and generation and chosen.fits(generation) else None
    measured = tuned or (generation.manifest if generation else None)
    return CollectionInfo(
        documents=documents,
        languages=snapshot.languages(),
        passages=snapshot.counts(),
        dead_passages=snapshot.dead,
        segments=segment_passages(snapshot)[0],
        seq=snapshot.seq,
        generation=snapshot.generation,
        generations=generations,
        recall=measured.recall if measured else {},
        recall_evidence=measured.evidence if measured else None,
        recall_target=recall_target,
        search=search_settings(generation, tuned=tuned is not None) if generation else None,
        memory_bytes=sum(part.bytes for part in parts),
        tier_bytes=sum_by_tier(part.tier_bytes() for part in parts),
        resident_bytes=sum(one.copied for one in files),
        mapped_bytes=sum(one.mapped for one in files),
        moves=generation.manifest.moves if generation else None,
        cold=cold_state(snapshot) if generation and generation.manifest.cold else None,
        owed_bytes=owed.bytes,
        owed_since_ms=owed.since_ms,
    )


def search_settings(generation: Generation, *, tuned: bool) -> SearchSettings:
    ef, cold = generation.search_settings
    return SearchSettings(ef, cold.probes, cold.reach, cold.rescored, tuned)


def cold_state(snapshot: Snapshot) -> ColdState:
    return snapshot.skipper.state() if snapshot.skipper else ColdState("always")
