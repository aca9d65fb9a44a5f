"""Readers for `nearline ingest PATHS...`: files and folders in, one document at a time out.

| format   | file names                                       | one document is |
|----------|--------------------------------------------------|-----------------|
| jsonl    | .jsonl .ndjson                                   | a line          |
| csv, tsv | .csv .tsv, with a header row                     | a row           |
| markdown | .md .markdown                                    | the file        |
| text     | .txt .text .rst .adoc .org; README, copyright... | the file        |

Each may be compressed (.gz). Memory stays bounded whatever the size of a file: one document of at most
`SourceOptions.document_bytes_max` is held, as much again of a table's first rows while the types of its columns are
inferred, and the hashes of the ids seen so far.
"""

from __future__ import annotations

from jobs.sources.columns import ColumnType, parse_types
from jobs.sources.model import Failure, FirstFailure, SourceDocument, SourceError, SourceOptions, SourceReport
from jobs.sources.read import read_documents, total_bytes

__all__ = [
    "ColumnType",
    "Failure",
    "FirstFailure",
    "SourceDocument",
    "SourceError",
    "SourceOptions",
    "SourceReport",
    "parse_types",
    "read_documents",
    "total_bytes",
]
