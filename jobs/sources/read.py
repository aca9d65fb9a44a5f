"""Reading all paths of one run: which reader for which file, what to skip, which ids came twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jobs.sources.files import FoundFile, SourceFile, find_files
from jobs.sources.lines import read_jsonl
from jobs.sources.model import (
    FirstFailure,
    Format,
    SourceDocument,
    SourceError,
    SourceOptions,
    SourceReport,
)
from jobs.sources.tables import read_table
from jobs.sources.texts import read_markdown, read_text

IDS_REMEMBERED_MAX = 5_000_000  # about 100 bytes each

Reader = Callable[[SourceFile, SourceOptions, SourceReport], Iterator[SourceDocument]]
READERS: dict[Format, Reader] = {
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

    Lazy: a file is opened when its first document is asked for. What cannot be read is skipped and taken down in
    `report`; without one, the first such thing raises SourceError. A path that does not exist raises InvalidInput
    before anything is read, report or not.
    """
    options = options or SourceOptions()
    report = report if report is not None else FirstFailure()
    seen = _SeenIds(report)
    bytes_before = 0
    for found in find_files(paths, options=options, report=report):
        for document in _read_file(found, options, report):
            seen.check(document)
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
        with SourceFile.open(found) as file:
            yield from READERS[found.format](file, options, report)
    except SourceError as error:  # there is no reading on from here
        report.fail(error)


class _SeenIds:
    """Tells ids that came before in this run, by their 64-bit hashes."""

    def __init__(self, report: SourceReport) -> None:
        self._hashes: set[int] = set()
        self._report = report

    def check(self, document: SourceDocument) -> None:
        digest = hash(document.id)
        if digest in self._hashes:
            self._report.duplicates += 1
            self._report.note(f"{document.source}: the id {document.id!r} came before; the last one counts")
        elif len(self._hashes) < IDS_REMEMBERED_MAX:
            self._hashes.add(digest)
            if len(self._hashes) == IDS_REMEMBERED_MAX:
                self._report.note(
                    f"after {IDS_REMEMBERED_MAX:,} ids, new duplicates are no longer looked for"
                )
