"""Reads Parquet and Arrow files: a document for each row, with the columns' own types. Needs the extra `files`.

Rows are read a few hundred at a time, so a file may be larger than memory.
"""

from __future__ import annotations

import base64
import contextlib
import math
from array import array
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from indexes.base.model import ACL
from jobs.sources.files import SourceFile
from jobs.sources.model import SourceDocument, SourceOptions, SourceReport, named_twice, shorten_names
from jobs.sources.rows import TEXT_FIELD_HINT, Row, documents_of, has_text

ROWS_AT_ONCE = 256
ARROW_FILE = b"ARROW1"  # what a file begins with that is no stream


def read_parquet(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Yield the documents of the file, its rows numbered from 1. Bytes and durations are dropped; dates become ISO
    8601, down to microseconds; maps become objects."""
    from pyarrow.parquet import ParquetFile

    if file.found.path.suffix.lower() == ".gz":
        raise file.error("a Parquet file within gzip; it is compressed by itself, so unpack it")
    with ParquetFile(file.found.path) as table:
        rows, done = max(table.metadata.num_rows, 1), 0

        def batches() -> Iterator[Any]:
            nonlocal done
            for batch in table.iter_batches(batch_size=ROWS_AT_ONCE):
                done += batch.num_rows
                file.advance(file.found.size_bytes * done // rows)
                yield batch

        yield from _documents(file, table.schema_arrow, batches(), options, report)


def read_arrow(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Yield the documents of an Arrow file, a Feather file of version 2, or a stream saved as a file, as
    `read_parquet` does."""
    import pyarrow as pa

    if file.found.path.suffix.lower() == ".gz":
        raise file.error("an Arrow file within gzip, which is not read from its beginning on; unpack it")
    with contextlib.ExitStack() as opened:
        # Not mapped: that counts as memory, which is limited.
        source = opened.enter_context(pa.OSFile(str(file.found.path)))
        is_file = source.read(len(ARROW_FILE)) == ARROW_FILE
        source.seek(0)
        reader: Any = opened.enter_context((pa.ipc.open_file if is_file else pa.ipc.open_stream)(source))
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader

        def some() -> Iterator[Any]:
            of = reader.num_record_batches if is_file else 0
            for number, batch in enumerate(batches, 1):
                file.advance(file.found.size_bytes * number // of if of else source.tell())
                for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                    yield batch.slice(start, ROWS_AT_ONCE)

        yield from _documents(file, reader.schema, some(), options, report)


def _documents(
    file: SourceFile, schema: Any, batches: Iterator[Any], options: SourceOptions, report: SourceReport
) -> Iterator[SourceDocument]:
    if not has_text(schema.names, options):
        missing = ", ".join(f"'{field}'" for field in options.text_fields)
        raise file.error(
            f"no column {missing}; the columns are {shorten_names(schema.names)}; {TEXT_FIELD_HINT}"
        )
    if twice := named_twice(schema.names):
        raise file.error(f"several columns have one name: {twice}")
    report.note_fields(schema.names, options)
    own = options.vector_field
    if own:
        _require_vectors(file, schema, own)

    def rows() -> Iterator[Row]:
        number = 0
        for batch in batches:
            columns = [
                list(_vectors(column) if name == own else _values(file, name, column))
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            ]
            for cells in zip(*columns, strict=True):
                number += 1
                yield (
                    number,
                    {
                        key: cell
                        for key, cell in zip(schema.names, cells, strict=True)
                        if cell is not None or key == ACL or key in options.text_fields
                    },
                )

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
    """Yield the vectors of a column: as base64 where they are finite, else as what the client refuses. Without gaps
    between their numbers, they are never numbers of Python."""
    import numpy as np
    from pyarrow import compute, types

    numbers = None if types.is_string(column.type) or types.is_large_string(column.type) else column.flatten()
    if numbers is None or numbers.null_count or not _is_number(numbers.type):
        yield from column.to_pylist()
        return
    with np.errstate(over="ignore"):
        floats = numbers.to_numpy(zero_copy_only=False).astype("<f4")
    finite = np.isfinite(floats)
    start = 0
    for length in compute.list_value_length(column).to_pylist():
        if length is None:
            yield None
            continue
        end = start + length
        content = floats[start:end].tobytes()
        yield base64.b64encode(content).decode() if finite[start:end].all() else array("f", content)
        start = end


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_integer(kind))


def _values(file: SourceFile, name: str, column: Any) -> Iterator[object | None]:
    """Yield the JSON values of a column."""
    import pyarrow as pa

    try:
        # Python's dates have no nanoseconds, and Arrow refuses to drop them unless told to.
        kind = _without_nanoseconds(column.type)
        cells = (column if kind == column.type else column.cast(kind, safe=False)).to_pylist(
            maps_as_pydicts="lossy"
        )
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise file.error(f"column '{name}' holds {column.type} that cannot be read: {error}") from error
    yield from map(_value, cells)


def _without_nanoseconds(kind: Any) -> Any:
    """Return `kind` with microseconds in place of nanoseconds, also within lists, maps and objects."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz) if kind.unit == "ns" else kind
    if types.is_time64(kind):
        return pa.time64("us")
    if types.is_duration(kind):
        return pa.duration("us") if kind.unit == "ns" else kind
    if types.is_map(kind):
        return pa.map_(_without_nanoseconds(kind.key_type), _without_nanoseconds(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_without_nanoseconds(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_nanoseconds(kind.value_type)))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_without_nanoseconds(kind.value_type)))
    return kind


def _value(cell: object) -> object | None:
    """Convert `cell` to a JSON value; return None if JSON has none for it."""
    if cell is None or isinstance(cell, str | bool | int):
        return cell
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    if isinstance(cell, Decimal):
        return float(cell) if cell.is_finite() else None
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    if isinstance(cell, list):
        return [value for one in cell if (value := _value(one)) is not None]
    if isinstance(cell, Mapping):
        return {str(key): value for key, one in cell.items() if (value := _value(one)) is not None}
    return None
