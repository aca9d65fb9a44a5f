"""Reads files that are one document each: plain text, source code, reStructuredText, and Markdown with front matter."""

from __future__ import annotations

import re
from collections.abc import Iterator

from indexes.base.model import ACL_HEAD_CHARS, NAMES_ACL
from jobs.sources.files import SourceFile, language_of
from jobs.sources.front_matter import split_front_matter
from jobs.sources.generated import find_generated_code
from jobs.sources.model import EMPTY, SourceDocument, SourceOptions, SourceReport, metadata_of


def read_text(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Read the file as one document titled by its path; none if it is blank."""
    yield from document_of(file, file.text(options.document_bytes_max), {}, None, report)


def read_markdown(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Read the file as one document: front matter becomes metadata, the rest is text, headings included.

    The title is the first of: `title` in the front matter, the first heading, the file's path. A blank file with a
    title in its front matter is a document too.
    """
    found = split_front_matter(file.text(options.document_bytes_max))
    if found.problem and NAMES_ACL.search(found.text, 0, found.block_chars or ACL_HEAD_CHARS):
        raise file.error(
            f"its front matter names an acl and cannot be read, so everybody could see it: {found.problem}"
        )
    if found.problem:
        report.note(f"{file.place()}: front matter that cannot be read stays in the text: {found.problem}")
    metadata = dict(found.metadata)
    title = metadata.pop("title", None) if isinstance(metadata.get("title"), str | int | float) else None
    metadata = metadata_of(metadata, options, report)
    heading = first_heading(found.text[found.block_chars :])
    yield from document_of(file, found.text, metadata, str(title or "") or heading, report)


def read_code(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Read a source file unchanged, titled by its path; metadata has its `programming_language`."""
    text = file.text(options.document_bytes_max)
    if not (file.found.named or options.include_generated) and (skip := find_generated_code(text)):
        report.skip(file.place(), skip)
        return
    yield from document_of(
        file, text, {"programming_language": language_of(file.found.path.name)}, None, report
    )


def read_rst(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Read a reStructuredText file, with its section titles as Markdown headings; the first one is the title."""
    text = rst_headings(file.text(options.document_bytes_max))
    yield from document_of(file, text, {}, first_heading(text), report)


def document_of(
    file: SourceFile, text: str, metadata: dict[str, object], title: str | None, report: SourceReport
) -> Iterator[SourceDocument]:
    if not text.strip() and not title:
        report.skip(file.place(), EMPTY)
        return
    yield SourceDocument(
        id=file.found.name,
        text=text,
        title=title or file.found.name,
        metadata=metadata,
        source=file.place(),
        bytes_read=file.bytes_read,
    )


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_MARKED = re.compile(r" {0,3}#{1,6}[ \t]+")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-{2,})[ \t]*\Z")
_RUNNING = re.compile(
    r" {0,3}[^\s\-*+>|#=`~]"
)  # text that can be underlined: not a list, quote, table or code


def first_heading(text: str) -> str | None:
    """Return the first Markdown heading, `# like this` or underlined; headings inside fenced code do not count."""
    fence = previous = ""
    for line in text.split("\n"):
        opened = _FENCE.match(line)
        if fence:
            if opened and opened[1].startswith(fence):
                fence = ""
            continue
        if opened:
            fence, previous = opened[1], ""
            continue
        if marked := _MARKED.match(line):
            title = line[marked.end() :].strip()
            without = title.rstrip("#")
            title = (without if without[-1:].isspace() else title).strip()
            if title.strip("#"):
                return title
        if _RUNNING.match(previous) and _UNDERLINE.match(line):
            return previous.strip()
        previous = line
    return None


# A title underlined at least over its length, optionally overlined with the same mark.
_RST_TITLE = re.compile(
    r"^(?:(?P<over>(?P<mark>[!-/:-@\[-`{-~])(?P=mark){2,})[ \t]*\n)?[ ]{0,3}(?P<title>\S[^\n]*)\n"
    r"(?P<under>(?P<line>[!-/:-@\[-`{-~])(?P=line){2,})[ \t]*$",
    re.MULTILINE,
)
_RST_LEVELS_MAX = 6


def rst_headings(text: str) -> str:
    """Replace underlined titles by `# headings`; levels follow the order in which styles first appear."""
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
