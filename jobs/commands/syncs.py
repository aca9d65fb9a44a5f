"""nearline ingest --sync and --watch"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec

from indexes.base.errors import InvalidInput
from indexes.base.wording import format_count
from jobs.commands.connection import ask
from jobs.commands.ingest_output import (
    describe_end,
    progress_bar,
    show_failures,
    to_json_value,
    warn_if_nothing,
)
from jobs.commands.options import exit_on_sigterm
from jobs.commands.output import print_json, say
from jobs.ingestion.ingesting import find_collection
from jobs.ingestion.sync_record import SyncRecord
from jobs.ingestion.syncing import Synced, record_path, state_folder, sync
from jobs.ingestion.watching import watch
from jobs.sources import SourceOptions, SourceReport, as_named, total_bytes
from nearline import AsyncClient, ServiceError, bulk_patience
from retrieval.clients.bulk import limits_in

GONE_SHOWN = 20


@dataclass(slots=True)
class Syncs:
    """The syncs of one command. Folders are synced in order, each with its own record.

    `create`: settings for the collection if it does not exist; None: do not create it.
    """

    paths: Sequence[Path]
    url: str
    collection: str
    create: dict[str, Any] | None
    options: SourceOptions
    state: Path | None
    dry_run: bool
    yes: bool
    force: bool
    as_json: bool
    quiet: bool = False
    """Whether to print nothing after a sync that found nothing new."""
    failed_before: set[tuple[str, str]] = field(default_factory=set)

    def run_all(self, lenient: bool) -> int:
        """Sync all folders and return the exit code: 1 if something failed, if documents are gone and were not deleted,
        or if there was nothing to read."""
        values, left = [], False
        try:
            with exit_on_sigterm():
                for path in self.paths:
                    done, report = self.run(path)
                    values.append(self.value(path, done, report))
                    nothing = not done.files_unchanged and warn_if_nothing([path], report)
                    left = left or nothing or bool(report.failures) or bool(done.gone and not self.dry_run)
        except KeyboardInterrupt:
            click.echo("stopped: the same command again goes on", err=True)
            return 130
        if self.as_json:
            print_json(values[0] if len(values) == 1 else values)
        return int(left and not lenient)

    def follow(self) -> int:
        """Sync on every change until Ctrl-C or SIGTERM, and return exit code 130 or 143."""
        for path in self.paths:
            if not path.is_dir():
                raise InvalidInput(f"{path}: --watch takes folders", param="paths")

        def sync_all() -> None:
            for path in self.paths:
                done, report = self.run(path)
                if self.as_json:
                    click.echo(msgspec.json.encode(self.value(path, done, report)).decode())
            if not self.quiet:
                click.echo(f"watching {', '.join(map(str, self.paths))}", err=True)
                self.quiet = True

        code = 128 + signal.SIGINT

        def end(*_: object) -> None:  # watchfiles passes on KeyboardInterrupt alone
            nonlocal code
            code = 128 + signal.SIGTERM
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGTERM, end)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                watch(self.paths, sync_all, tell_failure)
        finally:
            signal.signal(signal.SIGTERM, before)
        return int(code)

    def run(self, path: Path) -> tuple[Synced, SourceReport]:
        folder, report = as_named(path), SourceReport()
        if not folder.is_dir():
            raise InvalidInput(f"{path}: --sync takes folders that exist", param="paths")
        hidden = self.as_json or self.quiet

        async def work(client: AsyncClient) -> Synced:
            create = None if self.dry_run else self.create
            found = await find_collection(client, self.collection, create, on_progress)
            name = found["name"]
            state = self.state or state_folder()
            with contextlib.closing(SyncRecord(record_path(state, self.url, found), str(folder))) as record:
                return await sync(
                    client,
                    name,
                    folder,
                    record,
                    options=self.options,
                    report=report,
                    consent=self.consent,
                    limits=limits_in(found),
                    seq=found["seq"],
                    progress=on_progress,
                    dry_run=self.dry_run,
                )

        with progress_bar(total_bytes([folder], options=self.options), hidden=hidden) as on_progress:
            try:
                done = ask(self.url, work, patience=bulk_patience)
            except ServiceError:
                show_failures(report)
                raise
        if not done.files_unchanged:  # unchanged files may have the missing columns
            report.check_columns(self.options)
        self.tell(path, done, report)
        return done, report

    def consent(self, ids: Sequence[str], of: int) -> bool:
        most = len(ids) * 2 > of
        if self.force or (self.yes and not most):
            return True
        if self.yes or self.as_json or self.dry_run or not sys.stdin.isatty():
            return False
        show_gone(ids)
        share = f", more than half of its {of:,}" if most else ""
        return click.confirm(
            f"Delete {format_count(len(ids), 'document')} that are gone from the folder{share}?", err=True
        )

    def tell(self, path: Path, done: Synced, report: SourceReport) -> None:
        failed = {(one.source, one.reason) for one in report.failed}
        new = failed - self.failed_before if self.quiet else failed
        self.failed_before = failed
        if self.quiet and not (new or done.ingested.documents or done.deleted):
            return
        for line in report.notes:
            say(line, err=True)
        if new:
            show_failures(report)
        if self.as_json:
            return
        if self.dry_run:
            would = format_count(done.ingested.documents, "document")
            click.echo(f"{path}: would write {would} and delete {len(done.gone):,}")
        else:
            click.echo(f"{path}: {describe_end(done.ingested, self.collection)}")
        retried = f", {done.files_retried:,} that failed before tried again" if done.files_retried else ""
        shared = f", {done.shared:,} kept that another file has" if done.shared else ""
        click.echo(
            f"{format_count(done.files_changed, 'file')} changed, {done.files_unchanged:,} unchanged{retried}; "
            f"{format_count(done.deleted, 'document')} deleted{shared}"
        )
        for line in report.summary():
            say(line)
        if done.gone:
            show_gone(done.gone)
            if not self.dry_run:
                how = "--force" if self.yes else "--yes, or --force where they are more than half,"
                click.echo(
                    f"gone from the folder and not deleted: {len(done.gone):,}; {how} deletes them", err=True
                )

    def value(self, path: Path, done: Synced, report: SourceReport) -> dict[str, Any]:
        """Return the value printed by `--json`."""
        return {
            "folder": str(path),
            **to_json_value(done.ingested, report),
            "dry_run": self.dry_run,
            "files_changed": done.files_changed,
            "files_unchanged": done.files_unchanged,
            "files_retried": done.files_retried,
            "deleted": done.deleted,
            "gone": done.gone,
            "shared": done.shared,
        }


def tell_failure(error: Exception) -> None:
    click.echo(f"nearline: {error}; trying again", err=True)


def show_gone(ids: Sequence[str]) -> None:
    for one in ids[:GONE_SHOWN]:
        click.echo(f"  gone: {one}", err=True)
    if len(ids) > GONE_SHOWN:
        click.echo(f"  and {len(ids) - GONE_SHOWN:,} more; --json names them", err=True)
