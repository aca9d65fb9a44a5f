"""Ollama's dialect: POST /api/embed, /api/embeddings and /api/show, GET /api/tags and /api/version.

`m` and `m:latest` name the same model. `keep_alive` and `options` are accepted and ignored: models stay loaded, and a
text is cut where the model's window ends, regardless of `options.num_ctx`. Texts get the model's prefix for documents.
Unknown fields are ignored, as Ollama does. `truncated`, which is ours, lists the texts that were cut.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from aiohttp import web

from indexes.base.errors import InvalidInput
from retrieval.base.version import VERSION
from retrieval.dialects.embedding import (
    VectorJson,
    as_numbers,
    check_texts,
    embed,
    encode_json,
    open_model,
)
from retrieval.dialects.models import NamedModel, find_model, list_models
from retrieval.embedding.models import ModelManifest
from retrieval.handlers.state import CONFIG, ENTRY
from retrieval.handlers.wire import answer, body, json_answer

LATEST = ":latest"
UNKNOWN = "unknown"


class OllamaEmbed(msgspec.Struct, frozen=True, kw_only=True):
    model: str = ""
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    keep_alive: Any = None
    options: dict[str, Any] | None = None


class OllamaEmbedded(msgspec.Struct, omit_defaults=True):
    """Durations in nanoseconds."""

    model: str
    embeddings: list[VectorJson]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    truncated: list[int] = msgspec.field(default_factory=list)


class OllamaEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    model: str = ""
    prompt: str | None = None
    keep_alive: Any = None
    options: dict[str, Any] | None = None


class OllamaEmbedding(msgspec.Struct):
    embedding: VectorJson


class OllamaShow(msgspec.Struct, frozen=True, kw_only=True):
    model: str = ""
    name: str = ""  # the field of older clients
    verbose: bool | None = None


class OllamaDetails(msgspec.Struct):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    context_length: int
    embedding_length: int


class OllamaModel(msgspec.Struct):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    capabilities: list[str]


class OllamaTags(msgspec.Struct):
    models: list[OllamaModel]


class OllamaShown(msgspec.Struct):
    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(msgspec.Struct):
    version: str


async def embed_texts(request: web.Request) -> web.Response:
    started = time.perf_counter_ns()
    wanted = await body(request, OllamaEmbed)
    given = wanted.input or []
    texts = [given] if isinstance(given, str) else given
    check_texts(texts, request, param="input")
    embedder = await open_model(request, resolve_name(request.app, wanted.model))
    load_ns = time.perf_counter_ns() - started
    if not texts:  # a request without texts only loads the model
        return answer(OllamaEmbedded(wanted.model, []))
    result = await embed(
        embedder,
        texts,
        request[ENTRY],
        kind="document",
        long="refuse" if wanted.truncate is False else "cut",
        dimensions=wanted.dimensions or None,  # Go clients send 0 for an unset value
    )

    def build() -> OllamaEmbedded:
        return OllamaEmbedded(
            model=wanted.model,
            embeddings=as_numbers(result.vectors()),
            total_duration=time.perf_counter_ns() - started,
            load_duration=load_ns,
            prompt_eval_count=result.tokens,
            truncated=result.truncated,
        )

    return json_answer(await encode_json(result, build), result.headers)


async def embed_prompt(request: web.Request) -> web.Response:
    """Embed one text, in the older form of the API."""
    wanted = await body(request, OllamaEmbeddings)
    embedder = await open_model(request, resolve_name(request.app, wanted.model))
    if not wanted.prompt:
        return answer(OllamaEmbedding(msgspec.Raw(b"[]")))
    check_texts([wanted.prompt], request, param="prompt")
    result = await embed(embedder, [wanted.prompt], request[ENTRY], kind="document", long="cut")
    return answer(OllamaEmbedding(as_numbers(result.vectors())[0]), headers=result.headers)


async def list_tags(request: web.Request) -> web.Response:
    return answer(OllamaTags([entry_of(listed) for listed in await list_models(request.app)]))


async def show_model(request: web.Request) -> web.Response:
    wanted = await body(request, OllamaShow)
    listed = await find_model(request.app, resolve_name(request.app, wanted.model or wanted.name))
    details = details_of(listed.manifest)
    return answer(
        OllamaShown(
            modelfile=f"FROM {listed.model}\n",
            parameters="",
            template="{{ .Prompt }}",
            details=details,
            model_info=info_of(listed, details.family),
            capabilities=["embedding"],
            modified_at=listed.exported.isoformat(),
        )
    )


async def show_version(request: web.Request) -> web.Response:
    return answer(OllamaVersion(VERSION))


def resolve_name(app: web.Application, name: str) -> str:
    """Return the alias or exported model for a name with or without `:latest`. Raises InvalidInput for an empty
    name."""
    if not name:
        raise InvalidInput("model is required", param="model")
    bare = name.removesuffix(LATEST)
    aliases = app[CONFIG].models.aliases
    return next((alias for alias in (name, bare, bare + LATEST) if alias in aliases), bare)


def entry_of(listed: NamedModel) -> OllamaModel:
    manifest = listed.manifest
    name = listed.name if ":" in listed.name else listed.name + LATEST
    return OllamaModel(
        name=name,
        model=name,
        modified_at=listed.exported.isoformat(),
        size=sum(seal.bytes for seal in manifest.files.values()),
        digest=manifest.fingerprint,
        details=details_of(manifest),
        capabilities=["embedding"],
    )


def details_of(manifest: ModelManifest) -> OllamaDetails:
    family = manifest.architecture or UNKNOWN
    return OllamaDetails(
        parent_model="",
        format="onnx",
        family=family,
        families=[family],
        parameter_size=UNKNOWN,  # not in the manifest
        quantization_level=manifest.quantisation.partition(":")[0].upper(),
        context_length=manifest.tokens_max,
        embedding_length=manifest.dimensions,
    )


def info_of(listed: NamedModel, family: str) -> dict[str, Any]:
    manifest = listed.manifest
    return {
        "general.architecture": family,
        "general.basename": listed.model,
        f"{family}.context_length": manifest.tokens_max,
        f"{family}.embedding_length": manifest.dimensions,
        f"{family}.pooling": manifest.pooling,
    }
