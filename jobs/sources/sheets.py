"""Reads Excel workbooks (.xlsx): rows become lines `column: value`, or documents if a column holds the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from jobs.sources.document_readers import document_from, extract_markdown
from jobs.sources.files import SourceFile
from jobs.sources.hidden_parts import HIDDEN_SHEET, find_hidden_sheets
from jobs.sources.model import SourceDocument, SourceError, SourceOptions, SourceReport, named_twice
from jobs.sources.rows import documents_of, has_text
from jobs.sources.tables import TypedColumns

# A time without a date counts from the day before the first one, and is read with that day: 1899-12-31 14:30:00.
TIME_ALONE = re.compile(r"\A1899-12-3[01] (?=\d\d:\d\d:\d\d\Z)", re.ASCII)


def read_workbook(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Yield a document for each row of sheets whose first row names the text columns, with the ids of a table's rows,
    and one document for all other sheets, each under a heading. Hidden sheets are skipped; hidden rows and columns are
    read."""
    content = file.content(options.extracted_bytes_max)
    found = extract_markdown(content, "xlsx")
    hidden = find_hidden_sheets(content)
    for name in sorted(hidden):
        report.skip(f"{file.place()}:{name}", HIDDEN_SHEET)
    names = found.metadata.get("sheet_names") or []
    text = []
    for table in found.tables:
        rows = [[TIME_ALONE.sub("", cell.strip()) for cell in row] for row in table.cells]
        name = (
            names[table.page_number - 1] if table.page_number <= len(names) else f"Sheet {table.page_number}"
        )
        if name in hidden:
            continue
        if rows and has_text([cell for cell in rows[0] if cell], options):
            yield from _documents(file.part(name), rows, options, report)
        else:
            text.append(f"# {name}\n\n{sheet_text(rows, options)}")
    if text or not found.tables:
        yield from document_from(file, "\n\n".join(text), found.metadata, None, options, report)


def _documents(
    file: SourceFile, rows: Sequence[Sequence[str]], options: SourceOptions, report: SourceReport
) -> Iterator[SourceDocument]:
    heads, *cells = rows
    widest = max(map(len, rows))
    columns = [
        name or (f"column {at}" if any(row[at - 1 : at] != [""] for row in cells if row[at - 1 : at]) else "")
        for at, name in enumerate([*heads, *[""] * (widest - len(heads))], 1)
    ]
    if twice := named_twice(columns):
        report.fail(SourceError(file.place(), f"the header names a column twice: {twice}"))
        return
    typed = TypedColumns.of(columns, cells, options, report)
    filled = ((number, row) for number, row in enumerate(cells, 2) if any(row))
    yield from documents_of(
        file, ((number, typed.row(file, number, row, report)) for number, row in filled), options, report
    )


def sheet_text(rows: Sequence[Sequence[str]], options: SourceOptions) -> str:
    """Return a paragraph for each row. The first row with two or more cells is the header; rows with one cell above it
    are text."""
    header: Sequence[str] = ()
    named_any = False
    paragraphs = []
    for row in rows:
        if not header and sum(map(bool, row)) > 1:
            header = row
            continue
        cells = [
            f"{column}: {cell}" if column else cell
            for column, cell in zip(header or [""] * len(row), row)
            if cell and column not in options.skip_columns
        ]
        if cells:
            named_any = named_any or bool(header)
            paragraphs.append("\n".join(cells))
    if header and not named_any:
        paragraphs.append("\n".join(filter(None, header)))
    return "\n\n".join(paragraphs)
