"""Cohere's dialect: POST /v2/embed. POST /v2/rerank is in `rerank`.

`input_type` picks the model's prefix: `search_query` the one for queries, `search_document` the one for documents. A
model without prefixes returns the same vectors for every type, so only such models accept `classification` and
`clustering`. Vectors are returned as `float`, `base64` or bits (`binary`, `ubinary`). `int8` and `uint8` are refused:
they need the range of each dimension over many texts, which our models do not store. Unknown fields are ignored, as
Cohere does.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

import msgspec
import numpy as np
from aiohttp import web

from indexes.base.errors import InvalidInput
from indexes.base.model import Floats
from retrieval.base.settings import Whole
from retrieval.dialects.embedding import (
    Dimensions,
    NonEmptyText,
    VectorJson,
    as_base64,
    as_numbers,
    check_texts,
    embed,
    encode_json,
    open_model,
)
from retrieval.embedding.embedders import Embedder
from retrieval.embedding.models import Kind
from retrieval.handlers.error_shapes import EmptyInput
from retrieval.handlers.state import ENTRY
from retrieval.handlers.wire import body, json_answer
from retrieval.wire.search import NonEmpty

InputType = Literal["search_query", "search_document", "classification", "clustering"]
EmbeddingType = Literal["float", "base64", "binary", "ubinary"]
KINDS: dict[str, Kind] = {"search_query": "query", "search_document": "document"}
Base64Json = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "string"})]
SIGN = 128  # turns an unsigned byte into a signed one that sorts alike


class CohereText(msgspec.Struct, frozen=True):
    """The only kind of content that can be embedded; images are refused."""

    type: Literal["text"]
    text: str


class CohereInput(msgspec.Struct, frozen=True):
    content: list[CohereText]


class CohereEmbed(msgspec.Struct, frozen=True, kw_only=True):
    """Either `texts` or `inputs`; the parts of an input are joined to one text. `max_tokens` may not be less than the
    model reads, because texts are always cut there."""

    model: NonEmpty
    input_type: InputType
    texts: Annotated[list[NonEmptyText], msgspec.Meta(extra_json_schema={"minItems": 1})] | None = None
    inputs: list[CohereInput] | None = None
    images: None = None
    embedding_types: list[EmbeddingType] | None = None
    output_dimension: Dimensions = None
    truncate: Literal["NONE", "END"] | None = None
    max_tokens: Whole | None = None
    priority: Whole | None = None


class CohereVectors(msgspec.Struct, omit_defaults=True):
    float_: list[VectorJson] | None = msgspec.field(default=None, name="float")
    base64: list[Base64Json] | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None


class CohereEmbedVersion(msgspec.Struct):
    version: str = "2"


class CohereTokens(msgspec.Struct):
    input_tokens: int


class CohereEmbedMeta(msgspec.Struct):
    api_version: CohereEmbedVersion
    billed_units: CohereTokens


class CohereEmbedded(msgspec.Struct):
    id: str
    embeddings: CohereVectors
    texts: list[str]
    meta: CohereEmbedMeta
    response_type: str = "embeddings_by_type"


async def embed_texts(request: web.Request) -> web.Response:
    wanted = await body(request, CohereEmbed)
    texts = texts_of(wanted)
    check_texts(texts, request, param="texts")
    embedder = await open_model(request, wanted.model)
    check_max_tokens(wanted, embedder)
    result = await embed(
        embedder,
        texts,
        request[ENTRY],
        kind=kind_of(wanted.input_type, embedder),
        long="refuse" if wanted.truncate == "NONE" else "cut",
        dimensions=wanted.output_dimension,
        dimensions_name="output_dimension",
    )
    types = wanted.embedding_types or ["float"]

    def build() -> CohereEmbedded:
        meta = CohereEmbedMeta(CohereEmbedVersion(), CohereTokens(result.tokens))
        return CohereEmbedded(str(uuid.uuid4()), encode_vectors(result.vectors(), types), texts, meta)

    return json_answer(await encode_json(result, build), result.headers)


def texts_of(wanted: CohereEmbed) -> list[str]:
    """Return the texts to embed. Raises InvalidInput, and EmptyInput if there is no text or an empty one."""
    if (wanted.texts is None) == (wanted.inputs is None):
        raise InvalidInput("expected either texts or inputs", param="texts")
    if wanted.texts is not None:
        texts = wanted.texts
    else:
        texts = ["\n".join(part.text for part in one.content) for one in wanted.inputs or []]
    if not texts or not all(texts):
        raise EmptyInput("texts holds no text, or an empty one", param="texts")
    return texts


def kind_of(input_type: InputType, embedder: Embedder) -> Kind:
    """Return the kind of prefix for the texts. Raises InvalidInput for a type that the model has no prefix for."""
    manifest = embedder.manifest
    if input_type not in KINDS and (manifest.query_prefix or manifest.document_prefix):
        raise InvalidInput(
            f"input_type {input_type} is not among what this model was made for here: search_query, search_document",
            param="input_type",
        )
    return KINDS.get(input_type, "document")


def check_max_tokens(wanted: CohereEmbed, embedder: Embedder) -> None:
    most = embedder.encoder.tokens_max
    if wanted.max_tokens is not None and wanted.max_tokens < most:
        raise InvalidInput(
            f"max_tokens must be at least {most}, where this model cuts, found {wanted.max_tokens}",
            param="max_tokens",
        )


def encode_vectors(vectors: Floats, types: list[EmbeddingType]) -> CohereVectors:
    """Encode the vectors in each requested type."""
    bits = np.packbits(vectors > 0, axis=1)
    return CohereVectors(
        float_=as_numbers(vectors) if "float" in types else None,
        base64=as_base64(vectors) if "base64" in types else None,
        binary=(bits.astype(np.int16) - SIGN).tolist() if "binary" in types else None,
        ubinary=bits.tolist() if "ubinary" in types else None,
    )
