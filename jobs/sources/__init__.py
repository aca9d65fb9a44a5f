"""How is a file read?

Turns files and folders into a stream of documents, for `nearline ingest PATHS...` and for uploaded PDF and office
files. Not here: sending the documents (`jobs/ingestion`), or cutting them into passages (`retrieval/documents`).

| format      | file names                                  | one document is                                  |
|-------------|---------------------------------------------|--------------------------------------------------|
| jsonl       | .jsonl .ndjson                              | a line                                           |
| json        | .json                                       | an object that has a text, else the file         |
| csv, tsv    | .csv .tsv, with a header row                | a row                                            |
| parquet     | .parquet                                    | a row                                            |
| arrow       | .arrow .arrows .feather                     | a row                                            |
| markdown    | .md .markdown                               | the file                                         |
| rst         | .rst                                        | the file, its titles as Markdown headings        |
| text        | .txt .text .adoc .org; README, copyright... | the file                                         |
| code        | .py .js .go .java .c .sh .yaml...           | the file, with its `programming_language`        |
| html        | .html .htm .xhtml                           | the main part of the page, as Markdown           |
| pdf         | .pdf                                        | the file, each page below the heading "Page 3"   |
| docx, ...   | .docx .epub .pptx                           | the file, as Markdown                            |
| xlsx        | .xlsx                                       | the file, or a row where a column holds the text |
| mail        | .eml                                        | the message; each attachment, as its kind is     |
| mailbox     | .mbox                                       | a message; each attachment                       |

All but Parquet and Arrow may be gzipped (.gz). These and the formats below code are read in a process of their own
(`sandbox`) and need the extra `files`. Memory is bounded whatever the file size: one document of at most
`SourceOptions.document_bytes_max`, as much again of a table's first rows while column types are inferred, hashes
of the ids seen so far, and the bounds of that process.
"""

from __future__ import annotations

from jobs.sources.columns import ColumnType, parse_types
from jobs.sources.files import FoundFile, printable
from jobs.sources.finding import as_named, find_files
from jobs.sources.model import (
    FirstFailure,
    SourceDocument,
    SourceError,
    SourceFailure,
    SourceOptions,
    SourceReport,
)
from jobs.sources.read import note_repeated, read_documents, read_files, total_bytes

__all__ = [
    "ColumnType",
    "FirstFailure",
    "FoundFile",
    "SourceDocument",
    "SourceError",
    "SourceFailure",
    "SourceOptions",
    "SourceReport",
    "as_named",
    "find_files",
    "note_repeated",
    "parse_types",
    "printable",
    "read_documents",
    "read_files",
    "total_bytes",
]
