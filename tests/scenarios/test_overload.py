"""More requests than the service can answer: it goes on answering, and refuses the rest at once.

The short form is part of `make test`; `make torture` runs longer, and prints the rows of docs/benchmarks.md.
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
CALLERS = 32  # keep the service busy; as many searches as may be under way twice
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
@pytest.mark.parametrize(("factor", "seconds"), [(0.8, 20), (1.3, 20), (2, 20), (5, 60)])
def test_long_overload(busy: ServerProcess, factor: float, seconds: float) -> None:
    """However many come, nearly as many are answered as at the peak. Needs a machine that does nothing else."""
    peak, flood, health_s = asyncio.run(measured(busy.url, factor, seconds))
    told(f"{factor} times the capacity", peak, flood, health_s)
    assert flood.goodput >= 0.75 * min(factor, 1) * peak.goodput


def documents(characters: int, seed: float) -> Iterator[bytes]:
    for number, text in enumerate(sentences(hash(seed), characters // 7)):
        body = json.dumps({"documents": [{"id": f"{characters}-{seed}-{number}", "text": text}]}).encode()
        yield post(f"/v1/collections/{COLLECTION}/documents", body)


@pytest.mark.torture
@pytest.mark.parametrize(
    ("characters", "per_s", "factor"), [(100_000, 3, 0.3), (1_000_000, 1, 0.3), (1_000_000, 1, 5)]
)
def test_more_documents_than_can_be_embedded(
    busy: ServerProcess, characters: int, per_s: float, factor: float
) -> None:
    """Some are written while their callers wait, the rest is refused, and searches go on beside them."""

    async def story() -> tuple[Outcome, Outcome, Outcome, list[float]]:
        # Made before: a document of a megabyte takes long to make. Each is new, or it would be found unchanged.
        bodies = list(itertools.islice(documents(characters, factor), int(60 * per_s) + 1))
        writers = Load(busy.url, iter(bodies), patience_s=90)
        searchers = Load(busy.url, searches(4), patience_s=PATIENCE_S)
        peak = await searchers.closed(CALLERS, 5)
        over = asyncio.Event()
        probe = asyncio.create_task(probed(busy.url, over.is_set))
        writing = asyncio.create_task(writers.open(per_s, 60))
        found = await searchers.open(factor * peak.goodput, 60)
        over.set()
        written = await writing
        writers.close()
        searchers.close()
        return peak, found, written, await probe

    peak, found, written, health_s = asyncio.run(story())
    told(
        f"{factor} times, beside {per_s} documents of {characters} characters a second", peak, found, health_s
    )
    print(f"written: {dict(written.statuses)}, p50 {written.quantile_s(0.5):.1f} s")  # noqa: T201
    assert written.statuses[200] > 0
    assert written.statuses[429] > 0
    if factor < 1:
        assert set(found.statuses) == {200}
    else:
        assert found.goodput >= 0.6 * peak.goodput
