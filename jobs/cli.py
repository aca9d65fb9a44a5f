"""The `nearline` command. Subcommands live in `jobs/commands` and are imported only when called."""

from __future__ import annotations

import gc
import importlib
import sys

import click

from indexes.base.errors import NearlineError, message_of
from retrieval.clients.errors import ServiceError

COMMANDS = {
    "serve": "Serve a data directory over HTTP.",
    "demo": "Index the docstrings of this Python, serve them, and search them.",
    "ingest": "Send files and folders to a running service.",
    "search": "Ask a running service.",
    "explain": "Say why a search does, or does not, find a document.",
    "mcp": "Give assistants the tools search, fetch and context (MCP).",
    "collections": "List, show, rename, roll back and delete collections.",
    "reindex": "Rebuild the indexes of a collection and swap them in.",
    "erase": "Erase deleted and overwritten content from every file.",
    "tune": "Find the cheapest search settings of a recall, and use them.",
    "learn": "Learn from judgments how to rank, and use it if that is a gain.",
    "reembed": "Copy a collection into one with another model while serving.",
    "evaluate": "Measure recall, and ranking quality where there are judgments.",
    "export-model": "Make a quantised ONNX model for serving.",
    "train-reranker": "Train a cross-encoder on judged queries of a running service.",
    "keys": "Make, list, rotate and revoke access keys.",
    "top": "Show what a running service is doing now.",
    "backup": "Copy collections to a folder, also while they are served.",
    "restore": "Put collections of a backup into a data directory.",
    "cluster": "Show the nodes of a cluster, or run one with Ray.",
    "promote": "Let a replica's directory write to the store.",
    "accept": "Serve what is left of a collection that lost writes.",
    "verify": "Check that a data directory or a backup is whole.",
    "bench": "Measure latency, recall, memory and ingest rate on this machine.",
}
TOGETHER = {
    **dict.fromkeys(["backup", "restore", "promote", "accept", "verify"], "backups"),
    **dict.fromkeys(["reindex", "erase", "reembed"], "rebuilds"),
}


class LazyGroup(click.Group):
    """Lists every command without importing its module, so `--help` stays instant.

    A command is `command` in the module named after it; modules with several commands (TOGETHER) use their names.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = TOGETHER.get(cmd_name) or cmd_name.replace("-", "_")
        gc.disable()  # modules are no garbage, and looking for some would take a sixth of the time to load them
        try:
            loaded = importlib.import_module(f"jobs.commands.{module}")
        finally:
            gc.enable()
        command: click.Command = getattr(loaded, cmd_name if cmd_name in TOGETHER else "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nearline")
def cli() -> None:
    """Nearline: text in, ranked passages out."""


def main() -> None:
    """Exit code 0 on success, 1 with a one-line error on failure, 2 for a usage error.

    `evaluate` reserves 1 for numbers that are too low; any other failure there is 2.
    """
    try:
        cli.main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except (NearlineError, ServiceError, OSError) as error:
        click.echo(f"nearline: {message_of(error)}", err=True)
        sys.exit(1)
    except UnicodeEncodeError as error:
        click.echo(f"nearline: a text that is not UTF-8: {ascii(error.object)[:80]}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
