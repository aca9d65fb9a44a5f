"""Options that several commands share, and how they print."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any

import click
import msgspec
from rich.console import Console

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

LINE_MAX = 10_000  # characters, where a program reads what we print: it wants one line for one thing

console = Console(width=None if sys.stdout.isatty() or os.environ.get("COLUMNS") else LINE_MAX)
errors = Console(stderr=True)


def counted(number: int, thing: str) -> str:
    """`1 document`, `2 documents`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def require_matplotlib() -> None:
    """Raises ClickException saying how to get it, before minutes of measuring are spent."""
    if find_spec("matplotlib") is None:
        raise click.ClickException(
            'a plot needs matplotlib: pip install "nearline[report]"; the table needs nothing'
        )
