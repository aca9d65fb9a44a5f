"""From a row of named fields, whether out of JSONL or CSV, to a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from indexes.errors import InvalidInput
from jobs.sources.files import SourceFile
from jobs.sources.model import MetadataValue, SourceDocument, SourceOptions, SourceReport

Row = tuple[int, "Mapping[str, object] | InvalidInput"]
"""The line a row starts on, and its fields or why they cannot be read."""


def documents_of(
    file: SourceFile, rows: Iterator[Row], options: SourceOptions, report: SourceReport
) -> Iterator[SourceDocument]:
    """The documents of `rows`. Those without text are skipped and counted; so are bad ones, if lenient."""
    for line, fields in rows:
        try:
            if isinstance(fields, InvalidInput):
                raise fields
            document = _document(file, line, fields, options)
        except InvalidInput as error:
            if not options.lenient:
                raise
            report.unreadable += 1
            report.note(f"{error.message}; skipped")
            continue
        if document is None:
            report.empty += 1
            report.note(f"{file.place(line)}: no text, skipped")
        else:
            yield document


def _document(
    file: SourceFile, line: int, fields: Mapping[str, object], options: SourceOptions
) -> SourceDocument | None:
    if options.text_field not in fields:
        raise file.error(f"no field '{options.text_field}'; found: {', '.join(fields) or 'none'}", line)
    text = _text(file, line, options.text_field, fields)
    if text is None or not text.strip():
        return None
    return SourceDocument(
        id=_id(file, line, fields, options),
        text=text,
        title=_text(file, line, options.title_field, fields) or None,
        metadata=_metadata(file, line, fields, options),
        source=file.place(line),
        bytes_read=file.bytes_read,
    )


def _text(file: SourceFile, line: int, field: str, fields: Mapping[str, object]) -> str | None:
    value = fields.get(field)
    if value is None or isinstance(value, str):
        return value
    raise file.error(f"field '{field}': expected a string, found {_kind(value)}", line)


def _id(file: SourceFile, line: int, fields: Mapping[str, object], options: SourceOptions) -> str:
    field = _id_field(fields, options)
    value = fields.get(field)
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is not None and value != "":
        raise file.error(f"field '{field}': expected a string or an integer, found {_kind(value)}", line)
    if options.number_rows:
        return f"{file.found.name}#{line}"
    raise file.error(f"no id: field '{field}' is missing or empty", line)


def _id_field(fields: Mapping[str, object], options: SourceOptions) -> str:
    # "_id" is what the BEIR collections call it, and what document stores export.
    if options.id_field == "id" and "id" not in fields and "_id" in fields:
        return "_id"
    return options.id_field


def _metadata(
    file: SourceFile, line: int, fields: Mapping[str, object], options: SourceOptions
) -> dict[str, MetadataValue]:
    """The values of the object `metadata`, which must be flat, over the other flat fields if wanted."""
    given = fields.get("metadata")
    nested = given if isinstance(given, dict) else {}
    taken = {_id_field(fields, options), options.text_field, options.title_field}
    metadata: dict[str, MetadataValue] = {}
    if options.other_fields:
        for key, value in fields.items():
            if key not in taken and (flat := _flat(value)) is not None:
                metadata[key] = flat
    for key, value in nested.items():
        if value is None:
            continue
        if (flat := _flat(value)) is None:
            raise file.error(
                f"metadata '{key}': expected a string, number, boolean or list of strings, "
                f"found {_kind(value)}",
                line,
            )
        metadata[key] = flat
    return metadata


def _flat(value: object) -> MetadataValue | None:
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return None


def _kind(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
    }
    return names.get(type(value), "null")
