"""Readers for `nearline ingest PATHS...`: files and folders in, one document at a time out.

| format   | file names                    | one document is |
|----------|-------------------------------|-----------------|
| jsonl    | .jsonl .ndjson                | a line          |
| csv, tsv | .csv .tsv, with a header row  | a row           |
| markdown | .md .markdown                 | the file        |
| text     | .txt .text .rst .adoc .org    | the file        |

Each may be compressed (.gz). Memory stays bounded whatever the size of a file: no more than one document of
at most `SourceOptions.document_bytes_max` is held, and the hashes of the ids seen so far.
"""

from __future__ import annotations

from jobs.sources.model import MetadataValue, SourceDocument, SourceOptions, SourceReport
from jobs.sources.read import read_documents, total_bytes

__all__ = [
    "MetadataValue",
    "SourceDocument",
    "SourceOptions",
    "SourceReport",
    "read_documents",
    "total_bytes",
]
