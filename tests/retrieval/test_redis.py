"""The service with a Redis behind its result cache, and without it when it dies."""

from __future__ import annotations

from pathlib import Path

from jobs.server_process import serving
from tests.support.http import Http
from tests.support.redis_server import redis_server


def test_answers_survive_a_restart_in_redis_and_searches_survive_redis(
    tmp_path: Path, model_folder: Path
) -> None:
    """A second process finds the first one's answers; with Redis paused or dead every search is still right."""
    with redis_server(tmp_path) as redis:
        environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_REDIS_URL": redis.url}
        with serving(tmp_path / "data", environ) as server:
            http = Http(server.url)
            http.ok("POST", "/v1/collections", {"name": "docs"})
            http.write("docs", {"id": "a", "text": "The lighthouse is red."})
            assert http.search("docs", query="lighthouse colour")["receipt"]["cache"] == "miss"
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
            assert http.ok("GET", "/readyz") == {"status": "ready"}


def test_two_data_directories_do_not_share_answers(tmp_path: Path, model_folder: Path) -> None:
    """The same collection name and query in another data directory is a miss."""
    with redis_server(tmp_path) as redis:
        environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), "NEARLINE_REDIS_URL": redis.url}
        for name in ("one", "two"):
            with serving(tmp_path / name, environ) as server:
                http = Http(server.url)
                http.ok("POST", "/v1/collections", {"name": "docs"})
                http.write("docs", {"id": name, "text": "The same text."})
                answer = http.search("docs", query="same text")
                assert answer["receipt"]["cache"] == "miss"
                assert [hit["document_id"] for hit in answer["hits"]] == [name]
