"""The dialects of a service set up unusually: aliases, a model with prefixes, little room. It is a real one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import ollama
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from indexes.base.errors import InvalidInput
from jobs.serving.process import ServerProcess, serving
from retrieval.base.config import load_config
from retrieval.dialects.models import USUAL_NAMES
from tests.support.http import Http
from tests.support.models import variation

PLAIN, PREFIXED, IDLE = "all-MiniLM-L6-v2", "prefixed", "idle"  # nobody asks for the last
QUEUE_TOKENS_MAX = 4000
TEXT_BYTES_MAX = 100_000
WORDS = "the quick brown fox jumps over the lazy dog and runs away into the forest " * 12  # about 180 tokens
MANY = [f"{number} {WORDS}" for number in range(150)]  # seconds of work
FEW = MANY[:3]  # less than a quarter of the queue, so that they do not take turns with others


@pytest.fixture(scope="module")
def unusual(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[ServerProcess]:
    """The default model has prefixes and does not say that its vectors have length 1; few tokens may wait."""
    root = tmp_path_factory.mktemp("unusual")
    variation(model_folder, root / "models" / PLAIN)
    variation(model_folder, root / "models" / IDLE)
    variation(
        model_folder,
        root / "models" / PREFIXED,
        query_prefix="query: ",
        document_prefix="passage: ",
        normalise=False,
    )
    aliases = {
        "text-embedding-3-small": PLAIN,
        "nomic-embed-text:v1.5": PREFIXED,
        "mxbai:latest": PLAIN,
        "lost": "not-exported",
    }
    environ = {
        "NEARLINE_MODELS_FOLDER": str(root / "models"),
        "NEARLINE_MODELS_DEFAULT": PREFIXED,
        "NEARLINE_MODELS_ALIASES": json.dumps(aliases),
        "NEARLINE_MODELS_MATRYOSHKA": json.dumps([PREFIXED]),
        "NEARLINE_MODELS_THREADS": "1",  # so that a flood lasts, however many cores there are
        "NEARLINE_EMBEDDING_QUEUE_TOKENS_MAX": str(QUEUE_TOKENS_MAX),
        "NEARLINE_SERVER_BODY_TIMEOUT_S": "1",
        "NEARLINE_LIMITS_TEXTS_PER_REQUEST_MAX": "500",
        "NEARLINE_LIMITS_DOCUMENT_BYTES_MAX": str(TEXT_BYTES_MAX),
    }
    with serving(root / "data", environ) as server:
        yield server


@pytest.fixture
def http(unusual: ServerProcess) -> Http:
    return Http(unusual.url)


@pytest.fixture
def client(unusual: ServerProcess) -> OpenAI:
    return OpenAI(base_url=f"{unusual.url}/v1", api_key="none", max_retries=0)


def vector(client: OpenAI, text: str, model: str = PLAIN, **extra: str) -> Any:
    answer = client.embeddings.create(model=model, input=text, extra_body=extra)
    return np.array(answer.data[0].embedding)


# --- aliases ------------------------------------------------------------------------------------------------


def test_an_alias_is_the_model(client: OpenAI, unusual: ServerProcess) -> None:
    """A client whose model name is fixed gets the vectors of the model behind it, and its own name back."""
    answer = client.embeddings.create(model="text-embedding-3-small", input="x")
    assert answer.model == "text-embedding-3-small"
    assert np.array(answer.data[0].embedding) == pytest.approx(vector(client, "x"), abs=1e-6)
    other = ollama.Client(host=unusual.url)
    assert np.array(other.embed(model="text-embedding-3-small", input="x").embeddings[0]) == pytest.approx(
        vector(client, "x"), abs=1e-6
    )


def test_models_and_aliases_are_listed(client: OpenAI, unusual: ServerProcess) -> None:
    """Both are listed by every dialect; an alias of a model that is not there is not."""
    own = [PLAIN, IDLE, "mxbai:latest", "nomic-embed-text:v1.5", PREFIXED, "text-embedding-3-small"]
    names = sorted([*own, *USUAL_NAMES])
    assert [one.id for one in client.models.list()] == names
    assert client.models.retrieve("text-embedding-3-small").to_dict()["root"] == PLAIN
    tags = [name if ":" in name else f"{name}:latest" for name in names]
    assert [one.model for one in ollama.Client(host=unusual.url).list().models] == tags
    assert ollama.Client(host=unusual.url).show("nomic-embed-text:v1.5").modelfile == f"FROM {PREFIXED}\n"


@pytest.mark.parametrize("name", ["mxbai:latest", "mxbai", "text-embedding-3-small:latest"])
def test_latest_is_part_of_an_alias_or_not(unusual: ServerProcess, name: str) -> None:
    """Ollama's clients may say `:latest` or leave it out, however the alias is configured."""
    client = ollama.Client(host=unusual.url)
    assert len(client.embed(model=name, input="x").embeddings) == 1
    assert len(client.embeddings(model=name, prompt="x").embedding) == 384
    assert client.show(name).modelfile == f"FROM {PLAIN}\n"


def test_an_alias_of_nothing(client: OpenAI) -> None:
    """Not found by the name that was asked for, and the names that work."""
    with pytest.raises(openai.NotFoundError, match=r"'lost' does not exist.*text-embedding-3-small"):
        client.embeddings.create(model="lost", input="x")


def test_info_tells_which_model_is_which(http: Http) -> None:
    """The default model is TEI's; ours lists all once, and what is not loaded has no variant."""
    info = http.ok("GET", "/info")
    assert (info["model_id"], info["max_client_batch_size"]) == (PREFIXED, 500)
    models = {one["name"]: one for one in info["nearline"]["models"]}
    assert set(models) == {PLAIN, PREFIXED, IDLE}
    assert models[PREFIXED]["variant"]
    assert (models[IDLE]["variant"], models[IDLE]["refused"]) == (None, None)


def test_aliases_in_file_and_environment(tmp_path: Path) -> None:
    """A table in the file, JSON in the variable; anything else is refused by its key."""
    path = tmp_path / "nearline.toml"
    path.write_text('[models]\naliases = { "a" = "b" }\n')
    assert load_config(path, {}).models.aliases == {"a": "b"}
    assert load_config(path, {"NEARLINE_MODELS_ALIASES": '{"c": "d"}'}).models.aliases == {"c": "d"}
    for wrong in ("a=b", '{"a": 5}', '{"a": ""}', "[]", "{"):
        with pytest.raises(InvalidInput, match="aliases: expected names and what they stand for") as caught:
            load_config(None, {"NEARLINE_MODELS_ALIASES": wrong})
        assert caught.value.param == "models.aliases"


# --- prefixes and lengths -----------------------------------------------------------------------------------


def test_input_type_picks_the_prefix(client: OpenAI) -> None:
    """A query gets the query's prefix, a document or nothing said the document's."""
    query, document = vector(client, "query: cats"), vector(client, "passage: cats")
    assert vector(client, "cats", PREFIXED, input_type="query") == pytest.approx(query, abs=1e-5)
    assert vector(client, "cats", PREFIXED, input_type="document") == pytest.approx(document, abs=1e-5)
    assert vector(client, "cats", PREFIXED) == pytest.approx(document, abs=1e-5)
    assert float(query @ document) < 0.99


def test_prompt_name_picks_the_prefix(client: OpenAI, http: Http) -> None:
    """TEI's clients pick it by the prompt's name."""
    query, document = vector(client, "query: cats"), vector(client, "passage: cats")
    for name, expected in [("query", query), ("document", document), ("passage", document), (None, document)]:
        found = http.ok("POST", "/embed", {"inputs": "cats", "prompt_name": name})
        assert np.array(found[0]) == pytest.approx(expected, abs=1e-5)


def test_a_model_that_does_not_normalise(http: Http) -> None:
    """TEI's `normalize: false` gives what the model computes; true, and the other dialects, length 1."""

    def length(**fields: object) -> float:
        return float(np.linalg.norm(http.ok("POST", "/embed", {"inputs": "cats", **fields})[0]))

    assert length(dimensions=100) == pytest.approx(1, abs=1e-5)
    assert length(dimensions=100, normalize=False) < 0.9
    answer = http.ok("POST", "/v1/embeddings", {"model": PREFIXED, "input": "cats", "dimensions": 100})
    assert np.linalg.norm(answer["data"][0]["embedding"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("dimensions", [1, 100, 384])
def test_shortened_vectors(client: OpenAI, http: Http, unusual: ServerProcess, dimensions: int) -> None:
    """A model named in `models.matryoshka` gives its first dimensions, of length 1 again, in every dialect."""
    whole = vector(client, "a cat", PREFIXED)
    short = whole[:dimensions] / np.linalg.norm(whole[:dimensions])
    openai_answer = client.embeddings.create(model=PREFIXED, input="a cat", dimensions=dimensions)
    assert np.array(openai_answer.data[0].embedding) == pytest.approx(short, abs=1e-6)
    answer = ollama.Client(host=unusual.url).embed(model=PREFIXED, input="a cat", dimensions=dimensions)
    assert np.array(answer.embeddings[0]) == pytest.approx(short, abs=1e-6)
    found = http.ok("POST", "/embed", {"inputs": "a cat", "dimensions": dimensions})[0]
    assert np.array(found) == pytest.approx(short, abs=1e-6)


def test_shortened_vectors_of_many_texts(client: OpenAI) -> None:
    """Vectors that are written on a thread are shortened like few."""
    texts = [f"number {number}" for number in range(20)]
    answer = client.embeddings.create(model=PREFIXED, input=texts, dimensions=100)
    for text, item in list(zip(texts, answer.data))[::7]:
        whole = vector(client, text, PREFIXED)[:100]
        assert np.array(item.embedding) == pytest.approx(whole / np.linalg.norm(whole), abs=1e-5)


def test_models_that_are_not_named_are_not_shortened(client: OpenAI) -> None:
    """The switch is for each model by itself."""
    with pytest.raises(openai.BadRequestError, match="must be 384 or left out"):
        client.embeddings.create(model=PLAIN, input="a cat", dimensions=100)


def test_fewer_texts_by_configuration(http: Http) -> None:
    """The configured number holds in every dialect, each with its status."""
    for path, body, status in [
        ("/v1/embeddings", {"model": PLAIN, "input": ["x"] * 501}, 400),
        ("/api/embed", {"model": PLAIN, "input": ["x"] * 501}, 400),
        ("/embed", {"inputs": ["x"] * 501}, 413),
    ]:
        reply = http.call("POST", path, body)
        assert reply.status == status, reply
        assert "500" in json.dumps(reply.body)


@pytest.mark.parametrize(
    ("path", "field", "status"),
    [
        ("/v1/embeddings", "input", 400),
        ("/api/embed", "input", 400),
        ("/api/embeddings", "prompt", 400),
        ("/embed", "inputs", 413),
    ],
)
def test_a_text_is_no_larger_than_a_document(http: Http, path: str, field: str, status: int) -> None:
    """One that has more bytes than a document may have is refused, even if it would be cut; as many are not."""
    largest = "é" * (TEXT_BYTES_MAX // 2)
    assert http.call("POST", path, {"model": PLAIN, field: largest}).status == 200
    reply = http.call("POST", path, {"model": PLAIN, field: largest + "e"})
    assert reply.status == status, reply
    assert f"{TEXT_BYTES_MAX + 1} bytes" in json.dumps(reply.body)


def test_more_windows_than_may_wait(client: OpenAI, http: Http) -> None:
    """What would fill the queue with windows for long is refused; the same texts are embedded if they are cut."""
    texts = [WORDS * 5] * 6
    with pytest.raises(openai.BadRequestError, match=f"windows, one request may hold {QUEUE_TOKENS_MAX}"):
        client.embeddings.create(model=PLAIN, input=texts, extra_body={"long_inputs": "windows"})
    assert len(client.embeddings.create(model=PLAIN, input=texts).data) == 6


# --- too much, too slow, gone -------------------------------------------------------------------------------


def waiting_tokens(http: Http, model: str = PLAIN) -> float:
    return metric(http, f'nearline_embedding_queue_tokens{{lane="bulk",model="{model}"}}')


def metric(http: Http, name: str) -> float:
    lines = http.ok("GET", "/metrics").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@contextlib.contextmanager
def flooded(client: OpenAI, http: Http, model: str = PLAIN) -> Iterator[None]:
    """Six requests that are each larger than the queue, and take turns."""
    patient = client.with_options(max_retries=100)
    with ThreadPoolExecutor(6) as pool:
        floods = [pool.submit(patient.embeddings.create, model=model, input=MANY[:24]) for _ in range(6)]
        until(lambda: waiting_tokens(http, model) > 0, "the flood never waited")
        yield
        assert all(len(flood.result().data) == 24 for flood in floods)


def crowd(ask: Callable[[], Any]) -> list[Any]:
    """What comes of so many askers at the same moment that the queue has no room for all."""
    together = threading.Barrier(24)

    def one(_: int) -> Any:
        together.wait()
        try:
            return ask()
        except (openai.RateLimitError, ollama.ResponseError) as error:
            return error

    with ThreadPoolExecutor(together.parties) as pool:
        return list(pool.map(one, range(together.parties)))


@pytest.mark.slow
def test_a_full_queue(client: OpenAI, unusual: ServerProcess) -> None:
    """Who comes to a full queue reads so in its dialect, with the time to wait; a client that waits gets through."""
    outcomes = crowd(lambda: client.embeddings.create(model=PLAIN, input=FEW))
    refused = next(one for one in outcomes if isinstance(one, openai.RateLimitError))
    assert refused.code == "rate_limit_exceeded"
    wait_ms = int(refused.response.headers["retry-after-ms"])
    assert 0 <= int(refused.response.headers["retry-after"]) * 1000 - wait_ms < 1000
    assert "more would join them; at most 3000 may wait" in refused.message
    outcomes = crowd(lambda: ollama.Client(host=unusual.url).embed(model=PLAIN, input=FEW))
    assert {one.status_code for one in outcomes if isinstance(one, ollama.ResponseError)} == {503}
    patient = client.with_options(max_retries=100)
    assert {len(one.data) for one in crowd(lambda: patient.embeddings.create(model=PLAIN, input=FEW))} == {
        len(FEW)
    }


def test_a_full_queue_in_teis_words(http: Http) -> None:
    """429 Overloaded."""
    replies = crowd(lambda: http.call("POST", "/embed", {"inputs": FEW}))
    reply = next(one for one in replies if one.status != 200)
    assert (reply.status, reply.body["error_type"]) == (429, "Overloaded")
    assert int(reply.headers["Retry-After"]) >= 1


@pytest.mark.slow
def test_a_short_text_overtakes(client: OpenAI, http: Http) -> None:
    """A single short text is answered while large requests wait."""
    with flooded(client, http):
        assert len(vector(client, "a question")) == 384
        until(lambda: waiting_tokens(http) > 0, "the flood was over")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed", "/embed"])
def test_a_client_that_goes_takes_its_work_along(http: Http, path: str) -> None:
    """Nothing more is computed for a client that has disconnected."""
    model = PREFIXED if path == "/embed" else PLAIN
    left = f'nearline_embedding_texts_left_total{{lane="bulk",model="{model}",reason="cancelled"}}'
    before = metric(http, left)
    at = urlsplit(http.url)
    body = json.dumps({"inputs": MANY} if path == "/embed" else {"model": PLAIN, "input": MANY}).encode()
    with socket.create_connection((at.hostname, at.port), timeout=20) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        until(lambda: waiting_tokens(http, model) > 0, "the texts never waited")
    until(lambda: metric(http, left) > before, "the texts were not given up")
    assert waiting_tokens(http, model) == 0


def test_an_asynchronous_client_may_cancel(unusual: ServerProcess, http: Http) -> None:
    """Cancelling the task closes the connection, and the texts leave the queue."""

    async def ask() -> None:
        async with AsyncOpenAI(base_url=f"{unusual.url}/v1", api_key="none", max_retries=0) as client:
            asking = asyncio.create_task(client.embeddings.create(model=PLAIN, input=MANY))
            await asyncio.to_thread(until, lambda: waiting_tokens(http) > 0, "never waited")
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(ask())
    until(lambda: waiting_tokens(http) == 0, "the texts stayed in the queue")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed", "/embed"])
def test_a_body_that_does_not_arrive(http: Http, path: str) -> None:
    """408 in the dialect's shape, and the connection is not used again."""
    at = urlsplit(http.url)
    with socket.create_connection((at.hostname, at.port), timeout=20) as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{{".encode()
        )
        received = b""
        while block := connection.recv(4096):
            received += block
            if received.endswith(b"}"):
                break  # the connection is closed only later, in case the rest still comes
    assert received.startswith(b"HTTP/1.1 408")
    assert b"Connection: close" in received
    error = json.loads(received.rpartition(b"\r\n\r\n")[2])
    assert isinstance(error["error"], dict if path == "/v1/embeddings" else str)


def test_two_dialects_at_once(unusual: ServerProcess, client: OpenAI, http: Http) -> None:
    """Clients of all three, on several threads, share one queue and get the same vectors."""
    other, expected = ollama.Client(host=unusual.url), vector(client, "passage: cats")
    found: list[Any] = []
    calls = [
        lambda: found.append(vector(client, "cats", PREFIXED)),
        lambda: found.append(other.embed(model=PREFIXED, input="cats").embeddings[0]),
        lambda: found.append(http.ok("POST", "/embed", {"inputs": "cats"})[0]),
    ]
    threads = [threading.Thread(target=calls[number % 3]) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 24
    assert np.array(found) == pytest.approx(np.tile(expected, (24, 1)), abs=1e-5)
