"""Clients of other projects with their own defaults, pointed at a real service and otherwise left alone."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import pytest
import tiktoken
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_ollama import OllamaEmbeddings
from langchain_openai import OpenAIEmbeddings

from indexes.base.errors import InvalidInput
from jobs.serving.process import ServerProcess, serving
from retrieval.dialects import token_ids
from retrieval.dialects.models import USUAL_NAMES
from tests.support.http import Http
from tests.support.models import variation

MODEL = "all-MiniLM-L6-v2"
TEXTS = [
    "a cat",
    "naïve café — “quotes”",
    "Привет, мир",
    "你好，世界",
    "👩‍👩‍👧‍👦 and 🏳️‍🌈",
    "<|endoftext",
    "  tab\tand\nnewline ",
]
CL100K_SHA256 = (
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"  # which tiktoken insists on
)
CL100K_CACHED = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # the name under which tiktoken keeps it


@pytest.fixture
def expected(http: Http) -> Any:
    """What the texts' vectors are."""
    answer = http.ok("POST", "/v1/embeddings", {"model": MODEL, "input": TEXTS})
    return np.array([item["embedding"] for item in answer["data"]])


# --- LangChain and token ids --------------------------------------------------------------------------------


@pytest.fixture
def offline_tiktoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tiktoken finds the file that it would download."""
    (tmp_path / CL100K_CACHED).write_bytes(gzip.decompress(token_ids.RANKS.read_bytes()))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))


@pytest.fixture
def langchain(service: ServerProcess, offline_tiktoken: None) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(model=MODEL, base_url=f"{service.url}/v1", api_key="none")


def test_langchain_openai(langchain: OpenAIEmbeddings, expected: Any) -> None:
    """The token ids that it sends by default become the vectors of their texts."""
    assert np.array(langchain.embed_documents(TEXTS)) == pytest.approx(expected, abs=1e-6)
    assert np.array(langchain.embed_query(TEXTS[0])) == pytest.approx(expected[0], abs=1e-6)
    assert np.array(asyncio.run(langchain.aembed_documents(TEXTS))) == pytest.approx(expected, abs=1e-6)


def test_langchain_openai_with_texts(service: ServerProcess, expected: Any) -> None:
    """Told to send texts, as other servers need it, it works as well."""
    client = OpenAIEmbeddings(
        model=MODEL, base_url=f"{service.url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    assert np.array(client.embed_documents(TEXTS)) == pytest.approx(expected, abs=1e-6)


def test_langchain_splits_a_long_text(langchain: OpenAIEmbeddings) -> None:
    """It sends a text of more than 8,191 tokens in parts and averages their vectors."""
    found = langchain.embed_documents(["penguins swim 🐧 " * 2500, "a cat"])
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)


def test_the_table_is_openais() -> None:
    """The file is byte for byte the one that OpenAI publishes."""
    assert hashlib.sha256(gzip.decompress(token_ids.RANKS.read_bytes())).hexdigest() == CL100K_SHA256


@pytest.mark.usefixtures("offline_tiktoken")
def test_every_token_is_tiktokens() -> None:
    """All ids, special ones included, have the bytes that tiktoken gives them, and no others are known."""
    encoding = tiktoken.get_encoding("cl100k_base")
    for token, content in token_ids.vocabulary().items():
        assert encoding.decode_single_token_bytes(token) == content
    for unknown in {-1, *range(encoding.n_vocab + 1)} - set(token_ids.vocabulary()):
        with pytest.raises((KeyError, OverflowError)):
            encoding.decode_single_token_bytes(unknown)
        with pytest.raises(InvalidInput, match=f"input 0 holds the token id {unknown},"):
            token_ids.texts_of_cl100k_ids([[unknown]], bytes_max=100)


def test_a_character_cut_in_two() -> None:
    """Each half becomes U+FFFD, as tiktoken does; the rest of the text is left alone."""
    cut: list[str | list[int]] = [
        [9906, 11410],
        "plain",
    ]  # "Hello", then a space and the first half of an emoji
    assert token_ids.texts_of_cl100k_ids(cut, bytes_max=100) == ["Hello \ufffd", "plain"]


# --- Hugging Face -------------------------------------------------------------------------------------------


def test_huggingface(service: ServerProcess, expected: Any) -> None:
    """`feature_extraction` posts to the root, one text or several, and gets an array."""
    client = InferenceClient(service.url)
    assert client.feature_extraction(TEXTS[0]) == pytest.approx(expected[:1], abs=1e-6)
    assert client.feature_extraction(TEXTS) == pytest.approx(expected, abs=1e-6)  # type: ignore[arg-type,unused-ignore]
    wordy = client.feature_extraction(
        TEXTS[0], normalize=True, prompt_name="query", truncate=True, truncation_direction="right"
    )
    assert wordy == pytest.approx(expected[:1], abs=1e-6)

    async def ask() -> Any:
        async with AsyncInferenceClient(base_url=service.url) as asynchronous:
            return await asynchronous.feature_extraction(TEXTS[0])

    assert asyncio.run(ask()) == pytest.approx(expected[:1], abs=1e-6)


def test_huggingface_reads_errors(service: ServerProcess) -> None:
    """A refusal arrives with its reason."""
    with pytest.raises(HfHubHTTPError, match="`inputs` cannot be empty"):
        InferenceClient(service.url).feature_extraction("")


def test_huggingface_asks_about_the_endpoint(service: ServerProcess) -> None:
    """Health and information, as of Text Embeddings Inference."""
    client = InferenceClient(service.url, provider="hf-inference")
    assert client.health_check()
    assert client.get_endpoint_info()["model_id"] == MODEL


def test_the_root_still_leads_people_to_the_page(http: Http) -> None:
    """GET / redirects to /ui, which links to the description."""
    reply = http.call("GET", "/")
    assert reply.status == 200
    assert "<title>" in reply.body


# --- names that other servers use ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*USUAL_NAMES, "all-minilm:latest"])
def test_usual_names(service: ServerProcess, http: Http, expected: Any, name: str) -> None:
    """The default model answers to them in both dialects that name models, and is listed under them."""
    client = ollama.Client(host=service.url)
    assert np.array(client.embed(model=name, input=TEXTS).embeddings) == pytest.approx(expected, abs=1e-6)
    assert client.show(name).modelfile == f"FROM {MODEL}\n"
    bare = name.removesuffix(":latest")
    assert http.ok("GET", f"/v1/models/{bare}")["root"] == MODEL
    assert http.ok("POST", "/v1/embeddings", {"model": bare, "input": "x"})["model"] == bare


def test_langchain_ollama(service: ServerProcess, expected: Any) -> None:
    """LangChain finds Ollama's name in the list of models and embeds with it."""
    client = OllamaEmbeddings(model="all-minilm", base_url=service.url, validate_model_on_init=True)
    assert np.array(client.embed_documents(TEXTS)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_usual_names_where_the_models_are_others(tmp_path: Path, model_folder: Path) -> None:
    """A usual name means an own model of that name, or an alias; without the model behind it, it names nothing."""
    models = tmp_path / "models"
    variation(model_folder, models / "all-minilm", document_prefix="passage: ")
    environ = {
        "NEARLINE_MODELS_FOLDER": str(models),
        "NEARLINE_MODELS_DEFAULT": "all-minilm",
        "NEARLINE_MODELS_ALIASES": '{"all-minilm:22m": "all-minilm"}',
    }
    with serving(tmp_path / "data", environ) as server:
        http, client = Http(server.url), ollama.Client(host=server.url)
        names = ["all-minilm", "all-minilm:22m"]
        assert [one["id"] for one in http.ok("GET", "/v1/models")["data"]] == names
        for name in names:
            assert client.show(name).modelfile == "FROM all-minilm\n"
            assert len(client.embed(model=name, input="x").embeddings) == 1
        assert client.show("all-minilm:latest").modelfile == "FROM all-minilm\n"
        reply = http.call("POST", "/v1/embeddings", {"model": f"sentence-transformers/{MODEL}", "input": "x"})
        assert (reply.status, reply.body["error"]["code"]) == (404, "model_not_found")

        variation(model_folder, models / MODEL)  # exported later, while the service runs
        assert client.show("all-minilm").modelfile == "FROM all-minilm\n"
        assert client.show("all-minilm:l6-v2").modelfile == f"FROM {MODEL}\n"
