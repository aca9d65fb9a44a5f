"""CSV and TSV: a header row, then one document a row."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from typing import Literal

from indexes.errors import InvalidInput
from jobs.sources.files import SourceFile
from jobs.sources.model import SourceDocument, SourceOptions, SourceReport
from jobs.sources.rows import Row, documents_of

DELIMITERS = {"csv": ",;\t|", "tsv": "\t"}


def read_table(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """The documents of a CSV or TSV file. Blank lines are passed over; empty cells are no metadata.

    The delimiter is the first of comma, semicolon, tab and bar with which the header names the text column.
    That is surer than guessing from how often a character occurs, which fails on texts full of commas.
    """
    return documents_of(file, _rows(file, options), options, report)


def _rows(file: SourceFile, options: SourceOptions) -> Iterator[Row]:
    # The module's limit is 128 KiB by default and global; ours only ever raises it.
    csv.field_size_limit(max(csv.field_size_limit(), options.document_bytes_max))
    lines = _DecodedLines(file, options.document_bytes_max)
    header = next(lines, None)
    if header is None:
        return
    delimiter, columns = _read_header(file, header, options)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if options.quoted else csv.QUOTE_NONE
    # strict: a quote that is never closed is an error at its row, instead of one row that swallows the file.
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    while True:
        line = lines.number + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, file.error(f"not a row of a table: {error}", line)
            continue
        if cells:
            yield line, _fields(file, line, columns, cells, options)


def _read_header(file: SourceFile, header: str, options: SourceOptions) -> tuple[str, list[str]]:
    columns: list[str] = []
    for delimiter in DELIMITERS.get(file.found.format, ","):
        columns = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
        if options.text_field in columns:
            break
    else:
        raise file.error(f"no column '{options.text_field}' in the header: {header.strip()[:200]!r}", 1)
    twice = sorted({name for name in columns if name and columns.count(name) > 1})
    if twice:
        raise file.error(f"the header names a column twice: {', '.join(twice)}", 1)
    return delimiter, columns


def _fields(
    file: SourceFile, line: int, columns: list[str], cells: list[str], options: SourceOptions
) -> dict[str, object] | InvalidInput:
    if len(cells) != len(columns):
        return file.error(f"expected {len(columns)} cells as in the header, found {len(cells)}", line)
    if any(_undecoded(cell) for cell in cells):
        return file.error("not UTF-8 text", line)
    always = {options.id_field, options.text_field, options.title_field}
    fields: dict[str, object] = {}
    for column, cell in zip(columns, cells):
        if column in options.number_fields and cell.strip():
            number = _number(cell)
            if number is None:
                return file.error(f"column '{column}': expected a number, found {cell!r}", line)
            fields[column] = number
        elif column and (cell or column in always):
            fields[column] = cell
    return fields


def _number(cell: str) -> int | float | None:
    for kind in (int, float):
        try:
            number = kind(cell)
        except ValueError:
            continue
        return number if math.isfinite(number) else None
    return None


class _DecodedLines:
    """Lines as text for the csv module, which asks for as many as a row takes; `number` is that of the last.

    Bytes that are not UTF-8 pass as lone surrogates, to be refused with the row they are in: an exception
    here would leave the csv module in the middle of one.
    """

    def __init__(self, file: SourceFile, bytes_max: int) -> None:
        self.number = 0
        self._lines = file.lines(bytes_max)

    def __iter__(self) -> _DecodedLines:
        return self

    def __next__(self) -> str:
        self.number, content = next(self._lines)
        return content.decode("utf-8", "surrogateescape")


def _undecoded(cell: str) -> bool:
    return not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell)
