"""The alert rules: each fires when it should and is silent when it should be, and has its runbook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RULES = ROOT / "configs/prometheus/alerts.yml"
RUNBOOK = (ROOT / "docs/monitoring.md").read_text()
NAMES = re.findall(r"- alert: (\w+)", RULES.read_text())
promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool comes with Debian's prometheus"
)

I = 'instance="a"'  # noqa: E741
C = f'{I},collection="docs"'
DAY = "1500m"  # and an hour


def total(series: str, per_minute: float) -> tuple[str, str]:
    """A counter that grows by so many a minute."""
    return series, f"0+{per_minute}x1600"


def value(series: str, number: float) -> tuple[str, str]:
    return series, f"{number}x1600"


def http(status: str, per_minute: float, route: str = "/v1/search") -> tuple[str, str]:
    return total(f'nearline_http_requests_total{{{I},status="{status}",route="{route}"}}', per_minute)


def limited(with_429: float, with_503: float) -> list[tuple[str, str]]:
    """What the limits of keys refuse a minute, by the status that is sent."""
    sent = {"429": with_429, "503": with_503}
    return [
        total(f'nearline_rate_limited_total{{{I},limit="day",status="{status}"}}', count)
        for status, count in sent.items()
    ]


def language_model(**outcomes: float) -> list[tuple[str, str]]:
    of = "nearline_language_model_answers_total"
    return [total(f'{of}{{{I},outcome="{one}"}}', count) for one, count in outcomes.items()]


def histogram(name: str, labels: str, **buckets: float) -> list[tuple[str, str]]:
    edges = {"fast": "0.05", "late": "0.5", "all": "+Inf"}
    return [total(f'{name}_bucket{{{labels},le="{edges[edge]}"}}', count) for edge, count in buckets.items()]


def cache(hits: str, misses: str) -> list[tuple[str, str]]:
    of = "nearline_result_cache_total"
    return [(f'{of}{{{I},outcome="hit"}}', hits), (f'{of}{{{I},outcome="miss"}}', misses)]


STAGE = f'{I},stage="total"'
# What makes each fire, what leaves it silent although it is near, and when to look.
CASES: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]], str]] = {
    "NearlineDown": ([value('up{job="nearline"}', 0)], [value('up{job="nearline"}', 1)], "5m"),
    "NearlineRestarting": (
        [('process_start_time_seconds{job="nearline"}', "0 0 10 20 30 40 50 60 70 80")],
        [('process_start_time_seconds{job="nearline"}', "0 0 10 20 20 20 20 20 20 20")],
        "9m",
    ),
    "NearlineSlow": (
        histogram("nearline_search_stage_seconds", STAGE, fast=900, late=1000, all=1000),
        histogram("nearline_search_stage_seconds", STAGE, fast=995, late=1000, all=1000),
        "20m",
    ),
    "NearlineErrors": (
        [http("200", 95), http("500", 5), http("503", 5, "/api/embed"), *limited(0, 5)],
        [
            http("200", 1000),
            http("500", 1),
            http("429", 500),
            http("503", 500, "/api/embed"),
            *limited(500, 500),
        ],
        "20m",
    ),
    "NearlineOverloaded": (
        [http("200", 90), http("429", 10), http("503", 10, "/api/embed"), *limited(0, 10)],
        [http("200", 90), http("429", 10), *limited(9, 0)],
        "20m",
    ),
    "NearlineDegraded": (
        [
            total(f'nearline_searches_degraded_total{{{I},left_out="candidates"}}', 20),
            total(f"nearline_searches_total{{{I}}}", 100),
        ],
        [
            total(f'nearline_searches_degraded_total{{{I},left_out="candidates"}}', 5),
            total(f"nearline_searches_total{{{I}}}", 100),
        ],
        "30m",
    ),
    "NearlineCacheHitRateFallen": (
        cache("0+60x1440 86400+6x100", "0+40x1440 57600+94x100"),
        cache("0+60x1440 86400+40x100", "0+40x1440 57600+60x100"),
        DAY,
    ),
    "NearlineRedisDown": ([value("nearline_redis_up", 0)], [value("nearline_redis_up", 1)], "5m"),
    "NearlineLanguageModelDown": (
        language_model(answered=1, failed=9, left=90),
        language_model(answered=9, failed=8, left=0),
        "20m",
    ),
    "NearlineRecallLow": (
        [
            value(f'nearline_build_recall{{{C},tier="cold"}}', 0.88),
            value(f'nearline_build_recall{{{C},tier="hot"}}', 1),
        ],
        [value(f'nearline_build_recall{{{C},tier="cold"}}', 0.97)],
        "10m",
    ),
    "NearlineEvaluationBelowFloor": (
        [
            value(f"nearline_evaluate_below_floors{{{C}}}", 0),
            value(f"nearline_evaluate_regressions{{{C}}}", 1),
        ],
        [
            value(f"nearline_evaluate_below_floors{{{C}}}", 0),
            value(f"nearline_evaluate_regressions{{{C}}}", 0),
        ],
        "5m",
    ),
    "NearlineEvaluationStale": (
        [value(f"nearline_evaluate_time_seconds{{{C}}}", -100_000)],
        [value(f"nearline_evaluate_time_seconds{{{C}}}", 0)],
        DAY,
    ),
    "NearlineRebuildRefused": (
        [(f"nearline_generations_refused_total{{{C}}}", "_x80 1x20")],  # the first
        [(f"nearline_generations_refused_total{{{C}}}", "1x10 2x100")],
        "90m",
    ),
    "NearlineRebuildOverdue": (
        [value(f"nearline_rebuild_due{{{C}}}", 1)],
        [(f"nearline_rebuild_due{{{C}}}", "1x200 0 1x300")],
        "365m",
    ),
    "NearlineJobsFailing": (
        [(f'nearline_jobs_total{{{I},kind="reindex",status="failed"}}', "1x80 2x20")],  # a second
        [
            (f'nearline_jobs_total{{{I},kind="tune",status="failed"}}', "1x10 2x100"),
            (f'nearline_jobs_total{{{I},kind="reindex",status="succeeded"}}', "1x80 2x20"),
        ],
        "90m",
    ),
    "NearlineQuarantined": (
        [value(f"nearline_collections_quarantined{{{I}}}", 1)],
        [value(f"nearline_collections_quarantined{{{I}}}", 0)],
        "5m",
    ),
    "NearlineMemoryHigh": (
        [
            value(f'nearline_memory_bytes{{{I},kind="held"}}', 85),
            value(f'nearline_memory_bytes{{{I},kind="foretold"}}', 10),
            value(f'nearline_memory_bytes{{{I},kind="ceiling"}}', 100),
        ],
        [
            value(f'nearline_memory_bytes{{{I},kind="held"}}', 85),
            value(f'nearline_memory_bytes{{{I},kind="ceiling"}}', 100),
        ],
        "10m",
    ),
    "NearlineEventLoopSlow": (
        histogram("nearline_loop_lag_seconds", I, fast=900, late=1000, all=1000),
        histogram("nearline_loop_lag_seconds", I, fast=999, late=1000, all=1000),
        "20m",
    ),
    "NearlineStoreBehind": (
        [value(f"nearline_store_up{{{I}}}", 1), (f"nearline_store_lag_seconds{{{I}}}", "0+60x1600")],
        [value(f"nearline_store_up{{{I}}}", 1), value(f"nearline_store_lag_seconds{{{I}}}", 2)],
        "30m",
    ),
    "NearlineNodeDown": (
        [value(f'nearline_node_up{{{I},node="a",service="http://a"}}', 0)],
        [value(f'nearline_node_up{{{I},node="a",service="http://a"}}', 1)],
        "10m",
    ),
    "NearlineErasureOverdue": (
        [value(f"nearline_owed_since_seconds{{{C}}}", -100_000)],
        [value(f"nearline_owed_since_seconds{{{C}}}", 0)],
        DAY,
    ),
}


def case(name: str, series: list[tuple[str, str]], at: str, *, fires: bool) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
        ],
    }


@promtool
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """Each on its own numbers, and not on numbers that are near."""
    files = []
    for every, days in (("1m", False), ("5m", True)):
        tests = [
            case(name, series, at, fires=fires)
            for name, (firing, silent, at) in CASES.items()
            if (at == DAY) == days
            for series, fires in ((firing, True), (silent, False))
        ]
        files.append(file := tmp_path / f"{every}.yml")
        file.write_text(
            json.dumps({"rule_files": [str(RULES)], "evaluation_interval": every, "tests": tests})
        )
    command = ["promtool", "test", "rules", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


def test_every_alert_is_tried() -> None:
    """A rule without numbers that it fires on is not known to work."""
    assert sorted(CASES) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_alert_has_a_runbook(name: str) -> None:
    """Under the heading that its link names, with what to do."""
    assert f"runbook_url: docs/monitoring.md#{name.lower()}\n" in RULES.read_text()
    assert f"\n### {name}\n" in RUNBOOK


def test_runbooks_are_of_alerts() -> None:
    """One whose alert is gone helps nobody."""
    assert re.findall(r"^### (Nearline\w+)$", RUNBOOK, re.MULTILINE) == NAMES
