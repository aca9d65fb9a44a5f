"""What commands print: lines, JSON, progress."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn
from rich.segment import Segment

from indexes.base.errors import escape_controls

OnProgress = Callable[[str, int, int], None]

LINE_MAX = 10_000  # characters; programs that read our output want one line per item


class SafeConsole(Console):
    """Shows control characters of texts escaped: those of documents and names must not reach a terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def visible(text: str) -> str:
    return escape_controls(text, kept="\n\t")


def say(line: str, *, err: bool = False) -> None:
    click.echo(visible(line), err=err)


if sys.stdout is None:  # it was closed before this program began
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 # for as long as the process lives
console = SafeConsole(width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else LINE_MAX)
errors = SafeConsole(stderr=True)


def format_bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if abs(size) >= 100_000 or not size else f"{size / 1e3:.1f} kB"


def print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_result(value: Any, *lines: str, as_json: bool) -> None:
    """Print `value` as JSON, or the lines that describe it."""
    if as_json:
        print_json(value)
    else:
        for line in lines:
            say(line)


@contextlib.contextmanager
def stages(*columns: ProgressColumn, hidden: bool) -> Iterator[OnProgress]:
    """Show a progress bar on stderr if that is a terminal. Yields a callback taking stage, done and total."""
    shown = TextColumn("{task.description}"), BarColumn(), *(columns or [TaskProgressColumn()])
    with Progress(*shown, console=errors, disable=hidden or not errors.is_terminal, transient=True) as bar:
        task = bar.add_task("waiting", total=1)
        yield lambda stage, done, total: bar.update(
            task, description=stage, completed=done, total=max(total, done, 1)
        )
