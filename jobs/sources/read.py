"""Reading all paths of one run: which reader for which file, what to skip, which ids came twice."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jobs.sources.files import FoundFile, SourceFile, find_files
from jobs.sources.model import FirstFailure, SourceDocument, SourceError, SourceOptions, SourceReport
from jobs.sources.rows import read_jsonl
from jobs.sources.tables import read_table
from jobs.sources.texts import read_markdown, read_text

IDS_REMEMBERED_MAX = 5_000_000  # about 100 bytes each

Reader = Callable[[SourceFile, SourceOptions, SourceReport], Iterator[SourceDocument]]
READERS: dict[str, Reader] = {
    "jsonl": read_jsonl,
    "csv": read_table,
    "tsv": read_table,
    "markdown": read_markdown,
    "text": read_text,
}


def read_documents(
    paths: Sequence[Path], *, options: SourceOptions | None = None, report: SourceReport | None = None
) -> Iterator[SourceDocument]:
    """The documents of `paths` in order: paths as given, folders by name and downwards, files from the top.

    Lazy: a file is opened when its first document is asked for. What cannot be read is skipped and recorded in
    `report`; without one, the first such thing raises SourceError. A path that does not exist raises InvalidInput
    before anything is read, report or not.
    """
    options = options or SourceOptions()
    report = report if report is not None else FirstFailure()
    seen: set[int] = set()
    bytes_before = 0
    for found in find_files(paths, options=options, report=report):
        for document in _read_file(found, options, report):
            _note_duplicate(document, seen, report)
            report.documents += 1
            yield dataclasses.replace(document, bytes_read=bytes_before + document.bytes_read)
        bytes_before += found.size_bytes


def total_bytes(paths: Sequence[Path], *, options: SourceOptions | None = None) -> int:
    """The bytes on disk that `read_documents` will read: the length of a progress bar."""
    files = find_files(paths, options=options or SourceOptions(), report=SourceReport())
    return sum(found.size_bytes for found in files)


def _read_file(found: FoundFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    report.files += 1
    try:
        with contextlib.closing(SourceFile(found)) as file:
            yield from READERS[found.format](file, options, report)
    except SourceError as error:  # the rest of the file cannot be read
        report.fail(error)


def _note_duplicate(document: SourceDocument, seen: set[int], report: SourceReport) -> None:
    """`seen` holds hashes of the ids so far, of 64 bits."""
    digest = hash(document.id)
    if digest in seen:
        report.duplicates += 1
        report.note(f"{document.source}: the id {document.id!r} came before; the last one counts")
    elif len(seen) < IDS_REMEMBERED_MAX:
        seen.add(digest)
        if len(seen) == IDS_REMEMBERED_MAX:
            report.note(f"after {IDS_REMEMBERED_MAX:,} ids, new duplicates are no longer looked for")
