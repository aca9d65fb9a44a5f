"""Secrets of keys and of the configuration: in no answer, log, metric, cache, database or backup."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from indexes.base.model import now_ms
from jobs.serving.process import log_of
from retrieval.access.key_file import hash_of
from tests.retrieval.test_auth import signed, until
from tests.support.commands import nearline
from tests.support.guarded import Caller, Guarded, guarded_service, key
from tests.support.operations import operations
from tests.support.redis_server import RedisServer, redis_server

CONFIGURED = {
    "NEARLINE_AUTH_GROUPS_SECRET": "canary-of-groups-0123456789-0123456789",
    "NEARLINE_PRIVACY_SECRET": "canary-of-privacy-0123456789",
    "NEARLINE_REDIS_SECRET": "canary-of-redis-0123456789",
    "NEARLINE_LLM_API_KEY": "canary-of-llm-0123456789",
}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path, redis: RedisServer
) -> Iterator[Guarded]:
    environ = {
        **CONFIGURED,
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_REDIS_URL": redis.url.replace("//", "//:canary-of-url@"),
        "NEARLINE_LLM_BASE_URL": "http://127.0.0.1:9/v1",
        "NEARLINE_PRIVACY_VECTOR_NOISE": "0.5",
        "NEARLINE_QUERY_LOG_ENABLED": "true",
        "NEARLINE_LOG_LEVEL": "debug",
    }
    with Redis.from_url(redis.url) as client:
        client.config_set("requirepass", "canary-of-url")
    with guarded_service(tmp_path_factory.mktemp("secrets") / "data", environ) as found:
        yield found


def test_secrets_are_nowhere(guarded: Guarded, redis: RedisServer, tmp_path: Path) -> None:
    """After every operation with keys that are right, wrong, ended, revoked or in the wrong place, with the log at its
    most talkative."""
    whole, ended = guarded.caller("admin", "vectors"), guarded.caller("admin", expires_ms=now_ms() - 1)
    record, revoked = guarded.keys.create(key("admin"))
    guarded.keys.revoke(record.id)
    grouped = guarded.caller("search", signed_groups=True)
    callers = [
        whole,
        ended,
        Caller(guarded.server.url, revoked),
        Caller(guarded.server.url, whole.token[:-3]),
    ]
    secrets = {one.token.split("_", 2)[2][:-3] for one in [*callers[:3], grouped]}
    misplaced = {
        "X-Api-Key": whole.token,
        "Cookie": f"key={whole.token}",
        "Authorization": "Basic " + base64.b64encode(f":{whole.token}".encode()).decode(),
    }
    assert whole.call("POST", "/v1/collections", {"name": "docs"}).status == 201
    told = b""
    for one in operations():
        if one.route.path.endswith(("/reindex", "/tune", "/erase")):
            continue
        raw, headers = one.sent()
        path = one.path()
        replies = [caller.call(one.route.method, path, raw=raw, headers=headers) for caller in callers]
        if one.route.scope not in ("public", "metrics"):
            method, nobody = one.route.method, Caller(guarded.server.url)
            token = f"{path}?key={whole.token}&access_token={revoked}"
            replies += [
                nobody.call(method, path, raw=raw, headers={**headers, **misplaced}),
                nobody.call(method, token, raw=raw, headers=headers),
                grouped.call(method, path, raw=raw, headers={**headers, **signed(["x"])}),
            ]
        for reply in replies:
            made = isinstance(reply.body, dict) and "key" in reply.body
            told += repr((made or reply.body, reply.headers.items())).encode()
    whole.call("DELETE", f"/v1/keys/{revoked}")  # by all of it, in place of its id
    assert nearline("backup", "--data", guarded.data, "--to", tmp_path / "backup").returncode == 0
    with Redis.from_url(redis.url, password="canary-of-url") as client:
        kept = b"".join(name + (client.get(name) or b"") for name in client.scan_iter())
    assert kept
    places = {"answers": told, "redis": kept, "log": log_of(guarded.data).read_bytes()}
    for folder in (guarded.data, tmp_path):
        places |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    canaries = {*CONFIGURED.values(), "canary-of-url", *secrets}
    found = {
        (name, secret)
        for name, content in places.items()
        for secret in canaries
        if secret.encode() in content
    }
    assert not found
    hashes = {hash_of(one.token.split("_", 2)[2]).encode() for one in callers[:3]}
    assert {name for name, content in places.items() for one in hashes if one in content} == {
        str(guarded.data / "keys.json")
    }


def test_a_key_is_revoked_while_redis_is_down(guarded: Guarded, redis: RedisServer) -> None:
    """Within a second all the same: nobody is asked about keys but their file."""
    made, text = guarded.keys.create(key("search"))
    caller = Caller(guarded.server.url, text)
    assert until(lambda: caller.call("GET", "/v1/models").status == 200)
    redis.kill()
    guarded.keys.revoke(made.id)
    assert until(lambda: caller.call("POST", "/v1/collections/docs/search", {"query": "x"}).status == 401)
