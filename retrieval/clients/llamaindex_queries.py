"""Translates LlamaIndex's queries and filters to the service. Raises ValueError for what the service does not
support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from retrieval.clients.llamaindex_nodes import NODE, SOURCE
from retrieval.clients.mongo_filters import all_of
from retrieval.clients.stores import several

MMR = 0.5  # LlamaIndex's own default
MODES = {
    VectorStoreQueryMode.HYBRID: "hybrid",
    VectorStoreQueryMode.SEMANTIC_HYBRID: "hybrid",
    VectorStoreQueryMode.TEXT_SEARCH: "lexical",
    VectorStoreQueryMode.SPARSE: "lexical",
}
COMPARISONS = {
    FilterOperator.EQ: "eq",
    FilterOperator.NE: "ne",
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
    FilterOperator.IN: "in",
    FilterOperator.NIN: "nin",
    FilterOperator.ANY: "in",  # the service compares every value of a list
    FilterOperator.CONTAINS: "eq",
}


def search_of(query: VectorStoreQuery, options: dict[str, Any], *, own_vectors: bool) -> dict[str, Any]:
    """Translate a query. DEFAULT searches by the vector if there is one, else by the service's default.

    `options` of the service take precedence, except for a `filter`, which is combined with the query's. Raises
    ValueError for what the service cannot do.
    """
    wanted: dict[str, Any] = {"k": query.similarity_top_k}
    if query.mode in MODES:
        wanted["mode"] = MODES[query.mode]
    elif query.mode not in {VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR}:
        known = ["default", "mmr", *MODES]
        raise ValueError(f"mode: {query.mode.value} is not supported, only {', '.join(sorted(known))}")
    elif own_vectors:
        wanted["mode"] = "dense"
    if query.query_str is not None:
        wanted["query"] = query.query_str
    elif not own_vectors:
        raise ValueError(
            "query_str: expected the query's text, which the service embeds; it has no own_vectors"
        )
    if own_vectors and query.query_embedding is not None:
        wanted["vector"] = query.query_embedding
    if query.mode == VectorStoreQueryMode.MMR:
        threshold = options.pop("mmr_threshold", query.mmr_threshold)
        wanted["mmr"] = MMR if threshold is None else threshold
    if wanted.get("mode") == "lexical":
        wanted["k"] = query.sparse_top_k or query.similarity_top_k
    if wanted.get("mode") == "hybrid":
        wanted["k"] = query.hybrid_top_k or query.similarity_top_k
        if query.alpha is not None:
            wanted["fusion"] = {"weights": {"dense": query.alpha, "lexical": 1 - query.alpha}}
    # An empty list from VectorStoreIndex means no restriction.
    condition = condition_of(query.filters, node_ids=query.node_ids or None, sources=query.doc_ids or None)
    search = {**wanted, **options}
    if search.get("mode") == "lexical":
        search.pop("vector", None)
    return narrow(search, condition)


def narrow(search: dict[str, Any], condition: dict[str, Any] | None) -> dict[str, Any]:
    """Return the search with a condition added to its filter."""
    parts = [one for one in (condition, search.get("filter")) if one is not None]
    return {**search, "filter": all_of(parts)} if parts else search


def condition_of(
    filters: MetadataFilters | None,
    *,
    node_ids: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
) -> dict[str, Any] | None:
    """Translate filters to the service's grammar; None means everything. Raises ValueError for an unsupported
    operator."""
    parts = [] if filters is None or not filters.filters else [combination(filters)]
    for key, values in ((NODE, node_ids), (SOURCE, sources)):
        if values is not None:
            parts.append({"type": "in", "key": key, "value": list(several(values)), "literal": True})
    return all_of(parts) if parts else None


def combination(filters: MetadataFilters) -> dict[str, Any]:
    parts = [
        combination(one) if isinstance(one, MetadataFilters) else comparison(one) for one in filters.filters
    ]
    if filters.condition == FilterCondition.NOT:
        return {"type": "not", "filter": {"type": "or", "filters": parts}}
    if filters.condition == FilterCondition.OR:
        return {"type": "or", "filters": parts}
    return all_of(parts)


def comparison(wanted: MetadataFilter) -> dict[str, Any]:
    if wanted.operator == FilterOperator.IS_EMPTY:
        return {"type": "exists", "key": wanted.key, "value": False}
    if wanted.operator == FilterOperator.ALL:
        values = wanted.value if isinstance(wanted.value, list) else [wanted.value]
        return all_of([{"type": "eq", "key": wanted.key, "value": value} for value in values])
    if wanted.operator not in COMPARISONS:
        raise ValueError(f"filter on {wanted.key}: the operator {wanted.operator.value} is not supported")
    return {"type": COMPARISONS[wanted.operator], "key": wanted.key, "value": wanted.value}
