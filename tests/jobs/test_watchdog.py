"""SIGTERM ends the service also while native code holds its interpreter, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.serving.service import CLOSING_S, READY_LINE
from jobs.serving.watchdog import LEAVES_S

GRACE_S = 0.5
# `PyDLL` keeps the interpreter's lock: nothing of Python runs until the call returns.
HELD = """
import ctypes, threading
threading.Timer(0.2, ctypes.PyDLL(None).sleep, [120]).start()
"""


def start(data: Path, before: str = "") -> tuple[subprocess.Popen[str], int]:
    """A service that is ready, and the process id of its watchdog. `before` runs when it says so."""
    code = f"""
import builtins, sys
from jobs import cli
def say(*args, show=print, **options):
    show(*args, **options)
    if str(args[0]).startswith({READY_LINE!r}):
        exec({before!r})
builtins.print = say
sys.argv = ["nearline", "serve", "--data", {str(data)!r}, "--port", "0"]
cli.main()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "NEARLINE_SERVER_SHUTDOWN_GRACE_S": str(GRACE_S)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline().startswith(READY_LINE)
    [watchdog] = watchdogs_of(child.pid)
    return child, watchdog


def watchdogs_of(pid: int) -> list[int]:
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if f"watchdog.py\0{pid}\0" in read(path)
    ]


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it ended
        return ""


def wait_for_end(pid: int) -> None:
    until = time.monotonic() + 10
    while "watchdog.py" in read(Path(f"/proc/{pid}/cmdline")):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_held_interpreter_does_not_outlive_its_grace(tmp_path: Path) -> None:
    """The watchdog kills the service when its grace is over, and says so."""
    child, watchdog = start(tmp_path / "data", HELD)
    time.sleep(1)
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=GRACE_S + CLOSING_S + LEAVES_S + 20)
    assert child.returncode == -signal.SIGKILL
    assert "did not end within" in errors
    wait_for_end(watchdog)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_watchdog_leaves_with_the_service(tmp_path: Path, ending: signal.Signals) -> None:
    """A service that stops in time stops by itself, with success; also after a SIGHUP, which is no reason to end."""
    child, watchdog = start(tmp_path / "data")
    child.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    child.send_signal(ending)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 0, errors
    assert "did not end" not in errors
    wait_for_end(watchdog)


def test_the_watchdog_leaves_with_a_killed_service(tmp_path: Path) -> None:
    """It does not outlive a service that crashed."""
    child, watchdog = start(tmp_path / "data")
    child.kill()
    child.communicate(timeout=10)
    wait_for_end(watchdog)


def test_a_watchdog_that_was_killed_is_replaced(tmp_path: Path) -> None:
    """The log says so, and the service and the new one end as usual."""
    child, watchdog = start(tmp_path / "data")
    os.kill(watchdog, signal.SIGKILL)
    until = time.monotonic() + 10
    while watchdogs_of(child.pid) in ([], [watchdog]):
        assert time.monotonic() < until
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=20)
    assert child.returncode == 0
    assert f"the watchdog {watchdog} has ended" in said
    assert "CRITICAL" not in said
    for one in watchdogs_of(child.pid):
        wait_for_end(one)
