"""A search request, checked against the limits and completed from the configuration: what the pipeline works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from indexes.errors import InvalidInput, TooLarge
from indexes.filters.grammar import Filter, parse_filter
from indexes.lexical import analysis
from indexes.model import Floats
from retrieval.decoding import decode_part
from retrieval.raw_json import is_absent
from retrieval.schemas import Mode, SearchRequest, Weights
from retrieval.settings import Config

ANSWER_VERSION = 2  # of what the cache keeps
NUMBER_BYTES_MAX = 100  # of one number as JSON, with the white space before it


@dataclass(frozen=True, slots=True)
class Plan:
    """Every choice made, nothing left open. `identity` is equal for requests that must get the same answer."""

    query: str
    vector: Floats | None
    k: int
    mode: Mode
    condition: Filter | None
    method: Literal["rrf", "weighted"]
    rrf_k: int
    weights: dict[str, float]
    candidates: int
    group_by_document: bool
    min_score: float | None
    min_seq: int
    deadline_ms: int | None
    cache: bool
    explain: bool
    exact: bool
    identity: bytes

    @property
    def counted(self) -> bool:
        """Whether it is one of the load. What goes past the cache measures: it moves no passage and teaches nothing."""
        return self.cache and not self.exact

    @property
    def dense(self) -> bool:
        return self.mode != "lexical"

    @property
    def lexical(self) -> bool:
        return self.mode != "dense"


def plan(request: SearchRequest, dimensions: int, config: Config) -> Plan:
    """Raises InvalidInput or TooLarge naming the field."""
    query = check_query(request, config)
    numbers = vector_of(request.vector, dimensions, "vector")
    vector = None if numbers is None else unit_vector(numbers, dimensions, "vector")
    mode = request.mode or (config.search.mode if query else "dense")
    if mode != "dense" and not query:
        raise InvalidInput(f"mode {mode} needs a query text", param="query")
    if request.exact and mode != "dense":
        raise InvalidInput(f"exact search is dense search, found mode {mode}", param="exact")
    k = check_k(request.k, config)
    fusion = request.fusion
    weights = (fusion and fusion.weights) or Weights(
        dense=config.search.weight_dense, lexical=config.search.weight_lexical
    )
    if weights.dense + weights.lexical <= 0:
        raise InvalidInput("one weight must be above 0", param="fusion.weights")
    return Plan(
        query=query,
        vector=vector,
        k=k,
        mode=mode,
        condition=filter_of(request.filter, config),
        method=(fusion and fusion.method) or config.search.fusion,
        rrf_k=(fusion and fusion.k) or config.search.rrf_k,
        weights={"dense": weights.dense, "lexical": weights.lexical},
        # Independent of k up to its own size, so that page size does not change the fused scores.
        candidates=max(config.search.candidates, k),
        group_by_document=request.group_by_document,
        min_score=request.min_score,
        min_seq=request.min_seq or 0,
        deadline_ms=request.deadline_ms or (None if request.exact else config.search.deadline_ms),
        cache=request.cache,
        explain=request.explain,
        exact=request.exact,
        identity=msgspec.json.encode(
            # The configuration too: a cache in Redis outlives a restart with other settings.
            (ANSWER_VERSION, analysis.VERSION, config.search, asked(request, query, k, mode))
        ),
    )


def asked(request: SearchRequest, query: str, k: int, mode: Mode) -> SearchRequest:
    """The request without what does not change the answer."""
    return msgspec.structs.replace(
        request, query=query or None, k=k, mode=mode, min_seq=None, deadline_ms=None, cache=True
    )


def filter_of(raw: msgspec.Raw, config: Config) -> Filter | None:
    """What a request's filter means; None for none. Raises TooLarge before decoding it, and InvalidInput."""
    if len(raw) > config.limits.filter_bytes_max:
        raise TooLarge(
            f"filter has {len(raw)} bytes, at most {config.limits.filter_bytes_max} are allowed",
            param="filter",
        )
    value = decode_part(raw, object, "filter")
    return None if value is None else parse_filter(value, conditions_max=config.limits.filter_conditions_max)


def check_query(request: SearchRequest, config: Config) -> str:
    if request.query is None:
        if is_absent(request.vector):
            raise InvalidInput("a search needs a query text or a vector", param="query")
        return ""
    query = request.query.strip()
    if not query:
        raise InvalidInput("query is empty, expected text", param="query")
    if len(query) > config.limits.query_chars_max:
        raise TooLarge(
            f"query has {len(query)} characters, at most {config.limits.query_chars_max} are allowed",
            param="query",
        )
    return query


def check_k(k: int | None, config: Config) -> int:
    if k is None:
        return config.search.k
    if not 1 <= k <= config.limits.k_max:
        raise InvalidInput(f"k must be from 1 to {config.limits.k_max}, found {k}", param="k")
    return k


def vector_of(raw: msgspec.Raw, dimensions: int, param: str) -> list[float] | None:
    """The numbers of a request's vector, None for none. Raises InvalidInput before decoding far too many."""
    if len(raw) > dimensions * NUMBER_BYTES_MAX:
        raise InvalidInput(
            f"{param} has {len(raw)} bytes, more than {dimensions} dimensions take", param=param
        )
    return None if is_absent(raw) else decode_part(raw, list[float], param)


def unit_vector(values: Sequence[float], dimensions: int, param: str) -> Floats:
    """The vector at length 1, float32 [dimensions]. Raises InvalidInput for a wrong dimension, NaN or no length."""
    if len(values) != dimensions:
        raise InvalidInput(f"{param} has {len(values)} dimensions, expected {dimensions}", param=param)
    vector = np.asarray(values, np.float64)
    if not np.isfinite(vector).all():
        raise InvalidInput(f"{param} holds NaN or an infinity, expected finite numbers", param=param)
    scale = np.abs(vector).max()  # dividing by it first keeps the squares of huge and tiny numbers in range
    if scale == 0:
        raise InvalidInput(f"{param} has no direction: all its numbers are 0", param=param)
    vector /= scale
    unit: Floats = (vector / np.linalg.norm(vector)).astype(np.float32)
    return unit
