"""The cores and memory that this process's control groups allow it; None where they set no limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

ROOT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cgroup_cores(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """Return the cores granted by the tightest quota from our control group up to `root`."""
    return tightest(root, membership, "cpu", _quota)


def cgroup_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """Return the bytes of memory granted by the tightest limit from our control group up to `root`."""
    return tightest(root, membership, "memory", _bytes)


def tightest(
    root: Path, membership: Path, controller: str, limit_of: Callable[[Path], float | None]
) -> float | None:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    limits: list[float | None] = []
    for line in lines:
        _, controllers, path = line.split(":", maxsplit=2)
        if controllers == "":
            base = root  # version 2
        elif controller in controllers.split(","):
            base = root / controller
        else:
            continue
        folder = base / path.lstrip("/")
        # Inside a container the path may be the host's; then the root is our own group.
        limits.extend(limit_of(each) for each in (folder, *folder.parents) if each.is_relative_to(base))
    return min((limit for limit in limits if limit is not None), default=None)


def _quota(folder: Path) -> float | None:
    try:
        if (file := folder / "cpu.max").is_file():
            allowed, period = file.read_text().split()
        else:
            allowed = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if allowed in {"max", "-1"} else int(allowed) / int(period)
    except (OSError, ValueError):
        return None


def _bytes(folder: Path) -> float | None:
    try:
        file = folder / "memory.max"
        allowed = (file if file.is_file() else folder / "memory.limit_in_bytes").read_text().strip()
        return None if allowed == "max" else int(allowed)
    except (OSError, ValueError):
        return None
