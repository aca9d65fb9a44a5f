"""The reports of earlier nights: a folder with one JSON file each, named by collection and time.

    DIR/docs-20260301T031500123Z.json

Files are written whole or not at all, and never deleted here.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from indexes.durable import disk_errors, replace_unsynced
from jobs.evaluation.report import VERSION, Report

SHOWN = 14


def load(folder: Path, like: Report) -> list[Report]:
    """The last reports that can be compared with this one, oldest first. Files of other versions or makers are passed
    over."""
    name = re.compile(re.escape(like.collection) + r"-\d{8}T\d{9}Z\.json")
    paths = sorted(path for path in folder.glob("*.json") if name.fullmatch(path.name))
    reports: list[Report] = []
    for path in reversed(paths):
        try:
            report = msgspec.json.decode(path.read_bytes(), type=Report)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if report.version == VERSION and compared(report) == compared(like):
            reports.append(report)
        if len(reports) == SHOWN:
            break
    return reports[::-1]


def compared(report: Report) -> tuple[object, ...]:
    """What has to be the same, or a difference would say little about the service."""
    return report.collection, report.source, report.asked, report.offline, report.k


def keep(folder: Path, report: Report) -> Path:
    """Raises DiskFull or StorageError."""
    stamp = re.sub(r"[^0-9T]", "", report.time.removesuffix("+00:00"))
    path = folder / f"{report.collection}-{stamp}Z.json"
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    replace_unsynced(path, msgspec.json.encode(report) + b"\n")
    return path
