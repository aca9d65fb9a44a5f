"""nearline cluster"""

from __future__ import annotations

from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from jobs.commands.connection import ask
from jobs.commands.options import JSON, URL
from jobs.commands.output import console, print_json


@click.command(epilog="Example: nearline cluster --url http://10.0.0.1:8080")
@URL
@JSON
def command(url: str, as_json: bool) -> None:
    """Show the nodes of a cluster and their shards, as a service of it sees them."""
    found: dict[str, Any] = ask(url, lambda client: client.request("GET", "/v1/cluster"))
    if as_json:
        print_json(found)
        return
    if not found["services"]:
        click.echo("no cluster: its nodes are named in [cluster] nodes of the configuration")
        return
    table = Table("node", "service", "state", "shards")
    for one in found["services"]:
        state = (
            ("writes" if one["writes"] else "replica") if one["up"] else f"[red]{escape(one['why'] or '')}[/]"
        )
        shards = ", ".join(f"{name} at {seq}" for name, seq in one["shards"].items())
        table.add_row(escape(one["node"]), escape(one["url"]), state, escape(shards) or "none")
    console.print(table)
