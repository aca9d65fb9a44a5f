"""A bar over bytes, for backup and restore."""

from __future__ import annotations

import contextlib
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
