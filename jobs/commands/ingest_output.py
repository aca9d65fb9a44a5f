"""Shows the progress, results and failures of commands that ingest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from indexes.base.wording import format_count
from jobs.commands.output import errors, say
from jobs.ingestion.ingesting import IngestProgress
from jobs.ingestion.ingesting import Progress as OnProgress
from jobs.sources.files import FORMATS, printable
from jobs.sources.model import EMPTY, EXCLUDED, LINK, SourceReport

FAILURES_SHOWN = 20
LINE_EVERY_S = 15.0
WAITING_SHOWN_S = 10.0


def describe_end(done: IngestProgress, collection: str) -> str:
    unchanged = f", {done.unchanged} unchanged" if done.unchanged else ""
    return (
        f"{format_count(done.documents, 'document')} written to {collection}{unchanged}: "
        f"{format_count(done.passages, 'passage')}{format_rate(done)}, {done.seconds:.1f} s"
        + (f" (seq {done.seq})" if done.seq else "")
    )


def format_rate(done: IngestProgress) -> str:
    return f", {done.tokens_per_s():,.0f} tokens/s" if done.tokens else ""


def describe_wait(done: IngestProgress) -> str:
    if not done.waiting_for or done.waiting_s < WAITING_SHOWN_S:
        return ""
    why = f", waiting: {done.waits_because}" if done.waits_because else ""
    return f", {done.waiting_s:.0f} s on {done.waiting_for}{why}"


def describe_stop(done: IngestProgress, collection: str) -> str:
    return (
        f"stopped: {format_count(done.documents + done.unchanged, 'document')} written to {collection}, perhaps some "
        "more; the same command again writes what is missing"
    )


def to_json_value(done: IngestProgress, report: SourceReport) -> dict[str, Any]:
    """Return the value printed by `--json`."""
    settled = msgspec.to_builtins(done)
    del settled["waiting_for"], settled["waiting_s"], settled["waits_because"]
    return {
        **settled,
        **msgspec.to_builtins(report),
        "documents": done.documents,
        "tokens_per_s": round(done.tokens_per_s(), 1),
        "seconds": round(done.seconds, 3),
        "other_files": report.other_files.total(),
        "empty": report.skips[EMPTY.reason],
        "excluded": report.skips[EXCLUDED.reason],
        "links": report.skips[LINK.reason],
        "types": {column: " or ".join(kinds) for column, kinds in report.types.items()},
    }


def show_failures(report: SourceReport) -> None:
    if not report.failures:
        return
    click.echo(f"{report.failures:,} failed:", err=True)
    for one in report.failed[:FAILURES_SHOWN]:
        say(f"  {one.source}: {one.reason}", err=True)
    if report.failures > FAILURES_SHOWN:
        click.echo(f"  and {report.failures - FAILURES_SHOWN:,} more; --json names them", err=True)


def warn_if_nothing(paths: Sequence[Path], report: SourceReport) -> bool:
    """Warn on stderr if there was nothing at all to read, and return whether that is so."""
    if report.documents or report.failures:
        return False
    where = ", ".join(map(printable, paths))
    why = "all that is there was skipped, as listed" if report.skips else "it is empty"
    click.echo(f"nothing to read in {where}: {why}; looked for files named {' '.join(FORMATS)}", err=True)
    return True


@contextlib.contextmanager
def progress_bar(
    total: int,
    *,
    of: Literal["bytes_read", "documents"] = "bytes_read",
    hidden: bool = False,
    label: str = "documents",
) -> Iterator[OnProgress]:
    """Show acknowledged work out of `total` source bytes or documents as a progress bar, or as lines on stderr if there
    is no terminal."""
    if not hidden and not errors.is_terminal:
        yield progress_lines(total, of, label)
        return
    columns = (
        TextColumn("{task.fields[documents]} " + label),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]:,.0f} tokens/s"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[waiting]}", style="dim"),
    )
    # A long period, because acknowledgments of large documents are far apart.
    with Progress(*columns, console=errors, disable=hidden, transient=True, speed_estimate_period=300) as bar:
        task = bar.add_task("", total=max(total, 1), documents=0, rate=0.0, waiting="")
        yield lambda done: bar.update(
            task,
            completed=getattr(done, of),
            documents=done.documents + done.unchanged,
            rate=done.tokens_per_s(),
            waiting=describe_wait(done).removeprefix(", "),
        )


def progress_lines(total: int, of: str, label: str, every_s: float = LINE_EVERY_S) -> OnProgress:
    """Show the same as lines on stderr, one every `every_s`. If nothing was acknowledged for a while, they name the
    oldest document in progress, because the service does not report progress within a document."""
    begun = shown = moved = time.monotonic()
    share = 0.0

    def note(done: IngestProgress) -> None:
        nonlocal shown, moved, share
        now = time.monotonic()
        reached = min(getattr(done, of) / max(total, 1), 1.0)
        if reached > share:
            share, moved = reached, now
        if now - shown < every_s:
            return
        shown = now
        left_s = (moved - begun) / share - (now - begun) if share else 0.0
        left = f", {left_s:,.0f} s left" if left_s > 0 else ""
        settled = f"{done.documents + done.unchanged:,} {label}, {share:.0%}"
        click.echo(f"{settled}{format_rate(done)}{left}{describe_wait(done)}", err=True)

    return note
