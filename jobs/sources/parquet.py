"""Reads Parquet files: a document for each row, with the columns' own types. Needs the extra `files`."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

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

        own = options.vector_field
        if own:
            _require_vectors(file, table.schema_arrow, own)

        def rows() -> Iterator[Row]:
            number = 0
            for batch in table.iter_batches(batch_size=ROWS_AT_ONCE):
                vectors = list(_vectors(batch.column(own))) if own else []
                for at, row in enumerate(batch.drop_columns([own] if own else []).to_pylist()):
                    number += 1
                    cells = {key: value for key, cell in row.items() if (value := _value(cell)) is not None}
                    yield number, cells | ({own: vectors[at]} if own else {})

        yield from documents_of(file, rows(), options, report)


def _require_vectors(file: SourceFile, schema: Any, field: str) -> None:
    from pyarrow import types

    if field not in schema.names:
        raise file.error(
            f"no column '{field}'; the columns are {shorten_names(schema.names)}; --vector-field says which holds the "
            "vectors"
        )
    kind = schema.field(field).type
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not (lists or types.is_string(kind) or types.is_large_string(kind)):
        raise file.error(f"column '{field}' holds {kind}, expected lists of numbers, or base64 as strings")


def _vectors(column: Any) -> Iterator[object]:
    """Yield the vectors of a column. Those without gaps are arrays, which take a hundredth of the time that Python's
    numbers take."""
    import numpy as np
    import pyarrow as pa

    for cell in column:
        # The base of all kinds of lists; of a structure, `values` is something else.
        values: Any = cell.values if isinstance(cell, pa.ListScalar) else None
        numbers = values is not None and not values.null_count
        if numbers and (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
            with np.errstate(over="ignore"):
                yield array("f", values.to_numpy(zero_copy_only=False).astype(np.float32).tobytes())
        else:
            yield cell.as_py()


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
