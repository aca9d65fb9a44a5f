"""Options that commands share, termination on SIGTERM, and what a command needs installed."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

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
