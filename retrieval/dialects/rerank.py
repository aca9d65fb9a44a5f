"""The rerank APIs of other servers: POST /rerank of Text Embeddings Inference, POST /v2/rerank of Cohere, and POST
/v1/rerank of Jina, whose shape vLLM and Cohere's first version share.

Each ranks texts by the score that the configured cross-encoder gives them for a query. Unknown fields are ignored, as
those servers do. TEI's requests name no model; Cohere's name the configured one or an alias of it; in Jina's the name
is optional.
"""

from __future__ import annotations

import uuid
from typing import Annotated

import msgspec
import numpy as np
from aiohttp import web

from indexes.base.errors import InvalidInput, TooLarge
from indexes.base.model import Floats
from retrieval.base.settings import Whole
from retrieval.dialects.embedding import Direction, NonEmptyText, TextList, check_texts
from retrieval.handlers.error_shapes import EmptyInput, ModelNotFound, NoReranker
from retrieval.handlers.state import CONFIG, PIPELINE
from retrieval.handlers.wire import answer, body
from retrieval.search.reranking import PairsRead, Reranker, sigmoid

SEARCH_UNIT_TEXTS = 100  # Cohere bills one unit for a query with up to this many documents


TopN = Annotated[Whole | None, msgspec.Meta(extra_json_schema={"minimum": 1})]


class TeiRerank(msgspec.Struct, frozen=True, kw_only=True):
    query: NonEmptyText
    texts: TextList
    truncate: bool | None = None
    truncation_direction: Direction = None
    raw_scores: bool = False
    return_text: bool = False


class TeiRank(msgspec.Struct, omit_defaults=True):
    """`score` is between 0 and 1, or with `raw_scores` the model's logit, where 0 means even odds."""

    index: int
    score: float
    text: str | None = None


class CohereRerank(msgspec.Struct, frozen=True, kw_only=True):
    """`max_tokens_per_doc` is ignored: the model's own window is shorter."""

    model: str
    query: NonEmptyText
    documents: TextList
    top_n: TopN = None
    max_tokens_per_doc: Whole | None = None


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


class JinaText(msgspec.Struct):
    text: str


class JinaRerank(msgspec.Struct, frozen=True, kw_only=True):
    """A document is a text or an object with a text. `max_chunks_per_doc` and `max_tokens_per_doc` are ignored: a
    document is cut where the model's window ends."""

    query: NonEmptyText
    documents: Annotated[list[str | JinaText], msgspec.Meta(extra_json_schema={"minItems": 1})]
    model: str | None = None
    top_n: TopN = None
    return_documents: bool | None = None
    max_chunks_per_doc: Whole | None = None
    max_tokens_per_doc: Whole | None = None


class JinaResult(msgspec.Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: JinaText | None = None


class JinaUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class JinaReranked(msgspec.Struct, tag_field="object", tag="list"):
    """`usage` counts the tokens that the model read; the query counts once per document."""

    id: str
    model: str
    results: list[JinaResult]
    usage: JinaUsage
    meta: CohereMeta


async def tei_rerank(request: web.Request) -> web.Response:
    wanted = await body(request, TeiRerank)
    if (wanted.truncation_direction or "right").lower() != "right":
        raise InvalidInput(
            "`truncation_direction` must be `right`: texts are cut at their end", param="truncation_direction"
        )
    reranker = reranker_of(request)
    scores, _ = await read_pairs(
        request, wanted.query, wanted.texts, param="texts", refuse=wanted.truncate is False
    )
    shown = scores if wanted.raw_scores else sigmoid(scores)
    ranked = [
        TeiRank(at, float(shown[at]), wanted.texts[at] if wanted.return_text else None)
        for at in rank_by_score(scores)
    ]
    return answer(ranked, headers={"x-compute-type": "cpu", "x-model": reranker.manifest.name})


async def cohere_rerank(request: web.Request) -> web.Response:
    wanted = await body(request, CohereRerank)
    named_reranker(request, wanted.model)
    check_top_n(wanted.top_n)
    scores, _ = await read_pairs(request, wanted.query, wanted.documents, param="documents")
    shown = sigmoid(scores)
    results = [CohereResult(at, float(shown[at])) for at in rank_by_score(scores)[: wanted.top_n]]
    return answer(CohereReranked(str(uuid.uuid4()), results, meta_of(len(scores), "2")))


async def jina_rerank(request: web.Request) -> web.Response:
    """Rank documents as Jina does: the answer includes them unless `return_documents` is false."""
    wanted = await body(request, JinaRerank)
    reranker = named_reranker(request, wanted.model)
    check_top_n(wanted.top_n)
    texts = [one if isinstance(one, str) else one.text for one in wanted.documents]
    scores, tokens = await read_pairs(request, wanted.query, texts, param="documents")
    shown = sigmoid(scores)
    with_texts = wanted.return_documents is not False
    results = [
        JinaResult(at, float(shown[at]), JinaText(texts[at]) if with_texts else None)
        for at in rank_by_score(scores)[: wanted.top_n]
    ]
    return answer(
        JinaReranked(
            str(uuid.uuid4()),
            wanted.model or reranker.manifest.name,
            results,
            JinaUsage(tokens, tokens),
            meta_of(len(scores), "1"),
        )
    )


def named_reranker(request: web.Request, model: str | None) -> Reranker:
    """Return the reranker of this name, or the configured one for None. Raises ModelNotFound for any other name."""
    reranker = reranker_of(request)
    name = reranker.manifest.name
    if model is not None and request.app[CONFIG].models.aliases.get(model, model) != name:
        raise ModelNotFound(model, [name])
    return reranker


def check_top_n(top_n: int | None) -> None:
    if top_n is not None and top_n < 1:
        raise InvalidInput(f"top_n must be at least 1, found {top_n}", param="top_n")


def meta_of(texts: int, version: str) -> CohereMeta:
    return CohereMeta(CohereVersion(version), CohereUnits(-(-texts // SEARCH_UNIT_TEXTS)))


def reranker_of(request: web.Request) -> Reranker:
    """Return the configured reranker. Raises NoReranker if there is none, Unavailable if it could not be loaded."""
    if not request.app[CONFIG].rerank.model:
        raise NoReranker
    return request.app[PIPELINE].reranker


async def read_pairs(
    request: web.Request, query: str, texts: list[str], *, param: str, refuse: bool = False
) -> PairsRead:
    """Score each text for the query. Raises EmptyInput, TooLarge, and with `refuse` TooLong."""
    limits = request.app[CONFIG].limits
    if not texts:
        raise EmptyInput(f"`{param}` cannot be empty", param=param)
    if not query.strip():
        raise EmptyInput("`query` cannot be empty", param="query")
    if len(query) > limits.query_chars_max:
        raise TooLarge(
            f"query has {len(query)} characters, at most {limits.query_chars_max} are allowed", param="query"
        )
    check_texts(texts, request, param=param)
    return await request.app[PIPELINE].score_texts(query, texts, refuse=refuse)


def rank_by_score(scores: Floats) -> list[int]:
    """Return positions by descending score; ties stay in the order of the request."""
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order
