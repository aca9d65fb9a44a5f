"""The options of the index library, from the configuration."""

from __future__ import annotations

from indexes.base.model import ColdPolicy, IndexOptions
from indexes.base.residency import Budget
from retrieval.base.settings import Config

# During a swap the files of the old and the new generation are both resident: briefly half of the ceiling.
RESIDENT_SHARE = 4


def options_of(config: Config, memory_bytes_max: int = 0) -> IndexOptions:
    """Return the index options. `memory_bytes_max` is the process's limit; with 0, no files are kept resident."""
    index = config.index
    resident_bytes = min(index.resident_bytes or memory_bytes_max // RESIDENT_SHARE, memory_bytes_max)
    return IndexOptions(
        delta_passages_max=index.delta_passages_max,
        segments_max=index.segments_max,
        dead_fraction_max=index.dead_fraction_max,
        recall_target=index.recall_target,
        recall_floor=index.recall_floor,
        build_threads=index.build_threads,
        build_timeout_s=index.build_timeout_s,
        generations_kept=index.generations_kept,
        commit_ops_max=index.commit_ops_max,
        exact_scan_passages_max=config.search.exact_scan_passages_max,
        resident=Budget(resident_bytes),
        cold=ColdPolicy(config.search.cold, config.search.cold_loss_budget, config.search.cold_audit_share),
    )
