"""Options that several commands share, and how they print."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from rich.console import Console

URL = click.option(
    "--url", default="http://127.0.0.1:8080", show_default=True, help="Where the service listens."
)
COLLECTION = click.option("--collection", "-c", required=True, help="Name or alias of the collection.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON value instead of text.")

console = Console()
errors = Console(stderr=True)


def print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
