"""The dialect of Text Embeddings Inference: POST /embed and /similarity, GET /info, GET /health; and POST /, to which
`huggingface_hub.InferenceClient` sends its `feature_extraction`.

Requests do not name a model; the default one is used. `prompt_name` picks the model's prefix; without it, texts get the
prefix for documents. Token ids are those of the model's tokenizer and are decoded to text. Unknown fields are ignored,
as TEI does.

POST /embed_all is always refused: the models pool within their graphs, so there are no vectors of single tokens.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import numpy as np
from aiohttp import web

from indexes.base.errors import InvalidInput, NotReady, TooLarge
from retrieval.base.cancellation import run_abandonable
from retrieval.base.version import VERSION
from retrieval.dialects.embedding import (
    Dimensions,
    Direction,
    EmbedResult,
    Inputs,
    NonEmptyText,
    as_numbers,
    check_texts,
    embed,
    encode_json,
    open_model,
)
from retrieval.dialects.models import NamedModel, list_models, model_of
from retrieval.dialects.token_ids import sequences, texts_of_ids
from retrieval.embedding.embedders import Embedder
from retrieval.embedding.models import Kind
from retrieval.handlers.error_shapes import EmptyInput, NoTokenVectors
from retrieval.handlers.state import CONFIG, EMBEDDERS, ENTRY, HELD, READY
from retrieval.handlers.wire import answer, body, json_answer

PROMPTS: dict[str, Kind] = {"document": "document", "passage": "document", "query": "query"}
PromptName = Annotated[str | None, msgspec.Meta(extra_json_schema={"enum": [*PROMPTS, None]})]
POOLING = {"last": "last_token"}  # TEI's terms where ours differ


class TeiEmbed(msgspec.Struct, frozen=True, kw_only=True):
    inputs: Inputs
    truncate: bool | None = None
    truncation_direction: Direction = None
    prompt_name: PromptName = None
    normalize: bool | None = None
    dimensions: Dimensions = None


class TeiSentences(msgspec.Struct, frozen=True):
    source_sentence: NonEmptyText
    sentences: Annotated[list[NonEmptyText], msgspec.Meta(extra_json_schema={"minItems": 1})]


class TeiSimilarityParameters(msgspec.Struct, frozen=True, kw_only=True):
    truncate: bool | None = None
    truncation_direction: Direction = None
    prompt_name: PromptName = None


class TeiSimilarity(msgspec.Struct, frozen=True, kw_only=True):
    inputs: TeiSentences
    parameters: TeiSimilarityParameters | None = None


class TeiEmbeddingModel(msgspec.Struct):
    pooling: str


class TeiModelType(msgspec.Struct):
    embedding: TeiEmbeddingModel


class ServedModel(msgspec.Struct):
    """`languages` are the BCP 47 codes of the languages it reads, null if unknown. `variant` is the graph in use,
    `refused` says why others are not; both are null until the model is loaded."""

    name: str
    fingerprint: str
    dimensions: int
    tokens_max: int
    languages: list[str] | None
    variant: str | None
    refused: list[RefusedVariant] | None


class RefusedVariant(msgspec.Struct):
    variant: str
    reason: str


class NearlineInfo(msgspec.Struct):
    version: str
    models: list[ServedModel]


class TeiInfo(msgspec.Struct):
    model_id: str
    model_sha: str
    model_dtype: str
    served_model_name: str
    model_type: TeiModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    nearline: NearlineInfo


async def embed_inputs(request: web.Request) -> web.Response:
    wanted = await body(request, TeiEmbed)
    kind = kind_of(wanted.prompt_name)
    check_direction(wanted.truncation_direction)
    embedder = await open_model(request, request.app[CONFIG].models.default)
    texts = await texts_of(request, embedder, wanted.inputs)
    result = await embed(
        embedder,
        texts,
        request[ENTRY],
        kind=kind,
        long="refuse" if wanted.truncate is False else "cut",
        dimensions=wanted.dimensions,
        normalize=wanted.normalize is not False,
    )
    content = await encode_json(result, lambda: as_numbers(result.vectors()))
    return json_answer(content, {**result.headers, **compute_headers(result, texts)})


async def similarity(request: web.Request) -> web.Response:
    """Return the cosine similarity of the source sentence to each of the others."""
    wanted = await body(request, TeiSimilarity)
    options = wanted.parameters or TeiSimilarityParameters()
    kind = kind_of(options.prompt_name)
    check_direction(options.truncation_direction)
    if not wanted.inputs.sentences:
        raise EmptyInput("`inputs.sentences` cannot be empty", param="inputs.sentences")
    embedder = await open_model(request, request.app[CONFIG].models.default)
    texts = await texts_of(request, embedder, [wanted.inputs.source_sentence, *wanted.inputs.sentences])
    result = await embed(
        embedder, texts, request[ENTRY], kind=kind, long="refuse" if options.truncate is False else "cut"
    )

    def build() -> list[float]:
        source, *others = result.vectors()
        return [float(np.clip(source @ one, -1, 1)) for one in others]

    return json_answer(await encode_json(result, build), {**result.headers, **compute_headers(result, texts)})


async def embed_all(request: web.Request) -> web.Response:
    """Raises NoTokenVectors for any well-formed request."""
    await body(request, TeiEmbed)
    raise NoTokenVectors


async def health(request: web.Request) -> web.Response:
    """Answer 200 without a body while texts can be embedded, 503 otherwise. It never loads a model: a probe must be
    cheap."""
    app, default = request.app, request.app[CONFIG].models.default
    if not app[READY]["ready"]:
        raise NotReady("unhealthy: the service is opening or closing")
    if model_of(app, default) not in app[EMBEDDERS].loaded:
        raise NotReady(f"unhealthy: the model {default!r} is not loaded; the log of the start says why")
    return web.Response()


async def info(request: web.Request) -> web.Response:
    config = request.app[CONFIG]
    embedder = await open_model(request, config.models.default)
    manifest, encoder = embedder.manifest, embedder.encoder
    texts, tokens = config.embedding.batch_texts_max, encoder.tokens_max
    default = model_of(request.app, config.models.default)
    loaded = request.app[EMBEDDERS].loaded
    listed = await list_models(request.app)
    served = [served_model(one, loaded.get(one.model)) for one in listed if one.name == one.model]
    return answer(
        TeiInfo(
            model_id=default,
            model_sha=manifest.fingerprint,
            model_dtype=manifest.quantisation.partition(":")[0],
            served_model_name=config.models.default,
            model_type=TeiModelType(TeiEmbeddingModel(POOLING.get(manifest.pooling, manifest.pooling))),
            # Nearline bounds queued tokens, not requests; this many texts of full length fit.
            max_concurrent_requests=max(1, config.embedding.queue_tokens_max // tokens),
            max_input_length=tokens,
            max_batch_tokens=texts * tokens,
            max_batch_requests=texts,
            max_client_batch_size=config.limits.texts_per_request_max,
            auto_truncate=True,
            tokenization_workers=1,
            version=VERSION,
            nearline=NearlineInfo(VERSION, served),
        )
    )


def served_model(listed: NamedModel, loaded: Embedder | None) -> ServedModel:
    manifest, encoder = listed.manifest, loaded.encoder if loaded else None
    return ServedModel(
        name=listed.model,
        fingerprint=manifest.fingerprint,
        dimensions=manifest.dimensions,
        tokens_max=manifest.tokens_max,
        languages=manifest.languages,
        variant=encoder.variant if encoder else None,
        refused=[RefusedVariant(one.variant, one.reason) for one in encoder.refused] if encoder else None,
    )


def check_direction(direction: str | None) -> None:
    """Raise InvalidInput unless texts are cut at their right end."""
    if (direction or "right").lower() != "right":
        raise InvalidInput(
            "`truncation_direction` must be `right`: texts are cut at their end", param="truncation_direction"
        )


def kind_of(prompt: str | None) -> Kind:
    if prompt is None:
        return "document"
    if prompt not in PROMPTS:
        raise InvalidInput(
            f"`prompt_name` is {prompt[:40]!r}, but the prompts are: {', '.join(PROMPTS)}",
            param="prompt_name",
        )
    return PROMPTS[prompt]


async def texts_of(request: web.Request, embedder: Embedder, inputs: Inputs) -> list[str]:
    """Return `inputs` as texts: they are a text, token ids, or a list of either. Raises EmptyInput, TooLarge or
    InvalidInput."""
    batch = sequences(inputs, param="inputs")
    config = request.app[CONFIG]
    most = config.limits.texts_per_request_max
    if len(batch) > most:
        raise TooLarge(f"batch size {len(batch)} > maximum allowed batch size {most}", param="inputs")
    if not batch or not all(batch):
        raise EmptyInput("`inputs` cannot be empty", param="inputs")
    texts = [text for text in batch if isinstance(text, str)]
    if len(texts) < len(batch):
        request[HELD].token_ids(sum(len(one) for one in batch if isinstance(one, list)))
        texts = await run_abandonable(partial(texts_of_ids, embedder.encoder.tokenizers, batch))
    check_texts(texts, request, param="inputs")
    return texts


def compute_headers(result: EmbedResult, texts: list[str]) -> dict[str, str]:
    """Return the headers in which TEI reports its work; times are whole milliseconds."""
    embedded = result.embedded
    stages = {
        "x-compute-time": result.embed_s,
        "x-total-time": result.embed_s,
        "x-tokenization-time": embedded.tokenize_s,
        "x-queue-time": embedded.queue_s,
        "x-inference-time": embedded.run_s,
    }
    return {
        "x-compute-type": "cpu",
        "x-compute-tokens": str(result.tokens),
        "x-compute-characters": str(sum(map(len, texts))),
        **{name: str(round(seconds * 1000)) for name, seconds in stages.items()},
    }
