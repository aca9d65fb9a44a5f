"""nearline cluster: what there is, and with Ray the machines that it runs on"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
import tomllib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins
from msgspec.structs import replace
from rich.markup import escape
from rich.table import Table

from indexes.base.durable import keep_private
from indexes.base.errors import Conflict, NotFound, Unavailable
from jobs.cluster.machine import TOKEN, Machine, environ_of, read_machine, read_orders
from jobs.cluster.moving import builds_of, empty, fill
from jobs.cluster.plan import Orders
from jobs.commands.connection import ask
from jobs.commands.options import JSON, PATH, URL, NumberRange
from jobs.commands.output import console, errors, print_json, print_result, say
from jobs.commands.rebuilds import describe_elsewhere, wait_for_job
from nearline import AsyncClient

FOLDER = click.option("--data", "folder", type=PATH, required=True, help="The folder of this machine.")
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
FIRST_ADDRESS = "http://127.0.0.1:8080"
READY_S, STOP_S = 300.0, 120.0
LOOK_S = 0.2
OLD_S = 15.0


@click.group(invoke_without_command=True, epilog="Example: nearline cluster --url http://10.0.0.1:8080")
@URL
@JSON
@click.option(
    "--data", "folder", type=PATH, help="The folder of this machine: shows the machines of Ray, too."
)
@click.pass_context
def command(context: click.Context, url: str, as_json: bool, folder: Path | None) -> None:
    """Show the nodes of a cluster and their shards, as a service of it sees them; start and stop machines of one."""
    if context.invoked_subcommand is None:
        show(url, folder, as_json=as_json)


@command.command(epilog="Example: nearline cluster status --data /srv/nearline")
@URL
@JSON
@click.option(
    "--data", "folder", type=PATH, help="The folder of this machine: shows the machines of Ray, too."
)
def status(url: str, as_json: bool, folder: Path | None) -> None:
    """Show what `nearline cluster` shows."""
    show(url, folder, as_json=as_json)


def show(url: str, folder: Path | None, *, as_json: bool) -> None:
    known = None if folder is None else orders_of(folder)
    if known is not None and (urls := urls_of(known[0])):
        url = urls[0]
    found: dict[str, Any] = ask(url, lambda client: client.request("GET", "/v1/cluster"))
    if as_json:
        print_json(
            {**found, **({"machines": known[0].machines, "waiting": known[0].waiting} if known else {})}
        )
        return
    if known is not None:
        show_machines(*known)
    if not found["services"]:
        click.echo("no cluster: its nodes are named in [cluster] nodes of the configuration")
        return
    table = Table("node", "service", "state", "shards, and their last operations")
    for one in found["services"]:
        state = (
            ("writes" if one["writes"] else "replica") if one["up"] else f"[red]{escape(one['why'] or '')}[/]"
        )
        shards = ", ".join(f"{name} at {seq}" for name, seq in one["shards"].items())
        table.add_row(escape(one["node"]), escape(one["url"]), state, escape(shards) or "none")
    console.print(table)
    if missing := found["missing"]:
        errors.print(f"[red]no service that answers has {escape(', '.join(missing))}[/]")


def show_machines(orders: Orders, age_s: float) -> None:
    if age_s > OLD_S:
        say(
            f"the controller has not been heard for {age_s:.0f} s: services go on, and what fails is not replaced"
        )
    table = Table("machine", "at", "state", "services")
    for one in orders.machines:
        services = ", ".join(
            f"{name} {'writes' if held.writes else 'replica'}, {held.state}"
            + (f" ({held.why})" if held.why else "")
            for name, held in sorted(one.services.items())
        )
        state = f"[red]lost, silent for {one.silent_s:.0f} s[/]" if one.lost else "up"
        table.add_row(escape(one.name), escape(one.address), state, escape(services) or "none")
    console.print(table)
    for name, why in orders.waiting.items():
        say(f"node {name}: {why}")


@command.command(
    epilog="Example: nearline cluster start --data /srv/nearline --name a --store s3://bucket/nearline"
)
@FOLDER
@click.option("--name", help="Of this machine, and of the first node. [default: a]")
@click.option(
    "--join", "address", help="Where Ray listens on the first machine; without, this is the first one."
)
@click.option(
    "--token", type=PATH, help="The file with the token of Ray; made by the first machine, in its folder."
)
@click.option("--host", help="Address of this machine, on which its services listen. [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(1, 65000), help="Of its first service; others follow. [default: 8080]"
)
@click.option("--ray-port", type=click.IntRange(1, 65000), help="On the first machine. [default: 6379]")
@click.option("--store", help="On the first machine: the URL below which each node has its store.")
@click.option(
    "--replicas", type=click.IntRange(0), help="On the first machine: of each node, beside its writer."
)
@click.option("--patience-s", type=NumberRange(5), help="After which a silent machine is lost. [default: 60]")
@click.option("--config", type=PATH, help="A TOML file that the configuration of each service begins with.")
@click.option(
    "--foreground", is_flag=True, help="Stay until Ray ends on this machine, for systemd and Kubernetes."
)
def start(
    folder: Path,
    name: str | None,
    address: str | None,
    token: Path | None,
    host: str | None,
    port: int | None,
    ray_port: int | None,
    store: str | None,
    replicas: int | None,
    patience_s: float | None,
    config: Path | None,
    foreground: bool,
) -> None:
    """Start the first machine of a cluster, or with --join another one.

    What was given the first time is remembered in the folder, and need not be given again.
    """
    require_ray()
    keep_private()
    folder = folder.absolute()
    known = read_machine(folder)
    if known is not None and name not in {None, known.name}:
        raise Conflict(f"this machine is named {known.name}: another one needs another folder")
    if known is None and name is None and address is not None:
        raise click.UsageError("a machine that joins needs a --name of its own")
    machine = known or Machine(
        named(name or "a", "--name"), FIRST_ADDRESS, str(folder / TOKEN), head=address is None
    )
    given = {
        "token": None if token is None else str(token.absolute()),
        "ray": address,
        "ray_port": ray_port,
        "configuration": None if config is None else str(config.absolute()),
        "store": store.rstrip("/") if store else store,
        "replicas": replicas,
        "patience_s": patience_s,
    }
    machine = replace(machine, **{key: value for key, value in given.items() if value is not None})
    machine = replace(machine, address=address_of(machine, host, port))
    if machine.head and address is not None:
        raise Conflict("this is the first machine of its cluster: it joins no other one")
    if machine.replicas and not machine.store:
        raise click.UsageError("--replicas needs --store: they follow the store of their node")
    prepare_ray(machine)
    from jobs.cluster.starting import start_machine

    machine = start_machine(folder, machine)
    orders, _ = orders_of(folder)
    if machine.head and not orders.nodes:
        add_node(folder, machine, machine.name, None)
    say(f"machine {machine.name} runs; Ray listens on {machine.ray}")
    if foreground:
        stay(folder, machine)


def address_of(machine: Machine, host: str | None, port: int | None) -> str:
    """Return the URL of a machine's first service."""
    scheme, _, before = machine.address.partition("://")
    if machine.base is not None:
        tls = tomllib.loads(machine.base.read_text()).get("server", {}).get("tls_certificate")
        scheme = "https" if tls else "http"
    old_host, _, old_port = before.rpartition(":")
    if host in {"0.0.0.0", "::"}:  # noqa: S104 # nosec B104 # which are refused
        raise click.BadParameter(
            "give the address at which other machines reach this one", param_hint="--host"
        )
    if host is not None:
        old_host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{old_host}:{port or old_port}"


def stay(folder: Path, machine: Machine) -> None:
    """Wait for the end of Ray here; a signal to end ends what runs on this machine."""
    from jobs.cluster.starting import ray_runs, stop_machine

    def leave(*_: object) -> None:
        stop_machine(folder, machine)
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    while ray_runs(folder, machine):
        time.sleep(1.0)
    raise Unavailable("Ray has ended on this machine; its services go on, and the next start finds them")


@command.command(epilog="Example: nearline cluster add b --data /srv/nearline")
@click.argument("node")
@click.option(
    "--machine", "place", help="Where it runs. [default: the machine of that name, or the one with least]"
)
@FOLDER
def add(node: str, place: str | None, folder: Path) -> None:
    """Add a node, and move shards to it until each node has as many as any other."""
    add_node(folder, machine_of(folder), named(node, "NODE"), place)
    orders, _ = orders_of(folder)
    if len(orders.nodes) > 1:
        ask(urls_of(orders, but=node)[0], lambda client: fill(client, node))
        say("shards are balanced")


def add_node(folder: Path, machine: Machine, node: str, place: str | None) -> None:
    where = call(machine, "add", node, place)
    orders = wait(folder, lambda orders: is_ready(orders, node), f"the service of node {node} is not ready")
    say(f"node {node} is on machine {where}, at {orders.nodes[node][0]}")


@command.command(name="balance", epilog="Example: nearline cluster balance --without b")
@click.option("--without", multiple=True, help="A node that shall have no shards; may be repeated.")
@URL
@JSON
def balance_shards(without: tuple[str, ...], url: str, as_json: bool) -> None:
    """Move shards until each node has as many as any other. They are read and written all the time."""
    move_shards(url, "balance", {"without": without}, as_json=as_json)


@command.command(epilog="Example: nearline cluster move docs~2of6 c")
@click.argument("shard")
@click.argument("node")
@URL
@JSON
def move(shard: str, node: str, url: str, as_json: bool) -> None:
    """Move a shard to a node."""
    move_shards(url, "moves", {"shard": shard, "to": node}, as_json=as_json)


def move_shards(url: str, path: str, wanted: Mapping[str, Any], *, as_json: bool) -> None:
    async def work(client: AsyncClient) -> Mapping[str, Any]:
        started: dict[str, Any] = await client.request("POST", f"/v1/cluster/{path}", wanted)
        return await wait_for_job(client, started["job"], hidden=as_json)

    job = ask(url, work)
    lines = [f"{one['shard']}: from {one['from']} to {one['to']}" for one in job["result"]["moved"]]
    print_result(job, "\n".join(lines) or "no shard had to move", as_json=as_json)


@command.command(epilog="Example: nearline cluster drain b --data /srv/nearline")
@click.argument("node")
@FOLDER
def drain(node: str, folder: Path) -> None:
    """Move all shards of a node to the others, then stop it. Its directory is kept beside."""
    machine, (orders, _) = machine_of(folder), orders_of(folder)
    if node not in orders.nodes:
        raise NotFound(f"no node {node}; there are: {', '.join(sorted(orders.nodes))}")
    if len(orders.nodes) == 1:
        raise Conflict(f"{node} is the only node: nothing can take its shards")

    async def work(client: AsyncClient) -> None:
        async with AsyncClient(orders.nodes[node][0], retry_s=0) as there:
            await empty(client, node, there)

    ask(urls_of(orders, but=node)[0], work)
    call(machine, "remove", node)
    wait(
        folder,
        lambda found: node not in running(found),
        f"the services of node {node} have not ended",
    )
    say(f"node {node} has ended, and its shards are on the others")


@command.command(epilog="Example: nearline cluster reindex docs --data /srv/nearline")
@click.argument("collection")
@FOLDER
@JSON
def reindex(collection: str, folder: Path, as_json: bool) -> None:
    """Rebuild the indexes of a collection, each shard on whatever machine has room, from the store.

    The services of the shards only load the results.
    """
    machine, (orders, _) = machine_of(folder), orders_of(folder)
    if not orders.store:
        raise Conflict(
            "this cluster has no store to build from: `nearline reindex` rebuilds in the services themselves"
        )
    nodes, store = orders.nodes, orders.store
    builds = asyncio.run(builds_of(nodes, store, collection))
    connect_ray(machine)
    from jobs.cluster.building import build_all

    outcomes = []
    for one, outcome in build_all(builds):
        outcomes.append({"collection": one.collection, **to_builtins(outcome)})
        where = f"{one.collection} on machine {outcome.machine}"
        if outcome.error:
            errors.print(f"{escape(where)}: {escape(outcome.error)}", style="red")
        elif not as_json:
            click.echo(f"{where}: {describe_elsewhere(outcome.result or {})}")
    if as_json:
        print_json({"builds": outcomes})
    if any(one["error"] for one in outcomes):
        raise SystemExit(1)


@command.command(epilog="Example: nearline cluster stop --data /srv/nearline")
@click.option("--all", "everywhere", is_flag=True, help="On all machines; to be said on the first one.")
@FOLDER
def stop(everywhere: bool, folder: Path) -> None:
    """Stop the services of this machine, and Ray on it. With a store, others take over its nodes after a while."""
    machine = machine_of(folder)
    prepare_ray(machine)
    from jobs.cluster.starting import stop_machine

    if everywhere:
        if not machine.head:
            raise Conflict("this is not the first machine of the cluster: stop all of it there")
        call(machine, "stop")
        say("waiting for the services of all machines to end; for one that is away, until it counts as lost")
        wait(
            folder,
            lambda found: found.stop and not running(found),
            "some services have not ended",
            STOP_S,
        )
    stop_machine(folder.absolute(), machine)
    say("all machines have stopped" if everywhere else f"machine {machine.name} has stopped")


def named(name: str, parameter: str) -> str:
    if not NAME.fullmatch(name):
        raise click.BadParameter("a name has up to 31 of a-z, 0-9 and -", param_hint=parameter)
    return name


def require_ray() -> None:
    if find_spec("ray") is None:
        raise click.ClickException(
            'machines of a cluster need Ray: install nearline with the extra "cluster" (pip install ".[cluster]")'
        )


def prepare_ray(machine: Machine) -> None:
    """Set the variables that Ray reads when it is imported. Raises ClickException if it is not installed."""
    require_ray()
    os.environ.update(environ_of(machine))


def machine_of(folder: Path) -> Machine:
    machine = read_machine(folder)
    if machine is None:
        raise NotFound(f"{folder} is not the folder of a machine: nearline cluster start makes one")
    return machine


def orders_of(folder: Path) -> tuple[Orders, float]:
    machine_of(folder)
    found = read_orders(folder)
    if found is None:
        raise Unavailable("this machine has not heard from its controller yet")
    return found


def urls_of(orders: Orders, but: str = "") -> list[str]:
    """Return the URLs of the services that write, those first that were ready when the orders were given."""
    ready = {
        name
        for one in orders.machines
        for name, held in one.services.items()
        if held.state == "ready" and not one.lost
    }
    names = sorted(orders.nodes.keys() - {but}, key=lambda one: (one not in ready, one))
    return [orders.nodes[name][0] for name in names]


def running(orders: Orders) -> list[str]:
    """Return the nodes of services that run, on machines that are not lost."""
    machines = [one for one in orders.machines if not one.lost]
    return [name for one in machines for name, held in one.services.items() if held.runs]


def is_ready(orders: Orders, node: str) -> bool:
    """Whether the service that writes for a node is ready."""
    machines = [one for one in orders.machines if not one.lost and node in one.services]
    return node in orders.nodes and any(
        one.services[node].writes and one.services[node].state == "ready" for one in machines
    )


def call(machine: Machine, method: str, *arguments: Any) -> Any:
    connect_ray(machine)
    from jobs.cluster.actors import call as call_controller

    return call_controller(method, *arguments)


def connect_ray(machine: Machine) -> None:
    prepare_ray(machine)
    import ray

    from jobs.cluster.actors import connect

    if not ray.is_initialized():
        connect(machine)


def wait(folder: Path, holds: Callable[[Orders], bool], why: str, within_s: float = READY_S) -> Orders:
    """Wait until the last orders of this machine fulfil a condition, and return them. Raises Unavailable."""
    late = time.monotonic() + within_s
    while time.monotonic() < late:
        found = read_orders(folder)
        if found is not None and holds(found[0]):
            return found[0]
        time.sleep(LOOK_S)
    raise Unavailable(f"{why} within {within_s:.0f} s; nearline cluster status --data {folder} says more")
