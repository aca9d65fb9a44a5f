"""Reads messages from .eml files and mailboxes (.mbox). Attachments are read like files of their kind."""

from __future__ import annotations

import contextlib
import email
import email.policy
import mimetypes
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from email.message import EmailMessage, MIMEPart
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import Any

from jobs.sources.document_readers import charset_of, page_text
from jobs.sources.files import FoundFile, SourceFile, format_of, strip_gz
from jobs.sources.model import OTHER_KIND, SourceDocument, SourceError, SourceOptions, SourceReport
from jobs.sources.readers import EXTRA_READERS, TEXT_READERS

HEADERS = {"from": "From", "to": "To", "list": "List-Id"}
HEADER_CHARS_MAX = 500
NAME_CHARS_MAX = 200  # of attachments
DEPTH_MAX = 3  # of messages attached to messages
READERS = {**TEXT_READERS, **EXTRA_READERS}  # of attachments


def read_mail(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Read a message as one document, titled by its subject, followed by the documents of its attachments."""
    content = file.content(options.extracted_bytes_max)
    yield from _documents(file, content, None, 1, options, report)


def read_mailbox(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Yield a document for each message, `FILE#MESSAGE-ID`, and those of its attachments. Unreadable ones fail
    alone."""
    for number, (line, message) in enumerate(_messages(file, options), 1):
        try:
            if isinstance(message, SourceError):
                raise message
            yield from _documents(file, message, number, line, options, report)
        except SourceError as error:
            report.fail(error)


def _messages(file: SourceFile, options: SourceOptions) -> Iterator[tuple[int, bytes | SourceError]]:
    """Yield each message with the line that it starts on. A line `From ...` at the start or below a blank line begins
    one."""
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


def _documents(
    file: SourceFile,
    content: bytes,
    number: int | None,
    line: int,
    options: SourceOptions,
    report: SourceReport,
    depth: int = 0,
) -> Iterator[SourceDocument]:
    try:
        message = email.message_from_bytes(content, policy=email.policy.default)
        body, text = _body(message)
        text = text.replace("\0", "")
        subject, message_id = _header(message, "Subject"), _header(message, "Message-ID").strip("<> ")
        metadata: dict[str, object] = {
            key: value for key, name in HEADERS.items() if (value := _header(message, name))
        }
        if date := _date(message):
            metadata["date"] = date
        attachments = _attachments(message, body)
    except Exception as error:
        raise file.error(f"not a message that can be read: {error}", line) from error
    if not message.keys():
        raise file.error("not a message: it has no headers", line)
    if len(text.encode("utf-8", "replace")) > options.document_bytes_max:
        raise file.error(
            f"its text is larger than the {options.document_bytes_max:,} bytes of a document", line
        )
    document = SourceDocument(
        id=file.found.name if number is None else f"{file.found.name}#{message_id or number}",
        text=text.encode("utf-8", "replace").decode(),
        title=subject or file.found.name,
        metadata=metadata,
        source=file.place(None if number is None else line),
        bytes_read=file.bytes_read,
    )
    yield document
    names: set[str] = set()
    for at, part in enumerate(attachments, 1):
        name = _name(part, at)
        unique = f"{at}-{name}" if name in names else name
        names.add(unique)
        yield from _read_attachment(document, name, unique, part, options, report, depth)


def _read_attachment(
    message: SourceDocument,
    name: str,
    unique: str,
    part: EmailMessage,
    options: SourceOptions,
    report: SourceReport,
    depth: int,
) -> Iterator[SourceDocument]:
    """Read an attachment by its kind of file; its documents also get the message's metadata. `unique` is its name, with
    its number if another one has the same."""
    place, kind = f"{message.source}:{unique}", format_of(name)
    if kind == "mail" and depth >= DEPTH_MAX:
        report.fail(
            SourceError(place, f"more than {DEPTH_MAX + 1} messages, each attached to the one before")
        )
        return
    if kind not in READERS and kind != "mail":
        report.other_files[PurePosixPath(strip_gz(name)).suffix or "without an ending"] += 1
        report.skip(place, OTHER_KIND)
        return
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"attachment{''.join(PurePosixPath(name.lower()).suffixes[-2:])}"
            path.write_bytes(_content(part))
            found = FoundFile(path, f"{message.id}/{unique}", kind, path.stat().st_size, place=place)
            with contextlib.closing(SourceFile(found, options.encoding)) as file:
                inside = replace(options, prefix_ids=True)
                if kind == "mail":
                    content = file.content(options.extracted_bytes_max)
                    read = _documents(file, content, None, 1, inside, report, depth + 1)
                else:
                    read = READERS[kind](file, inside, report)
                for one in read:
                    metadata = {**message.metadata, **one.metadata, "attachment": name, "message": message.id}
                    yield replace(one, metadata=metadata, bytes_read=message.bytes_read)
    except SourceError as error:
        report.fail(error)
    except (MemoryError, GeneratorExit):
        raise
    except Exception as error:  # noqa: BLE001 - any error of a library concerns this attachment only
        report.fail(SourceError(place, f"cannot be read as {kind}: {error}"))


def _name(part: EmailMessage, at: int) -> str:
    """Return the attachment's file name, or its number if it has none. An extension for the content type is added
    unless the name has one that tells how to read it."""
    named = PurePosixPath((_filename(part) or "").replace("\\", "/").replace("\0", "")).name
    kind = part.get_content_type()
    if named and (format_of(named) or kind == "application/octet-stream"):
        return named[-NAME_CHARS_MAX:]
    ending = ".eml" if kind == "message/rfc822" else mimetypes.guess_extension(kind) or ""
    ended = f"{named or at}{ending}"
    return (named if named and format_of(ended) is None else ended)[-NAME_CHARS_MAX:]


def _filename(part: EmailMessage) -> str | None:
    try:
        name = part.get_filename()
    except Exception:  # noqa: BLE001 - as in `_header`
        return None
    return name and name.encode("utf-8", "replace").decode()


def _content(part: EmailMessage) -> bytes:
    payload: Any = part.get_payload()
    if part.get_content_type() == "message/rfc822" and isinstance(payload, list) and payload:
        return bytes(payload[0])
    decoded = part.get_payload(decode=True)
    return decoded if isinstance(decoded, bytes) else b""


def _body(message: EmailMessage) -> tuple[MIMEPart | None, str]:
    """Return the body and its text: plain text, or the HTML body's if that is missing or blank."""
    if message.get_content_maintype() == "multipart" and not message.is_multipart():  # it names no boundary
        return message, _text_of(message)
    bodies = [body for kind in ("plain", "html") if (body := message.get_body((kind,))) is not None]
    for body in bodies:
        if (text := _text_of(body)).strip():
            return body, text
    return (bodies[0] if bodies else None), ""


def _attachments(message: EmailMessage, body: MIMEPart | None) -> list[Any]:
    """Return all parts except the body: the message itself if it is a file or another message, and has no parts. The
    standard library would also leave out a second body."""
    if body is None and message.get_content_maintype() != "multipart":
        return [message]
    if message.get_content_type() != "multipart/mixed" or not message.is_multipart():
        return [*message.iter_attachments()]
    return [part for part in message.iter_parts() if all(one is not body for one in part.walk())]


def _text_of(body: MIMEPart) -> str:
    content = body.get_payload(decode=True)
    content = content if isinstance(content, bytes) else b""
    try:
        text = content.decode(body.get_content_charset() or "utf-8")
    except (LookupError, UnicodeDecodeError):
        text = content.decode(charset_of(content), "replace")
    text = text.replace("\r\n", "\n")
    return page_text(text)[1] if body.get_content_type() == "text/html" else text


def _header(message: EmailMessage, name: str) -> str:
    try:
        value = str(message[name] or "")
    except Exception:  # noqa: BLE001 - treat an unparsable header as absent
        return ""
    return " ".join(value.encode("utf-8", "replace").decode().replace("\0", "").split())[:HEADER_CHARS_MAX]


def _date(message: EmailMessage) -> str | None:
    try:
        return parsedate_to_datetime(_header(message, "Date")).isoformat()
    except (TypeError, ValueError):
        return None
