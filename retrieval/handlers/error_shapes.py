"""Errors in the shape that each dialect's clients read.

The path alone decides, so an unknown path under a dialect's prefix, a wrong method and a malformed body are answered
in its shape too.

    OpenAI   {"error": {"message", "type", "param", "code"}}
    Ollama   {"error": "..."}
    TEI      {"error": "...", "error_type": "Validation"}
    Cohere   {"message": "..."}
    Jina     {"detail": "...", "message": "..."}      `message` for clients of Cohere's v1 API, which has the same path
    ours     everywhere else: `retrieval/wire/errors.py`
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from indexes.base.errors import InvalidInput, NearlineError, NotFound, TooLarge
from retrieval.embedding.results import TooLong
from retrieval.wire import errors

NAME_CHARS_SHOWN = 200  # of an unknown model's name, in the error


class ModelNotFound(NotFound):
    """A request names a model that does not exist. `name` is as the client wrote it, `known` lists the valid names."""

    def __init__(self, name: str, known: list[str]) -> None:
        self.name = name[:NAME_CHARS_SHOWN]
        listed = ", ".join(known) or "none; export one with nearline export-model"
        super().__init__(f"the model '{self.name}' does not exist; available models: {listed}", param="model")


class NoReranker(NotFound):
    """A request asks for reranking, and no reranker is configured."""

    def __init__(self) -> None:
        super().__init__(
            "no reranker is configured: name an exported cross-encoder in rerank.model", param="model"
        )


class NoTokenVectors(NotFound):
    """A request asks for a vector per token; models here return one vector per text."""

    def __init__(self) -> None:
        super().__init__(
            "no token vectors: the models here pool inside their graphs; /embed returns one vector per text"
        )


class EmptyInput(InvalidInput):
    """There is no text to embed."""


class OpenAIErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorBody(msgspec.Struct):
    error: OpenAIErrorDetail


class OllamaErrorBody(msgspec.Struct):
    error: str


class CohereErrorBody(msgspec.Struct):
    message: str


class JinaErrorBody(msgspec.Struct):
    detail: str
    message: str


class TeiErrorBody(msgspec.Struct):
    error: str
    error_type: str


def response(path: str, error: NearlineError, *, status: int | None = None) -> web.Response:
    """Return the error response to a request on `path`. `status` is ours, for errors whose class does not set it."""
    dialect = dialect_of(path)
    if dialect is None:
        return own_response(error, status=status)
    theirs = dialect.status(error, status or errors.status_of(error))
    return web.Response(
        body=msgspec.json.encode(dialect.body(error, theirs)),
        status=theirs,
        content_type="application/json",
        headers=errors.error_headers(error),
    )


def own_response(error: NearlineError, *, status: int | None = None) -> web.Response:
    """Return the response in our own shape. `status` is for errors whose class does not set one."""
    return web.Response(
        body=msgspec.json.encode(errors.body_of(error)),
        status=status or errors.status_of(error),
        content_type="application/json",
        headers=errors.error_headers(error),
    )


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one family of clients reads errors. The dialect owns `paths` and everything below them."""

    paths: tuple[str, ...]
    body: Callable[[NearlineError, int], msgspec.Struct]
    statuses: Mapping[int, int]  # our status to theirs, where they differ
    kinds: Mapping[type[NearlineError], int] = field(default_factory=dict)  # overrides for single errors

    def status(self, error: NearlineError, ours: int) -> int:
        # We answer 413 both to too many inputs and to a body too large; most dialects use 413 for the body only.
        if ours == 413 and error.param == "body":
            return ours
        return self.kinds.get(type(error)) or self.statuses.get(ours, ours)


@functools.lru_cache(maxsize=1024)
def dialect_of(path: str) -> Dialect | None:
    """Return the dialect that owns a path, or None if it is ours."""
    for dialect in (OPENAI, OLLAMA, TEI, COHERE, JINA):
        if any(path == own or path.startswith(f"{own}/") for own in dialect.paths):
            return dialect
    return None


def openai_body(error: NearlineError, status: int) -> OpenAIErrorBody:
    message, param, code = error.message, error.param, None
    kind = "server_error" if status >= 500 else "invalid_request_error"
    match error:
        case ModelNotFound():
            code = "model_not_found"
        case TooLong():
            # Gateways recognize this error by this wording or by the code.
            message = f"This model's maximum context length is {error.tokens_max} tokens: {message}"
            param, code = "input", "context_length_exceeded"
        case _ if status == 429:
            kind, code = "rate_limit_error", "rate_limit_exceeded"
    return OpenAIErrorBody(OpenAIErrorDetail(message, kind, param, code))


def ollama_body(error: NearlineError, status: int) -> OllamaErrorBody:
    match error:
        case ModelNotFound():
            return OllamaErrorBody(f"model '{error.name}' not found")  # clients match this text exactly
        case TooLong():
            return OllamaErrorBody(f"input length exceeds maximum context length: {error.message}")
        case _:
            return OllamaErrorBody(error.message)


def tei_body(error: NearlineError, status: int) -> TeiErrorBody:
    match error:
        case EmptyInput():
            return TeiErrorBody(f"Input validation error: {error.message}", "Empty")
        case TooLong():
            limit = f"`inputs` must have less than {error.tokens_max} tokens"
            return TeiErrorBody(f"Input validation error: {limit}: {error.message}", "Validation")
        case TooLarge():
            return TeiErrorBody(error.message, "Validation")
        case InvalidInput():
            return TeiErrorBody(f"Input validation error: {error.message}", "Validation")
    match status:
        case 424:
            return TeiErrorBody(f"Backend error: {error.message}", "Backend")
        case 429:
            return TeiErrorBody("Model is overloaded", "Overloaded")
        case 503:
            return TeiErrorBody(error.message, "Unhealthy")
        case _:
            return TeiErrorBody(error.message, "Validation")


def cohere_body(error: NearlineError, status: int) -> CohereErrorBody:
    return CohereErrorBody(error.message)


def jina_body(error: NearlineError, status: int) -> JinaErrorBody:
    return JinaErrorBody(error.message, error.message)


OPENAI_PATHS = "/v1/embeddings /v1/models /v1/vector_stores /v1/files"
OPENAI = Dialect(tuple(OPENAI_PATHS.split()), openai_body, {413: 400, 422: 400})
OLLAMA = Dialect(("/api",), ollama_body, {413: 400, 422: 400, 429: 503})
# Includes paths of TEI that Nearline does not serve (yet), so that TEI's clients can read the error.
TEI_PATHS = "/ /embed /embed_all /embed_sparse /rerank /predict /similarity /tokenize /decode /info /health"
TEI = Dialect(
    tuple(TEI_PATHS.split()),
    tei_body,
    {409: 424, 500: 424, 507: 424},
    {EmptyInput: 400, ModelNotFound: 424, NoReranker: 424, NoTokenVectors: 424},
)
COHERE = Dialect(("/v2",), cohere_body, {413: 400, 422: 400})
JINA = Dialect(("/v1/rerank",), jina_body, {413: 400, 422: 400})
