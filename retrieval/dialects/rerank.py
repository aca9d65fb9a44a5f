"""Rerank as others do: POST /rerank of Text Embeddings Inference, POST /v2/rerank of Cohere.

Both order texts by what the configured cross-encoder says of them beside a query. Fields nobody knows are ignored, as
both do. TEI's request names no model; Cohere's names the configured one, or an alias of it.
"""

from __future__ import annotations

import uuid

import msgspec
import numpy as np
from aiohttp import web

from indexes import Floats, InvalidInput, TooLarge
from retrieval.dialects.embedding import bounded
from retrieval.dialects.errors import EmptyInput, ModelNotFound, NoReranker
from retrieval.handlers.wire import answer, body
from retrieval.keys import CONFIG, PIPELINE
from retrieval.reranking import Reranker, sigmoid

SEARCH_UNIT_TEXTS = 100  # one of Cohere's units of billing is a query with up to so many documents


class TeiRerank(msgspec.Struct, frozen=True, kw_only=True):
    query: str
    texts: list[str]
    truncate: bool | None = None
    truncation_direction: str | None = None
    raw_scores: bool = False
    return_text: bool = False


class TeiRank(msgspec.Struct, omit_defaults=True):
    """`score` is between 0 and 1, or with `raw_scores` what the model says: at 0 the odds are even."""

    index: int
    score: float
    text: str | None = None


class CohereRerank(msgspec.Struct, frozen=True, kw_only=True):
    """`max_tokens_per_doc` is ignored: the model's own window is shorter."""

    model: str
    query: str
    documents: list[str]
    top_n: int | None = None
    max_tokens_per_doc: int | None = None


class CohereResult(msgspec.Struct):
    index: int
    relevance_score: float


class CohereVersion(msgspec.Struct):
    version: str = "2"


class CohereUnits(msgspec.Struct):
    search_units: int


class CohereMeta(msgspec.Struct):
    api_version: CohereVersion
    billed_units: CohereUnits


class CohereReranked(msgspec.Struct):
    id: str
    results: list[CohereResult]
    meta: CohereMeta


async def tei_rerank(request: web.Request) -> web.Response:
    wanted = await body(request, TeiRerank)
    if (wanted.truncation_direction or "right").lower() != "right":
        raise InvalidInput(
            "`truncation_direction` must be `right`: texts are cut at their end", param="truncation_direction"
        )
    reranker = reranker_of(request)
    scores = await scores_of(
        request, wanted.query, wanted.texts, param="texts", refuse=wanted.truncate is False
    )
    shown = scores if wanted.raw_scores else sigmoid(scores)
    ranked = [
        TeiRank(at, float(shown[at]), wanted.texts[at] if wanted.return_text else None)
        for at in best_first(scores)
    ]
    return answer(ranked, headers={"x-compute-type": "cpu", "x-model": reranker.manifest.name})


async def cohere_rerank(request: web.Request) -> web.Response:
    wanted = await body(request, CohereRerank)
    name = reranker_of(request).manifest.name
    if request.app[CONFIG].models.aliases.get(wanted.model, wanted.model) != name:
        raise ModelNotFound(wanted.model, [name])
    if wanted.top_n is not None and wanted.top_n < 1:
        raise InvalidInput(f"top_n must be at least 1, found {wanted.top_n}", param="top_n")
    scores = await scores_of(request, wanted.query, wanted.documents, param="documents")
    shown = sigmoid(scores)
    results = [CohereResult(at, float(shown[at])) for at in best_first(scores)[: wanted.top_n]]
    units = CohereUnits(-(-len(scores) // SEARCH_UNIT_TEXTS))
    return answer(CohereReranked(str(uuid.uuid4()), results, CohereMeta(CohereVersion(), units)))


def reranker_of(request: web.Request) -> Reranker:
    """Raises NoReranker where none is configured, Unavailable where it could not be loaded."""
    if not request.app[CONFIG].rerank.model:
        raise NoReranker
    return request.app[PIPELINE].reranker


async def scores_of(
    request: web.Request, query: str, texts: list[str], *, param: str, refuse: bool = False
) -> Floats:
    """Of each text. Raises EmptyInput, TooLarge, and with `refuse` TooLong."""
    limits = request.app[CONFIG].limits
    if not texts:
        raise EmptyInput(f"`{param}` cannot be empty", param=param)
    if not query.strip():
        raise EmptyInput("`query` cannot be empty", param="query")
    if len(query) > limits.query_chars_max:
        raise TooLarge(
            f"query has {len(query)} characters, at most {limits.query_chars_max} are allowed", param="query"
        )
    bounded(texts, request, param=param)
    return await request.app[PIPELINE].reread(query, texts, refuse=refuse)


def best_first(scores: Floats) -> list[int]:
    """Positions by descending score, ties in the order of the request."""
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order
