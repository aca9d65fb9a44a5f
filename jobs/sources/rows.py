"""From a row of named fields, whether out of JSONL or CSV, to a document."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from jobs.sources.files import SourceFile
from jobs.sources.model import SourceDocument, SourceError, SourceOptions, SourceReport

Row = tuple[int, "Mapping[str, object] | SourceError"]
"""The line a row starts on, and its fields or why they cannot be read."""


def documents_of(
    file: SourceFile, rows: Iterator[Row], options: SourceOptions, report: SourceReport
) -> Iterator[SourceDocument]:
    """The documents of `rows`. Those without text are skipped and counted; bad ones fail, each by itself."""
    numbered = vectors = False
    for line, fields in rows:
        try:
            if isinstance(fields, SourceError):
                raise fields
            document = _document(file, line, fields, options)
        except SourceError as error:
            report.fail(error)
            continue
        if document is None:
            report.empty += 1
            report.note(f"{file.place(line)}: no text, skipped")
            continue
        if not vectors and fields.get("vector") is not None:
            vectors = True
            report.note(f"{file.place(line)}: the field 'vector' is not used: ingest embeds the text")
        if not numbered and id_field_in(fields, options) is None:
            numbered = True
            report.note(
                f"{file.place(line)}: no field 'id', so rows get ids like {document.id!r}; they follow the position: "
                "only append to this file, or name an id with --id-field"
            )
        yield document


def _document(
    file: SourceFile, line: int, fields: Mapping[str, object], options: SourceOptions
) -> SourceDocument | None:
    if not any(field in fields for field in options.text_fields):
        missing = ", ".join(f"'{field}'" for field in options.text_fields)
        found = ", ".join(fields) or "none"
        raise file.error(f"no field {missing}; found: {found}; --text-field says which holds the text", line)
    texts = (_text(file, line, field, fields) for field in options.text_fields)
    text = "\n\n".join(text for text in texts if text is not None and text.strip())
    if not text:
        return None
    return SourceDocument(
        id=_id(file, line, fields, options),
        text=text,
        title=_text(file, line, options.title_field, fields) or None,
        metadata=_metadata(fields, options),
        source=file.place(line),
        bytes_read=file.bytes_read,
    )


def _text(file: SourceFile, line: int, field: str, fields: Mapping[str, object]) -> str | None:
    value = fields.get(field)
    if value is None or isinstance(value, str):
        return value
    raise file.error(f"field '{field}': expected a string, found {_kind(value)}", line)


def _id(file: SourceFile, line: int, fields: Mapping[str, object], options: SourceOptions) -> str:
    field = id_field_in(fields, options)
    if field is None:
        return f"{file.found.name}#{line}"
    value = fields.get(field)
    prefix = f"{file.found.name}/" if options.prefix_ids else ""
    if isinstance(value, str) and value:
        return prefix + value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{prefix}{value}"
    if value is not None and value != "":
        raise file.error(f"field '{field}': expected a string or an integer, found {_kind(value)}", line)
    raise file.error(f"no id: field '{field}' is {'empty' if field in fields else 'missing'}", line)


def id_field_in(fields: Collection[str], options: SourceOptions) -> str | None:
    """Which of the fields holds the id; None if rows are to be numbered."""
    # "_id" is what the BEIR collections call it, and what document stores export.
    return options.id_field or next((field for field in ("id", "_id") if field in fields), None)


def _metadata(fields: Mapping[str, object], options: SourceOptions) -> dict[str, object]:
    """The object `metadata` over the other fields if wanted. What may be in there is for the service to say."""
    given = fields.get("metadata")
    nested = given if isinstance(given, dict) else {}
    # A vector belongs to the model that made it; ingest embeds the text.
    taken = {id_field_in(fields, options), *options.text_fields, options.title_field, "vector"}
    if given is nested:
        taken.add("metadata")
    others = {key: value for key, value in fields.items() if options.other_fields and key not in taken}
    return others | nested


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
