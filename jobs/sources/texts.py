"""Files that are one document each: plain text, source code, reStructuredText, and Markdown with front matter."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobs.sources.columns import infer
from jobs.sources.files import SourceFile, language_of
from jobs.sources.model import SourceDocument, SourceOptions, SourceReport


def read_text(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """The file as one document titled by its path; none if it is blank."""
    yield from document_of(file, file.text(options.document_bytes_max), {}, None, report)


def read_markdown(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """The file as one document: front matter becomes metadata, the rest is text, headings included.

    The title is the first of: `title` in the front matter, the first heading, the file's path. A blank file with a
    title in its front matter is a document too.
    """
    metadata, text = split_front_matter(file.text(options.document_bytes_max))
    title = metadata.pop("title", None)
    yield from document_of(file, text, metadata, str(title) if title else first_heading(text), report)


def read_code(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """A source file as it is, titled by its path; metadata has its `programming_language`."""
    text = file.text(options.document_bytes_max)
    yield from document_of(
        file, text, {"programming_language": language_of(file.found.path.name)}, None, report
    )


def read_rst(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """A reStructuredText file whose section titles are made Markdown headings; the title is the first of them."""
    text = rst_headings(file.text(options.document_bytes_max))
    yield from document_of(file, text, {}, first_heading(text), report)


def document_of(
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


# A title of running text, underlined at least as far as it goes, perhaps overlined alike.
_RST_TITLE = re.compile(
    r"^(?:(?P<over>(?P<mark>[!-/:-@\[-`{-~])(?P=mark){2,})[ \t]*\n)?[ ]{0,3}(?P<title>\S[^\n]*)\n"
    r"(?P<under>(?P<line>[!-/:-@\[-`{-~])(?P=line){2,})[ \t]*$",
    re.MULTILINE,
)
_RST_LEVELS_MAX = 6


def rst_headings(text: str) -> str:
    """`text` with `# headings` in place of underlined titles; levels follow the order in which styles first appear."""
    styles: list[str] = []

    def heading(found: re.Match[str]) -> str:
        title, under, over = found["title"].rstrip(), found["under"], found["over"]
        if len(under) < len(title) or (over and over[0] != under[0]) or not re.search(r"\w", title):
            return found[0]
        style = under[0] * (2 if over else 1)
        if style not in styles:
            styles.append(style)
        return f"{'#' * min(styles.index(style) + 1, _RST_LEVELS_MAX)} {title}\n"

    return _RST_TITLE.sub(heading, text)
