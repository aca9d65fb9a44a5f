"""More requests than the service can answer: it goes on answering, and refuses the rest at once.

The short form is part of `make test`; `make torture` runs 20 seconds at each load, and prints what it measured.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.server_process import ServerProcess, serving
from tests.support.http import Http
from tests.support.load import Load, Outcome, post, probed

COLLECTION = "busy"
WORDS = [
    "river",
    "stone",
    "cloud",
    "paper",
    "engine",
    "garden",
    "winter",
    "music",
    "letter",
    "bridge",
    "market",
]
CALLERS = 16  # keep the service busy
PATIENCE_S = 2.0


def sentences(seed: int, words: int) -> Iterator[str]:
    rng = random.Random(seed)
    return (" ".join(rng.choices(WORDS, k=words)) + f" {number}" for number in itertools.count())


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[ServerProcess]:
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        # All callers have one address here, and the probe of /healthz too.
        "NEARLINE_SERVER_CONNECTIONS_MAX": "20000",
        "NEARLINE_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "20000",
    }
    with serving(tmp_path_factory.mktemp("busy") / "data", environ) as server:
        http = Http(server.url)
        http.ok("POST", "/v1/collections", {"name": COLLECTION})
        texts = itertools.islice(sentences(1, 20), 500)
        http.write(COLLECTION, *({"id": str(number), "text": text} for number, text in enumerate(texts)))
        yield server


def searches(seed: int) -> Iterator[bytes]:
    """Each with a query that was never asked before, past the caches."""
    for query in sentences(seed, 8):
        body = json.dumps({"query": query, "cache": False}).encode()
        yield post(f"/v1/collections/{COLLECTION}/search", body)


async def measured(url: str, factor: float, seconds: float) -> tuple[Outcome, Outcome, list[float]]:
    """The peak, what comes of `factor` times as many requests, and how long /healthz took meanwhile."""
    load = Load(url, searches(2), patience_s=PATIENCE_S)
    await load.closed(CALLERS, 1)
    peak = await load.closed(CALLERS, min(seconds, 5))
    over = asyncio.Event()
    probe = asyncio.create_task(probed(url, over.is_set))
    flood = await load.open(factor * peak.goodput, seconds)
    over.set()
    load.close()
    return peak, flood, await probe


def told(name: str, peak: Outcome, flood: Outcome, health_s: list[float]) -> None:
    print(  # noqa: T201 - what the long form is for
        f"\n{name}: peak {peak.goodput:.0f}/s, p99 {peak.quantile_s(0.99) * 1000:.0f} ms; "
        f"goodput {flood.goodput:.0f}/s, p50 {flood.quantile_s(0.5) * 1000:.0f} ms, "
        f"p99 {flood.quantile_s(0.99) * 1000:.0f} ms, {dict(flood.statuses)}; "
        f"healthz at most {max(health_s) * 1000:.0f} ms"
    )


@pytest.mark.slow
@pytest.mark.parametrize("factor", [5])
def test_overload(busy: ServerProcess, factor: float) -> None:
    """At five times its capacity the service answers many requests in time, and refuses the rest."""
    peak, flood, health_s = asyncio.run(measured(busy.url, factor, 6))
    told(f"{factor} times the capacity", peak, flood, health_s)
    assert set(flood.statuses) <= {0, 200, 429}
    assert flood.statuses[200] > 0
    assert flood.statuses[429] > 0
    assert flood.retry_after == {True}
    assert Http(busy.url).search(COLLECTION, query="quiet again")["hits"]


@pytest.mark.torture
@pytest.mark.parametrize(("factor", "share"), [(1.3, 0.8), (5, 0.4)])
def test_long_overload(busy: ServerProcess, factor: float, share: float) -> None:
    """Over 20 seconds this share of the peak is answered. At five times, refusing takes the interpreter's time."""
    peak, flood, health_s = asyncio.run(measured(busy.url, factor, 20))
    told(f"{factor} times the capacity", peak, flood, health_s)
    assert flood.goodput >= share * peak.goodput
