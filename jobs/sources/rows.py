"""Turns rows of named fields, from JSON, JSON Lines or a table, into documents."""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from jobs.sources.files import SourceFile
from jobs.sources.model import (
    EMPTY,
    SourceDocument,
    SourceError,
    SourceOptions,
    SourceReport,
    metadata_of,
    shorten_names,
)
from jobs.sources.texts import document_of
from retrieval.wire.decoding import why_not_json

Row = tuple[int, "Mapping[str, object] | SourceError"]
"""The line a row starts on, and its fields or why they cannot be read."""

KINDS = {
    dict: "an object",
    list: "a list",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
}
ALL = ("*",)  # the text fields option that makes the whole row text
TEXT_FIELD_HINT = "--text-field says which holds the text, --text-field '*' that all do"
# Fields of documents in the API. A table may have columns of these names with another meaning.
UNUSED = {
    "vector": "is not used: ingest embeds the text; --vector-field vector sends it instead",
    "expires_at": "becomes metadata; --expires-field expires_at lets documents expire by it",
    "language": "becomes metadata; --language-field language makes it the documents' language",
}
_decoder = msgspec.json.Decoder()  # rejects NaN, unlike the standard library


def read_jsonl(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Yield the documents of a JSONL file. Blank lines are skipped."""
    rows = (
        (number, content if isinstance(content, SourceError) else _object(file, number, content))
        for number, content in file.lines(options.document_bytes_max)
        if isinstance(content, SourceError) or content.strip()
    )
    return documents_of(file, rows, options, report)


def read_json(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Read the objects of a JSON file as rows if any has a text, else the whole file as one text."""
    text = file.text(options.document_bytes_max)
    if not text.strip():
        report.skip(file.place(), EMPTY)
        return
    try:
        value = _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise file.error(f"not JSON: {str(error).removeprefix('JSON is malformed: ')}") from error
    rows = value if isinstance(value, list) else [value]
    if any(isinstance(row, dict) and has_text(row, options) for row in rows):
        objects = [row if isinstance(row, dict) else file.error("expected objects alone") for row in rows]
        yield from documents_of(file, enumerate(objects, 1), options, report)
    else:
        yield from document_of(file, text, {}, None, report)


def _object(file: SourceFile, number: int, content: bytes) -> Mapping[str, object] | SourceError:
    try:
        line = file.decode(content, number).strip()
    except SourceError as error:
        return error
    try:
        value = _decoder.decode(line)
    except RecursionError:
        return file.error("not JSON: nested too deeply", number, len(line) + 1)
    except msgspec.DecodeError as error:
        # The decoder reports the byte where it stopped, unless the line is truncated.
        stopped = re.search(r" \(byte (\d+)\)", str(error))
        before = line.encode()[: int(stopped[1])].decode("utf-8", "ignore") if stopped else line
        words = why_not_json(error, line.encode())
        reason = re.sub(r" \(byte \d+\)", "", words).removeprefix("JSON is malformed: ")
        return file.error(f"not JSON: {reason}", number, len(before) + 1)
    return value if isinstance(value, dict) else file.error("expected a JSON object", number)


def documents_of(
    file: SourceFile, rows: Iterator[Row], options: SourceOptions, report: SourceReport
) -> Iterator[SourceDocument]:
    """Yield the documents of `rows`. Rows without text and title are skipped and counted; each bad row fails alone.

    Rows with more metadata keys than the service accepts are one failure of the file. If the first row is one, it is
    raised before anything is sent.
    """
    numbered = False
    noted: set[str] = set()
    read, wide = 0, [0, 0, 0]  # wide rows: their number, the first of them, its keys
    for line, fields in rows:
        try:
            if isinstance(fields, SourceError):
                raise fields
            document = _document(file, line, fields, options, report)
        except SourceError as error:
            report.fail(error)
            continue
        if document is None:
            report.skip(file.place(line), EMPTY)
            continue
        if (keys := _count_keys(document.metadata)) > options.metadata_keys_max:
            if not read:
                raise _too_wide(file, line, keys, fields, options)
            wide = [wide[0] + 1, wide[1] or line, wide[2] or keys]
            continue
        read += 1
        for field, said in UNUSED.items():
            left = field in document.metadata or (field == "vector" and not options.vector_field)
            if left and field not in noted and fields.get(field) not in (None, ""):
                noted.add(field)
                report.note(f"{file.place(line)}: the field {field!r} {said}")
        if options.vector_field and document.vector is None and options.vector_field not in noted:
            noted.add(options.vector_field)
            report.note(
                f"{file.place(line)}: no field '{options.vector_field}', so this text is to be embedded, and others "
                "without it"
            )
        if not numbered and id_field_in(fields, options) is None:
            numbered = True
            report.note(
                f"{file.place(line)}: no field 'id', so rows get ids like {document.id!r}; they follow the position: "
                "only append to this file, or name an id with --id-field"
            )
        yield document
    if wide[0]:
        report.fail(
            _too_wide(file, wide[1], wide[2], {}, options, f"; so are {wide[0]:,} rows in all, not sent")
        )


def _count_keys(metadata: Mapping[str, object]) -> int:
    """Count metadata keys as the service does: including those of nested objects, without empty values."""
    count, left = 0, [*metadata.values()]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left.extend(value.values())
        else:
            count += value is not None
    return count


def _too_wide(
    file: SourceFile,
    line: int,
    keys: int,
    fields: Mapping[str, object],
    options: SourceOptions,
    more: str = "",
) -> SourceError:
    columns = f": {shorten_names(fields)}" if fields else ""
    return file.error(
        f"{keys:,} columns would become metadata, and the service takes {options.metadata_keys_max}{more}; "
        f"--columns names those to keep, --skip-columns those to leave out{columns}",
        line,
    )


def has_text(fields: Collection[str], options: SourceOptions) -> bool:
    """Whether a row with these fields has a text field."""
    return options.text_fields == ALL or any(field in fields for field in options.text_fields)


def _document(
    file: SourceFile, line: int, fields: Mapping[str, object], options: SourceOptions, report: SourceReport
) -> SourceDocument | None:
    def text_of(field: str) -> str:
        value = fields.get(field)
        if value is not None and not isinstance(value, str):
            raise file.error(f"field '{field}': expected a string, found {KINDS[type(value)]}", line)
        return value or ""

    report.note_fields(fields, options)
    if not has_text(fields, options):
        missing = ", ".join(f"'{field}'" for field in options.text_fields)
        found = shorten_names(fields) or "none"
        raise file.error(f"no field {missing}; found: {found}; {TEXT_FIELD_HINT}", line)
    if options.text_fields == ALL:
        text = lines_of(
            {key: value for key, value in fields.items() if key not in _roles(fields, options)}, options
        )
    else:
        text = "\n\n".join(text for text in map(text_of, options.text_fields) if text.strip())
    title = text_of(options.title_field)
    if not text and not title.strip():
        return None
    return SourceDocument(
        id=_id(file, line, fields, options),
        text=text,
        title=title or None,
        metadata=_metadata(fields, options, report),
        expires_at=_expires_at(file, line, fields, options),
        language=text_of(options.language_field) if options.language_field else None,
        vector=_vector(file, line, fields, options),
        source=file.place(line),
        bytes_read=file.bytes_read,
    )


def lines_of(fields: Mapping[str, object], options: SourceOptions) -> str:
    """Return a row as text, a line `column: value` for each nonblank cell."""
    written = (
        (key, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for key, value in fields.items()
        if value is not None and key not in options.skip_columns
    )
    return "\n".join(f"{key}: {value}" for key, value in written if value.strip())


def _id(file: SourceFile, line: int, fields: Mapping[str, object], options: SourceOptions) -> str:
    field = id_field_in(fields, options)
    if field is None:
        return f"{file.found.name}#{line}"
    value = fields.get(field)
    if value is None or value == "":
        raise file.error(f"no id: field '{field}' is {'empty' if field in fields else 'missing'}", line)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise file.error(
            f"field '{field}': expected a string or an integer, found {KINDS[type(value)]}", line
        )
    return f"{file.found.name}/{value}" if options.prefix_ids else str(value)


def _expires_at(
    file: SourceFile, line: int, fields: Mapping[str, object], options: SourceOptions
) -> str | int | None:
    value = fields.get(options.expires_field) if options.expires_field else None
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise file.error(
            f"field '{options.expires_field}': expected a date, or milliseconds since 1970, "
            f"found {KINDS[type(value)]}",
            line,
        )
    return value


def _vector(
    file: SourceFile, line: int, fields: Mapping[str, object], options: SourceOptions
) -> str | Sequence[float] | None:
    """Return the row's own vector, whose numbers the client checks; None if it has none."""
    value = fields.get(options.vector_field) if options.vector_field else None
    if value is not None and not isinstance(value, list | array | str):
        raise file.error(
            f"field '{options.vector_field}': expected a list of numbers, or base64, found {KINDS[type(value)]}",
            line,
        )
    return value


def id_field_in(fields: Collection[str], options: SourceOptions) -> str | None:
    """Return the field that holds the id; None means that rows are numbered."""
    # BEIR collections and document stores call it "_id".
    return options.id_field or next((field for field in ("id", "_id") if field in fields), None)


def _metadata(
    fields: Mapping[str, object], options: SourceOptions, report: SourceReport
) -> dict[str, object]:
    """Return the other fields, updated with those of an object field `metadata`. The service validates the values."""
    taken = {*_roles(fields, options), *options.text_fields}
    others = {key: value for key, value in fields.items() if key not in taken}
    nested = others.get("metadata")
    if isinstance(nested, dict):
        del others["metadata"]
        others |= nested
    return metadata_of(others, options, report)


def _roles(fields: Collection[str], options: SourceOptions) -> set[str | None]:
    """Return the fields that are neither text nor metadata, including vectors."""
    own = {options.title_field, options.expires_field, options.language_field, options.vector_field, "vector"}
    return {id_field_in(fields, options), *own}
