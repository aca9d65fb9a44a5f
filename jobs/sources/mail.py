"""Messages: an .eml file is one, a mailbox (.mbox) holds many."""

from __future__ import annotations

import email
import email.policy
from collections.abc import Iterator
from email.message import EmailMessage
from email.utils import parsedate_to_datetime

from jobs.sources.extracted import decoded, page_text
from jobs.sources.files import SourceFile
from jobs.sources.model import SourceDocument, SourceError, SourceOptions, SourceReport

HEADERS = {"from": "From", "to": "To", "list": "List-Id"}
HEADER_CHARS_MAX = 500


def read_mail(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """The message as one document, titled by its subject."""
    yield _document(file, file.content(options.extracted_bytes_max), None, 1, options)


def read_mailbox(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """A document for each message, `FILE#MESSAGE-ID`; each that cannot be read fails on its own."""
    for number, (line, message) in enumerate(_messages(file, options), 1):
        try:
            if isinstance(message, SourceError):
                raise message
            yield _document(file, message, number, line, options)
        except SourceError as error:
            report.fail(error)


def _messages(file: SourceFile, options: SourceOptions) -> Iterator[tuple[int, bytes | SourceError]]:
    """Each message and the line that it starts on. A line `From ...` at the start or below a blank line begins one."""
    begun, lines, size = 0, [b""], 0
    failed: SourceError | None = None
    for number, line in file.lines(options.extracted_bytes_max):
        if isinstance(line, SourceError):
            failed = line
            continue
        if line.startswith(b"From ") and (not begun or not lines[-1].strip()):
            if begun:
                yield begun, failed or b"".join(lines)
            begun, lines, size, failed = number, [b""], 0, None
            continue
        size += len(line)
        if not begun:
            raise file.error("not a mailbox: expected a line 'From ...' first", number)
        if size > options.extracted_bytes_max:
            failed, lines = (
                file.error(f"a message larger than {options.extracted_bytes_max:,} bytes", begun),
                [b""],
            )
        lines.append(line if failed is None else line[:1])
    if begun:
        yield begun, failed or b"".join(lines)


def _document(
    file: SourceFile, content: bytes, number: int | None, line: int, options: SourceOptions
) -> SourceDocument:
    try:
        message = email.message_from_bytes(content, policy=email.policy.default)
        text = _text(message).replace("\0", "")
        subject, message_id = _header(message, "Subject"), _header(message, "Message-ID").strip("<> ")
        metadata = {key: value for key, name in HEADERS.items() if (value := _header(message, name))}
        if date := _date(message):
            metadata["date"] = date
    except Exception as error:
        raise file.error(f"not a message that can be read: {error}", line) from error
    if not message.keys():
        raise file.error("not a message: it has no headers", line)
    if len(text.encode("utf-8", "replace")) > options.document_bytes_max:
        raise file.error(
            f"its text is larger than the {options.document_bytes_max:,} bytes of a document", line
        )
    return SourceDocument(
        id=file.found.name if number is None else f"{file.found.name}#{message_id or number}",
        text=text.encode("utf-8", "replace").decode(),
        title=subject or file.found.name,
        metadata=metadata,
        source=file.place(None if number is None else line),
        bytes_read=file.bytes_read,
    )


def _text(message: EmailMessage) -> str:
    """The plain text of the body; of a body in HTML only, that of its page."""
    body = message.get_body(("plain", "html"))
    if body is None:
        return ""
    content = body.get_payload(decode=True)
    content = content if isinstance(content, bytes) else b""
    try:
        text = content.decode(body.get_content_charset() or "utf-8")
    except (LookupError, UnicodeDecodeError):
        text = decoded(content)
    text = text.replace("\r\n", "\n")
    return page_text(text)[1] if body.get_content_type() == "text/html" else text


def _header(message: EmailMessage, name: str) -> str:
    try:
        value = str(message[name] or "")
    except Exception:  # noqa: BLE001 - a header that the parser chokes on is one that is not there
        return ""
    return " ".join(value.encode("utf-8", "replace").decode().replace("\0", "").split())[:HEADER_CHARS_MAX]


def _date(message: EmailMessage) -> str | None:
    try:
        return parsedate_to_datetime(_header(message, "Date")).isoformat()
    except (TypeError, ValueError):
        return None
