"""Reads Parquet files: a document for each row, with the columns' own types. Needs the extra `files`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal

from jobs.sources.files import SourceFile
from jobs.sources.model import SourceDocument, SourceOptions, SourceReport, shorten_names
from jobs.sources.rows import TEXT_FIELD_HINT, Row, documents_of, has_text

ROWS_AT_ONCE = 256


def read_parquet(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Yield the documents of the file, its rows numbered from 1. Bytes are dropped; dates become ISO 8601."""
    from pyarrow.parquet import ParquetFile

    if file.found.path.suffix.lower() == ".gz":
        raise file.error("a Parquet file within gzip; it is compressed by itself, so unpack it")
    with ParquetFile(file.found.path) as table:
        columns = list(table.schema_arrow.names)
        if not has_text(columns, options):
            missing = ", ".join(f"'{field}'" for field in options.text_fields)
            raise file.error(
                f"no column {missing}; the columns are {shorten_names(columns)}; {TEXT_FIELD_HINT}"
            )

        def rows() -> Iterator[Row]:
            number = 0
            for batch in table.iter_batches(batch_size=ROWS_AT_ONCE):
                for row in batch.to_pylist():
                    number += 1
                    yield (
                        number,
                        {key: value for key, cell in row.items() if (value := _value(cell)) is not None},
                    )

        yield from documents_of(file, rows(), options, report)


def _value(cell: object) -> object | None:
    """Convert `cell` to a JSON value; return None if JSON has none for it."""
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return float(cell) if cell.is_finite() else None
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    if isinstance(cell, str | bool | int):
        return cell
    if isinstance(cell, list):
        return [value for one in cell if (value := _value(one)) is not None]
    if isinstance(cell, Mapping):
        return {str(key): value for key, one in cell.items() if (value := _value(one)) is not None}
    return None
