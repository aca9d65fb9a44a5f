"""A service whose Redis is sick, behind a proxy that spoils its replies: nobody is told, and no answer is wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jobs.serving.process import serving
from tests.support.fault_proxy import FAULTS, fault_proxy
from tests.support.http import Http
from tests.support.redis_server import redis_server

pytestmark = pytest.mark.redis
DOCUMENTS = [
    {"id": str(at), "text": f"The lighthouse {at} of rock {at * 7 % 97} is {at % 5} stories high."}
    for at in range(300)
]
QUERIES = [f"lighthouse {at} on rock {at * 3 % 97}" for at in range(40)]


def test_whatever_redis_replies_answers_are_right(tmp_path: Path, model_folder: Path) -> None:
    """Two services share it. Each fault comes beside searches of four clients that were asked before and of new ones,
    and goes; writes change the answers in between."""
    with redis_server(tmp_path) as redis, fault_proxy(redis.port) as proxy:
        environ = {
            "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
            "NEARLINE_REDIS_URL": proxy.url,
            "NEARLINE_REDIS_SECRET": "sixteen characters",
            "NEARLINE_REDIS_RETRY_AFTER_S": "0.05",
            "NEARLINE_CACHE_REWORDED": "true",
        }
        with (
            serving(tmp_path / "one", environ) as one,
            serving(tmp_path / "two", environ) as two,
            ThreadPoolExecutor(4) as clients,
        ):
            both = [Http(one.url), Http(two.url)]
            for http in both:
                http.ok("POST", "/v1/collections", {"name": "docs"})
                http.write("docs", *DOCUMENTS)
            for round_, fault in enumerate([*FAULTS, "none"]):
                for http in both:
                    http.write(
                        "docs",
                        {"id": str(round_), "text": f"Lighthouse {round_} on rock {round_ * 3} has fallen."},
                    )
                asked = [*QUERIES[:30], *(f"{query} in round {round_}" for query in QUERIES[30:])]
                right = [hits(both[0].search("docs", query=query, cache=False)) for query in asked]
                proxy.fault = fault
                for _ in range(2):
                    for http in both:
                        found = clients.map(lambda query, http=http: http.search("docs", query=query), asked)
                        assert [hits(answer) for answer in found] == right, fault
            assert proxy.spoilt > 0


def hits(answer: Any) -> list[Any]:
    return [(hit["document_id"], hit["text"]) for hit in answer["hits"]]
