"""The reader of each format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jobs.sources.document_readers import read_book, read_html, read_pdf
from jobs.sources.files import SourceFile
from jobs.sources.model import SourceDocument, SourceOptions, SourceReport
from jobs.sources.parquet import read_arrow, read_parquet
from jobs.sources.rows import read_json, read_jsonl
from jobs.sources.sheets import read_workbook
from jobs.sources.tables import read_table
from jobs.sources.texts import read_code, read_markdown, read_rst, read_text

Reader = Callable[[SourceFile, SourceOptions, SourceReport], Iterator[SourceDocument]]

TEXT_READERS: dict[str, Reader] = {
    "json": read_json,
    "jsonl": read_jsonl,
    "csv": read_table,
    "tsv": read_table,
    "markdown": read_markdown,
    "text": read_text,
    "rst": read_rst,
    "code": read_code,
}
# These formats need the extra `files`.
EXTRA_READERS: dict[str, Reader] = {
    "html": read_html,
    "pdf": read_pdf,
    "docx": read_book,
    "epub": read_book,
    "pptx": read_book,
    "xlsx": read_workbook,
    "parquet": read_parquet,
    "arrow": read_arrow,
}
