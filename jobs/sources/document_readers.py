"""Extracts the text of HTML, PDF, DOCX, EPUB and PPTX files as Markdown. Needs the extra `files`.

Markdown keeps the headings, which passages carry. Kreuzberg reads all formats: one package of native code, without
models, network or dependencies. HTML is reduced to its main content first.
"""

from __future__ import annotations

import codecs
import io
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from jobs.sources.chapters import decode_chapter_names
from jobs.sources.files import ENCODING_HINT, SourceFile
from jobs.sources.generated import REDIRECTION
from jobs.sources.hidden_parts import HIDDEN_SLIDE, empty_hidden_slides
from jobs.sources.model import SourceDocument, SourceOptions, SourceReport
from jobs.sources.texts import document_of, first_heading

MIME_TYPES = {
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "epub": "application/epub+zip",
    "html": "text/html",
    "pdf": "application/pdf",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
ZIPPED = {"docx", "epub", "pptx", "xlsx"}
OLDER_OFFICE = b"\xd0\xcf\x11\xe0"  # .doc, .xls, .ppt, and encrypted files of the newer formats
DEPTH_MAX, TEXT_DEPTH = 48, 1000  # of elements in the main part; kreuzberg reads some 60
INLINE = "b, big, br, code, em, font, i, kbd, mark, s, small, span, strong, sub, sup, tt, u, var, wbr"
# Boilerplate around the text of a page: HTML elements, ARIA roles, and classes of common generators.
BOILERPLATE = (
    "script, style, noscript, template, iframe, svg, img, nav, footer, form, button, dialog, menu, "
    "[hidden], [aria-hidden=true], [aria-modal=true], [style*='display:none'], [style*='display: none'], "
    "[role=navigation], [role=banner], [role=contentinfo], [role=search], [role=complementary], [role=dialog], "
    "[role=alertdialog], [role=menu], [role=menubar], [role=toolbar], [role=tooltip], "
    ".navheader, .navfooter, .docnav, .sphinxsidebar, .related, .headerlink, .toc, "
    ".skip-link, .skip-to-content, .skip-to-main, .sr-only, .visually-hidden, "
    "#mdbook-help-container, #mdbook-help-popup, #searchbox, "
    # rustdoc, and links beside headings
    ".anchor, .doc-anchor, .hash-link, .heading-anchor, .anchorjs-link, .test-arrow, .hideme, .src.rightside, a:empty"
)
MAIN = "main, [role=main]"
ARTICLE = "article"
HEADINGS_IN_HEADER = "header h1, header h2"
# Around the text these are boilerplate; within it they are the head of an article, or a remark.
OUTER_BOILERPLATE = "header, aside"
TEXT_PARTS = ("main", "article", "section")
MAIN_SHARE_MIN = 0.3  # of the page's text: less is a teaser
CHARSET = re.compile(rb"""<meta[^>]{0,200}charset=["']?\s*([\w.:-]+)""", re.IGNORECASE)
# A page that redirects at once; with a longer delay it shows something first.
REFRESH = re.compile(
    rb"""<meta[^>]{0,200}http-equiv=["']?refresh["']?[^>]{0,50}content=["']?\s{0,9}0\s{0,9};""", re.IGNORECASE
)
HEAD_BYTES = 4096
WINDOWS = "cp1252"

# A fenced block, which is kept, or a link or image, which is replaced by its text.
_BLOCK_OR_LINK = re.compile(
    r"^(?P<fence>```+|~~~+).*?(?:^(?P=fence)[^\n]*$|\Z)|!?\[(?P<words>[^\[\]]*)\]\([^()\s]*(?: \"[^\"]*\")?\)",
    re.DOTALL | re.MULTILINE,
)
_LEADERS = re.compile(r"(?: ?\.){5,}")  # of tables of contents


def read_html(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Read a page as one document: its main part, headings included, without menus, scripts and forms."""
    content = file.content(options.document_bytes_max)
    charset = charset_of(content, options.encoding)
    try:
        page = content.decode(charset)
    except UnicodeDecodeError as error:
        raise file.error(f"neither UTF-8 nor {charset} text; {ENCODING_HINT}") from error
    if charset == WINDOWS != options.encoding:
        report.note(f"{file.place()}: names no charset that fits; read as {WINDOWS}; {ENCODING_HINT}")
    if REFRESH.search(content[:HEAD_BYTES]) and not (file.found.named or options.include_generated):
        report.skip(file.place(), REDIRECTION)
        return
    title, text = page_text(page)
    yield from document_from(file, text, {}, title, options, report)


def read_book(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Read a DOCX, EPUB or PPTX file as one document; slide titles become headings, hidden slides are skipped."""
    content = file.content(options.extracted_bytes_max)
    if zipfile.is_zipfile(io.BytesIO(content)):  # otherwise `extract_markdown` raises the reason
        if file.found.format == "pptx":
            content, hidden = empty_hidden_slides(content)
            for name in hidden:
                report.skip(f"{file.place()}:{name}", HIDDEN_SLIDE)
        elif file.found.format == "epub":
            content = decode_chapter_names(content)
    found = extract_markdown(content, file.found.format)
    yield from document_from(file, strip_links(found.content), found.metadata, None, options, report)


def read_pdf(file: SourceFile, options: SourceOptions, report: SourceReport) -> Iterator[SourceDocument]:
    """Read a PDF as one document with each page below a heading such as `Page 3`; `pages` counts them."""
    from kreuzberg import PageConfig

    found = extract_markdown(
        file.content(options.extracted_bytes_max), "pdf", pages=PageConfig(extract_pages=True)
    )
    pages = [
        (page["page_number"], page["content"].replace("\r\n", "\n").strip()) for page in found.pages or ()
    ]
    text = "\n\n".join(f"# Page {number}\n\n{_LEADERS.sub(' ...', page)}" for number, page in pages if page)
    if pages and not text:
        raise file.error("holds no text: its pages are images, and none is recognized here")
    yield from document_from(file, text, {**found.metadata, "pages": len(pages)}, None, options, report)


def page_text(page: str) -> tuple[str | None, str]:
    """Return the title and main text of an HTML page, as Markdown without links."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(page)
    named = tree.css_first("title")
    title = " ".join(named.text().split()) if named else ""
    body = tree.body
    if body is None:
        return title or None, ""
    if not body.css("main h1, [role=main] h1, article h1"):
        for heading in body.css(HEADINGS_IN_HEADER):
            heading.parent.insert_before(heading)
    for node in body.css(BOILERPLATE):
        if node.tag != "body":
            node.decompose()
    for node in body.css(OUTER_BOILERPLATE):
        if not is_within(node, TEXT_PARTS):
            node.decompose()
    mains = [node for node in innermost(body.css(MAIN)) if node.text().strip()]
    if len(mains) == 1:
        main = mains[0]
    else:
        outer = [node for node in body.css(f"{MAIN}, {ARTICLE}") if not is_within(node, TEXT_PARTS[:2])]
        alone = len(outer) == 1 and len(outer[0].text()) >= MAIN_SHARE_MIN * len(body.text())
        main = outer[0] if alone else body
    main.unwrap_tags(["a"])
    flatten(tree, main)
    for summary in main.css("summary"):
        if summary.css_first("h1, h2, h3, h4, h5, h6"):  # otherwise the heading becomes bold text
            summary.unwrap()
    text = extract_markdown(f"<html><body>{main.html}</body></html>".encode(), "html").content
    return title or first_heading(text), strip_links(text)


def flatten(tree: Any, main: Any) -> None:
    """Replace elements that are nested too deep by what is in them, in lines of its own: kreuzberg drops them, with
    their text."""
    deep, inside = [], [(main, 0)]
    while inside:
        node, depth = inside.pop()
        if depth == TEXT_DEPTH:  # no person wrote this, and unwrapping takes the square of the depth
            node.replace_with(node.text(separator=" "))
            continue
        inside += [(one, depth + 1) for one in node.iter()]
        if depth > DEPTH_MAX:
            deep.append(node)
    for node in deep:
        if not node.css_matches(INLINE):
            node.insert_before(tree.create_node("br"))
            node.insert_after(tree.create_node("br"))
        if node.tag != "br":
            node.unwrap()


def innermost(nodes: Sequence[Any]) -> list[Any]:
    """Return the elements that hold no other one of them."""
    around: set[int] = set()
    for node in nodes:
        outer = node
        while (outer := outer.parent) is not None and outer.mem_id not in around:
            around.add(outer.mem_id)
    return [node for node in nodes if node.mem_id not in around]


def is_within(node: Any, tags: Collection[str]) -> bool:
    """Whether one of the element's ancestors has one of these tags."""
    while (node := node.parent) is not None:
        if node.tag in tags:
            return True
    return False


def strip_links(text: str) -> str:
    """Replace links and images in Markdown by their text, because URLs only dilute the content of a passage."""
    return _BLOCK_OR_LINK.sub(lambda found: found[0] if found["fence"] else found["words"], text)


def charset_of(content: bytes, fallback: str | None = None) -> str:
    """Return the charset of a page: by its byte order mark, else the first that fits of the one it names, `fallback`
    and UTF-8, else Windows's."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if content.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    named = CHARSET.search(content[:HEAD_BYTES])
    for charset in (named[1].decode("ascii", "replace") if named else None, fallback, "utf-8"):
        try:
            if charset:
                content.decode(charset)
                return charset
        except (LookupError, ValueError):  # no charset of text, or not this one
            continue
    return WINDOWS


def extract_markdown(content: bytes, kind: str, **config: Any) -> Any:
    from kreuzberg import ExtractionConfig, extract_bytes_sync

    if kind in ZIPPED and not zipfile.is_zipfile(io.BytesIO(content)):
        raise ValueError(_explain_not_zipped(content))
    wanted = ExtractionConfig(output_format="markdown", use_cache=False, disable_ocr=True, **config)
    return extract_bytes_sync(content, MIME_TYPES[kind], config=wanted)


def _explain_not_zipped(content: bytes) -> str:
    if content.startswith(OLDER_OFFICE):
        return "it is encrypted, or in the older format without the x in its name"
    return "it is damaged or cut short" if content.startswith(b"PK") else "it is another kind of file"


def document_from(
    file: SourceFile,
    text: str,
    found: Mapping[str, Any],
    title: str | None,
    options: SourceOptions,
    report: SourceReport,
) -> Iterator[SourceDocument]:
    text = text.replace("\0", "")
    if len(text.encode()) > options.document_bytes_max:
        raise file.error(
            f"its text is larger than the {options.document_bytes_max:,} bytes a document may have"
        )
    metadata = {
        key: found[name]
        for key, name in (("authors", "authors"), ("created", "created_at"), ("pages", "pages"))
        if found.get(name)
    }
    title = title or str(found.get("title") or "") or (None if "pages" in metadata else first_heading(text))
    if not text.strip():
        title = None  # a title without text is no content
    yield from document_of(file, text, metadata, title, report)
