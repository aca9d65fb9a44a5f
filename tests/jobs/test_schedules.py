"""The schedules in configs/schedules: every command in them is one that `nearline` takes, every time is a time."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from jobs.cli import cli

FOLDER = Path(__file__).parents[2] / "configs" / "schedules"
CRON_FIELD = re.compile(r"\*|[0-9]+(-[0-9]+)?(,[0-9]+)*|\*/[0-9]+")


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each command line with the file it is in, without what the shell would take away."""
    for line in (FOLDER / "crontab").read_text().splitlines():
        if "$NEARLINE" in line:
            words = shlex.split(
                line.partition("$NEARLINE")[2].partition(" > ")[0].replace("$(date +\\%F)", "TODAY")
            )
            yield "crontab", words
    for unit in sorted(FOLDER.glob("*.service")):
        found = re.search(r"^ExecStart=(.+)$", unit.read_text(), re.MULTILINE)
        assert found, unit.name
        yield unit.name, shlex.split(found[1])[1:]
    for job in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()):
        for container in job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]:
            yield f"kubernetes.yaml, {container['name']}", container["command"][1:]


@pytest.mark.parametrize(
    ("where", "words"), [pytest.param(*one, id=" ".join(one[1][:1])) for one in commands()]
)
def test_commands_are_understood(where: str, words: list[str]) -> None:
    """The command line parses: the subcommand exists, and so do its options."""
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None, where
    context = command.make_context(words[0], words[1:])
    assert context.command is command


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


def test_every_timer_has_its_service() -> None:
    """A timer starts the unit of its own name, at a time that systemd can read (where systemd is here to ask)."""
    for timer in FOLDER.glob("*.timer"):
        assert timer.with_suffix(".service").is_file()
        found = re.search(r"^OnCalendar=(.+)$", timer.read_text(), re.MULTILINE)
        assert found
        if analyze := shutil.which("systemd-analyze"):
            subprocess.run([analyze, "calendar", found[1]], check=True, capture_output=True)


def test_kubernetes_jobs_are_whole() -> None:
    """Each is a CronJob that never runs beside itself, restarts nothing by accident, and bounds its memory.

    A low recall is not measured again, an outage is.
    """
    jobs = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    assert len(jobs) == 3
    for job in jobs:
        assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
        assert all(CRON_FIELD.fullmatch(time) for time in job["spec"]["schedule"].split())
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        assert pod["restartPolicy"] == "Never"
        assert all(container["resources"]["limits"]["memory"] for container in pod["containers"])
    evaluating = jobs[0]["spec"]["jobTemplate"]["spec"]
    (rule,) = evaluating["podFailurePolicy"]["rules"]
    assert evaluating["backoffLimit"] > 0
    assert rule == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}
