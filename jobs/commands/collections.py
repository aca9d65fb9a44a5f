"""nearline collections"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from indexes.base.wording import format_count
from jobs.commands.connection import ask
from jobs.commands.options import JSON, URL
from jobs.commands.output import console, errors, format_bytes, print_json, print_result
from jobs.commands.rebuilds import describe_interval
from nearline import AsyncClient

NAME = click.argument("name")


@click.group(epilog="Example: nearline collections list")
def command() -> None:
    """Create, list, show, rename, roll back and delete the collections of a running service."""


@command.command(epilog="Example: nearline collections create docs --shards 6")
@NAME
@click.option("--model", help="Name of the embedding model. [default: that of the service]")
@click.option(
    "--dimensions", type=int, help="Length of vectors of your own; the collection then has no model."
)
@click.option(
    "--language", help="BCP 47 code of the language of its documents. [default: found out for each]"
)
@click.option("--shards", type=int, help="In how many parts it is divided among the nodes of a cluster.")
@click.option("--hot-capacity", type=int, help="Passages in the hot tier. [default: as configured]")
@click.option("--title-weight", type=int, help="How often BM25 counts the words of titles. [default: 1]")
@click.option("--heading-weight", type=int, help="The same for headings above a passage. [default: 0]")
@URL
@JSON
def create(name: str, url: str, as_json: bool, **settings: str | int | None) -> None:
    """Create a collection. What is given here cannot change later."""
    given: Any = {key: value for key, value in settings.items() if value is not None}
    weights = {field: given.pop(f"{field}_weight", None) for field in ("title", "heading")}
    if weights := {field: weight for field, weight in weights.items() if weight is not None}:
        given["field_weights"] = weights
    found = ask(url, lambda client: client.create_collection(name, **given))
    parts = f" in {found['shards']} shards" if found.get("shards") else ""
    print_result(found, f"{name} is created{parts}", as_json=as_json)


@command.command("list", epilog="Example: nearline collections list --json")
@URL
@JSON
def list_(url: str, as_json: bool) -> None:
    """List all collections by name."""
    held: dict[str, list[Any]] = ask(url, lambda client: client.request("GET", "/v1/collections"))
    found = held["collections"]
    if as_json:
        print_json(found)
    elif not found:
        click.echo("no collections")
    else:
        table = Table("name", "aliases", "documents", "passages", "generation", "memory", "to erase", "model")
        for one in found:
            table.add_row(
                escape(one["name"]), ", ".join(one["aliases"]), str(one["documents"]),
                str(sum(one["passages"].values())), str(one["generation"]), format_bytes(one["memory_bytes"]),
                format_bytes(one["owed_bytes"]), escape(one["model"] or "none"),
            )  # fmt: skip
        console.print(table)
        for one in found:
            if (due := one["rebuild_due"]) and due["error"]:
                errors.print(f"[yellow]{escape(one['name'])} {escape(describe_rebuild(due))}[/]")
    for why in ("quarantined", "unavailable"):
        for sick in held[why]:
            errors.print(f"[red]{escape(sick['name'])} is {why}[/]: {escape(sick['reason'])}")


@command.command(epilog="Example: nearline collections show docs")
@NAME
@URL
@JSON
def show(name: str, url: str, as_json: bool) -> None:
    """Show one collection, by its name or an alias."""
    found = ask(url, lambda client: client.collection(name))
    if as_json:
        print_json(found)
        return
    rows = {
        "name": found["name"],
        "aliases": ", ".join(found["aliases"]) or "none",
        "documents": str(found["documents"]),
        "passages": ", ".join(f"{tier} {count}" for tier, count in found["passages"].items() if count)
        or "none",
        "dead passages": str(found["dead_passages"]),
        "to erase": format_bytes(found["owed_bytes"]) + describe_since(found["owed_since_ms"]),
        "generation": f"{found['generation']}, kept: {', '.join(map(str, found['generations'])) or 'none'}",
        "rebuild": describe_rebuild(found["rebuild_due"]),
        "recall@10 measured": (
            ", ".join(f"{tier} {value:.3f}" for tier, value in found["recall"].items()) or "not yet"
        )
        + describe_interval(found["recall_evidence"]),
        "ranking": describe_ranking(found["ranking"]),
        "last operation": f"seq {found['seq']}",
        "index memory": f"{format_bytes(found['memory_bytes'])}, "
        f"resident files {format_bytes(found['resident_bytes'])}, mapped files {format_bytes(found['mapped_bytes'])}",
        "model": f"{found['model'] or 'none'}, {found['dimensions']} dimensions",
    }
    table = Table(show_header=False)
    for label, value in rows.items():
        table.add_row(label, escape(value))
    console.print(table)


def describe_ranking(ranking: Mapping[str, Any] | None) -> str:
    if ranking is None:
        return "as configured"
    weight = "" if ranking["weight_dense"] is None else f", dense {ranking['weight_dense']:g}"
    learned = f", learned from {ranking['queries']} queries" if ranking["queries"] else ""
    reranked = ", reranked" if ranking["rerank"] else ""
    return f"{ranking['method'] or 'as configured'}{weight}{reranked}{learned}"


@command.command(epilog="Example: nearline collections delete docs --yes")
@NAME
@click.option("--yes", is_flag=True, help="Do not ask first.")
@URL
@JSON
def delete(name: str, yes: bool, url: str, as_json: bool) -> None:
    """Delete a collection with all its documents. It must be named itself, not by an alias."""
    documents = ask(url, lambda client: count_documents(client, name))
    content = "all that is left of it" if documents is None else format_count(documents, "document")
    try:
        agreed = yes or click.confirm(f"Delete {name} with {content}?", err=True)
    except click.Abort:  # not interactive
        click.echo(err=True)
        agreed = False
    if not agreed:
        raise click.ClickException("nothing is deleted; --yes does it without asking")
    ask(url, lambda client: client.delete_collection(name))
    value = {"deleted": name, "documents": documents}
    print_result(value, f"{name} is deleted, with {content}", as_json=as_json)


@command.command(epilog="Example: nearline collections rename docs handbook")
@NAME
@click.argument("new_name")
@URL
@JSON
def rename(name: str, new_name: str, url: str, as_json: bool) -> None:
    """Give a collection another name. Aliases follow; it is reopened under the new name."""

    async def rename_own(client: AsyncClient) -> Mapping[str, Any]:
        await find_own(client, name)
        return await client.rename_collection(name, new_name)

    found = ask(url, rename_own)
    print_result(found, f"{name} is now {found['name']}", as_json=as_json)


@command.command(epilog="Example: nearline collections rollback docs")
@NAME
@URL
@JSON
def rollback(name: str, url: str, as_json: bool) -> None:
    """Serve the previous generation again. Documents written since then stay."""
    generation = ask(url, lambda client: client.rollback(name))
    print_result({"generation": generation}, f"generation {generation} of {name} is live", as_json=as_json)


async def find_own(client: AsyncClient, name: str) -> Mapping[str, Any]:
    """Find a collection by its own name. Raises ClickException for an alias, which may point elsewhere tomorrow."""
    found = await client.collection(name)
    if found["name"] != name:
        raise click.ClickException(f"{name!r} is an alias; the collection's own name is {found['name']!r}")
    return found


async def count_documents(client: AsyncClient, name: str) -> int | None:
    """Return the number of documents; None for a quarantined collection, which cannot count them."""
    if name in [one["name"] for one in await client.quarantined()]:
        return None
    documents: int = (await find_own(client, name))["documents"]
    return documents


def describe_since(time_ms: int | None) -> str:
    if time_ms is None:
        return ""
    return f", the oldest since {datetime.fromtimestamp(time_ms / 1000).astimezone():%Y-%m-%d %H:%M}"


def describe_rebuild(due: Mapping[str, Any] | None) -> str:
    if due is None:
        return "not needed"
    needed = f"needs a rebuild: {due['reason']}"
    if due["error"] is None:
        return needed
    next_time = time.strftime("%H:%M:%S", time.localtime(due["next_ms"] / 1000))
    return f"{needed}. Failed attempts: {due['failed_attempts']}, the next from {next_time}; last: {due['error']}"
