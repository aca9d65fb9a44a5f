"""nearline mcp"""

from __future__ import annotations

from importlib.util import find_spec

import click

from jobs.commands.options import URL


@click.command(epilog="Example: nearline mcp -c docs")
@URL
@click.option(
    "--collection", "-c", "collections", required=True, multiple=True, help="Name or alias; may be repeated."
)
@click.option("--http", is_flag=True, help="Serve over HTTP at /mcp instead of stdin and stdout.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --http: address to listen on.")
@click.option("--port", default=8090, show_default=True, help="With --http; 0 takes a free one.")
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    help="With --http: a host name that clients may use; may be repeated.",
)
@click.option("--insecure", is_flag=True, help="With --http: listen where other machines reach it.")
def command(
    url: str,
    collections: tuple[str, ...],
    http: bool,
    host: str,
    port: int,
    names: tuple[str, ...],
    insecure: bool,
) -> None:
    """Give assistants the tools search, fetch and context of a running service.

    Speaks the Model Context Protocol on stdin and stdout, as desktop assistants start it, or over HTTP. Callers need no
    key and may do whatever NEARLINE_KEY allows, so it listens on 127.0.0.1 by default.
    """
    if find_spec("mcp") is None:
        raise click.ClickException(
            "the MCP server needs the official SDK: in a checkout of Nearline, pip install '.[mcp]'"
        )
    from jobs.mcp.server import make_server, serve_http

    server = make_server(url, list(dict.fromkeys(collections)))
    if not http:
        server.run("stdio")
        return
    if host not in ("127.0.0.1", "::1", "localhost") and not insecure:
        raise click.ClickException(
            f"--host: other machines reach {host!r}, and anyone there may do whatever NEARLINE_KEY allows; listen on "
            "127.0.0.1 behind a proxy that asks who calls, or allow it with --insecure"
        )
    serve_http(server, host, port, names)
