"""Readers for `nearline ingest PATHS...`: files and folders in, a stream of documents out.

| format   | file names                                       | one document is |
|----------|--------------------------------------------------|-----------------|
| jsonl    | .jsonl .ndjson                                   | a line          |
| csv, tsv | .csv .tsv, with a header row                     | a row           |
| markdown | .md .markdown                                    | the file        |
| text     | .txt .text .rst .adoc .org; README, copyright... | the file        |

Any of them may be gzipped (.gz). Memory is bounded whatever the file size: one document of at most
`SourceOptions.document_bytes_max`, as much again of a table's first rows while column types are inferred, and hashes
of the ids seen so far.
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
