"""The ratios that matter, taken in one run: what Nearline costs beside its floor and beside what people use."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobs.benchmark.embed.child import BARE, NEARLINE, ONNX, OVER_HTTP, TORCH

MB = 1e6


def ratios(rows: dict[str, Any], fp32: str | None) -> dict[str, Any]:
    """None where one of the two was not measured, or not whole. Bulk and nDCG by collection."""
    ours, http = rows.get(NEARLINE, {}), rows.get(OVER_HTTP, {})
    return {
        "query_p50_nearline_over_bare_session": within_turns(ours, rows.get(BARE)),
        "query_p50_http_over_nearline": within_turns(http, ours),
        "query_p50_sentence_transformers_over_nearline": within_turns(rows.get(TORCH), ours),
        "bulk_nearline_over_bare_session": by_collection(ours, rows.get(BARE), "bulk_tokens_per_s"),
        "bulk_nearline_over_sentence_transformers": by_collection(ours, rows.get(TORCH), "bulk_tokens_per_s"),
        "bulk_nearline_over_onnx_fp32": by_collection(ours, rows.get(ONNX), "bulk_tokens_per_s"),
        "bulk_nearline_over_onnx_fp32_sorted": by_collection(
            ours, rows.get(ONNX), "bulk_tokens_per_s", "bulk_sorted_tokens_per_s"
        ),
        "ndcg_difference_to_fp32_percent": differences(ours, rows.get(fp32 or "")),
        "p99_while_writing_over_alone": beside(http, "writing", "clients"),
        "p99_while_embedding_over_alone": beside(http, "embedding", "clients"),
        "one_client_p99_while_writing_over_alone": beside(http, "writing", "one_client"),
        "one_client_p99_while_embedding_over_alone": beside(http, "embedding", "one_client"),
        "http_resident_mb": quotient(figure(http, "memory", "resident_bytes"), MB),
        "http_resident_mb_before_writing": before_writing(http),
        "http_cold_start_s": figure(http, "cold_start_s"),
    }


def figure(row: Any, *path: str) -> Any:
    """What lies at the end of a path of keys, or None."""
    for name in path:
        row = row.get(name) if isinstance(row, dict) else None
    return row


def quotient(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else round(one / other, 3)


def over(one: Any, other: Any, *path: str) -> float | None:
    return quotient(figure(one, *path), figure(other, *path))


def within_turns(one: Any, other: Any) -> dict[str, float] | None:
    """Of two engines' median queries, turn by turn: the median, and the quartiles that the turns lie between."""
    ours, theirs = figure(one, "query_turns_p50_ms"), figure(other, "query_turns_p50_ms")
    if ours is None or theirs is None:
        return None
    found = np.percentile(np.divide(ours, theirs), [50, 25, 75])
    return {name: round(float(value), 3) for name, value in zip(("median", "p25", "p75"), found, strict=True)}


def by_collection(
    one: Any, other: Any, name: str, other_name: str | None = None
) -> dict[str, float | None] | None:
    rates, others = figure(one, name), figure(other, other_name or name)
    if rates is None or others is None:
        return None
    return {collection: quotient(rates[collection], others[collection]) for collection in rates}


def differences(row: Any, fp32: Any) -> dict[str, float] | None:
    """Of nDCG@10, in percent of fp32's."""
    found, expected = figure(row, "quality", "ndcg@10"), figure(fp32, "quality", "ndcg@10")
    if found is None or expected is None:
        return None
    return {name: round(100 * (found[name] / expected[name] - 1), 3) for name in found if expected[name]}


def before_writing(row: Any) -> float | None:
    """Of the service while it only embeds; afterwards it also holds what was written."""
    stages = figure(row, "memory", "resident_bytes_by_stage") or {}
    embedding = [resident for stage, resident in stages.items() if stage not in {"load", "end"}]
    return quotient(max(embedding, default=None), MB)


def beside(row: Any, what: str, who: str) -> float | None:
    """None too where queries failed: a service that refuses many answers the others sooner."""
    one, alone = figure(row, "load", what, who), figure(row, "load", "alone", who)
    if figure(one, "failed") or figure(alone, "failed"):
        return None
    return over(one, alone, "p99_ms")
