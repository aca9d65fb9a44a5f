"""Reads CSV and TSV files: a header row, then one document per row."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from indexes.base.model import ACL
from jobs.sources.columns import ColumnType, infer
from jobs.sources.files import ENCODING_HINT, SourceFile
from jobs.sources.model import (
    SourceDocument,
    SourceError,
    SourceOptions,
    SourceReport,
    metadata_of,
    named_twice,
    shorten_names,
)
from jobs.sources.rows import ALL, TEXT_FIELD_HINT, Row, documents_of, id_field_in

DELIMITERS = {"csv": ",;\t|", "tsv": "\t"}
ROWS_INFERRED_FROM = 1000

Cells = tuple[int, "list[str] | SourceError"]
"""The line a row starts on, and its cells or why they cannot be read."""


def read_table(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Yield the documents of a CSV or TSV file. Blank lines are skipped; empty cells yield no metadata.

    The delimiter is the first of comma, semicolon, tab and bar that makes the header contain the text columns. Guessing
    by character frequency, as csv.Sniffer does, fails on texts full of commas.
    """
    return documents_of(file, _rows(file, options, report), options, report)


def _rows(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[Row]:
    # The csv module's limit (128 KiB by default) is global, so only raise it.
    csv.field_size_limit(max(csv.field_size_limit(), options.document_bytes_max))
    lines = _DecodedLines(file, options.document_bytes_max)
    header = next(lines, None)
    if header is None:
        return
    delimiter, columns = _read_header(file, header, options)
    rows = _cells(file, lines, delimiter, len(columns))
    first = list(_take_sample(rows, options.document_bytes_max))
    typed = TypedColumns.of(columns, (row for _, row in first if isinstance(row, list)), options, report)
    for line, cells in chain(first, rows):
        yield line, cells if isinstance(cells, SourceError) else typed.row(file, line, cells, report)


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """The columns of a table, and the types of those that are neither id, text nor title."""

    names: Sequence[str]
    types: Mapping[str, ColumnType]

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        first: Iterable[Sequence[str]],
        options: SourceOptions,
        report: SourceReport,
    ) -> TypedColumns:
        """Use declared types, or infer them from the first rows."""
        strings = {
            id_field_in(names, options),
            *options.text_fields,
            options.title_field,
            options.language_field,
        }
        rows = list(first)
        types = {
            name: options.types.get(name) or infer(row[at] for row in rows)
            for at, name in enumerate(names)
            if name and name not in strings
        }
        report.add_types(metadata_of(types, options, report))
        report.note_fields(filter(None, names), options)
        return cls(names, types)

    def row(
        self, file: SourceFile, line: int, cells: Sequence[str], report: SourceReport
    ) -> dict[str, object]:
        """Return the row's fields without empty cells; id, text and title are kept as strings even if empty."""
        row: dict[str, object] = {ACL: None} if ACL in self.types else {}
        for name, cell in zip(self.names, cells):
            if name and name not in self.types:
                row[name] = cell
            elif name and cell.strip():
                value = self.types[name].value(cell)
                if value is None:
                    _note_misfit(file, line, name, self.types[name].kind, cell, report)
                row[name] = cell if value is None else value
        return row


def _read_header(file: SourceFile, header: str, options: SourceOptions) -> tuple[str, list[str]]:
    if _has_invalid_utf8(header):
        raise file.error(f"not UTF-8 text; {ENCODING_HINT}", 1)
    try:
        splits = [
            (delimiter, [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])])
            for delimiter in DELIMITERS[file.found.format]
        ]
    except csv.Error as error:
        old = "\r" in header.rstrip("\r\n")
        why = "lines end in carriage returns alone: save the file with line feeds" if old else error
        raise file.error(f"not the header of a table: {why}", 1) from error
    needed = set() if options.text_fields == ALL else set(options.text_fields)
    widest = max(splits, key=lambda split: len(split[1]))
    found = next((split for split in splits if needed <= set(split[1])), None) if needed else widest
    delimiter, columns = found or widest
    known = f"the columns are {shorten_names(filter(None, columns))}"
    if found is None:
        missing = ", ".join(f"'{name}'" for name in options.text_fields if name not in columns)
        raise file.error(f"no column {missing}; {known}; {TEXT_FIELD_HINT}", 1)
    if options.id_field is not None and options.id_field not in columns:
        raise file.error(f"no column '{options.id_field}'; {known}; --id-field says which holds the id", 1)
    if twice := named_twice(columns):
        raise file.error(f"the header names a column twice: {twice}", 1)
    return delimiter, columns


def _cells(file: SourceFile, lines: _DecodedLines, delimiter: str, width: int) -> Iterator[Cells]:
    # strict: an unclosed quote is an error at its row, instead of one row that swallows the file.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line = lines.number + 1
        try:
            cells = next(reader, None)
        except SourceError as error:
            yield line, error
        except csv.Error as error:
            lost = f"; nothing up to line {lines.number} was read" if lines.number > line else ""
            yield line, file.error(f"not a row of a table: {error}{lost}", line)
        else:
            if cells is None:
                return
            if any(map(_has_invalid_utf8, cells)):
                yield line, file.error(f"not UTF-8 text; {ENCODING_HINT}", line)
            elif cells and len(cells) != width:
                yield line, file.error(f"expected {width} cells as in the header, found {len(cells)}", line)
            elif cells:
                yield line, cells


def _take_sample(rows: Iterator[Cells], chars_max: int) -> Iterator[Cells]:
    """Yield the first rows, from which types are inferred, up to `chars_max` characters to bound memory."""
    number = chars = 0
    while number < ROWS_INFERRED_FROM and chars < chars_max and (row := next(rows, None)):
        yield row
        number += 1
        chars += sum(map(len, row[1])) if isinstance(row[1], list) else 0


def _note_misfit(
    file: SourceFile, line: int, column: str, kind: str, cell: str, report: SourceReport
) -> None:
    if not report.misfits[column]:
        report.note(
            f"{file.place(line)}: column '{column}': {cell[:60]!r} is no {kind}; such cells stay strings"
        )
    report.misfits[column] += 1


class _DecodedLines:
    """Lines as text for the csv module, which takes as many as a row needs; `number` is the number of the last one.

    Invalid UTF-8 passes as lone surrogates, so that the whole row containing it can be refused.
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


def _has_invalid_utf8(cell: str) -> bool:
    return not cell.isascii() and any("\udc80" <= character <= "\udcff" for character in cell)
