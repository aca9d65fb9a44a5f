"""The service with a Redis behind its caches: alone, beside others, and without it when it dies."""

from __future__ import annotations

import itertools
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from jobs.serving.process import log_of, serving
from tests.support.http import Http
from tests.support.redis_server import redis_server


@pytest.mark.slow
def test_answers_survive_a_restart_in_redis_and_searches_survive_redis(
    tmp_path: Path, model_folder: Path
) -> None:
    """A second process finds the first one's answers; with Redis paused or dead every search is still right."""
    with redis_server(tmp_path) as redis:
        environ = environment(model_folder, redis.url, NEARLINE_REDIS_TIMEOUT_MS="1000")
        with serving(tmp_path / "data", environ) as server:
            http = Http(server.url)
            http.ok("POST", "/v1/collections", {"name": "docs"})
            http.write("docs", {"id": "a", "text": "The lighthouse is red."})
            assert http.search("docs", query="lighthouse colour")["receipt"]["cache"] == "miss"
            await_keys(redis.url, 2)  # puts run in the background, and an end gives them up
        with serving(tmp_path / "data", environ) as server:
            http = Http(server.url)
            again = http.search("docs", query="lighthouse colour")
            assert again["receipt"]["cache"] == "hit"
            assert again["hits"][0]["document_id"] == "a"
            http.write("docs", {"id": "b", "text": "The lighthouse colour is white now."})
            after_write = http.search("docs", query="lighthouse colour")
            assert after_write["receipt"]["cache"] == "miss"
            assert {hit["document_id"] for hit in after_write["hits"]} == {"a", "b"}

            redis.pause()
            for number in range(20):
                assert http.found("docs", query=f"red lighthouse {number}")[0] == "a"
            redis.resume()
            redis.kill()
            for number in range(20):
                assert len(http.found("docs", query=f"white lighthouse {number}")) == 2
            assert http.search("docs", query="white lighthouse 3")["receipt"]["cache"] == "hit", (
                "the near cache goes on"
            )
            assert http.ok("GET", "/readyz") == {"status": "ready", "quarantined": []}


def await_keys(url: str, number: int) -> None:
    """Until Redis holds an answer and a vector."""
    deadline = time.monotonic() + 30
    with Redis.from_url(url) as client:
        while client.dbsize() < number:
            assert time.monotonic() < deadline, "nothing was put"
            time.sleep(0.01)


def environment(model_folder: Path, redis_url: str, **more: str) -> Mapping[str, str]:
    """With more patience than a service has: a loaded machine must not turn a hit into a miss."""
    return {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_REDIS_URL": redis_url,
        "NEARLINE_REDIS_TIMEOUT_MS": "5000",
        **more,
    }


DOCUMENTS = [{"id": f"d{number}", "text": f"Lighthouse {number} is white."} for number in range(5)]


@pytest.mark.slow
def test_services_with_one_secret_share_answers_and_vectors(tmp_path: Path, model_folder: Path) -> None:
    """A service of its own data, given the same documents in another order, finds answers and query vectors."""
    with redis_server(tmp_path) as redis:
        environ = environment(model_folder, redis.url, NEARLINE_REDIS_SECRET="sixteen characters")
        with serving(tmp_path / "one", environ) as one, serving(tmp_path / "two", environ) as two:
            first, second = Http(one.url), Http(two.url)
            for http, documents in ((first, DOCUMENTS), (second, DOCUMENTS[::-1])):
                http.ok("POST", "/v1/collections", {"name": "docs"})
                for document in documents:
                    http.write("docs", document)
            second.write("docs", {"id": "extra", "text": "Not there."})
            asked = first.search("docs", query="white lighthouse")
            assert asked["receipt"]["cache"] == "miss"
            assert second.search("docs", query="white lighthouse", k=3)["receipt"]["cache"] == "miss"
            assert second.metric("nearline_shared_cache_hits_total", kind="vector") == 1
            assert second.metric("nearline_embedding_cache_total", outcome="hit") == 0

            second.ok("DELETE", "/v1/collections/docs/documents/extra")
            again = second.search("docs", query="white lighthouse")
            assert again["hits"] == asked["hits"]
            assert (again["receipt"]["cache"], again["receipt"]["seq"]) == ("hit", 7)
            assert second.metric("nearline_shared_cache_hits_total", kind="answer") == 1


@pytest.mark.slow
def test_copies_that_part_ways_keep_their_own_answers(tmp_path: Path, model_folder: Path) -> None:
    """Two copies of a directory, equal in uid, secret, generation and seq, each answer from their own documents."""
    with redis_server(tmp_path) as redis:
        environ = environment(model_folder, redis.url)
        with serving(tmp_path / "one", environ) as server:
            Http(server.url).ok("POST", "/v1/collections", {"name": "docs"})
            Http(server.url).write("docs", *DOCUMENTS)
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        for name, word in (("one", "ZEBRA-A"), ("two", "ZEBRA-B")):
            with serving(tmp_path / name, environ) as server:
                http = Http(server.url)
                shared = http.search("docs", query="white lighthouse")["receipt"]["cache"]
                assert shared == ("miss" if name == "one" else "hit"), (
                    "what they still have in common is shared"
                )
                assert http.write("docs", {"id": "18473", "text": f"The code word is {word}."})["seq"] == 6
                answer = http.search("docs", query="code word", k=1)
                assert answer["receipt"]["cache"] == "miss"
                assert word in answer["hits"][0]["text"]


@pytest.mark.slow
def test_data_directories_without_a_secret_share_nothing(tmp_path: Path, model_folder: Path) -> None:
    """The same documents and query in another data directory are a miss, and nobody's entries are overwritten."""
    with redis_server(tmp_path) as redis:
        environ = environment(model_folder, redis.url)
        with serving(tmp_path / "one", environ) as one, serving(tmp_path / "two", environ) as two:
            for server in (one, two):
                http = Http(server.url)
                http.ok("POST", "/v1/collections", {"name": "docs"})
                http.write("docs", *DOCUMENTS)
                assert http.search("docs", query="white lighthouse")["receipt"]["cache"] == "miss"
                assert http.metric("nearline_shared_cache_hits_total") == 0
        for name in ("one", "two"):
            assert (tmp_path / name / "cache.secret").stat().st_mode & 0o777 == 0o600
            with serving(tmp_path / name, environ) as server:
                http = Http(server.url)
                assert http.search("docs", query="white lighthouse")["receipt"]["cache"] == "hit"
                assert http.metric("nearline_cache_store_total", event="rejected") == 0


@pytest.mark.slow
def test_an_outage_is_two_log_lines_and_a_metric(tmp_path: Path, model_folder: Path) -> None:
    """Whatever is asked meanwhile; the counters tell hits and misses from what failed, came late or was not tried."""
    with redis_server(tmp_path) as redis:
        environ = environment(model_folder, redis.url, NEARLINE_REDIS_RETRY_AFTER_S="0.2")
        with serving(tmp_path / "data", environ) as server:
            http = Http(server.url)
            asked = itertools.count()

            def counted(event: str, store: str = "redis") -> float:
                return http.metric("nearline_cache_store_total", store=store, event=event)

            def ask_until(event: str) -> None:
                before, deadline = counted(event), time.monotonic() + 30
                while counted(event) == before:
                    assert time.monotonic() < deadline, f"no {event}"
                    assert http.found("docs", query=f"lighthouse {next(asked)}")

            http.ok("POST", "/v1/collections", {"name": "docs"})
            http.write("docs", *DOCUMENTS)
            assert http.metric("nearline_redis_up") == 1
            for _ in range(2):
                http.search("docs", query="white lighthouse")
            # Once near and then not: the second answer was found in memory, and Redis was not asked.
            assert [counted(event, "memory") for event in ("hits", "misses")] == [1, 1]
            assert [counted(event) for event in ("hits", "misses")] == [0, 2]  # an answer, and a query vector
            await_keys(redis.url, 2)

            redis.kill()
            for _ in range(30):
                ask_until("skipped")
            assert http.metric("nearline_redis_up") == 0
            assert counted("failures") >= 1
            assert counted("timeouts") == 0
            redis.restart()
            ask_until("misses")
            while http.metric("nearline_redis_up") == 0:
                ask_until("misses")
        assert outages(tmp_path / "data") == ["unreachable", "answers"]

        with serving(tmp_path / "data", {**environ, "NEARLINE_REDIS_TIMEOUT_MS": "100"}) as server:
            http = Http(server.url)
            redis.pause()
            ask_until("timeouts")
            assert counted("failures") == 0
            while http.metric("nearline_redis_up") == 1:
                ask_until("timeouts")
            redis.resume()
            while http.metric("nearline_redis_up") == 0:
                ask_until("misses")
        assert outages(tmp_path / "data")[:4] == ["unreachable", "answers"] * 2


def outages(data: Path) -> list[str]:
    """How the lines go on that the log has of Redis."""
    return re.findall(r" retrieval\.cache\.\w+: Redis (?:is )?(\w+)", log_of(data).read_text())


def test_without_redis_there_is_no_metric_of_it(http: Http) -> None:
    """What is not configured is neither up nor down."""
    assert "nearline_redis_up" not in http.ok("GET", "/metrics")


@pytest.mark.slow
def test_two_services_under_writes_give_no_stale_answer(tmp_path: Path, model_folder: Path) -> None:
    """With one Redis and hardly any cache of their own: what was acknowledged is in every answer that comes after, and
    an answer from the cache is what a search without it gives at the same operation."""
    with redis_server(tmp_path) as redis:
        secret = {
            "NEARLINE_REDIS_SECRET": "sixteen characters",
            "NEARLINE_CACHE_RESULTS_BYTES_MAX": "40000",
        }
        environ = environment(model_folder, redis.url, **secret)
        with serving(tmp_path / "one", environ) as one, serving(tmp_path / "two", environ) as two:
            with ThreadPoolExecutor(2) as threads:
                ends = [threads.submit(tell_of_stale, server.url) for server in (one, two)]
                outcomes = [Counter(end.result()) for end in ends]
            shared = sum(Http(server.url).metric("nearline_shared_cache_hits_total") for server in (one, two))
    assert all(counts["hit"] > 20 and counts["miss"] > 20 for counts in outcomes), outcomes
    assert shared > 0


def tell_of_stale(url: str) -> list[str]:
    """Write and search for a while; returns what the cache did."""
    http, dice = Http(url), random.Random(7)  # both write the same, each in its own time
    http.ok("POST", "/v1/collections", {"name": "docs"})
    http.write("docs", *DOCUMENTS)
    outcomes = []
    for version in range(60):
        number = dice.randrange(5)
        text = f"Lighthouse {number} was painted in year {version}."
        http.write("docs", {"id": f"d{number}", "text": text})
        for asked in (number, 0, 1):
            search: dict[str, object] = {"query": f"lighthouse {asked}", "k": 3}
            found = http.search("docs", **search)
            fresh = http.search("docs", **search, cache=False)
            assert found["receipt"]["seq"] == fresh["receipt"]["seq"]
            assert shown(found) == shown(fresh)
            outcomes.append(found["receipt"]["cache"])
        assert text in [hit["text"] for hit in http.search("docs", query=text)["hits"]]
    return outcomes


def shown(answer: Any) -> list[dict[str, object]]:
    return [{**hit, "tier": None} for hit in answer["hits"]]
