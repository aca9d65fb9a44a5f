"""OpenAI's dialect: POST /v1/embeddings, GET /v1/models, GET /v1/models/{model}.

Two fields are ours: `input_type` picks the model's prefix for queries or for documents, `long_inputs` says what
happens to a text longer than the model reads. Whatever was cut is listed in the answer's `truncated`. Token ids are
those of `cl100k_base`, which LangChain sends by default, and are read as the text they stand for.
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
    bounded,
    embed,
    open_model,
    written,
)
from retrieval.dialects.models import Listed, find_model, list_models
from retrieval.dialects.token_ids import sequences, texts_of_cl100k_ids
from retrieval.embedding.models import Kind
from retrieval.embedding.results import Long
from retrieval.handlers.state import CONFIG, ENTRY, HELD
from retrieval.handlers.wire import answer, body, json_answer
from retrieval.wire.search import NonEmpty, Request

INPUTS_MAX = 2048  # OpenAI's own limit, which clients split their texts by
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
    """`root` is the exported model behind the name, as vLLM reports it. `languages` are BCP 47 codes of those it reads,
    null if it does not say."""

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
    answered = await embed(
        await open_model(request, wanted.model),
        texts,
        request[ENTRY],
        kind=wanted.input_type or "document",
        long=LONG[wanted.long_inputs or "truncate"],
        dimensions=wanted.dimensions,
    )
    encode = as_base64 if wanted.encoding_format == "base64" else as_numbers

    def build() -> OpenAIEmbeddingList:
        data = [OpenAIEmbedding(index, vector) for index, vector in enumerate(encode(answered.vectors()))]
        usage = OpenAIUsage(answered.tokens, answered.tokens)
        return OpenAIEmbeddingList(wanted.model, data, usage, answered.truncated)

    return json_answer(await written(answered, build), answered.headers)


async def models(request: web.Request) -> web.Response:
    return answer(OpenAIModelList([entry_of(one) for one in await list_models(request.app)]))


async def model(request: web.Request) -> web.Response:
    return answer(entry_of(await find_model(request.app, request.match_info["model"])))


async def texts_of(request: web.Request, given: Inputs) -> list[str]:
    """The texts of `input`. Raises InvalidInput for no text, an empty one, an unknown token id or too many texts, and
    TooLarge."""
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
        bytes_max = request.app[CONFIG].server.body_bytes_max  # as much as could have come as text
        texts = await run_abandonable(
            lambda on_step: texts_of_cl100k_ids(inputs, bytes_max=bytes_max, on_step=on_step)
        )
    bounded(texts, request, param="input")
    return texts


def entry_of(listed: Listed) -> OpenAIModel:
    exported = int(listed.exported.timestamp())
    return OpenAIModel(listed.name, exported, OWNER, listed.model, listed.manifest.languages)
