"""Measures the service under increasing load: goodput, latency, and the time to recover from a flood.

First, closed-loop callers find the peak. Then requests arrive at random (Poisson) at multiples of that rate, whether or
not earlier ones were answered. Last comes a flood, followed at once by normal load. Callers share the cores with the
service, because `make bench` has only one machine: the report says how much CPU they used and how late they were.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from indexes.base.errors import InvalidInput
from jobs.benchmark.callers import Callers, SpanOutcome, arrivals, health_s, quantile
from jobs.benchmark.report import BenchResults, Line, Plot, Row, Say
from jobs.benchmark.service import fill_service, search_request, write_request
from jobs.benchmark.texts import Material
from jobs.benchmark.turns import family_cpu_s, memory
from jobs.serving.process import ServerProcess

DEADLINE_MS = 1000
PEAK_CALLERS = (8, 16, 32, 64)
NORMAL = 0.5  # times the peak: the load before the flood and after it
WINDOW_S = 0.25
NORMAL_AGAIN = 2.0  # times the p99 of a normal window
PATIENCE_S = DEADLINE_MS / 1000 + 5  # until a caller hangs up
IMPATIENT_S = (0.5, 1.0, 2.0)  # the same for callers in a flood who send no deadline
LOOK_S = 0.1
MANY_ADDRESSES = {
    "NEARLINE_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "1000000"
}  # independent callers have their own
NOTES = [
    "Open loop: Poisson arrivals. Times count from when a request was due, not from when it was sent.",
    f"In time: within {DEADLINE_MS} ms, sent as the deadline too. p50, p99: of admitted requests, late ones included.",
    "x p99: relative to the p99 when requests arrive at the peak rate.",
    "lag: how late requests were sent. cores: CPU time per wall time, of the service and of the callers.",
    f"Peak: the best closed loop. Normal: {NORMAL} of it, in windows of {WINDOW_S:g} s; a refusal is infinitely slow.",
    "Patience: callers of the flood hang up after it and send no deadline. of peak: answered by then.",
    f"Recovered: start of the first window whose p99 is at most {NORMAL_AGAIN:g} times the median window before.",
]


def run(
    material: Material, scratch: Path, say: Say, *, factor: Sequence[float], rate: Sequence[float], seconds: float,
    flood: float, flood_s: float, writes: float,
) -> BenchResults:  # fmt: skip
    """Offer `factor` times the peak and `rate` a second for `seconds` each, then `flood` times the peak for `flood_s`,
    with `writes` documents a second throughout."""
    loads = os.getloadavg()
    hot = len(material.texts) // 10
    with fill_service(material, scratch / "nearline", say, hot=hot, environ=MANY_ADDRESSES) as server:
        tables = asyncio.run(Load(server, material, writes, say).run(factor, rate, seconds, flood, flood_s))
    notes = [f"Load average of the machine before: {loads[0]:.2f}. Hot: {hot:,} passages.", *NOTES]
    return BenchResults(
        tables, notes, plot(tables["Offered load"], max(row["in time/s"] for row in tables["Peak"]))
    )


class Load:
    """One service with its callers."""

    def __init__(self, server: ServerProcess, material: Material, writes: float, say: Say) -> None:
        self._server, self._say, self._writes = server, say, writes
        self._rng = np.random.default_rng(0)
        self._queries = material.queries
        self._searchers = self._callers(PATIENCE_S, deadline_ms=DEADLINE_MS)
        self._writers = Callers(server.url, new_documents(material.texts), patience_s=PATIENCE_S)

    def _callers(self, patience_s: float, **options: int) -> Callers:
        """Callers that search without caches, because the questions repeat."""
        searches = [search_request(query, cache=False, **options) for query in self._queries]
        return Callers(self._server.url, itertools.cycle(searches), patience_s=patience_s)

    async def run(
        self, factors: Sequence[float], rates: Sequence[float], seconds: float, flood: float, flood_s: float
    ) -> dict[str, list[Row]]:
        await self._searchers.closed(PEAK_CALLERS[0], seconds / 2)  # warms up
        tried = [await self._closed_loop(callers, seconds / 2) for callers in PEAK_CALLERS]
        best = max(tried, key=lambda row: row["in time/s"])
        peak = best["in time/s"]
        if not peak:
            raise InvalidInput(f"no search was answered within {DEADLINE_MS} ms", param="passages")
        self._say(f"peak: {peak:.0f} searches a second with {best['callers']} callers")
        wanted = {factor * peak for factor in {NORMAL, 1.0, *factors}} | set(rates)
        offered = {rate: await self._offer([(rate, seconds)]) for rate in sorted(wanted)}
        impatient = [await self._flood(one, flood, peak, seconds) for one in IMPATIENT_S]
        last = await self._offer([(flood * peak, flood_s), (NORMAL * peak, seconds)])
        rows = [row for _, row in (*offered.values(), last)]
        for row in rows:
            row["x peak"] = round(row["offered/s"] / peak, 2)
            row["of peak"] = round(row["in time/s"] / peak, 3)
            row["x p99"] = round(row["p99 ms"] / offered[peak][1]["p99 ms"], 2)
        self._searchers.close()
        self._writers.close()
        after = recovery(offered[NORMAL * peak][0], last[0].between(flood_s, flood_s + seconds))
        title = f"After {flood:g} times the peak for {flood_s:g} s"
        return {
            "Peak": tried,
            "Offered load": rows,
            "Patience": impatient,
            title: [after | memory(self._server.pid)],
        }

    async def _closed_loop(self, callers: int, seconds: float) -> Row:
        seen = asyncio.create_task(watch_service(self._server, seconds))
        found = await self._searchers.closed(callers, seconds)
        return {"callers": callers, **figures(found), **await seen}

    async def _flood(self, patience_s: float, flood: float, peak: float, seconds: float) -> Row:
        callers = self._callers(patience_s)
        self._say(f"{flood:g} times the peak for {seconds:g} s, by callers who wait for {patience_s:g} s ...")
        found = await callers.open(arrivals(flood * peak, seconds, self._rng), seconds)
        callers.close()
        answered = found.goodput(patience_s)
        return {
            "patience s": patience_s,
            "offered/s": round(flood * peak, 1),
            "answered/s": round(answered, 1),
            "of peak": round(answered / peak, 3),
            "refused": int(found.refused(patience_s).sum()),
            "hung up": found.statuses[0],
            "p99 ms": round(quantile(found.took[found.status == 200], 0.99) * 1000, 1),
        }

    async def _offer(self, parts: Sequence[tuple[float, float]]) -> tuple[SpanOutcome, Row]:
        """Offer each (rate, seconds) in turn. Returns the outcome of all, and a row about the first."""
        rate, seconds = parts[0]
        self._say(f"{rate:.0f} searches a second for {seconds:g} s ...")
        ends = np.cumsum([0, *(part[1] for part in parts)])
        due = [begin + arrivals(*part, self._rng) for begin, part in zip(ends, parts)]
        seen = asyncio.create_task(watch_service(self._server, seconds))
        search = self._searchers.open(np.concatenate(due), float(ends[-1]))
        write = self._writers.open(arrivals(self._writes, seconds, self._rng), seconds)
        found, written = await asyncio.gather(search, write)
        row = {
            "offered/s": round(rate, 1),
            "seconds": seconds,
            **figures(found.between(0, seconds)),
            **await seen,
        }
        if self._writes:
            row |= {"written/s": round(written.goodput(), 2), "writes refused": int(written.refused().sum())}
        return found, row


def new_documents(texts: Sequence[str]) -> Iterator[bytes]:
    """Write requests with one document each, which the service embeds."""
    for number, text in enumerate(itertools.cycle(texts)):
        yield write_request(f"new-{number}", f"{text} {number}")


def figures(found: SpanOutcome, deadline_s: float = DEADLINE_MS / 1000) -> Row:
    admitted, refused = found.admitted_s(deadline_s) * 1000, found.refused(deadline_s)
    late = found.late(deadline_s)
    return {
        "in time/s": round(found.goodput(deadline_s), 1),
        **{f"p{of} ms": round(quantile(admitted, of / 100), 1) for of in (50, 99)},
        "late": int(late.sum()),
        "refused": int(refused.sum()),
        "no Retry-After": int((refused & ~found.retry_after).sum()),
        "errors": int((~refused & ~late & (found.status != 200)).sum()),
        "lag p99 ms": round(quantile(found.lag, 0.99) * 1000, 1),
    }


async def watch_service(server: ServerProcess, seconds: float) -> Row:
    """Watch memory, CPU and the latency of /healthz for `seconds`."""
    begun, before = time.monotonic(), (family_cpu_s(server.pid), time.process_time())
    took, held, failed = [], [], 0
    while (elapsed := time.monotonic() - begun) < seconds:
        held.append(memory(server.pid))
        try:
            took.append(await health_s(server.url))
        except OSError:
            failed += 1
        await asyncio.sleep(LOOK_S)
    return {
        "healthz ms": round(max(took, default=0.0) * 1000, 1),
        "healthz failed": failed,
        **{name: max(one[name] for one in held) for name in held[0]},
        "cores": round((family_cpu_s(server.pid) - before[0]) / elapsed, 2),
        "callers' cores": round((time.process_time() - before[1]) / elapsed, 2),
    }


def recovery(before: SpanOutcome, after: SpanOutcome) -> Row:
    """How long after the flood the service is as fast as before it; None if that is not seen."""
    usual = float(np.median([took for _, took in windows(before)]))
    # If refusals are usual (inf), every window counts as slow.
    slow = [begin for begin, took in windows(after) if not took <= NORMAL_AGAIN * usual < np.inf]
    back = next((begin for begin, _ in windows(after) if begin not in slow), None)
    return {
        "searches/s": round(len(after.due) / after.seconds, 1),
        "p99 of a window before, ms": round(usual * 1000, 1),
        "first window after, ms": round(windows(after)[0][1] * 1000, 1),
        "recovered after s": back,
        "slower windows later": sum(begin > back for begin in slow) if back is not None else len(slow),
        "of": len(windows(after)),
        "refused": int(after.refused().sum()),
    }


def windows(found: SpanOutcome) -> list[tuple[float, float]]:
    """Start and p99 of each window in which requests were due; requests without an answer are infinitely slow."""
    took = np.where(found.status == 200, found.took, np.inf)
    window = (found.due // WINDOW_S).astype(int)
    # Use the nearest rank: one cannot interpolate between a number and inf.
    return [
        (float(one * WINDOW_S), float(np.quantile(took[window == one], 0.99, method="higher")))
        for one in np.unique(window)
    ]


def plot(rows: Sequence[Row], peak: float) -> Plot:
    """Plot goodput and the latency of admitted requests over offered load."""
    offered, answered, p99, p50 = (
        [row[name] for row in rows] for name in ("offered/s", "in time/s", "p99 ms", "p50 ms")
    )
    best: Line = ([0, peak, max(offered)], [0, peak, peak], "k--")
    above: dict[str, Line] = {"at best": best, "answered in time": (offered, answered, "o-")}
    below: dict[str, Line] = {"p99 of what was let in": (offered, p99, "o-"), "p50": (offered, p50, "s-")}
    return Plot("searches offered a second", {"searches a second": above, "milliseconds": below})
