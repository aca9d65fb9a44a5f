"""nearline serve"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

from indexes.base.errors import NearlineError, message_of
from indexes.directory.backup.backup import MANIFEST
from jobs.commands.options import PATH
from jobs.serving.log_lines import set_up_logging
from jobs.serving.service import run
from retrieval.base.config import ignored_variables, load_config
from retrieval.base.settings import LogSection

logger = logging.getLogger(__name__)


@click.command(epilog="Example: nearline serve --data data --port 8080")
@click.option("--data", type=PATH, required=True, help="The data directory; made if absent.")
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one and says which. [default: 8080]"
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow an address that other machines reach: anyone there may read, write and delete.",
)
@click.option(
    "--replica", is_flag=True, help="Follow store.url, which another service writes to, and serve searches."
)
@click.option("--config", type=PATH, help="A TOML file like configs/default.toml.")
def command(
    data: Path, host: str | None, port: int | None, insecure: bool, replica: bool, config: Path | None
) -> None:
    """Serve a data directory over HTTP until a signal ends it."""
    if (data / MANIFEST).is_file():
        raise click.UsageError(
            f"{data} is a backup: nearline restore --from {data} --data DIRECTORY, and serve that"
        )
    given = {"HOST": host, "PORT": port, "INSECURE": "true" if insecure else None}
    environ = dict(os.environ) | {
        f"NEARLINE_SERVER_{name}": str(value) for name, value in given.items() if value is not None
    }
    if replica:
        environ["NEARLINE_STORE_REPLICA"] = "true"
    # Errors in the settings must be logged before the settings are loaded.
    log = LogSection(format="json") if environ.get("NEARLINE_LOG_FORMAT") == "json" else LogSection()
    set_up_logging(log)
    try:
        settings = load_config(config, environ)
        log = settings.log
        set_up_logging(log)
        for name in ignored_variables(environ):
            logger.warning("the environment variable %s names no setting and is ignored", name)
        run(settings, data, lambda: load_config(config, environ))
    except (NearlineError, OSError) as error:
        if log.format != "json":
            raise
        logger.critical("%s", message_of(error))
        sys.exit(1)
