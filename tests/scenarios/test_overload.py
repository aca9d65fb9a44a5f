"""More requests than the service can answer: it goes on answering, and refuses the rest at once.

The short form is part of `make test`. `nearline bench load` measures the same for searches, and `make torture` for
documents; docs/benchmarks/load.md has both.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jobs.benchmark.callers import Callers, SpanOutcome, arrivals, post, quantile
from jobs.serving.process import ServerProcess, serving
from tests.support.health import probed
from tests.support.http import Http

COLLECTION = "busy"
WORDS = ["river", "stone", "cloud", "paper", "engine", "garden", "winter", "music", "letter", "bridge"]
CALLERS = 32  # keep the service busy; as many searches as may be under way twice
PATIENCE_S = 2.0
FEW = 4  # searches at a time
BODIES_BYTES = 2000


def sentences(seed: int, words: int) -> Iterator[str]:
    rng = random.Random(seed)
    return (" ".join(rng.choices(WORDS, k=words)) + f" {number}" for number in itertools.count())


@pytest.fixture
def busy(tmp_path: Path, model_folder: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """With the limits of the parameter, or the default ones."""
    environ = {"NEARLINE_MODELS_FOLDER": str(model_folder.parent), **getattr(request, "param", {})}
    with serving(tmp_path / "data", environ) as server:
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


FEW_AT_A_TIME = {
    "NEARLINE_ADMISSION_SEARCHES_MAX": str(FEW),
    "NEARLINE_ADMISSION_BODY_BYTES_MAX": str(BODIES_BYTES),
}


@pytest.mark.parametrize("busy", [FEW_AT_A_TIME], indirect=True)
def test_overload(busy: ServerProcess) -> None:
    """At three times its capacity the service answers every request: with hits, or with when to come back. Afterwards
    nothing is held."""

    async def story() -> SpanOutcome:
        callers = Callers(busy.url, searches(2), patience_s=30)
        peak = await callers.closed(FEW, 1)
        assert set(peak.statuses) == {200}
        flood = await callers.open(arrivals(3 * peak.goodput(), 2, np.random.default_rng(0)), 2)
        callers.close()
        return flood

    flood = asyncio.run(story())
    assert set(flood.statuses) == {200, 429}
    assert flood.retry_after.tolist() == flood.refused().tolist()
    http = Http(busy.url)
    assert http.metric("nearline_memory_bytes", kind="foretold") == 0
    assert http.metric("nearline_embedding_queue_tokens", lane="query") == 0
    # A body larger than the bound is let in only where no other search is under way.
    assert http.search(COLLECTION, query="quiet " * (BODIES_BYTES // 4))["hits"]


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

    async def story() -> tuple[SpanOutcome, SpanOutcome, SpanOutcome, list[float]]:
        rng = np.random.default_rng(0)
        # Made before: a document of a megabyte takes long to make. Each is new, or it would be found unchanged.
        bodies = list(itertools.islice(documents(characters, factor), int(120 * per_s)))
        writers = Callers(busy.url, iter(bodies), patience_s=90)
        searchers = Callers(busy.url, searches(4), patience_s=PATIENCE_S)
        peak = await searchers.closed(CALLERS, 5)
        over = asyncio.Event()
        probe = asyncio.create_task(probed(busy.url, over.is_set))
        writing = asyncio.create_task(writers.open(arrivals(per_s, 60, rng), 60))
        found = await searchers.open(arrivals(factor * peak.goodput(), 60, rng), 60)
        over.set()
        written = await writing
        writers.close()
        searchers.close()
        return peak, found, written, await probe

    peak, found, written, health_s = asyncio.run(story())
    print(  # noqa: T201 - what the long form is for
        f"\n{factor} times, beside {per_s} documents of {characters} characters a second: "
        f"peak {peak.goodput():.0f}/s, p99 {quantile(peak.admitted_s(), 0.99) * 1000:.0f} ms; "
        f"goodput {found.goodput():.0f}/s, p99 {quantile(found.admitted_s(), 0.99) * 1000:.0f} ms; "
        f"healthz at most {max(health_s) * 1000:.0f} ms; "
        f"written {dict(written.statuses)}, p50 {quantile(written.admitted_s(), 0.5):.1f} s"
    )
    assert written.statuses[200] > 0
    assert written.statuses[429] > 0
    if factor < 1:
        assert set(found.statuses) == {200}
    else:
        assert found.goodput() >= 0.6 * peak.goodput()
