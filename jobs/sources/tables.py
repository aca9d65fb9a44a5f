"""CSV and TSV: a header row, then one document a row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from typing import Literal

from jobs.sources.columns import ColumnType, infer
from jobs.sources.files import SourceFile
from jobs.sources.model import SourceDocument, SourceError, SourceOptions, SourceReport
from jobs.sources.rows import Row, documents_of, id_field_in

DELIMITERS = {"csv": ",;\t|", "tsv": "\t"}
ROWS_INFERRED_FROM = 1000

Cells = tuple[int, "list[str] | SourceError"]
"""The line a row starts on, and its cells or why they cannot be read."""


def read_table(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """The documents of a CSV or TSV file. Blank lines are passed over; empty cells are no metadata.

    The delimiter is the first of comma, semicolon, tab and bar with which the header names the text columns.
    That is surer than guessing from how often a character occurs, which fails on texts full of commas.
    """
    return documents_of(file, _rows(file, options, report), options, report)


def _rows(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[Row]:
    # The module's limit is 128 KiB by default and global; ours only ever raises it.
    csv.field_size_limit(max(csv.field_size_limit(), options.document_bytes_max))
    lines = _DecodedLines(file, options.document_bytes_max)
    header = next(lines, None)
    if header is None:
        return
    delimiter, columns = _read_header(file, header, options)
    rows = _cells(file, lines, delimiter, columns, options)
    first = list(_first(rows, options.document_bytes_max))
    types = _column_types(columns, [cells for _, cells in first if isinstance(cells, list)], options)
    report.typed(types)
    for line, cells in chain(first, rows):
        if isinstance(cells, SourceError):
            yield line, cells
        else:
            row = {column: cell for column, cell in zip(columns, cells) if column}
            yield line, _fields(file, line, row, types, report)


def _read_header(file: SourceFile, header: str, options: SourceOptions) -> tuple[str, list[str]]:
    if _undecoded(header):
        raise file.error("not UTF-8 text", 1)
    try:
        splits = [
            (delimiter, [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])])
            for delimiter in DELIMITERS.get(file.found.format, ",")
        ]
    except csv.Error as error:  # such as a file whose lines end in carriage returns alone
        raise file.error(f"not the header of a table: {error}", 1) from error
    needed = set(options.text_fields)
    found = next((split for split in splits if needed <= set(split[1])), None)
    delimiter, columns = found or max(splits, key=lambda split: len(split[1]))
    named = "the columns are " + ", ".join(name for name in columns if name)[:500]
    if found is None:
        missing = ", ".join(f"'{name}'" for name in options.text_fields if name not in columns)
        raise file.error(f"no column {missing}; {named}; --text-field says which holds the text", 1)
    if options.id_field is not None and options.id_field not in columns:
        raise file.error(f"no column '{options.id_field}'; {named}; --id-field says which holds the id", 1)
    twice = sorted({name for name in columns if name and columns.count(name) > 1})
    if twice:
        raise file.error(f"the header names a column twice: {', '.join(twice)}", 1)
    return delimiter, columns


def _cells(
    file: SourceFile, lines: _DecodedLines, delimiter: str, columns: list[str], options: SourceOptions
) -> Iterator[Cells]:
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if options.quoted else csv.QUOTE_NONE
    # strict: a quote that is never closed is an error at its row, instead of one row that swallows the file.
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    while True:
        line = lines.number + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except SourceError as error:
            yield line, error
        except csv.Error as error:
            lost = f"; nothing up to line {lines.number} was read" if lines.number > line else ""
            yield line, file.error(f"not a row of a table: {error}{lost}", line)
        else:
            if not cells:
                continue
            if len(cells) != len(columns):
                reason = f"expected {len(columns)} cells as in the header, found {len(cells)}"
                yield line, file.error(reason, line)
            elif any(_undecoded(cell) for cell in cells):
                yield line, file.error("not UTF-8 text", line)
            else:
                yield line, cells


def _first(rows: Iterator[Cells], chars_max: int) -> Iterator[Cells]:
    """The rows that types are inferred from; fewer where they are so long that holding them would take much memory."""
    number = chars = 0
    while number < ROWS_INFERRED_FROM and chars < chars_max and (row := next(rows, None)):
        yield row
        number += 1
        chars += sum(map(len, row[1])) if isinstance(row[1], list) else 0


def _column_types(columns: list[str], rows: list[list[str]], options: SourceOptions) -> dict[str, ColumnType]:
    """Of the columns that become metadata."""
    own = {id_field_in(columns, options), *options.text_fields, options.title_field, ""}
    return {
        column: options.types.get(column) or infer(cells[at] for cells in rows)
        for at, column in enumerate(columns)
        if column not in own
    }


def _fields(
    file: SourceFile, line: int, row: dict[str, str], types: dict[str, ColumnType], report: SourceReport
) -> dict[str, object]:
    fields: dict[str, object] = {}
    for column, cell in row.items():
        column_type = types.get(column)
        if column_type is None:
            fields[column] = cell  # id, text and title are strings whatever is in them
        elif cell.strip():
            value = column_type.value(cell)
            if value is None:
                if not report.misfits[column]:
                    report.note(
                        f"{file.place(line)}: column '{column}': {cell[:60]!r} is no {column_type.kind}; such cells "
                        "stay strings"
                    )
                report.misfits[column] += 1
            fields[column] = cell if value is None else value
    return fields


class _DecodedLines:
    """Lines as text for the csv module, which asks for as many as a row takes; `number` is that of the last.

    Bytes that are not UTF-8 pass as lone surrogates, to be refused with the whole row they are in.
    """

    def __init__(self, file: SourceFile, bytes_max: int) -> None:
        self.number = 0
        self._lines = file.lines(bytes_max)

    def __iter__(self) -> _DecodedLines:
        return self

    def __next__(self) -> str:
        self.number, content = next(self._lines)
        if isinstance(content, SourceError):
            raise content
        return content.decode("utf-8", "surrogateescape")


def _undecoded(cell: str) -> bool:
    return not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell)
