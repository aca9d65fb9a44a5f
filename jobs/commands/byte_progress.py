"""A bar over bytes, for backup and restore; and, for the demo too, an end by signal that still cleans up."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from jobs.commands.options import errors

OnProgress = Callable[[str, int, int], None]


@contextlib.contextmanager
def byte_progress(*, hidden: bool) -> Iterator[OnProgress]:
    """A function for stage, bytes done and bytes in all."""
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=errors, disable=hidden or not errors.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=1)
        yield lambda stage, done, total: bar.update(
            task, description=stage, completed=done, total=max(total, 1)
        )


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit, as Ctrl-C raises KeyboardInterrupt: drafts are removed."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
