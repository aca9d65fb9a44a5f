"""Cohere's dialect for embedding, through its own client and over plain HTTP, against a real service."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import cohere
import numpy as np
import pytest

from jobs.serving.process import serving
from tests.support.http import Http
from tests.support.models import variation

MODEL = "all-MiniLM-L6-v2"
TEXTS = ["a cat", "a dog"]


@pytest.fixture
def client(http: Http) -> cohere.ClientV2:
    return cohere.ClientV2(api_key="none", base_url=http.url)


@pytest.fixture
def expected(http: Http) -> Any:
    answer = http.ok("POST", "/v1/embeddings", {"model": MODEL, "input": TEXTS})
    return np.array([item["embedding"] for item in answer["data"]], np.float32)


def test_coheres_own_client(client: cohere.ClientV2, expected: Any) -> None:
    """The vectors are those of the other dialects, as numbers, as bytes and as the bits of their signs."""
    found = client.embed(
        model=MODEL,
        input_type="search_document",
        texts=TEXTS,
        embedding_types=["float", "base64", "binary", "ubinary"],
    )
    assert np.array(found.embeddings.float_) == pytest.approx(expected, abs=1e-6)
    raw = b"".join(map(base64.b64decode, found.embeddings.base64 or []))
    assert np.frombuffer(raw, "<f4").reshape(expected.shape) == pytest.approx(expected, abs=1e-6)
    bits = np.packbits(expected > 0, axis=1)
    assert found.embeddings.ubinary == bits.tolist()
    assert found.embeddings.binary == (bits.astype(int) - 128).tolist()
    assert found.texts == TEXTS
    assert found.meta is not None
    assert found.meta.billed_units is not None
    assert found.meta.billed_units.input_tokens == 8


def test_numbers_are_the_default(client: cohere.ClientV2, expected: Any) -> None:
    """Also for `inputs`, each the text of its parts. Only the types that were asked for are there."""
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    found = client.embed(model=MODEL, input_type="clustering", inputs=inputs)  # type: ignore[arg-type]
    assert np.array(found.embeddings.float_) == pytest.approx(expected, abs=1e-6)
    assert found.embeddings.base64 is None


def test_errors_of_the_client(client: cohere.ClientV2) -> None:
    """They are Cohere's own, with the service's reason."""
    with pytest.raises(cohere.NotFoundError, match="nobody"):
        client.embed(model="nobody", input_type="search_query", texts=TEXTS)
    with pytest.raises(cohere.BadRequestError, match="int8"):
        client.embed(model=MODEL, input_type="search_query", texts=TEXTS, embedding_types=["int8"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"texts": []}, "texts"),
        ({"texts": ["a", ""]}, "texts"),
        ({}, "texts or inputs"),
        ({"texts": ["a"], "inputs": []}, "texts or inputs"),
        ({"texts": ["a"], "input_type": "image"}, "input_type"),
        ({"images": ["data:image/png;base64,AA=="]}, "images"),
        ({"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "type"),
        ({"texts": ["a"], "truncate": "START"}, "truncate"),
        ({"texts": ["word " * 1000], "truncate": "NONE"}, "tokens"),
        ({"texts": ["a"], "max_tokens": 10}, "max_tokens"),
        ({"texts": ["a"], "output_dimension": 100}, "output_dimension"),
        ({"texts": ["a"] * 2049}, "texts in one request"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_refused(http: Http, fields: dict[str, Any], words: str) -> None:
    """400 in Cohere's shape, naming the field."""
    reply = http.call("POST", "/v2/embed", {"model": MODEL, "input_type": "search_query", **fields})
    assert reply.status == 400
    assert words in reply.body["message"]


def test_the_type_chooses_the_prefix(tmp_path: Path, model_folder: Path) -> None:
    """Of a model that has prefixes; the types that it has none for are refused."""
    models = tmp_path / "models"
    variation(model_folder, models / "m", query_prefix="query: ", document_prefix="passage: ")
    environ = {"NEARLINE_MODELS_FOLDER": str(models), "NEARLINE_MODELS_DEFAULT": "m"}
    with serving(tmp_path / "data", environ) as server:
        http = Http(server.url)

        def vector(path: str, body: dict[str, Any]) -> Any:
            answer = http.ok("POST", path, {"model": "m", **body})
            return answer["embeddings"]["float"][0] if path == "/v2/embed" else answer["data"][0]["embedding"]

        made = {}
        for theirs, ours in (("search_query", "query"), ("search_document", "document")):
            made[theirs] = vector("/v2/embed", {"texts": ["a cat"], "input_type": theirs})
            assert made[theirs] == vector("/v1/embeddings", {"input": "a cat", "input_type": ours})
        assert made["search_query"] != made["search_document"]
        body = {"model": "m", "texts": ["a"], "input_type": "classification"}
        reply = http.call("POST", "/v2/embed", body)
        assert (reply.status, "search_document" in reply.body["message"]) == (400, True)
