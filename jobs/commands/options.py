"""Helpers shared by commands: options, printing, progress, a connection to the service, clean termination."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn
from rich.segment import Segment

from indexes.base.errors import escape_controls
from nearline import AsyncClient
from retrieval.clients.transport import TIMEOUT_S, Patience

T = TypeVar("T")
OnProgress = Callable[[str, int, int], None]

URL = click.option(
    "--url",
    envvar="NEARLINE_URL",
    default="http://127.0.0.1:8080",
    show_default=True,
    show_envvar=True,
    help="Where the service listens.",
)
COLLECTION = click.option("--collection", "-c", required=True, help="Name or alias of the collection.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON value instead of text.")
PATH = click.Path(path_type=Path)


class NumberRange(click.FloatRange):
    """Numbers within bounds. "nan" is none: it would pass each bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


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


console = SafeConsole(width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else LINE_MAX)
errors = SafeConsole(stderr=True)


def format_count(number: int, thing: str) -> str:
    """Format a count with its noun: `1 document`, `2 documents`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


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


def ask(
    url: str,
    work: Callable[[AsyncClient], Awaitable[T]],
    *,
    timeout_s: float = TIMEOUT_S,
    patience: Callable[[], Patience] | None = None,
) -> T:
    """Run `work` with a client of the service and return its result. Requests fail at once unless `patience`, called
    for each, allows waiting for a busy service."""

    async def run() -> T:
        async with AsyncClient(url, timeout_s=timeout_s, retry_s=0) as client:
            client.connection.patience = patience or client.connection.patience
            return await work(client)

    return asyncio.run(run())


@contextlib.contextmanager
def stages(*columns: ProgressColumn, hidden: bool) -> Iterator[OnProgress]:
    """Show a progress bar on stderr if that is a terminal. Yields a callback taking stage, done and total."""
    shown = TextColumn("{task.description}"), BarColumn(), *(columns or [TaskProgressColumn()])
    with Progress(*shown, console=errors, disable=hidden or not errors.is_terminal, transient=True) as bar:
        task = bar.add_task("waiting", total=1)
        yield lambda stage, done, total: bar.update(
            task, description=stage, completed=done, total=max(total, done, 1)
        )


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise SystemExit within the block, as Ctrl-C raises KeyboardInterrupt, so that drafts are cleaned
    up."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def require_matplotlib() -> None:
    """Raise ClickException with install instructions before minutes are spent on measuring."""
    if find_spec("matplotlib") is None:
        raise click.ClickException(
            "a plot needs matplotlib: in a checkout of Nearline, pip install '.[report]'; the table needs nothing"
        )
