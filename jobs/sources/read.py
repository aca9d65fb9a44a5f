"""Reads all paths of one run: picks each file's reader, skips what fails, counts duplicate ids."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jobs.sources.files import FoundFile, SourceFile
from jobs.sources.finding import find_files
from jobs.sources.model import EMPTY, FirstFailure, SourceDocument, SourceError, SourceOptions, SourceReport
from jobs.sources.readers import TEXT_READERS
from jobs.sources.sandbox import READERS as SANDBOXED
from jobs.sources.sandbox import Sandbox

IDS_REMEMBERED_MAX = 5_000_000  # about 100 bytes each


def read_documents(
    paths: Sequence[Path], *, options: SourceOptions | None = None, report: SourceReport | None = None
) -> Iterator[SourceDocument]:
    """Yield the documents of `paths` in order: paths as given, folders depth first by name, files from the top.

    Lazy: a file is opened when its first document is needed. Files that cannot be read are skipped and recorded in
    `report`; without a report, the first failure raises SourceError. A path that does not exist always raises
    InvalidInput, before anything is read. Of documents with the same id, only the first is yielded, and a note names
    the file of the others: otherwise they would replace each other in every run.
    """
    options = options or SourceOptions()
    report = report if report is not None else FirstFailure()
    files = find_files(paths, options=options, report=report)
    return without_repeated(read_files(files, options=options, report=report), report)


def without_repeated(documents: Iterable[SourceDocument], report: SourceReport) -> Iterator[SourceDocument]:
    """Yield the documents whose ids did not come before, and note the first other one of each file."""
    seen: set[int] = set()  # 64-bit hashes of the ids so far
    noted = 0  # the number of the last file of which one was noted
    for one in documents:
        digest = hash(one.id)
        if digest in seen:
            report.duplicates += 1
            if noted != report.files:
                noted = report.files
                note_repeated(one, "came before", report)
            continue
        if len(seen) < IDS_REMEMBERED_MAX:
            seen.add(digest)
            if len(seen) == IDS_REMEMBERED_MAX:
                report.note(f"after {IDS_REMEMBERED_MAX:,} ids, new duplicates are no longer looked for")
        yield one


def read_files(
    files: Iterable[FoundFile], *, options: SourceOptions, report: SourceReport
) -> Iterator[SourceDocument]:
    """Yield the documents of `files`, taking the next file when one is read."""
    bytes_before = 0
    with contextlib.closing(Sandbox()) as sandbox:
        for found in files:
            report.files += 1
            before = _count_outcomes(report)
            try:
                with contextlib.closing(SourceFile(found, options.encoding)) as file:
                    read = sandbox.documents if found.format in SANDBOXED else TEXT_READERS[found.format]
                    # The libraries of some formats call an empty file broken.
                    documents = read(file, options, report) if found.size_bytes else ()
                    for document in documents:
                        report.documents += 1
                        bytes_read = bytes_before + document.bytes_read
                        yield dataclasses.replace(document, bytes_read=bytes_read)
                    if _count_outcomes(report) == before:  # a table with only a header
                        report.skip(file.place(), EMPTY)
            except SourceError as error:  # the rest of the file is unreadable
                report.fail(error)
            bytes_before += found.size_bytes


def _count_outcomes(report: SourceReport) -> int:
    return report.documents + report.failures + report.skips.total()


def total_bytes(paths: Sequence[Path], *, options: SourceOptions | None = None) -> int:
    """Return the on-disk bytes that `read_documents` will read, for progress bars."""
    files = find_files(paths, options=options or SourceOptions(), report=SourceReport())
    return sum(found.size_bytes for found in files)


def note_repeated(document: SourceDocument, where: str, report: SourceReport) -> None:
    """Note the first document of a file whose id is taken."""
    report.note(
        f"{document.source}: the id {document.id!r} {where}; this document is not written, nor are others of this "
        "file with taken ids (--prefix-ids tells the rows of several tables apart, --id-field those of one)"
    )
