"""Files that are one document each: plain text, and Markdown with front matter."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobs.sources.columns import infer
from jobs.sources.files import SourceFile
from jobs.sources.model import SourceDocument, SourceOptions, SourceReport


def read_text(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """The file as one document titled by its path; none if it is blank."""
    yield from _document(file, file.text(options.document_bytes_max), {}, None, report)


def read_markdown(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """The file as one document: front matter becomes metadata, the rest is text, headings included.

    The title is the first of: `title` in the front matter, the first heading, the file's path. A blank file with a
    title in its front matter is a document too.
    """
    metadata, text = split_front_matter(file.text(options.document_bytes_max))
    title = metadata.pop("title", None)
    yield from _document(file, text, metadata, str(title) if title else first_heading(text), report)


def _document(
    file: SourceFile, text: str, metadata: dict[str, object], title: str | None, report: SourceReport
) -> Iterator[SourceDocument]:
    if not text.strip() and not title:
        report.empty += 1
        report.note(f"{file.place()}: no text, skipped")
        return
    yield SourceDocument(
        id=file.found.name,
        text=text,
        title=title or file.found.name,
        metadata=metadata,
        source=file.place(),
        bytes_read=file.bytes_read,
    )


_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_SIMPLE_LINE = re.compile(r"([A-Za-z_][\w.-]*):[ \t]+(\S.*?)[ \t]*")


def split_front_matter(text: str) -> tuple[dict[str, object], str]:
    """The simple `key: value` lines of a leading `---` block, and the text after it.

    This parses the flat subset of YAML that filters can use: nested values and multi-line lists are dropped. A block
    that is unclosed or does not begin with a key is text (most likely a horizontal rule).
    """
    block = _FRONT_MATTER.match(text)
    if block is None:
        return {}, text
    lines = [line for line in block[1].split("\n") if line.strip() and not line.lstrip().startswith("#")]
    if lines and not re.match(r"[A-Za-z_][\w.-]*:(?:\s|$)", lines[0]):
        return {}, text
    metadata: dict[str, object] = {}
    for line in lines:
        if (simple := _SIMPLE_LINE.fullmatch(line)) and (value := _value(simple[2])) is not None:
            metadata[simple[1]] = value
    return metadata, text[block.end() :]


def _value(written: str) -> object | None:
    if written[0] in "\"'" and written[-1] == written[0] and len(written) > 1:
        return written[1:-1]
    if written in {"|", ">", "|-", ">-", "null", "~"} or written[0] in "{&*!":
        return None
    if written[0] == "[":
        items = [item.strip().strip("\"'") for item in written[1:-1].split(",")]
        return [item for item in items if item] or None if written[-1] == "]" else None
    written = re.sub(r"\s+#.*$", "", written)
    return infer([written]).value(written)


_FENCED_CODE = re.compile(r"^ {0,3}(```+|~~~+).*?(?:^ {0,3}\1|\Z)", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(
    r"^ {0,3}#{1,6}[ \t]+(?P<marked>.+?)[ \t]*#*[ \t]*$"
    # Only running text can be underlined (setext), not a list, quote, table or code.
    r"|^ {0,3}(?P<underlined>[^\s\-*+>|#=`~].*)\n {0,3}(?:=+|-{2,})[ \t]*$",
    re.MULTILINE,
)


def first_heading(text: str) -> str | None:
    """The first Markdown heading, `# like this` or underlined; headings inside fenced code do not count."""
    found = _HEADING.search(_FENCED_CODE.sub("", text))
    return (found["marked"] or found["underlined"]).strip() if found else None
