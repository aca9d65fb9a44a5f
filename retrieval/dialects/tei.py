"""The dialect of Text Embeddings Inference: POST /embed and /similarity, GET /info, GET /health; and POST /, to which
`huggingface_hub.InferenceClient` sends its `feature_extraction`.

A request names no model: the default one answers. `prompt_name` picks the model's prefix; without it texts get the
prefix for documents. Token ids are the model's own, and read as the text they stand for. Fields nobody knows are
ignored, as TEI does.

POST /embed_all is always refused, saying why: the graphs pool inside, and give the vector of a text, not of its tokens.
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
    Answered,
    Dimensions,
    Direction,
    Inputs,
    Words,
    as_numbers,
    bounded,
    embed,
    open_model,
    written,
)
from retrieval.dialects.models import Listed, list_models, model_of
from retrieval.dialects.token_ids import sequences, texts_of_ids
from retrieval.embedding.embedders import Embedder
from retrieval.embedding.models import Kind
from retrieval.handlers.error_shapes import EmptyInput, NoTokenVectors
from retrieval.handlers.state import CONFIG, EMBEDDERS, ENTRY, HELD, READY
from retrieval.handlers.wire import answer, body, json_answer

PROMPTS: dict[str, Kind] = {"document": "document", "passage": "document", "query": "query"}
PromptName = Annotated[str | None, msgspec.Meta(extra_json_schema={"enum": [*PROMPTS, None]})]
POOLING = {"last": "last_token"}  # TEI's words where ours differ


class TeiEmbed(msgspec.Struct, frozen=True, kw_only=True):
    inputs: Inputs
    truncate: bool | None = None
    truncation_direction: Direction = None
    prompt_name: PromptName = None
    normalize: bool | None = None
    dimensions: Dimensions = None


class TeiSentences(msgspec.Struct, frozen=True):
    source_sentence: Words
    sentences: Annotated[list[Words], msgspec.Meta(extra_json_schema={"minItems": 1})]


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
    """`languages` are BCP 47 codes of those it reads, null if it does not say. `variant` is the graph that runs,
    `refused` says why others do not; both are null for a model that is not in use yet."""

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
    answered = await embed(
        embedder,
        texts,
        request[ENTRY],
        kind=kind,
        long="refuse" if wanted.truncate is False else "cut",
        dimensions=wanted.dimensions,
        normalise=wanted.normalize is not False,
    )
    content = await written(answered, lambda: as_numbers(answered.vectors()))
    return json_answer(content, {**answered.headers, **compute_headers(answered, texts)})


async def similarity(request: web.Request) -> web.Response:
    """The cosine of the source sentence with each of the others."""
    wanted = await body(request, TeiSimilarity)
    options = wanted.parameters or TeiSimilarityParameters()
    kind = kind_of(options.prompt_name)
    check_direction(options.truncation_direction)
    if not wanted.inputs.sentences:
        raise EmptyInput("`inputs.sentences` cannot be empty", param="inputs.sentences")
    embedder = await open_model(request, request.app[CONFIG].models.default)
    texts = await texts_of(request, embedder, [wanted.inputs.source_sentence, *wanted.inputs.sentences])
    answered = await embed(
        embedder, texts, request[ENTRY], kind=kind, long="refuse" if options.truncate is False else "cut"
    )

    def build() -> list[float]:
        source, *others = answered.vectors()
        return [float(np.clip(source @ one, -1, 1)) for one in others]

    return json_answer(
        await written(answered, build), {**answered.headers, **compute_headers(answered, texts)}
    )


async def embed_all(request: web.Request) -> web.Response:
    """Raises NoTokenVectors for any well-formed request."""
    await body(request, TeiEmbed)
    raise NoTokenVectors


async def health(request: web.Request) -> web.Response:
    """200 without a body while texts can be embedded, 503 otherwise. Tries to load nothing: a probe must be cheap."""
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
            # Nearline bounds the tokens that wait, not the requests: so many of full length find room.
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


def served_model(listed: Listed, loaded: Embedder | None) -> ServedModel:
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
    """Raises InvalidInput for all but the right."""
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
    """The texts of `inputs`: a text, token ids, or a list of either. Raises EmptyInput, TooLarge or InvalidInput."""
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
    bounded(texts, request, param="inputs")
    return texts


def compute_headers(answered: Answered, texts: list[str]) -> dict[str, str]:
    """What TEI says of its work, in whole milliseconds."""
    embedded = answered.embedded
    stages = {
        "x-compute-time": answered.embed_s,
        "x-total-time": answered.embed_s,
        "x-tokenization-time": embedded.tokenize_s,
        "x-queue-time": embedded.queue_s,
        "x-inference-time": embedded.run_s,
    }
    return {
        "x-compute-type": "cpu",
        "x-compute-tokens": str(answered.tokens),
        "x-compute-characters": str(sum(map(len, texts))),
        **{name: str(round(seconds * 1000)) for name, seconds in stages.items()},
    }
