"""Collections without a model: documents and queries bring their vectors, and words are searched as ever."""

from __future__ import annotations

import base64
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from jobs.serving.process import serving
from nearline import Client, Refused, ServiceError
from retrieval.clients.bulk import packed
from retrieval.server.routes import ROUTES
from retrieval.wire.vectors import mentions_vectors, vector_of, vectors_of
from tests.retrieval.test_budgets import BODIES, concrete
from tests.support.http import Http

DIMENSIONS = 5
RNG = np.random.default_rng(4)
VECTORS = RNG.normal(size=(40, DIMENSIONS))
WORDS = ["river", "mountain", "harbor", "desert"]


def documents() -> list[dict[str, Any]]:
    return [
        {
            "id": f"d{at}",
            "text": f"A {WORDS[at % 4]} on map {at}.",
            "vector": (3 * one).tolist(),
            "metadata": {"n": at},
        }
        for at, one in enumerate(VECTORS)
    ]


@pytest.fixture
def maps(http: Http) -> str:
    name = http.new_collection(dimensions=DIMENSIONS)
    http.write(name, *documents())
    return name


def nearest(vector: np.ndarray[Any, Any], k: int) -> list[str]:
    cosines = VECTORS @ vector / np.linalg.norm(VECTORS, axis=1)
    return [f"d{at}" for at in np.argsort(-cosines)[:k]]


def test_it_says_what_it_is(http: Http, maps: str) -> None:
    """Without a model, with the wanted dimensions, and a fingerprint that no other collection has."""
    found = http.ok("GET", f"/v1/collections/{maps}")
    assert (found["model"], found["dimensions"], found["documents"]) == (None, DIMENSIONS, 40)
    other = http.ok("GET", f"/v1/collections/{http.new_collection(dimensions=DIMENSIONS)}")
    assert other["fingerprint"] != found["fingerprint"]
    with Client(http.url) as client:
        assert client.create_collection(f"{maps}-c", dimensions=1536)["dimensions"] == 1536


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 4097}, "dimensions"),
        ({"dimensions": "many"}, "dimensions"),
        ({"dimensions": 3, "metric": "dot"}, "metric"),
        ({"dimensions": 3, "metric": "euclidean"}, "metric"),
        ({"dimensions": 3, "model": "all-MiniLM-L6-v2"}, "dimensions"),
    ],
)
def test_wrong_dimensions(http: Http, settings: dict[str, object], param: str) -> None:
    reply = http.call("POST", "/v1/collections", {"name": "never", **settings})
    assert (reply.status, reply.body["error"]["param"]) == (422, param)


def test_the_metric_is_cosine(http: Http) -> None:
    """It may be named, and a refusal of another says that it is the one."""
    http.new_collection(dimensions=3, metric="cosine")
    reply = http.call("POST", "/v1/collections", {"name": "never", "dimensions": 3, "metric": "dot"})
    assert "allowed: 'cosine'" in reply.body["error"]["message"]


def test_by_vector_by_words_and_both(http: Http, maps: str) -> None:
    """A vector finds its nearest, words theirs; a text alone is searched by words; both together are fused."""
    wanted = RNG.normal(size=DIMENSIONS)
    assert http.found(maps, vector=wanted.tolist(), k=10) == nearest(wanted, 10)
    assert set(http.found(maps, query="harbor", k=40)) == {f"d{at}" for at in range(2, 40, 4)}
    both = http.search(maps, query="harbor", vector=wanted.tolist(), k=5, explain=True)
    assert any(hit["scores"]["dense"] for hit in both["hits"])
    assert both["receipt"]["model"] is None
    by_words = http.search(maps, query="harbor")
    assert all(hit["scores"]["dense"] is None for hit in by_words["hits"])
    assert http.found(maps, vector=wanted.tolist(), k=3, exact=True) == nearest(wanted, 3)
    assert "d7" not in http.found(maps, like=["d7"], k=5)
    reply = http.call("POST", f"/v1/collections/{maps}/search", {"like": ["d7"], "query": "harbor"})
    assert (reply.status, reply.body["error"]["param"]) == (422, "vector")
    assert reply.body["error"]["message"].startswith("a search by examples compares vectors")
    assert http.found(maps, like=["d7"], query="harbor", vector=wanted.tolist(), k=5)
    filtered = http.found(maps, vector=wanted.tolist(), k=40, filter={"type": "lt", "key": "n", "value": 10})
    assert filtered == [one for one in nearest(wanted, 40) if int(one[1:]) < 10]


def test_no_score_is_above_one(http: Http, maps: str) -> None:
    """Whatever rounding does to the length of a stored vector."""
    equal = [http.search(maps, vector=one.tolist(), k=1)["hits"][0] for one in VECTORS]
    assert [hit["document_id"] for hit in equal] == [f"d{at}" for at in range(len(VECTORS))]
    assert all(0.999 < hit["score"] <= 1 for hit in equal)


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_a_text_has_no_vector_here(http: Http, maps: str, mode: str) -> None:
    reply = http.call("POST", f"/v1/collections/{maps}/search", {"query": "harbor", "mode": mode})
    assert (reply.status, reply.body["error"]["param"]) == (422, "vector")
    assert "no model" in reply.body["error"]["message"]


def test_every_document_brings_its_vector(http: Http, maps: str) -> None:
    """One without, or of another length, names the field; nothing of the request is written."""
    for wrong in ({}, {"vector": [1.0] * 4}, {"vector": [0.0] * DIMENSIONS}):
        sent = [
            {"id": "new", "text": "A river.", "vector": [1.0] * DIMENSIONS},
            {"id": "b", "text": "x", **wrong},
        ]
        reply = http.call("POST", f"/v1/collections/{maps}/documents", {"documents": sent})
        assert (reply.status, reply.body["error"]["param"]) == (422, "documents[1].vector")
    assert http.ok("GET", f"/v1/collections/{maps}")["documents"] == 40
    again = http.write(maps, *documents())
    assert (again["unchanged"], again["documents"]) == (40, 0)


def test_a_rebuild_measures_it(http: Http) -> None:
    name = http.new_collection(dimensions=DIMENSIONS, hot_capacity=100)
    vectors = np.random.default_rng(7).normal(size=(1500, DIMENSIONS))
    for start in range(0, 1500, 500):
        http.write(
            name,
            *(
                {"id": f"v{at}", "text": f"number {at}", "vector": vectors[at].tolist()}
                for at in range(start, start + 500)
            ),
        )
    assert http.reindex(name)["status"] == "succeeded"
    found = http.ok("GET", f"/v1/collections/{name}")
    assert found["passages"]["cold"] == 1400
    assert found["recall"]["all"] >= 0.95
    assert http.found(name, vector=vectors[77].tolist(), k=1) == ["v77"]


def test_several_of_them(http: Http, maps: str) -> None:
    """Their vectors may come from different models, so only words are searched together."""
    other = http.new_collection(dimensions=DIMENSIONS)
    http.write(other, *documents()[:8])
    both = {"collections": [maps, other], "query": "harbor", "k": 5}
    assert len(http.ok("POST", "/v1/search", both)["hits"]) == 5
    shorter = http.new_collection(dimensions=DIMENSIONS - 1)
    http.write(shorter, {"id": "s", "text": "A harbor.", "vector": [1.0] * (DIMENSIONS - 1)})
    for more, param in (
        ({"vector": [1.0] * DIMENSIONS}, "collections"),
        ({"mmr": 0.5}, "mmr"),
        ({"collapse": {"similarity": 0.9}}, "collapse.similarity"),
    ):
        for names in ([maps, other], [maps, shorter]):
            reply = http.call("POST", "/v1/search", {**both, "collections": names, **more})
            assert (reply.status, reply.body["error"]["param"]) == (422, param), reply.body


def test_one_of_them_beside_one_with_a_model(http: Http, maps: str) -> None:
    """Only words are searched together, and only if the search says so, in whatever order they are named."""
    embedded = http.new_collection()
    http.write(embedded, {"id": "e", "text": "A harbor in the north."})
    for names in ([maps, embedded], [embedded, maps]):
        asked = {"collections": names, "query": "harbor", "k": 100, "collapse": False}
        assert http.call("POST", "/v1/search", asked).status == 422
        hits = http.ok("POST", "/v1/search", {**asked, "mode": "lexical"})["hits"]
        assert {hit["collection"] for hit in hits} == {*names}


def test_nothing_fails_for_want_of_a_model(http: Http, maps: str) -> None:
    """Whatever is asked of it is answered, or refused as the caller's mistake."""
    asked = {"query": "harbor", "token_budget": 200}
    assert "harbor" in http.ok("POST", f"/v1/collections/{maps}/context", asked)["context"]
    explained = http.ok("POST", f"/v1/collections/{maps}/explain", {"query": "desert", "document_id": "d2"})
    assert explained["cause"]
    far = {"query": "desert", "vector": (-VECTORS[2]).tolist(), "document_id": "d2"}
    assert http.ok("POST", f"/v1/collections/{maps}/explain", far)["cause"]
    watched = http.call("POST", f"/v1/collections/{maps}/watch", {"query": "harbor", "mode": "dense"})
    assert (watched.status, watched.body["error"]["param"]) == (422, "vector")
    for route in ROUTES:
        path = route.path.replace("{collection}", maps).replace("{id:.+}", "d1")
        answered_at_once = not route.path.endswith(("/watch", "/rename"))
        if route.request is None or maps not in path or "{" in path or not answered_at_once:
            continue
        body = BODIES.get(concrete(route))
        reply = http.call(route.method, path, body(1) if body is not None else {"query": "harbor"})
        assert reply.status < 500, (path, reply.body)


@pytest.mark.slow
def test_it_outlives_a_restart(tmp_path: Path, model_folder: Path) -> None:
    """Searches find the same after a restart, with and without search processes."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}
    wanted = RNG.normal(size=DIMENSIONS)
    for processes in ("0", "2"):
        with serving(tmp_path / "data", {**environ, "NEARLINE_SERVER_SEARCH_PROCESSES": processes}) as server:
            http = Http(server.url)
            if processes == "0":
                http.ok("POST", "/v1/collections", {"name": "maps", "dimensions": DIMENSIONS})
                http.write("maps", *documents())
            assert http.found("maps", vector=wanted.tolist(), k=10) == nearest(wanted, 10)
            assert len(http.found("maps", query="desert", k=40)) == 10
            until = time.monotonic() + 20
            while processes == "2" and not http.metric("nearline_search_process_answers_total"):
                assert http.found("maps", query="desert", k=4, cache=False)
                assert time.monotonic() < until


def test_vectors_in_base64(http: Http, maps: str) -> None:
    """The same vector as numbers and as base64 of float32 is the same document, and finds the same passages."""
    for document, vector in zip(sent := documents(), VECTORS):
        document["vector"] = base64.b64encode((3 * vector).astype("<f4").tobytes()).decode()
    assert http.write(maps, *sent)["unchanged"] == 40
    for at in (0, 17, 39):
        encoded = base64.b64encode(VECTORS[at].astype("<f4").tobytes()).decode()
        assert http.found(maps, vector=encoded, k=8) == http.found(maps, vector=VECTORS[at].tolist(), k=8)
        assert http.found(maps, vector=encoded, k=1) == [f"d{at}"]


@pytest.mark.parametrize(
    ("vector", "says"),
    [
        ("no base64!", "vector is not base64 of 32-bit floating point numbers"),
        (base64.b64encode(b"1234567").decode(), "vector is not base64 of 32-bit floating point numbers"),
        (base64.b64encode(bytes(4 * DIMENSIONS - 4)).decode(), "vector has 4 dimensions, expected 5"),
        (base64.b64encode(bytes(4 * DIMENSIONS)).decode(), "vector has no direction"),
        (base64.b64encode(b"\0\0\xc0\x7f" * DIMENSIONS).decode(), "vector holds NaN"),
        ("", "vector has 0 dimensions"),
        ("A" * 10_000, "more than 5 dimensions take"),
    ],
)
def test_bad_base64_is_named(http: Http, maps: str, vector: str, says: str) -> None:
    """Searches and documents are refused by the field at fault, and nothing is written."""
    for path, body, where in (
        ("search", {"vector": vector}, "vector"),
        ("documents", {"documents": [{"id": "new", "text": "x", "vector": vector}]}, "documents[0].vector"),
    ):
        reply = http.call("POST", f"/v1/collections/{maps}/{path}", body)
        assert (reply.status, reply.body["error"]["param"]) == (422, where), reply
        assert says in reply.body["error"]["message"]
    assert http.ok("GET", f"/v1/collections/{maps}")["documents"] == 40


@pytest.mark.parametrize("dimensions", [1, 2, 3, 384, 4096])
def test_vectors_decoded_together_or_alone_are_the_same(dimensions: int) -> None:
    """They agree to the bit, at any scale and however the base64 is padded; what is at fault is left to be named."""
    rows = (RNG.normal(size=(70, dimensions)) * 10.0 ** RNG.integers(-30, 30, size=(70, 1))).astype("<f4")
    good = [msgspec.Raw(msgspec.json.encode(packed(one))) for one in rows]
    together = vectors_of(good, dimensions)
    for one, raw, row in zip(together, good, rows, strict=True):
        alone = vector_of(raw, dimensions, "vector")
        numbers = vector_of(msgspec.Raw(msgspec.json.encode(row.tolist())), dimensions, "vector")
        assert one is not None
        assert alone is not None
        assert numbers is not None
        assert one.tobytes() == alone.tobytes() == numbers.tobytes()
    content = bytes(good[0])
    wrong = [
        msgspec.Raw(one)
        for one in (
            b"null",
            b"[" + b"1," * (dimensions - 1) + b"1]",
            content.replace(content[1:2], b"!", 1),
            content[:-3] + b'!!"',
            b'"' + base64.b64encode(bytes(4 * dimensions)) + b'"',
            b'"' + base64.b64encode(np.full(dimensions, np.nan, "<f4").tobytes()) + b'"',
        )
    ]
    found = vectors_of([*wrong, good[1]], dimensions)
    assert found[:-1] == [None] * len(wrong)
    assert found[-1] is not None


def test_base64_with_escapes_is_read(http: Http, maps: str) -> None:
    """Some encoders of JSON escape each slash, which base64 may hold."""
    slashes = base64.b64encode(b"\xff\xff\x7f\x3f" * DIMENSIONS).decode()
    assert "/" in slashes
    escaped = slashes.replace("/", "\\/")
    body = f'{{"documents": [{{"id": "escaped", "text": "x", "vector": "{escaped}"}}]}}'
    reply = http.call("POST", f"/v1/collections/{maps}/documents", raw=body.encode())
    assert reply.status == 200, reply


def test_the_client_takes_arrays(http: Http) -> None:
    """Vectors may be arrays of numpy, also among metadata; what is no vector is refused for its document alone."""
    name = http.new_collection(dimensions=DIMENSIONS)
    good: list[dict[str, Any]] = [
        {"id": f"d{at}", "text": "x", "vector": vector, "metadata": {"n": np.int64(at), "r": vector[:2]}}
        for at, vector in enumerate(VECTORS)
    ]
    bad: list[dict[str, Any]] = [
        {"id": "nan", "text": "x", "vector": np.full(DIMENSIONS, np.nan)},
        {"id": "huge", "text": "x", "vector": [1e300] * DIMENSIONS},
        {"id": "words", "text": "x", "vector": ["a"]},
        {"id": "object", "text": "x", "metadata": {"n": object()}},
        {"id": "infinite", "text": "x", "metadata": {"n": np.float32("inf"), "r": VECTORS[0]}},
    ]
    with Client(http.url) as client:
        refused: list[Refused] = []
        done = client.ingest(name, [*good, *bad], on_refused=refused.append)
        assert done.documents == 40
        assert [one.id for one in refused] == [one["id"] for one in bad]
        assert "not finite" in refused[0].reason
        answer = client.search(name, vector=VECTORS[3], k=5, filter={"type": "eq", "key": "n", "value": 3})
        assert [hit["document_id"] for hit in answer["hits"]] == ["d3"]
        with pytest.raises(ServiceError) as raised:
            client.ensure_collection(name, dimensions=DIMENSIONS + 1)
        assert raised.value.param == "dimensions"
        with pytest.raises(ServiceError, match="exists with language 'auto', not 'de'"):
            client.ensure_collection(name, language="de")
        assert client.ensure_collection(name, dimensions=DIMENSIONS)["name"] == name


@pytest.mark.slow
def test_loading_vectors_is_not_refused(http: Http) -> None:
    """Embedding as many bytes would take minutes, but nothing is embedded here. It is so in both kinds of collections,
    for large and small bodies, for long texts, and with metadata that is called like the vector."""
    sources = http.new_collection(), http.new_collection(dimensions=384)
    http.write(
        sources[0], *[{"id": f"t{at}", "text": f"A text to embed, {at}."} for at in range(200)]
    )  # a pace is known
    vectors = RNG.normal(size=(400, 384))

    def body(worker: int, form: str, of: int) -> bytes:
        documents = [
            {
                "id": f"{worker}-{form}-{at}",
                "metadata": {"vector": [1]},
                "text": "Long words of a text. " * 100,
                "vector": packed(one) if form == "base64" else one.tolist(),
            }
            for at, one in enumerate(vectors[:of])
        ]
        return msgspec.json.encode({"documents": documents})

    for name, form, of in product(sources, ("base64", "numbers"), (12, 400)):
        post = partial(http.call, "POST", f"/v1/collections/{name}/documents", None)
        with ThreadPoolExecutor(4) as pool:
            sent = [pool.submit(post, raw=body(worker, form, of)) for worker in range(4)]
            replies = [one.result() for one in sent]
        assert [reply.status for reply in replies] == [200] * 4, (
            name,
            form,
            of,
            [reply.body for reply in replies],
        )


def test_mentions_of_vectors() -> None:
    """The field is looked for at the beginning only, in all pieces."""
    assert mentions_vectors([b"x" * 100, b'{"vector": [1]}'])
    assert not mentions_vectors([b'{"text": "a vector"}'])
    assert not mentions_vectors([b"x" * (1 << 20), b'{"vector": [1]}'])
    assert not mentions_vectors([])


@pytest.mark.parametrize("vector", [{0: 1.0}, {1.0, 2.0}, b"AAAA", 5, [10**400], [1e39], [None], [[1.0]]])
def test_what_is_no_vector_is_refused_by_the_client(vector: object) -> None:
    """Documents are packed before they are sent, and the error names the vector."""
    with pytest.raises((TypeError, ValueError), match=r"^vector"):
        packed(vector)


def test_huge_and_tiny_numbers_have_a_direction(http: Http, maps: str) -> None:
    """As numbers they may be beyond 32 bits."""
    for scale in (1e300, 1e-300):
        assert http.found(maps, vector=(VECTORS[7] * scale).tolist(), k=1) == ["d7"]


@pytest.mark.parametrize(
    "path", ["/v1/collections/{}/documents", "/v1/vector_stores", "/v1/vector_stores/{}/files"]
)
@pytest.mark.parametrize("body", [b"", b"{}", b'{"documents": [{"vector": '])
def test_a_body_without_anything_is_answered(http: Http, maps: str, path: str, body: bytes) -> None:
    """A body is searched for vectors before it is decoded, and one without any bytes is no exception."""
    connection = HTTPConnection(http.url.removeprefix("http://"))
    for _ in range(2):
        connection.request("POST", path.format(maps), body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert 200 <= answer.status < 500, answer.read()
        assert answer.read()
    connection.close()
