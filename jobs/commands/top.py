"""nearline top"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import defaultdict
from dataclasses import dataclass

import click
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from jobs.commands.options import JSON, URL, NumberRange
from jobs.commands.output import console, format_bytes, print_json
from nearline import AsyncClient

STAGES = ("total", "wait", "embed", "dense", "lexical", "fuse", "rerank", "hydrate", "shards")
Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of /metrics by name, and when (monotonic) they were read."""

    at: float
    samples: dict[str, list[tuple[Labels, float]]]

    def sum(self, name: str, **labels: str) -> float:
        return sum(value for of, value in self.samples[name] if labels.items() <= of.items())

    def by(self, name: str, label: str) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for of, value in self.samples[name]:
            found[of.get(label, "")] += value
        return dict(found)


class CollectionFigures(msgspec.Struct):
    """The figures of one collection."""

    name: str
    hot: int
    cold: int
    other: int  # passages of the delta and of segments
    generation: int
    recall: float | None
    memory_bytes: int
    rebuild_due: bool


class Figures(msgspec.Struct):
    """Figures for the time between two scrapes. `hit_rate` is None without searches. Quantiles are in milliseconds, for
    each stage that occurred."""

    seconds: float
    searches_per_s: float
    requests_per_s: float
    refused_per_s: float
    failed_per_s: float
    degraded_per_s: float
    documents_per_s: float
    hit_rate: float | None
    p50_ms: dict[str, float]
    p99_ms: dict[str, float]
    loop_lag_p99_ms: float | None
    cores: float
    search_processes: int
    search_cores: float
    search_memory_bytes: int
    memory_bytes: int
    memory_bytes_max: int
    under_way: dict[str, int]
    queued_tokens: int
    jobs: dict[str, int]
    redis: bool | None
    collections: list[CollectionFigures]


@click.command(epilog="Example: nearline top --url http://127.0.0.1:8080")
@URL
@click.option(
    "--every-s",
    type=NumberRange(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two readings.",
)
@click.option("--once", is_flag=True, help="Print one reading and end.")
@JSON
def command(url: str, every_s: float, once: bool, as_json: bool) -> None:
    """Show what the service is doing now, until Ctrl-C. If the service has keys, NEARLINE_KEY needs the scope metrics
    or admin."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(watch(url, every_s, once=once, as_json=as_json))


async def watch(url: str, every_s: float, *, once: bool, as_json: bool) -> None:
    async with AsyncClient(url, retry_s=0) as client:
        before = await read(client)
        if once or as_json:
            while True:
                await asyncio.sleep(every_s)
                now = await read(client)
                figures = compare(before, now)
                if as_json:
                    print_json(figures)
                else:
                    console.print(draw(figures, url))
                if once:
                    return
                before = now
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(every_s)
                now = await read(client)
                live.update(draw(compare(before, now), url), refresh=True)
                before = now


async def read(client: AsyncClient) -> Scrape:
    text = await client.metrics()
    samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name].append((sample.labels, sample.value))
    return Scrape(time.monotonic(), samples)


def compare(before: Scrape, now: Scrape) -> Figures:
    seconds = now.at - before.at

    def increase(name: str, **labels: str) -> float:
        return max(0.0, now.sum(name, **labels) - before.sum(name, **labels))

    requests = "nearline_http_requests_total"
    failed = sum(
        increase(requests, status=status) for status in now.by(requests, "status") if status >= "500"
    )
    lookups = increase("nearline_result_cache_total")
    quantiles = {
        q: {stage: ms for stage in STAGES if (ms := quantile_ms(before, now, q, stage=stage)) is not None}
        for q in (0.5, 0.99)
    }
    redis = now.samples["nearline_redis_up"]
    return Figures(
        seconds=seconds,
        searches_per_s=increase("nearline_searches_total") / seconds,
        requests_per_s=increase(requests) / seconds,
        refused_per_s=increase(requests, status="429") / seconds,
        failed_per_s=failed / seconds,
        degraded_per_s=increase("nearline_searches_degraded_total", left_out="candidates") / seconds,
        documents_per_s=increase("nearline_documents_written_total") / seconds,
        hit_rate=increase("nearline_result_cache_total", outcome="hit") / lookups if lookups else None,
        p50_ms=quantiles[0.5],
        p99_ms=quantiles[0.99],
        loop_lag_p99_ms=quantile_ms(before, now, 0.99, "nearline_loop_lag_seconds"),
        cores=increase("process_cpu_seconds_total") / seconds,
        search_processes=int(now.sum("nearline_search_processes")),
        search_cores=increase("nearline_search_process_cpu_seconds_total") / seconds,
        search_memory_bytes=int(now.sum("nearline_search_process_bytes")),
        memory_bytes=int(now.sum("nearline_memory_bytes", kind="held")),
        memory_bytes_max=int(now.sum("nearline_memory_bytes", kind="ceiling")),
        under_way={
            name: int(count) for name, count in now.by("nearline_requests_under_way", "class").items()
        },
        queued_tokens=int(now.sum("nearline_embedding_queue_tokens")),
        jobs={kind: int(count) for kind, count in now.by("nearline_jobs_under_way", "kind").items() if count},
        redis=bool(redis[0][1]) if redis else None,
        collections=[read_collection(now, name) for name in sorted(now.by("nearline_seq", "collection"))],
    )


def quantile_ms(
    before: Scrape, now: Scrape, q: float, name: str = "nearline_search_stage_seconds", **labels: str
) -> float | None:
    """Estimate a quantile from buckets as Prometheus does, by linear interpolation. None without observations."""
    counts = sorted(
        (edge, now.sum(f"{name}_bucket", le=le, **labels) - before.sum(f"{name}_bucket", le=le, **labels))
        for le in now.by(f"{name}_bucket", "le")
        if (edge := float(le))
    )
    if not counts or counts[-1][1] <= 0:
        return None
    rank = q * counts[-1][1]
    low, below = 0.0, 0.0
    for edge, count in counts:
        if count >= rank:
            high = low if math.isinf(edge) else edge
            return 1000 * (low + (high - low) * (rank - below) / max(count - below, 1e-9))
        low, below = edge, count
    return None


def read_collection(now: Scrape, name: str) -> CollectionFigures:
    passages = {
        of["tier"]: int(value) for of, value in now.samples["nearline_passages"] if of["collection"] == name
    }
    recalls = [value for of, value in now.samples["nearline_build_recall"] if of["collection"] == name]
    return CollectionFigures(
        name=name,
        hot=passages.pop("hot", 0),
        cold=passages.pop("cold", 0),
        other=sum(passages.values()),
        generation=int(now.sum("nearline_generation", collection=name)),
        recall=min(recalls, default=None),
        memory_bytes=int(now.sum("nearline_index_memory_bytes", collection=name)),
        rebuild_due=bool(now.sum("nearline_rebuild_due", collection=name)),
    )


def draw(figures: Figures, url: str) -> RenderableType:
    one = figures
    hits = "-" if one.hit_rate is None else f"{one.hit_rate:.0%}"
    lag = "-" if one.loop_lag_p99_ms is None else f"{one.loop_lag_p99_ms:.1f} ms"
    busy = ", ".join(f"{name} {count}" for name, count in one.under_way.items() if count)
    jobs = ", ".join(f"{kind} {count}" for kind, count in one.jobs.items())
    redis = "none" if one.redis is None else "up" if one.redis else "DOWN"
    rates = Table(box=None, show_header=False, pad_edge=False)
    for row in (
        ("searches", format_rate(one.searches_per_s), "requests", format_rate(one.requests_per_s), "cache hits", hits),
        ("refused", format_rate(one.refused_per_s), "failed", format_rate(one.failed_per_s),
         "degraded", format_rate(one.degraded_per_s)),
        ("documents", format_rate(one.documents_per_s), "CPU", f"{one.cores:.2f} cores", "loop lag p99", lag),
        ("memory", f"{format_bytes(one.memory_bytes)} of {format_bytes(one.memory_bytes_max)}",
         "queued tokens", f"{one.queued_tokens}", "Redis", redis),
        ("search processes", f"{one.search_processes}", "their CPU", f"{one.search_cores:.2f} cores",
         "their memory", format_bytes(one.search_memory_bytes)),
        ("under way", busy or "none", "jobs", jobs or "none"),
    ):  # fmt: skip
        rates.add_row(*row)
    stages = Table("ms", *one.p99_ms, box=None, pad_edge=False)
    for label, quantiles in (("p50", one.p50_ms), ("p99", one.p99_ms)):
        stages.add_row(label, *(f"{ms:.1f}" for ms in quantiles.values()))
    collections = Table(
        "collection", "hot", "cold", "new", "generation", "recall", "memory", "", box=None, pad_edge=False
    )
    for each in one.collections:
        collections.add_row(
            escape(each.name), str(each.hot), str(each.cold), str(each.other), str(each.generation),
            "-" if each.recall is None else f"{each.recall:.3f}", format_bytes(each.memory_bytes),
            "rebuild due" if each.rebuild_due else "",
        )  # fmt: skip
    latency: RenderableType = stages if one.p99_ms else "no searches"
    head = f"[bold]Nearline[/] at {escape(url)}, the last {one.seconds:.1f} s"
    return Group(head, "", rates, "", latency, "", collections)


def format_rate(rate: float) -> str:
    return f"{rate:.0f}/s"
