"""The examples of the API description: what a reader of /docs sends by pressing a button."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from jobs.serving.process import serving
from retrieval.server.examples import BATCH, FILE, make_examples
from retrieval.server.routes import ROUTES
from tests.support.http import Http

# In the order of a first use. What is not named here needs only that the documents are there.
FIRST = ("post_collections", "post_collections_collection_documents", "put_aliases_alias")
BUILT = ("post_collections_collection_reindex", "post_collections_collection_tune",
         "post_collections_collection_rollback", "post_collections_collection_erase")  # fmt: skip
LAST = ("post_collections_collection_documents_delete", "delete_collections_collection_documents_id",
        "delete_vector_stores_collection_files_file", "delete_files_file", "post_collections_collection_rename",
        "delete_aliases_alias", "delete_collections_collection", "delete_vector_stores_collection")  # fmt: skip
FORMS = ("post_files",)  # test_vector_stores.py sends one


@pytest.fixture
def fresh(tmp_path: Path, rerank_environ: dict[str, str]) -> Iterator[Http]:
    """A service without collections, since the examples name theirs, and with a store."""
    store = {"NEARLINE_STORE_URL": (tmp_path / "store").as_uri()}
    with serving(tmp_path / "data", rerank_environ | store) as server:
        yield Http(server.url)


def test_every_request_has_an_example() -> None:
    """A type of request that is added is shown to readers by an example."""
    wanted = {route.request for route in ROUTES if route.request is not None}
    assert wanted == set(make_examples("m").bodies)


def test_every_example_runs(fresh: Http) -> None:
    """Sent in the order of a first use, with the path filled in as its own examples say, nothing is refused."""
    operations = {}
    for path, methods in fresh.ok("GET", "/openapi.json")["paths"].items():
        for method, described in methods.items():
            # Only a key may make keys, a watch does not end, and shards move between nodes: test_auth.py, test_watch.py
            # and test_cluster.py try them.
            if not path.startswith(("/v1/keys", "/v1/cluster/")) and not path.endswith("/watch"):
                operations[described["operationId"]] = (method.upper(), path, described)
    others = [name for name in operations if name not in FIRST + BUILT + LAST + FORMS]
    jobs: list[str] = []
    batch_id = BATCH
    file_id = (
        OpenAI(base_url=f"{fresh.url}/v1", api_key="none")
        .files.create(file=("a.txt", b"a"), purpose="user_data")
        .id
    )
    for name in (*FIRST, *BUILT, *attaching(others), *LAST):
        method, path, described = operations[name]
        place = filled(path, described, jobs).replace(FILE, file_id).replace(BATCH, batch_id)
        for label, sent in bodies_of(described):
            body = json.loads(json.dumps(sent).replace(FILE, file_id))
            reply = fresh.call(method, place, body)
            # One says by its status that it is always refused.
            assert reply.status < 400 or str(reply.status) in described["responses"], (name, label, reply)
            if name == "post_vector_stores_collection_file_batches":
                batch_id = reply.body["id"]
            if name in BUILT and reply.status == 202:
                jobs.append(reply.body["job"])
                fresh.wait_for(jobs[-1])
            if path.endswith("/rename"):
                fresh.ok("POST", f"/v1/collections/{body['name']}/rename", {"name": "docs"})
            if name == "delete_collections_collection":
                fresh.ok("POST", "/v1/collections", {"name": "docs"})
            if "/search" in path:
                results = reply.body.get("results", [reply.body])
                assert all(one.get("hits") or one["data"] for one in results), (name, label, reply)


def attaching(names: list[str]) -> list[str]:
    """With the operations first that make a document of the file, and a batch."""
    first = ["post_vector_stores_collection_files", "post_vector_stores_collection_file_batches"]
    return [*first, *(name for name in names if name not in first)]


def filled(path: str, described: dict[str, Any], jobs: list[str]) -> str:
    """The path as a reader tries it. The ids of jobs and files are nothing that an example can know."""
    for parameter in described["parameters"]:
        if parameter["in"] == "path":
            name = parameter["name"]
            path = path.replace(f"{{{name}}}", jobs[-1] if name == "job" else parameter["example"])
    return path


def bodies_of(described: dict[str, Any]) -> list[tuple[str, Any]]:
    """Those in JSON."""
    content = described.get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return [("no body", None)]
    examples = content["application/json"]["examples"]
    return [(label, one["value"]) for label, one in examples.items()]
