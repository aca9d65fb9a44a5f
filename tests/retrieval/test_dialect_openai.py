"""OpenAI's dialect, spoken by OpenAI's own client against a real service; raw HTTP where the client hides the wire."""

from __future__ import annotations

import asyncio
import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from tokenizers import Tokenizer

from jobs.serving.process import ServerProcess
from retrieval.dialects.embedding import format_indexes
from retrieval.embedding.models import read_manifest
from tests.support.http import Http

MODEL = "all-MiniLM-L6-v2"
LONG_TOKEN = 58_040  # of cl100k_base: 128 spaces
LONG = "The quick brown fox jumps over the lazy dog. " * 100  # about 1,000 tokens
WORLD = [
    "naïve café — “quotes”",
    "Привет, мир",
    "مرحبا بالعالم",
    "你好，世界",
    "👩‍👩‍👧‍👦 and 🏳️‍🌈",
    "e\u0301 is not \u00e9, or is it?",
    "tab\tand\nnewline",
    "\u0000 is a character too",
]


@pytest.fixture
def client(service: ServerProcess) -> OpenAI:
    return OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


def matrix(answer: openai.types.CreateEmbeddingResponse) -> Any:
    return np.array([item.embedding for item in answer.data], dtype=np.float32)


def cosines(one: Any, other: Any) -> Any:
    return (one * other).sum(axis=1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))


def test_the_clients_default_of_base64_round_trips(client: OpenAI, http: Http) -> None:
    """openai-python asks for base64 when the caller says nothing; the values are those of the float form, exactly."""
    texts = ["a cat", "a dog", "a fish"]
    default = matrix(client.embeddings.create(model=MODEL, input=texts))
    floats = matrix(client.embeddings.create(model=MODEL, input=texts, encoding_format="float"))
    assert default.shape == (3, 384)
    assert np.array_equal(default, floats)
    body = {"model": MODEL, "input": texts, "encoding_format": "base64"}
    raw = http.ok("POST", "/v1/embeddings", body)["data"][1]
    assert (raw["object"], raw["index"]) == ("embedding", 1)
    assert np.array_equal(np.frombuffer(base64.b64decode(raw["embedding"]), dtype="<f4"), floats[1])


def test_vectors_are_those_that_documents_get(client: OpenAI, http: Http) -> None:
    """The same text has the same vector here and in a collection, whatever its script; length is 1."""
    name = http.new_collection()
    texts = [text for text in WORLD if "\0" not in text]
    http.write(name, *({"id": str(number), "text": text} for number, text in enumerate(texts)))
    native = [
        http.ok("GET", f"/v1/collections/{name}/documents/{number}?vectors=true")["passages"][0]["vector"]
        for number in range(len(texts))
    ]
    found = matrix(client.embeddings.create(model=MODEL, input=texts))
    assert cosines(found, np.array(native)).min() > 0.99999
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)


def test_any_text_gets_a_vector(client: OpenAI) -> None:
    """Emoji, combining marks, NUL, white space: each has a vector of its own."""
    found = matrix(client.embeddings.create(model=MODEL, input=[*WORLD, " ", "\n"]))
    assert np.isfinite(found).all()
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)


def test_one_text_and_many(client: OpenAI) -> None:
    """A bare string is one text; a list keeps its order; the answer repeats the model's name."""
    one = client.embeddings.create(model=MODEL, input="a dog")
    many = client.embeddings.create(model=MODEL, input=["a cat", "a dog"])
    assert (one.object, one.model, one.data[0].index) == ("list", MODEL, 0)
    assert [item.index for item in many.data] == [0, 1]
    assert cosines(matrix(one), matrix(many)[1:]).min() > 0.99999


def test_usage_counts_the_models_own_tokens(client: OpenAI, model_folder: Path) -> None:
    """Usage is what the model reads, special tokens included, and no more than it can read."""
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts = ["short", "somewhat longer, with antidisestablishmentarianism", LONG]
    usage = client.embeddings.create(model=MODEL, input=texts).usage
    expected = sum(min(256, len(tokenizer.encode(text).ids)) for text in texts)
    assert (usage.prompt_tokens, usage.total_tokens) == (expected, expected)


def test_dimensions(client: OpenAI) -> None:
    """The model's own number changes nothing; fewer are refused, since this model was not trained for them."""
    whole = matrix(client.embeddings.create(model=MODEL, input="a cat"))
    assert np.array_equal(whole, matrix(client.embeddings.create(model=MODEL, input="a cat", dimensions=384)))
    with pytest.raises(
        BadRequestError, match=r"must be 384 or left out, found 256.*models\.matryoshka"
    ) as caught:
        client.embeddings.create(model=MODEL, input="a cat", dimensions=256)
    assert caught.value.param == "dimensions"


@pytest.mark.parametrize("dimensions", [0, -1, 385])
def test_dimensions_out_of_range(client: OpenAI, dimensions: int) -> None:
    """Refused, naming the field and the range."""
    with pytest.raises(BadRequestError, match="from 1 to 384") as caught:
        client.embeddings.create(model=MODEL, input="x", dimensions=dimensions)
    assert caught.value.param == "dimensions"


@pytest.mark.slow
def test_2048_inputs_are_the_most(client: OpenAI) -> None:
    """2,048 texts are embedded in order; 2,049 are refused before anything is."""
    texts = [f"number {number}" for number in range(2048)]
    found = matrix(client.embeddings.create(model=MODEL, input=texts))
    assert found.shape == (2048, 384)
    again = matrix(client.embeddings.create(model=MODEL, input=[texts[0], texts[1023], texts[2047]]))
    assert cosines(found[[0, 1023, 2047]], again).min() > 0.99999
    with pytest.raises(BadRequestError, match="2048") as caught:
        client.embeddings.create(model=MODEL, input=[*texts, "one more"])
    assert caught.value.param == "input"


@pytest.mark.parametrize(("given", "param"), [("", "input"), ([], "input"), (["a", ""], "input[1]")], ids=str)
def test_empty_inputs(client: OpenAI, given: str | list[str], param: str) -> None:
    """An empty string, or no string at all, is refused by its place."""
    with pytest.raises(BadRequestError) as caught:
        client.embeddings.create(model=MODEL, input=given)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_token_ids(client: OpenAI) -> None:
    """Ids of cl100k_base stand for their text: one list is one input."""
    expected = matrix(client.embeddings.create(model=MODEL, input=["Hello world", "What"]))
    alone = client.embeddings.create(model=MODEL, input=[9906, 1917])
    assert np.array_equal(matrix(alone), expected[:1])
    both = client.embeddings.create(model=MODEL, input=[[9906, 1917], [3923]])
    assert np.array_equal(matrix(both), expected)
    assert both.usage.prompt_tokens == 4 + 3  # the model's own, not the client's


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([1, 100_261], "input 0 holds the token id 100261"),
        ([[9906], [-1]], "input 1 holds the token id -1"),
        ([[9906], []], r"input\[1\] is empty"),
        ([9906, "world"], "mixes token ids with texts"),
        ([LONG_TOKEN] * 140_000, "140000 token ids stand for more than 2244096 bytes of text"),
        ([LONG_TOKEN] * 1_100_000, "input holds too many values"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_strange_token_ids(http: Http, ids: Any, found: str) -> None:
    """Unknown ids, none at all, mixtures, and more text than a request may hold are refused, saying why."""
    reply = http.call(
        "POST", "/v1/embeddings", {"model": MODEL, "input": ids}
    )  # the client takes seconds for a million
    assert reply.status == 400
    assert re.search(found, reply.body["error"]["message"])
    assert reply.body["error"]["param"].startswith("input")


def test_litellms_shape(http: Http) -> None:
    """Fields that a gateway passes on as null count as absent."""
    body = {"model": MODEL, "input": ["x"], "encoding_format": None, "dimensions": None, "user": None}
    answer = http.ok("POST", "/v1/embeddings", body)
    assert set(answer) == {"object", "data", "model", "usage", "truncated"}
    assert isinstance(answer["data"][0]["embedding"][0], float)


def test_user_is_accepted(client: OpenAI) -> None:
    """`user` changes nothing."""
    one = client.embeddings.create(model=MODEL, input="x", user="somebody")
    assert one.data[0].embedding == client.embeddings.create(model=MODEL, input="x").data[0].embedding


def test_truncation_is_reported(client: OpenAI) -> None:
    """Texts that were cut are listed in the answer and in a header; the others are not."""
    raw = client.embeddings.with_raw_response.create(model=MODEL, input=[LONG, "short", LONG + "!"])
    answer = raw.parse()
    assert answer.to_dict()["truncated"] == [0, 2]
    assert raw.headers["X-Truncated-Inputs"] == "0,2"
    whole = client.embeddings.with_raw_response.create(model=MODEL, input=["short"])
    assert whole.parse().to_dict()["truncated"] == []
    assert "X-Truncated-Inputs" not in whole.headers


def test_the_header_of_truncated_inputs_is_bounded() -> None:
    """It lists 500 and counts the rest, because clients refuse long headers; the body has them all."""
    assert format_indexes([0, 3, 17]) == "0,3,17"
    assert format_indexes(range(500)) == ",".join(map(str, range(500)))
    assert format_indexes(range(2048)) == ",".join([*map(str, range(500)), "+1548"])


def test_long_inputs_in_windows(client: OpenAI) -> None:
    """`windows` reads all of a text: nothing is cut, its end matters, and the vector has length 1."""
    ends = [LONG + "Penguins swim.", LONG + "Interest rates rose sharply, said the central bank."]
    cut = matrix(client.embeddings.create(model=MODEL, input=ends))
    answer = client.embeddings.create(model=MODEL, input=ends, extra_body={"long_inputs": "windows"})
    found = matrix(answer)
    assert cosines(cut[:1], cut[1:]).min() > 0.99999
    assert cosines(found[:1], found[1:]).max() < 0.999
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)
    assert answer.to_dict()["truncated"] == []
    assert answer.usage.prompt_tokens > 1500


def test_long_inputs_refused(client: OpenAI) -> None:
    """`error` refuses by the code that gateways look for, and names the text; short texts pass."""
    with pytest.raises(BadRequestError, match=r"maximum context length is 256 tokens.*text 1") as caught:
        client.embeddings.create(model=MODEL, input=["x", LONG], extra_body={"long_inputs": "error"})
    assert caught.value.code == "context_length_exceeded"
    client.embeddings.create(model=MODEL, input=["x"], extra_body={"long_inputs": "error"})


@pytest.mark.parametrize(
    ("field", "value"),
    [("input_type", "passage"), ("long_inputs", "left"), ("encoding_format", "int8"), ("inputs", ["x"])],
)
def test_unknown_fields_and_values(client: OpenAI, field: str, value: object) -> None:
    """Refused, naming the field."""
    with pytest.raises(BadRequestError) as caught:
        client.embeddings.create(model=MODEL, input="x", extra_body={field: value})
    assert caught.value.param == field


def test_an_unknown_model(client: OpenAI) -> None:
    """404 with OpenAI's code, and the names that exist."""
    with pytest.raises(NotFoundError, match=MODEL) as caught:
        client.embeddings.create(model="gpt-9", input="x")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found"


def test_models(client: OpenAI) -> None:
    """The exported models are listed, and each is shown by its name."""
    listed = {one.id: one for one in client.models.list()}
    assert listed[MODEL].object == "model"
    assert listed[MODEL].created > 1_600_000_000
    assert client.models.retrieve(MODEL) == listed[MODEL]


def test_languages(http: Http, model_folder: Path) -> None:
    """The languages that a model reads are shown with it and with a collection of it; null where it does not say."""
    languages = read_manifest(model_folder).languages
    http.call("POST", "/v1/collections", {"name": "languages"})
    assert http.call("GET", "/v1/collections/languages").body["model_languages"] == languages
    assert http.call("GET", f"/v1/models/{MODEL}").body["languages"] == languages
    (served,) = (one for one in http.call("GET", "/info").body["nearline"]["models"] if one["name"] == MODEL)
    assert served["languages"] == languages


def test_stage_times(http: Http) -> None:
    """Headers say how long the stages took."""
    headers = http.call("POST", "/v1/embeddings", {"model": MODEL, "input": ["a", "b"]}).headers
    assert float(headers["X-Embed-Latency"]) > 0
    for stage in ("tokenise", "queue", "run", "total"):
        assert f"{stage};dur=" in headers["Server-Timing"]


def test_the_asynchronous_client_and_many_at_once(service: ServerProcess, client: OpenAI) -> None:
    """Forty requests of different sizes at the same time: each gets the vectors of its own texts."""
    batches = [[f"text {number} of {size}" for number in range(size)] for size in range(1, 41)]

    async def ask() -> list[Any]:
        async with AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as asynchronous:
            answers = await asyncio.gather(
                *(asynchronous.embeddings.create(model=MODEL, input=batch) for batch in batches)
            )
        return [matrix(answer) for answer in answers]

    together = asyncio.run(ask())
    for batch, found in zip(batches[::13], together[::13]):
        alone = matrix(client.embeddings.create(model=MODEL, input=batch))
        assert cosines(found, alone).min() > 0.99999
