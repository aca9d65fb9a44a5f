"""The crontab of configs/schedules: its lines are in the form that cron reads, and it mails of trouble alone.

tests/deploy/test_units.py holds its commands, with those of systemd and Kubernetes.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "configs" / "schedules"
CRON_FIELD = re.compile(r"\*|[0-9]+(-[0-9]+)?(,[0-9]+)*|\*/[0-9]+")


def test_cron_lines_have_five_times_a_user_and_a_command() -> None:
    """Lines are in the form of /etc/cron.d."""
    lines = [line for line in (FOLDER / "crontab").read_text().splitlines() if "$NEARLINE" in line]
    assert len(lines) == 4
    for line in lines:
        *times, user, _ = line.split(maxsplit=6)
        assert all(CRON_FIELD.fullmatch(time) for time in times), line
        assert user == "nearline"
        assert not re.search(r"(?<!\\)%", line), "cron turns a bare % into a line break"


@pytest.mark.parametrize("status", [0, 1, 2])
def test_cron_mails_only_of_trouble(tmp_path: Path, status: int) -> None:
    """The line of `evaluate` prints nothing where that ends well, and what it said where it does not."""
    (line,) = (one for one in (FOLDER / "crontab").read_text().splitlines() if "$NEARLINE evaluate" in one)
    command = tmp_path / "nearline"
    command.write_text(f"#!/bin/sh\necho a table\nexit {status}\n")
    command.chmod(0o755)
    environ = {**os.environ, "NEARLINE": str(command), "REPORTS": str(tmp_path)}
    script = line.split(maxsplit=6)[6]
    ended = subprocess.run(["/bin/sh", "-c", script], env=environ, check=True, capture_output=True, text=True)
    assert ended.stdout == ("a table\n" if status else "")
