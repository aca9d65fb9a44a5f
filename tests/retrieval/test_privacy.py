"""Raw vectors: for callers that may have them, with the noise that is configured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes.base.errors import InvalidInput
from indexes.base.model import Floats
from retrieval.access.auth import Keys
from retrieval.access.key_file import Scope
from retrieval.access.privacy import VectorExport
from tests.support.guarded import Guarded, guarded_service, key
from tests.support.http import Http, Reply

NOISE = 0.5
TEXT = "Refunds take fourteen days."
C = "/v1/collections/docs"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Guarded]:
    """A service with keys, whose exported vectors carry noise; two documents have one text."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_PRIVACY_VECTOR_NOISE": str(NOISE),
    }
    with guarded_service(tmp_path_factory.mktemp("private") / "data", environ) as found:
        admin = found.caller("admin")
        admin.ok("POST", "/v1/collections", {"name": "docs"})
        admin.write("docs", {"id": "a", "text": TEXT}, {"id": "b", "text": TEXT})
        yield found


def asked_for_vectors(caller: Http) -> list[Reply]:
    """In each way there is."""
    return [
        caller.call("GET", f"{C}/documents?vectors=true"),
        caller.call("GET", f"{C}/documents/a?vectors=true"),
        caller.call("POST", f"{C}/documents/scroll", {"vectors": True}),
    ]


@pytest.mark.parametrize("scopes", [("search",), ("admin",), ("search", "write", "admin")])
def test_vectors_need_their_scope(guarded: Guarded, scopes: tuple[Scope, ...]) -> None:
    """Which no other includes; documents without them are as before."""
    caller = guarded.caller(*scopes)
    for reply in asked_for_vectors(caller):
        assert (reply.status, reply.body["error"]["type"]) == (403, "forbidden")
        assert "scope vectors" in reply.body["error"]["message"]
    assert caller.ok("GET", f"{C}/documents/a")["passages"] == 1


def vectors_in(body: Any) -> list[list[float]]:
    documents = body.get("documents", [body])
    return [passage["vector"] for document in documents for passage in document["passages"]]


def test_a_key_with_the_scope_gets_them(guarded: Guarded) -> None:
    """Of unit length, with the noise that is configured: the same each time, for all documents of one vector. Of a
    caller's own texts everybody gets exact ones, who may search."""
    caller = guarded.caller("search", "vectors")
    replies = asked_for_vectors(caller) + asked_for_vectors(caller)
    assert {reply.status for reply in replies} == {200}
    found = np.array([vector for reply in replies for vector in vectors_in(reply.body)])
    assert np.all(found == found[0])
    assert np.linalg.norm(found[0]) == pytest.approx(1, abs=1e-6)
    embedded = guarded.caller("search").ok(
        "POST", "/v1/embeddings", {"model": "all-MiniLM-L6-v2", "input": TEXT}
    )
    exact = np.array(embedded["data"][0]["embedding"])
    assert float(found[0] @ exact) == pytest.approx(1 / np.sqrt(1 + NOISE**2), abs=0.05)


def test_no_other_answer_holds_a_vector(guarded: Guarded) -> None:
    """Searches, however explained, and whatever document they resemble, and OpenAI's files."""
    caller = guarded.caller("search", "vectors")
    query = {"query": "refunds", "explain": True}
    replies = [
        caller.call("POST", f"{C}/search", {**query, "k": 5}),
        caller.call("POST", f"{C}/search", {"like": ["a"], "mode": "dense", "mmr": 0.5}),
        caller.call("POST", f"{C}/explain", {"query": "refunds", "document_id": "a"}),
        caller.call("POST", f"{C}/context", {"query": "refunds", "token_budget": 500}),
        caller.call("GET", "/v1/vector_stores/docs/files/a/content"),
    ]
    for reply in replies:
        assert reply.status == 200, reply
        assert longest_row(reply.body) < 100


def longest_row(value: Any) -> int:
    """Numbers in the longest list of numbers alone."""
    if isinstance(value, dict):
        return max(map(longest_row, value.values()), default=0)
    if isinstance(value, list):
        if value and all(isinstance(one, float) for one in value):
            return len(value)
        return max(map(longest_row, value), default=0)
    return 0


def test_an_admin_without_vectors_gives_nobody_vectors(guarded: Guarded) -> None:
    """Neither by a new key nor by rotating one that has the scope; an admin with it does both."""
    admin, whole = guarded.caller("admin"), guarded.caller("admin", "vectors")
    wanted = {"scopes": ["search", "vectors"]}
    made = whole.ok("POST", "/v1/keys", wanted)["record"]["id"]
    for path, body in (("/v1/keys", wanted), (f"/v1/keys/{made}/rotate", {})):
        reply = admin.call("POST", path, body)
        assert (reply.status, "key" in reply.body) == (403, False)
    assert whole.ok("POST", f"/v1/keys/{made}/rotate", {})["record"]["scopes"] == ["search", "vectors"]


@pytest.mark.parametrize("scopes", [("vectors",), ("write", "vectors")])
def test_vectors_alone_are_no_right(tmp_path: Path, scopes: tuple[Scope, ...]) -> None:
    """They come with documents, which such a key could not read."""
    with pytest.raises(InvalidInput, match="add the scope search"):
        Keys(tmp_path).create(key(*scopes))


def unit_vectors(count: int) -> Floats:
    drawn = np.random.default_rng(8).normal(size=(count, 384))
    units: Floats = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    return units


def test_noise_has_the_length_that_is_set() -> None:
    """In no direction more than in others, and of each vector another."""
    vectors = unit_vectors(300)
    for noise in (0.0, 0.5, 2.0):
        export = VectorExport(noise, b"secret")
        exported = np.array([export.of(one) for one in vectors])
        assert exported.dtype == np.float32
        cosines = np.sum(exported * vectors, axis=1)
        assert np.mean(cosines) == pytest.approx(1 / np.sqrt(1 + noise**2), abs=0.01)
    residues = exported - cosines[:, None] * vectors
    assert np.abs(residues.mean(axis=0)).max() < 5 * residues.std() / np.sqrt(len(residues))


def test_noise_is_drawn_from_the_secret() -> None:
    """Another secret, other noise: without it nobody can subtract it."""
    vector = unit_vectors(1)[0]
    first, again, other = (VectorExport(1.0, secret).of(vector) for secret in (b"one", b"one", b"two"))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
