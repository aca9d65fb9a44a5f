"""The dialect of Text Embeddings Inference over plain HTTP, against a real service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from huggingface_hub import InferenceClient
from tokenizers import Tokenizer

from retrieval.base.settings import Config, ModelsSection
from retrieval.dialects.tei import health
from retrieval.dialects.token_ids import IDS_READ_MAX
from retrieval.embedding.embedders import Embedders
from retrieval.embedding.results import Observer
from retrieval.handlers.state import CONFIG, EMBEDDERS, FOLDERS, READY
from retrieval.server.middlewares import errors_as_json
from tests.support.http import Http

MODEL = "all-MiniLM-L6-v2"
LONG = "The quick brown fox jumps over the lazy dog. " * 100


def vectors(http: Http, inputs: object, **fields: object) -> Any:
    return np.array(http.ok("POST", "/embed", {"inputs": inputs, **fields}))


def test_embed(http: Http) -> None:
    """One text or several, always a list of vectors: those of the other dialects."""
    one, two = vectors(http, "a cat"), vectors(http, ["a cat", "a dog"])
    answer = http.ok("POST", "/v1/embeddings", {"model": MODEL, "input": ["a cat", "a dog"]})
    expected = np.array([item["embedding"] for item in answer["data"]])
    assert (one.shape, two.shape) == ((1, 384), (2, 384))
    assert one == pytest.approx(expected[:1], abs=1e-6)
    assert two == pytest.approx(expected, abs=1e-6)


def test_token_ids(http: Http, model_folder: Path) -> None:
    """Ids of the model's own tokenizer stand for their text: one list is one input, lists and texts may be mixed."""
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    tokenizer.no_padding()
    texts = ["penguins swim instead", "unbelievably hydrated"]
    ids = [tokenizer.encode(text).ids for text in texts]
    expected = vectors(http, texts)
    assert vectors(http, ids[0]) == pytest.approx(expected[:1], abs=1e-6)
    assert vectors(http, ids) == pytest.approx(expected, abs=1e-6)
    assert vectors(http, [texts[0], ids[1]]) == pytest.approx(expected, abs=1e-6)


def test_a_text_of_too_many_token_ids(http: Http) -> None:
    """Is read as far as the window reaches: its tokenizer would hold the interpreter while it decodes the rest."""
    long, longer = [2000] * 1000, [2000] * (IDS_READ_MAX + 1)
    assert vectors(http, [longer], truncate=True) == pytest.approx(
        vectors(http, [long], truncate=True), abs=1e-6
    )


@pytest.mark.parametrize(
    "inputs", [[1, 99_999_999], [[-1]], [1, "x"], [1, [2]], [True], {"a": 1}, 5], ids=str
)
def test_strange_inputs(http: Http, inputs: object) -> None:
    """Ids that the tokenizer does not have, mixtures and other types are 422."""
    reply = http.call("POST", "/embed", {"inputs": inputs})
    assert (reply.status, reply.body["error_type"]) == (422, "Validation")
    assert reply.body["error"].startswith("Input validation error: ")


@pytest.mark.parametrize("inputs", ["", [], [""], ["x", ""], [[]]], ids=str)
def test_empty_inputs(http: Http, inputs: object) -> None:
    """400 in TEI's words."""
    reply = http.call("POST", "/embed", {"inputs": inputs})
    assert reply.status == 400
    assert reply.body == {"error": "Input validation error: `inputs` cannot be empty", "error_type": "Empty"}


@pytest.mark.parametrize("truncate", [None, True])
def test_truncation_is_the_default_and_reported(http: Http, truncate: bool | None) -> None:
    """/info says `auto_truncate`, so nothing and null cut as true does; the header names the text."""
    reply = http.call("POST", "/embed", {"inputs": ["x", LONG], "truncate": truncate})
    assert (reply.status, len(reply.body)) == (200, 2)
    assert reply.headers["X-Truncated-Inputs"] == "1"


def test_truncation_refused(http: Http) -> None:
    """With `truncate: false` a long text is 422, naming the limit."""
    reply = http.call("POST", "/embed", {"inputs": ["x", LONG], "truncate": False})
    assert (reply.status, reply.body["error_type"]) == (422, "Validation")
    assert "`inputs` must have less than 256 tokens" in reply.body["error"]
    assert http.call("POST", "/embed", {"inputs": ["x"], "truncate": False}).status == 200


def test_truncation_on_the_right_only(http: Http) -> None:
    """Texts lose their end; to keep it is refused, not forgotten."""
    assert http.call("POST", "/embed", {"inputs": "x", "truncation_direction": "right"}).status == 200
    reply = http.call("POST", "/embed", {"inputs": "x", "truncation_direction": "left"})
    assert reply.status == 422
    assert "must be `right`" in reply.body["error"]
    assert http.call("POST", "/embed", {"inputs": "x", "truncation_direction": "up"}).status == 422


def test_prompt_names(http: Http) -> None:
    """Known names are accepted, of others the known ones are named."""
    for name in (None, "query", "document", "passage"):
        assert http.call("POST", "/embed", {"inputs": "x", "prompt_name": name}).status == 200
    reply = http.call("POST", "/embed", {"inputs": "x", "prompt_name": "clustering"})
    assert (reply.status, reply.body["error_type"]) == (422, "Validation")
    assert "document, passage, query" in reply.body["error"]


def test_normalize(http: Http) -> None:
    """Vectors of a model that normalises cannot be had otherwise."""
    assert np.linalg.norm(vectors(http, "x", normalize=True)) == pytest.approx(1, abs=1e-5)
    reply = http.call("POST", "/embed", {"inputs": "x", "normalize": False})
    assert reply.status == 422
    assert "vectors of this model have length 1" in reply.body["error"]


def test_dimensions(http: Http) -> None:
    """The model's own number changes nothing; others are 422."""
    assert vectors(http, ["x", "y"], dimensions=384).shape == (2, 384)
    for dimensions in (0, 32, 385):
        reply = http.call("POST", "/embed", {"inputs": "x", "dimensions": dimensions})
        assert (reply.status, reply.body["error_type"]) == (422, "Validation")


@pytest.mark.slow
def test_the_largest_batch(http: Http) -> None:
    """A batch as large as /info says is embedded; a larger one is 413 in TEI's words."""
    most = http.ok("GET", "/info")["max_client_batch_size"]
    assert len(vectors(http, ["x"] * most)) == most
    reply = http.call("POST", "/embed", {"inputs": ["x"] * (most + 1)})
    assert reply.status == 413
    assert reply.body == {
        "error": f"batch size {most + 1} > maximum allowed batch size {most}",
        "error_type": "Validation",
    }


def test_compute_headers(http: Http) -> None:
    """Tokens, characters and whole milliseconds of each stage, besides our own."""
    headers = http.call("POST", "/embed", {"inputs": ["a cat", "a dog"]}).headers
    assert headers["x-compute-type"] == "cpu"
    assert (headers["x-compute-tokens"], headers["x-compute-characters"]) == ("8", "10")
    for name in ("compute", "total", "tokenization", "queue", "inference"):
        assert headers[f"x-{name}-time"].isdecimal()
    assert float(headers["X-Embed-Latency"]) > 0


def test_unknown_fields_are_ignored(http: Http) -> None:
    """As TEI does: gateways send parameters along."""
    assert vectors(http, "x", parameters={}, options={"wait_for_model": True}).shape == (1, 384)


def test_info(http: Http) -> None:
    """TEI's fields with the types it gives them, and what Nearline knows besides."""
    info = http.ok("GET", "/info")
    ours = info.pop("nearline")
    kinds = {name: type(value) for name, value in info.items()}
    assert kinds == {
        "model_id": str,
        "model_sha": str,
        "model_dtype": str,
        "served_model_name": str,
        "model_type": dict,
        "max_concurrent_requests": int,
        "max_input_length": int,
        "max_batch_tokens": int,
        "max_batch_requests": int,
        "max_client_batch_size": int,
        "auto_truncate": bool,
        "tokenization_workers": int,
        "version": str,
    }
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (info["model_id"], info["max_input_length"], info["auto_truncate"]) == (MODEL, 256, True)
    model = next(one for one in ours["models"] if one["name"] == MODEL)
    assert (model["dimensions"], model["tokens_max"]) == (384, 256)
    assert model["fingerprint"] == info["model_sha"]
    assert model["variant"]
    assert isinstance(model["refused"], list)


def test_health(http: Http) -> None:
    """200 without a body."""
    reply = http.call("GET", "/health")
    assert (reply.status, reply.body) == (200, None)


def test_health_opens_nothing(model_folder: Path) -> None:
    """503 while the default model is not loaded, however often it is asked; loading is for those who embed."""

    async def probe() -> None:
        app = web.Application(middlewares=[errors_as_json])
        app[CONFIG] = Config(
            models=ModelsSection(folder=str(model_folder.parent), default=model_folder.name, threads=1)
        )
        app[READY] = {"ready": True}
        app[FOLDERS] = ()
        app[EMBEDDERS] = embedders = Embedders(app[CONFIG], lambda name: Observer())
        app.router.add_get("/health", health)
        async with TestClient(TestServer(app)) as client:
            for _ in range(2):
                assert (await client.get("/health")).status == 503
            assert not embedders.loaded
            await embedders.get(model_folder.name)
            assert (await client.get("/health")).status == 200
            app[READY]["ready"] = False
            assert (await client.get("/health")).status == 503
        await embedders.close()

    asyncio.run(probe())


# --- similarity -------------------------------------------------------------------------------------------------


def test_similarity(http: Http) -> None:
    """Cosines of the source sentence with the others, in their order; Hugging Face's client reads them."""
    sentences = ["a cat", "a kitten", "quarterly revenue"]
    embedded = vectors(http, ["a cat", *sentences])
    expected = embedded[1:] @ embedded[0]
    body = {"inputs": {"source_sentence": "a cat", "sentences": sentences}}
    reply = http.call("POST", "/similarity", body)
    assert reply.body == pytest.approx(expected, abs=1e-6)
    assert int(reply.headers["x-compute-tokens"]) > 0
    assert max(reply.body) <= 1
    client = InferenceClient(f"{http.url}/similarity")
    assert client.sentence_similarity("a cat", other_sentences=sentences) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"inputs": {"source_sentence": "a", "sentences": []}}, 400, "Empty"),
        ({"inputs": {"source_sentence": "", "sentences": ["a"]}}, 400, "Empty"),
        ({"inputs": {"source_sentence": "a", "sentences": ["a"] * 2048}}, 413, "Validation"),
        (
            {"inputs": {"source_sentence": "a", "sentences": [LONG]}, "parameters": {"truncate": False}},
            422,
            "Validation",
        ),
        (
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"prompt_name": "x"}},
            422,
            "Validation",
        ),
        ({"inputs": ["a", "b"]}, 422, "Validation"),
    ],
)
def test_similarity_refused(http: Http, body: dict[str, Any], status: int, kind: str) -> None:
    """As /embed refuses; the source sentence counts among the texts of a request."""
    reply = http.call("POST", "/similarity", body)
    assert (reply.status, reply.body["error_type"]) == (status, kind)
