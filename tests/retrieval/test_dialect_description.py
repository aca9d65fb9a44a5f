"""The description of the dialects: every path is in it, and what the service answers fits what it says."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from retrieval.server.routes import COHERE, JINA, OLLAMA, OPENAI, ROUTES, TEI
from tests.support.http import Http

MODEL = "all-MiniLM-L6-v2"
CALLS: list[tuple[str, str, str, object]] = [
    ("POST", "/v1/embeddings", "/v1/embeddings", {"model": MODEL, "input": ["a", "b"]}),
    ("POST", "/v1/embeddings", "/v1/embeddings", {"model": MODEL, "input": "a", "encoding_format": "base64"}),
    ("POST", "/v1/embeddings", "/v1/embeddings", {"model": "nobody", "input": "a"}),
    ("GET", "/v1/models", "/v1/models", None),
    ("GET", f"/v1/models/{MODEL}", "/v1/models/{model}", None),
    ("GET", "/v1/models/some/body", "/v1/models/{model}", None),
    ("POST", "/api/embed", "/api/embed", {"model": MODEL, "input": ["a", "b"]}),
    ("POST", "/api/embed", "/api/embed", {"model": "nobody", "input": "a"}),
    ("POST", "/api/embeddings", "/api/embeddings", {"model": MODEL, "prompt": "a"}),
    ("POST", "/api/show", "/api/show", {"model": MODEL}),
    ("GET", "/api/tags", "/api/tags", None),
    ("GET", "/api/version", "/api/version", None),
    ("POST", "/embed", "/embed", {"inputs": ["a", "b"]}),
    ("POST", "/embed", "/embed", {"inputs": []}),
    ("POST", "/", "/", {"inputs": ["a", "b"]}),
    ("POST", "/", "/", {"inputs": []}),
    ("GET", "/info", "/info", None),
    ("POST", "/rerank", "/rerank", {"query": "a", "texts": ["a", "b"], "return_text": True}),
    ("POST", "/rerank", "/rerank", {"query": "a", "texts": []}),
    ("POST", "/v2/rerank", "/v2/rerank", {"model": "tiny", "query": "a", "documents": ["a", "b"]}),
    ("POST", "/v2/rerank", "/v2/rerank", {"model": "nobody", "query": "a", "documents": ["a"]}),
    ("POST", "/v1/rerank", "/v1/rerank", {"model": "tiny", "query": "a", "documents": ["a", {"text": "b"}]}),
    ("POST", "/v1/rerank", "/v1/rerank", {"query": "a", "documents": ["a"], "return_documents": False}),
    ("POST", "/v1/rerank", "/v1/rerank", {"model": "nobody", "query": "a", "documents": ["a"]}),
    ("POST", "/v2/embed", "/v2/embed", {"model": MODEL, "input_type": "search_query", "texts": ["a"]}),
    (
        "POST",
        "/v2/embed",
        "/v2/embed",
        {
            "model": MODEL,
            "input_type": "search_query",
            "texts": ["a"],
            "embedding_types": ["base64", "binary"],
        },
    ),
    ("POST", "/v2/embed", "/v2/embed", {"model": "nobody", "input_type": "search_query", "texts": ["a"]}),
    (
        "POST",
        "/similarity",
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["a", "b"]}},
    ),
    ("POST", "/similarity", "/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}),
    ("POST", "/embed_all", "/embed_all", {"inputs": "a"}),
]


@pytest.fixture(scope="module")
def description(service: Any) -> Any:
    return Http(service.url).ok("GET", "/openapi.json")


def test_every_path_is_called_below() -> None:
    """A route that is added to a dialect is added here too."""
    called = {(method, described) for method, _, described, _ in CALLS} | {("GET", "/health")}
    routed = {
        (route.method, route.path.replace(":.+", ""))
        for route in ROUTES
        if route.tag in {OPENAI, OLLAMA, TEI, COHERE, JINA}
    }
    assert called == routed


@pytest.mark.parametrize(("method", "path", "described", "body"), CALLS, ids=lambda value: str(value)[:60])
def test_answers_fit(
    http: Http, description: Any, method: str, path: str, described: str, body: object
) -> None:
    """The answer, or the error, has the shape that the description gives for its path."""
    reply = http.call(method, path, body)
    responses = description["paths"][described][method.lower()]["responses"]
    content = responses["200" if reply.status == 200 else "default"]["content"]
    schema = {**content["application/json"]["schema"], "components": description["components"]}
    Draft202012Validator(schema).validate(reply.body)


def test_the_request_bodies_fit(http: Http, description: Any) -> None:
    """What the calls above send and get an answer to is what the description asks for."""
    for method, path, described, body in CALLS:
        if body is not None and http.call(method, path, body).status == 200:
            asked = description["paths"][described][method.lower()]["requestBody"]["content"]
            schema = {**asked["application/json"]["schema"], "components": description["components"]}
            Draft202012Validator(schema).validate(body)
