"""JSON Lines: one object a line."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from jobs.sources.files import SourceFile
from jobs.sources.model import SourceDocument, SourceError, SourceOptions, SourceReport
from jobs.sources.rows import Row, documents_of

_decoder = msgspec.json.Decoder()  # refuses NaN, which the standard library lets through


def read_jsonl(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """The documents of a JSONL file. Blank lines are passed over."""
    return documents_of(file, _rows(file, options), options, report)


def _rows(file: SourceFile, options: SourceOptions) -> Iterator[Row]:
    for number, content in file.lines(options.document_bytes_max):
        if isinstance(content, SourceError):
            yield number, content
        elif content.strip():
            try:
                yield number, _object(file, number, content)
            except SourceError as error:
                yield number, error


def _object(file: SourceFile, number: int, content: bytes) -> dict[str, object]:
    line = file.decode(content, number).strip()
    try:
        value = _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else _reason(error)
        raise file.error(f"not JSON: {reason}", number, _column(line, error)) from error
    if not isinstance(value, dict):
        raise file.error("expected a JSON object", number)
    return value


def _reason(error: Exception) -> str:
    return re.sub(r" \(byte \d+\)", "", str(error)).removeprefix("JSON is malformed: ")


def _column(line: str, error: Exception) -> int:
    """Where the decoder stopped, in characters from 1; past the end where the line is cut short."""
    stopped = re.search(r"\(byte (\d+)\)", str(error))
    if stopped is None:
        return len(line) + 1
    return len(line.encode()[: int(stopped[1])].decode("utf-8", "ignore")) + 1
