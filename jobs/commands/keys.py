"""nearline keys"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import click
import msgspec
from rich.markup import escape
from rich.table import Table

from indexes.base.durable import keep_private
from indexes.base.model import now_ms
from indexes.directory.backup.backup import aliases_of
from indexes.directory.marker import prepare
from jobs.commands.options import JSON, PATH, NumberRange
from jobs.commands.output import console, print_json, print_result
from retrieval.access.auth import Keys
from retrieval.access.key_file import Key, Scope, check_key
from retrieval.access.limits import DAY_S, Limits, read_usage, today
from retrieval.access.schemas import CreateKey, KeyBody, RotateKey, key_of
from retrieval.wire.decoding import check_built

DATA = click.option("--data", type=PATH, required=True, help="The data directory.")
KEY_ID = click.argument("key_id", metavar="ID")


@click.group(epilog="Example: nearline keys create --data data --scope search")
def command() -> None:
    """Create, list, rotate and revoke access keys of a data directory, even while it is served.

    Once there is a key, the service requires one with every request.
    """


@command.command(
    epilog="Example: nearline keys create --data data --tenant acme --scope search --scope write"
)
@DATA
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice(get_args(Scope)),
    help="What the key may do; may be repeated. admin includes search and write; vectors: raw vectors, too.",
)
@click.option("--tenant", default="", help="Only the collections of this tenant. [default: all collections]")
@click.option(
    "--collection", "-c", "collections", multiple=True, help="Only this collection or alias; may be repeated."
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    help="Only documents whose metadata `acl` names this group, or that have none; may be repeated.",
)
@click.option(
    "--signed-groups",
    is_flag=True,
    help="Take the groups from a signed header X-Nearline-Groups of each request.",
)
@click.option("--per-second", type=float, help="Requests a second, on average.")
@click.option("--per-day", type=int, help="Requests a day, from midnight to midnight UTC.")
@click.option("--at-once", type=int, help="Requests under way at one time.")
@click.option("--name", default="", help="For people.")
@click.option("--expires-days", type=NumberRange(0, min_open=True), help="Days until it ends.")
@JSON
def create(
    data: Path,
    scopes: tuple[Scope, ...],
    tenant: str,
    collections: tuple[str, ...],
    groups: tuple[str, ...],
    signed_groups: bool,
    per_second: float | None,
    per_day: int | None,
    at_once: int | None,
    name: str,
    expires_days: float | None,
    as_json: bool,
) -> None:
    """Create a key and print it once: only its hash is stored."""
    limits = Limits(per_second=per_second, per_day=per_day, at_once=at_once)
    wanted = CreateKey(
        scopes=list(dict.fromkeys(scopes)),
        name=name,
        tenant=tenant,
        collections=list(collections) or None,
        groups=list(groups) or None,
        signed_groups=signed_groups,
        limits=None if limits == Limits() else limits,
        expires_s=None if expires_days is None else expires_days * DAY_S,
    )
    key = key_of(wanted)
    check_key(key)
    show(open_keys(data).create(key), as_json=as_json)


@command.command("list", epilog="Example: nearline keys list --data data")
@DATA
@JSON
def list_(data: Path, as_json: bool) -> None:
    """List all keys, including ended ones, without their secrets."""
    stored, usage = require_keys(data).all(), read_usage(data)
    used = usage.used if usage.day == today() else {}
    keys = [KeyBody.of(key, used.get(key.id, 0)) for key in stored]
    if as_json:
        print_json(keys)
        return
    table = Table("id", "name", "tenant", "scopes", "collections", "groups", "limits", "made", "state")
    for one in keys:
        seen = "signed" if one.signed_groups else ", ".join(one.groups) if one.groups is not None else "all"
        table.add_row(
            one.id, escape(one.name), one.tenant, ", ".join(one.scopes), ", ".join(one.collections) or "all",
            escape(seen), describe_limits(one), format_day(one.created_ms), describe_state(one),
        )  # fmt: skip
    console.print(table)


@command.command(epilog="Example: nearline keys rotate --data data 1f00aa31c2d4 --grace-s 3600")
@DATA
@KEY_ID
@click.option(
    "--grace-s",
    type=NumberRange(0),
    default=0,
    show_default=True,
    help="Seconds the old key stays valid.",
)
@JSON
def rotate(data: Path, key_id: str, grace_s: float, as_json: bool) -> None:
    """Create a key with the rights of another, and end the old one."""
    wanted = check_built(RotateKey(grace_s=grace_s))
    show(require_keys(data).rotate(key_id, grace_s=wanted.grace_s), as_json=as_json)


@command.command(epilog="Example: nearline keys revoke --data data 1f00aa31c2d4")
@DATA
@KEY_ID
@JSON
def revoke(data: Path, key_id: str, as_json: bool) -> None:
    """End a key: a running service refuses it within a second."""
    revoked = require_keys(data).revoke(key_id)
    print_result(KeyBody.of(revoked), f"{key_id} is revoked", as_json=as_json)


@command.command("open", epilog="Example: nearline keys open --data data")
@DATA
@click.option("--yes", is_flag=True, help="Do not ask.")
def open_(data: Path, yes: bool) -> None:
    """End all keys, and allow access without a key from the service's next start on."""
    keys = require_keys(data)
    if not yes:
        click.confirm(f"Let anyone who can reach the service read, write and delete in {data}?", abort=True)
    keys.open()
    console.print(f"{data} needs no access keys any more; a running service takes it up at its next start")


def open_keys(data: Path) -> Keys:
    keep_private()
    prepare(data)  # creates it if absent
    return Keys(data)


def require_keys(data: Path) -> Keys:
    """Open the keys of an existing data directory. Raises NotADataDirectory, so that only `create` makes one."""
    aliases_of(data)
    keep_private()
    return Keys(data)


def show(made: tuple[Key, str], *, as_json: bool) -> None:
    record, text = made
    value = {"key": text, **msgspec.to_builtins(KeyBody.of(record))}
    print_result(value, text, as_json=as_json)


def describe_limits(key: KeyBody) -> str:
    limits = key.limits or Limits()
    shown = [
        "" if limits.per_second is None else f"{limits.per_second:g} a second",
        "" if limits.per_day is None else f"{limits.per_day} a day ({key.used_today} today)",
        "" if limits.at_once is None else f"{limits.at_once} at once",
    ]
    return ", ".join(filter(None, shown)) or "none"


def format_day(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):  # no check stands before a file that was edited or damaged
        return f"{ms} ms"


def describe_state(key: KeyBody) -> str:
    if key.revoked_ms is not None:
        return f"revoked {format_day(key.revoked_ms)}"
    if key.expires_ms is not None:
        return f"{'ended' if key.expires_ms <= now_ms() else 'until'} {format_day(key.expires_ms)}"
    return "valid"
