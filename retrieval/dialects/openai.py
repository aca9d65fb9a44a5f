"""OpenAI's dialect: POST /v1/embeddings, GET /v1/models, GET /v1/models/{model}.

Two fields are ours: `input_type` picks the model's prefix for queries or for documents, `long_inputs` says what
happens to a text longer than the model reads. The answer's `truncated` lists the texts that were cut. Token ids are
those of `cl100k_base`, which LangChain sends by default, and are decoded to text.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from aiohttp import web

from indexes.base.errors import InvalidInput
from retrieval.base.cancellation import run_abandonable
from retrieval.dialects.embedding import (
    Dimensions,
    Inputs,
    as_base64,
    as_numbers,
    check_texts,
    embed,
    encode_json,
    open_model,
)
from retrieval.dialects.models import NamedModel, find_model, list_models
from retrieval.dialects.token_ids import sequences, texts_of_cl100k_ids
from retrieval.embedding.models import Kind
from retrieval.embedding.results import Long
from retrieval.handlers.state import CONFIG, ENTRY, HELD
from retrieval.handlers.wire import answer, body, json_answer
from retrieval.wire.search import NonEmpty, Request

INPUTS_MAX = 2048  # OpenAI's own limit; clients split their texts accordingly
OWNER = "nearline"
LONG: dict[str, Long] = {"truncate": "cut", "windows": "windows", "error": "refuse"}
NumbersOrBase64 = Annotated[
    msgspec.Raw,
    msgspec.Meta(
        extra_json_schema={"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]}
    ),
]


class OpenAIEmbeddingRequest(Request, frozen=True, kw_only=True):
    input: Inputs
    model: NonEmpty
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions = None
    user: str | None = None
    input_type: Kind | None = None
    long_inputs: Literal["truncate", "windows", "error"] | None = None


class OpenAIEmbedding(msgspec.Struct, tag_field="object", tag="embedding"):
    index: int
    embedding: NumbersOrBase64


class OpenAIUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class OpenAIEmbeddingList(msgspec.Struct, tag_field="object", tag="list"):
    model: str
    data: list[OpenAIEmbedding]
    usage: OpenAIUsage
    truncated: list[int]


class OpenAIModel(msgspec.Struct, tag_field="object", tag="model"):
    """`root` is the exported model behind the name, as vLLM reports it. `languages` are the BCP 47 codes of the
    languages it reads, null if unknown."""

    id: str
    created: int
    owned_by: str
    root: str
    languages: list[str] | None


class OpenAIModelList(msgspec.Struct, tag_field="object", tag="list"):
    data: list[OpenAIModel]


async def embeddings(request: web.Request) -> web.Response:
    wanted = await body(request, OpenAIEmbeddingRequest)
    texts = await texts_of(request, wanted.input)
    result = await embed(
        await open_model(request, wanted.model),
        texts,
        request[ENTRY],
        kind=wanted.input_type or "document",
        long=LONG[wanted.long_inputs or "truncate"],
        dimensions=wanted.dimensions,
    )
    encode = as_base64 if wanted.encoding_format == "base64" else as_numbers

    def build() -> OpenAIEmbeddingList:
        data = [OpenAIEmbedding(index, vector) for index, vector in enumerate(encode(result.vectors()))]
        usage = OpenAIUsage(result.tokens, result.tokens)
        return OpenAIEmbeddingList(wanted.model, data, usage, result.truncated)

    return json_answer(await encode_json(result, build), result.headers)


async def models(request: web.Request) -> web.Response:
    return answer(OpenAIModelList([entry_of(one) for one in await list_models(request.app)]))


async def model(request: web.Request) -> web.Response:
    return answer(entry_of(await find_model(request.app, request.match_info["model"])))


async def texts_of(request: web.Request, given: Inputs) -> list[str]:
    """Return `input` as texts. Raises InvalidInput for no text, an empty one, an unknown token id or too many texts,
    and TooLarge."""
    inputs = sequences(given, param="input")
    if not inputs:
        raise InvalidInput("input is empty, expected at least one text", param="input")
    if len(inputs) > INPUTS_MAX:
        raise InvalidInput(
            f"input holds {len(inputs)} texts, at most {INPUTS_MAX} are allowed", param="input"
        )
    if not all(inputs):
        empty = next(number for number, one in enumerate(inputs) if not one)
        place = "input" if isinstance(given, str) else f"input[{empty}]"
        raise InvalidInput(f"{place} is empty", param=place)
    texts = [text for text in inputs if isinstance(text, str)]
    if len(texts) < len(inputs):
        request[HELD].token_ids(sum(len(one) for one in inputs if isinstance(one, list)))
        bytes_max = request.app[CONFIG].server.body_bytes_max  # the same limit as for text
        texts = await run_abandonable(
            lambda on_step: texts_of_cl100k_ids(inputs, bytes_max=bytes_max, on_step=on_step)
        )
    check_texts(texts, request, param="input")
    return texts


def entry_of(listed: NamedModel) -> OpenAIModel:
    exported = int(listed.exported.timestamp())
    return OpenAIModel(listed.name, exported, OWNER, listed.model, listed.manifest.languages)
