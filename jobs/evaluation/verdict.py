"""Decides what is below its floor and what fell by more than chance, and keeps the history of reports.

A history is a folder with one JSON file for each report, named by collection and time. Files are written atomically and
never deleted here:

    DIR/docs-20260301T031500123Z.json
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from indexes.base.durable import disk_errors, replace_unsynced
from indexes.base.errors import InvalidInput
from indexes.base.model import TIERS
from jobs.evaluation.report import VERSION, Cohort, Report

FLOORS = (
    "overall", *TIERS, "newest", "older", "filter-10", "filter-1", "filter-0.1", "filter-logged",
    "tier", "age", "filter", "tenant",
)  # fmt: skip
NDCG = "ndcg@10"  # of hybrid search
SHOWN = 14  # reports of a history that are shown


def parse_floors(given: Sequence[str], recall: float = 0.0, ndcg: float = 0.0) -> dict[str, float]:
    """`cold=.97` by cohort, `filter=.9` by kind, `tenant=acme=.9` for one tenant; `recall` is for tiers and overall.

    Raises InvalidInput.
    """
    floors = {"overall": recall, "tier": recall} | ({NDCG: ndcg} if ndcg else {})
    for one in given:
        name, _, number = one.rpartition("=")
        try:
            floor = float(number)
        except ValueError:
            floor = -1.0
        if not (name in FLOORS or name.startswith("tenant=")) or not 0 <= floor <= 1:
            names = ", ".join((*FLOORS, "tenant=VALUE"))
            raise InvalidInput(
                f"{one!r} is no floor; expected NAME=NUMBER, the number from 0 to 1, NAME one of {names}",
                param="floor",
            )
        floors[name] = floor
    return floors


def floor_of(cohort: Cohort, floors: dict[str, float]) -> float:
    """The floor for the cohort's name, else for its kind."""
    return floors.get(cohort.name, floors.get(cohort.kind, 0.0))


def below_floors(report: Report) -> list[str]:
    """Describe what is below its floor. A floor without a measurement counts, and so does an empty report."""
    if report.cohort("overall") is None:
        return ["nothing was measured: the collection has no passages or there were no queries"]
    below = [
        f"recall@{report.k} {one.name} is {one.value:.4f}, below {floor_of(one, report.floors)}"
        for one in report.cohorts
        if one.value < floor_of(one, report.floors)
    ]
    below += [
        f"{NDCG} {name} is {scores[NDCG].value:.4f}, below {report.floors[NDCG]}"
        for name, scores in report.rankings.items()
        if name.startswith("hybrid") and scores[NDCG].value < report.floors.get(NDCG, 0.0)
    ]
    measured = {name for one in report.cohorts for name in (one.name, one.kind)}
    measured |= {NDCG} if report.rankings else set()
    return below + [
        f"{name} was not measured, its floor is {floor}"
        for name, floor in report.floors.items()
        if floor and name not in measured
    ]


def find_regressions(before: Report, now: Report, least: float) -> list[str]:
    """Describe recalls and ranking scores that fell by more than `least` and whose intervals do not overlap."""
    earlier = before.scores()
    return [
        f"{name} fell from {old.value:.4f} to {new.value:.4f}"
        for name, new in now.scores().items()
        if (old := earlier.get(name)) and old.value - new.value > least and new.high < old.low
    ]


def load_history(folder: Path, like: Report) -> list[Report]:
    """The latest reports that are comparable to this one, oldest first. Others in the folder are ignored."""
    name = re.compile(re.escape(like.collection) + r"-\d{8}T\d{9}Z\.json")
    reports: list[Report] = []
    for path in sorted(path for path in folder.glob("*.json") if name.fullmatch(path.name)):
        try:
            reports.append(msgspec.json.decode(path.read_bytes(), type=Report))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return [one for one in reports if one.version == VERSION and origin(one) == origin(like)][-SHOWN:]


def origin(report: Report) -> tuple[object, ...]:
    """What must be equal for a difference to say something about the service."""
    return report.collection, report.source, report.asked, report.offline, report.k


def keep(folder: Path, report: Report) -> None:
    """Add a report to the history. Raises DiskFull or StorageError."""
    stamp = re.sub(r"[^0-9T]", "", report.time.removesuffix("+00:00"))
    path = folder / f"{report.collection}-{stamp}Z.json"
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    replace_unsynced(path, msgspec.json.encode(report) + b"\n")
