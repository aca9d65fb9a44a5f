"""Ollama's dialect, spoken by Ollama's own client against a real service; raw HTTP where the client hides the wire."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from typing import Any

import numpy as np
import ollama
import pytest

from jobs.serving.process import ServerProcess
from tests.support.http import Http

MODEL = "all-MiniLM-L6-v2"
LONG = "The quick brown fox jumps over the lazy dog. " * 100


@pytest.fixture
def client(service: ServerProcess) -> ollama.Client:
    return ollama.Client(host=service.url)


def openai_vectors(http: Http, *texts: str) -> Any:
    answer = http.ok("POST", "/v1/embeddings", {"model": MODEL, "input": texts})
    return np.array([item["embedding"] for item in answer["data"]])


def test_embed(client: ollama.Client, http: Http) -> None:
    """One text or several: the vectors of the other dialects, in order, with durations and a count of tokens."""
    one = client.embed(model=MODEL, input="a cat")
    two = client.embed(model=MODEL, input=["a cat", "a dog"])
    expected = openai_vectors(http, "a cat", "a dog")
    assert np.array(one.embeddings) == pytest.approx(expected[:1], abs=1e-6)
    assert np.array(two.embeddings) == pytest.approx(expected, abs=1e-6)
    assert two.model == MODEL
    assert two.prompt_eval_count == 8
    assert two.total_duration is not None
    assert two.load_duration is not None
    assert two.total_duration > two.load_duration > 0
    assert two.total_duration > 50_000  # nanoseconds, not milliseconds


def test_the_wire(http: Http) -> None:
    """Nothing but the fields that Ollama sends, as long as nothing was cut."""
    reply = http.call("POST", "/api/embed", {"model": MODEL, "input": "x"})
    assert set(reply.body) == {"model", "embeddings", "total_duration", "load_duration", "prompt_eval_count"}
    assert float(reply.headers["X-Embed-Latency"]) > 0


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest"])
def test_latest_may_be_said(client: ollama.Client, name: str) -> None:
    """`m` and `m:latest` are the same model; the answer repeats the name as it was given."""
    answer = client.embed(model=name, input="x")
    assert answer.model == name
    assert client.show(name).details is not None


@pytest.mark.parametrize("given", ["", []], ids=repr)
def test_empty_input_loads_the_model(http: Http, given: object) -> None:
    """Nothing to embed is no error: 200 with no vectors."""
    assert http.ok("POST", "/api/embed", {"model": MODEL, "input": given}) == {
        "model": MODEL,
        "embeddings": [],
    }
    assert http.ok("POST", "/api/embed", {"model": MODEL})["embeddings"] == []
    assert http.ok("POST", "/api/embeddings", {"model": MODEL, "prompt": ""}) == {"embedding": []}


def test_truncation(client: ollama.Client, http: Http) -> None:
    """Long texts are cut by default, and the answer says which; `truncate: false` refuses them with 400."""
    reply = http.call("POST", "/api/embed", {"model": MODEL, "input": ["x", LONG], "truncate": True})
    assert reply.body["truncated"] == [1]
    assert reply.headers["X-Truncated-Inputs"] == "1"
    with pytest.raises(ollama.ResponseError, match="exceeds maximum context length") as caught:
        client.embed(model=MODEL, input=["x", LONG], truncate=False)
    assert caught.value.status_code == 400
    assert len(client.embed(model=MODEL, input="x", truncate=False).embeddings) == 1


def test_dimensions(client: ollama.Client) -> None:
    """The model's own number changes nothing, and 0 is what Go's clients send for nothing; others are refused."""
    for dimensions in (0, 384):
        assert len(client.embed(model=MODEL, input="x", dimensions=dimensions).embeddings[0]) == 384
    for dimensions, found in [(385, "dimensions must be from 1 to 384"), (64, "must be 384 or left out")]:
        with pytest.raises(ollama.ResponseError, match=found) as caught:
            client.embed(model=MODEL, input="x", dimensions=dimensions)
        assert caught.value.status_code == 400


def test_keep_alive_and_options_are_accepted(client: ollama.Client) -> None:
    """They change nothing here, and neither do fields that nobody knows."""
    plain = client.embed(model=MODEL, input="x").embeddings
    for keep_alive in ("5m", 0, -1):
        answer = client.embed(model=MODEL, input="x", keep_alive=keep_alive, options={"num_ctx": 4096})
        assert answer.embeddings == plain


def test_unknown_fields_are_ignored(http: Http) -> None:
    """As Ollama does, so that newer clients work."""
    http.ok("POST", "/api/embed", {"model": MODEL, "input": "x", "some_day": True})


def test_an_unknown_model(client: ollama.Client) -> None:
    """404 in the very words that clients look for."""
    for call in (
        lambda: client.embed(model="llama9", input="x"),
        lambda: client.embeddings(model="llama9", prompt="x"),
        lambda: client.show("llama9"),
    ):
        with pytest.raises(ollama.ResponseError) as caught:
            call()
        assert (caught.value.status_code, caught.value.error) == (404, "model 'llama9' not found")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/embed", {"input": "x"}),
        ("/api/embed", {"model": MODEL, "input": 5}),
        ("/api/embed", {"model": MODEL, "input": ["x", 5]}),
        ("/api/embed", {"model": MODEL, "input": "x", "truncate": "yes"}),
        ("/api/embed", {"model": MODEL, "input": ["x"] * 3000}),
        ("/api/embeddings", {"prompt": "x"}),
        ("/api/show", {}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_requests(http: Http, path: str, body: object) -> None:
    """400 with a string that says what is wrong."""
    reply = http.call("POST", path, body)
    assert reply.status == 400, reply
    assert set(reply.body) == {"error"}
    assert isinstance(reply.body["error"], str)


def test_the_older_form(client: ollama.Client, http: Http) -> None:
    """/api/embeddings takes one prompt and gives one vector; a long one is cut, and the header says so."""
    found = client.embeddings(model=MODEL, prompt="a cat").embedding
    assert np.array(found) == pytest.approx(openai_vectors(http, "a cat")[0], abs=1e-6)
    reply = http.call("POST", "/api/embeddings", {"model": MODEL, "prompt": LONG})
    assert set(reply.body) == {"embedding"}
    assert reply.headers["X-Truncated-Inputs"] == "0"


def test_tags(client: ollama.Client, http: Http) -> None:
    """Models are listed with their digest, size, age and details."""
    listed = {one.model: one for one in client.list().models}
    found = listed[f"{MODEL}:latest"]
    assert re.fullmatch(r"[0-9a-f]{64}", found.digest or "")
    assert found.size is not None
    assert found.size > 1_000_000
    assert isinstance(found.modified_at, datetime)
    raw = next(one for one in http.ok("GET", "/api/tags")["models"] if one["name"] == f"{MODEL}:latest")
    assert raw["capabilities"] == ["embedding"]
    assert raw["details"].keys() == {
        "parent_model",
        "format",
        "family",
        "families",
        "parameter_size",
        "quantization_level",
        "context_length",
        "embedding_length",
    }
    assert raw["details"]["context_length"] == 256
    assert raw["details"]["embedding_length"] == 384
    assert raw["details"]["format"] == "onnx"


def test_show(client: ollama.Client) -> None:
    """A model's window and dimensions stand under its architecture, where clients look for them."""
    shown = client.show(MODEL)
    assert shown.capabilities == ["embedding"]
    assert shown.modelinfo is not None
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] == 256
    assert shown.modelinfo[f"{family}.embedding_length"] == 384


def test_version(http: Http) -> None:
    """A version, as a string of numbers."""
    assert re.match(r"\d+\.\d+\.\d+", http.ok("GET", "/api/version")["version"])


def test_the_asynchronous_client(service: ServerProcess, client: ollama.Client) -> None:
    """Requests at the same time each get their own vectors."""
    texts = [f"text {number}" for number in range(30)]

    async def ask() -> list[ollama.EmbedResponse]:
        asynchronous = ollama.AsyncClient(host=service.url)
        return await asyncio.gather(*(asynchronous.embed(model=MODEL, input=text) for text in texts))

    found = np.array([answer.embeddings[0] for answer in asyncio.run(ask())])
    assert found == pytest.approx(np.array(client.embed(model=MODEL, input=texts).embeddings), abs=1e-5)
