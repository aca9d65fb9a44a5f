"""Files of the extra `files`: what is read of each format, and that one that is broken or hostile fails alone."""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import re
import resource
import zipfile
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from email.message import EmailMessage
from pathlib import Path
from time import thread_time
from urllib.parse import quote
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from indexes.base.errors import InvalidInput
from jobs.sources import SourceOptions, SourceReport, sandbox
from jobs.sources.document_readers import TEXT_DEPTH, charset_of, page_text, strip_links
from jobs.sources.extraction import CPU_S_MIN, CPU_S_PER_MB, extract
from jobs.sources.files import FoundFile, SourceFile
from jobs.sources.sandbox import Sandbox
from jobs.sources.texts import rst_headings
from tests.jobs.test_sources import put, read
from tests.support.files import docx, eml, epub, hiding, pdf, pptx, xlsx

PAGE = """<html><head><title>Refunds &amp; returns</title><script>var x = 1;</script></head><body>
<header><h1>Refunds</h1><a href="/">Home</a></header><nav><a href="/a">Products</a></nav>
<div><h2>How long</h2><p>You have <a href="/days">fourteen days</a> to send it back.</p>
<pre><code class="language-c">int main() { return a[0](1); }</code></pre>
<table><tr><th>Item</th><th>Days</th></tr><tr><td>Lamp</td><td>30</td></tr></table></div>
<aside>Buy more.</aside><footer>Imprint</footer></body></html>"""


def test_a_page_is_its_main_text(tmp_path: Path) -> None:
    """Headings, tables and code stay as Markdown; menus, scripts, the footer and addresses of links do not."""
    put(tmp_path, "page.html", PAGE)
    ((one,), report) = read(tmp_path)
    assert (report.failed, one.title, one.id) == ([], "Refunds & returns", f"{tmp_path.name}/page.html")
    assert one.text.startswith("# Refunds\n")
    assert "## How long" in one.text
    assert "You have fourteen days to send it back." in one.text
    assert "return a[0](1);" in one.text
    assert "| Lamp | 30   |" in one.text
    for left_out in ["var x", "Products", "Buy more", "Imprint", "/days"]:
        assert left_out not in one.text


@pytest.mark.parametrize("depth", [3, 30, 61, 100, 400, 1500])
@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("<div>w{0}. ", "</div>"),
        ("<ul><li>w{0}. ", "</ul>"),
        ("<div><blockquote>w{0}. ", "</blockquote></div>"),
        ("<table><tr><td>w{0}. ", "</td></tr></table>"),
        ("<span>w{0}. ", "</span>"),
    ],
    ids=["div", "list", "quote", "table", "span"],
)
def test_text_is_read_however_deep(begin: str, end: str, depth: int) -> None:
    """A long thread of replies is nested deep, and so are tables that lay out a page."""
    page = "".join(map(begin.format, range(depth))) + "<b>in</b>most" + end * depth + "<p>last"
    text = page_text(f"<html><body>{page}</body></html>")[1]
    assert [one for one in range(depth) if f"w{one}." not in text] == []
    assert text.replace("**", "").split()[-1] == "last"
    assert depth > TEXT_DEPTH or "inmost" in re.sub(r"\W", "", text)


@pytest.mark.parametrize(
    "tag", ["<main>", "<article>", "<header>", "<footer>", "<ul><li>", "<div role=main>"]
)
def test_elements_that_are_never_closed(tag: str) -> None:
    """Each is inside all before it; comparing it with each of them would take half a minute of CPU."""
    page = f"<html><body>{f'{tag}word ' * 16_000}"
    begun = thread_time()
    page_text(page)
    assert thread_time() - begun < 10


def test_the_main_part_of_a_page() -> None:
    """`main` is taken where it is most of the page, and not where it is one teaser of many."""
    text = "A sentence of some length. " * 10
    assert "Around" not in page_text(f"<div>Around</div><main><p>{text}</p></main>")[1]
    assert "A sentence" in page_text(f"<article>Teaser</article><p>{text}</p>")[1]
    assert page_text("") == (None, "")


@pytest.mark.parametrize(
    "around",
    [
        "<div role='dialog'>{}</div>", "<div role='navigation'>{}</div>", "<div aria-hidden='true'>{}</div>",
        "<div hidden>{}</div>", "<dialog>{}</dialog>", "<div style='color:red;display:none'>{}</div>",
        "<div id='mdbook-help-popup'>{}</div>", "<div aria-modal='true'>{}</div>", "<a class='skip-link'>{}</a>",
        "<div role='tooltip'>{}</div>", "<menu>{}</menu>",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "main", ["<main>{}</main>", "<div role='main'>{}</div>", "<article>{}</article>", "{}"]
)
def test_what_stands_around_the_text(around: str, main: str) -> None:
    """It is left out inside the main part and beside it, also of a page that says little."""
    chrome = around.format("<h2>Keyboard shortcuts</h2><p>Press a key to go on.</p>")
    page = chrome + main.format(f"<h1>Title</h1><p>Short.</p>{chrome}")
    assert page_text(page)[1].split() == ["#", "Title", "Short."]


@pytest.mark.parametrize(
    "page",
    [
        "<main><header><h1>One</h1><p>two</p></header><p>three</p></main>",
        "<article><header><h1>One</h1><p>two</p></header><p>three</p></article>",
        "<main><h1>One</h1><aside>two</aside><p>three</p></main>",
        "<article><h1>One</h1></article><article>two</article><article>three</article>",
    ],
)
def test_what_belongs_to_the_text_is_read(page: str) -> None:
    """The head of an article, remarks beside it, and all articles of a page; not the head and the side of the page."""
    around = f"<header><p>Site</p></header>{page}<aside>Recent posts</aside>"
    assert page_text(around)[1].split() == ["#", "One", "two", "three"]


def test_no_cell_of_a_workbook_is_lost(tmp_path: Path) -> None:
    """Rows that are wider than the header, and a header without rows below."""
    wide = put(tmp_path, "wide.xlsx", xlsx(A=[["a"], ["one", "two"]]))
    beside = put(tmp_path, "beside.xlsx", xlsx(A=[["text", ""], ["one", "two"]]))
    assert {"a", "one", "two"} <= set(read(wide)[0][0].text.split())
    [row], _ = read(beside)
    assert (row.text, row.metadata) == ("one", {"column 2": "two"})


def test_a_heading_that_unfolds_is_a_heading() -> None:
    """As rustdoc has them; the summary of other details is text."""
    text = page_text("<details><summary><h4>fn new()</h4></summary><p>Makes one.</p></details>")[1]
    assert text.split("\n") == ["#### fn new()", "", "Makes one.", ""]
    assert "More" in page_text("<details><summary>More</summary><p>Words.</p></details>")[1]


@pytest.mark.parametrize(
    "content",
    [
        "Käse".encode(),
        b"\xef\xbb\xbfK\xc3\xa4se",
        "Käse".encode("utf-16"),
        b'<meta charset="iso-8859-15">K\xe4se',
        b"K\xe4se",
        b'<meta charset="no-such">K\xc3\xa4se',
    ],
)
def test_pages_of_any_charset(content: bytes) -> None:
    """The byte order mark counts, then what the page says, then UTF-8, then Windows text."""
    assert content.decode(charset_of(content)).endswith("Käse")


def test_links_leave_their_words() -> None:
    """Also images; not in code, where brackets mean something else."""
    text = 'See [the guide](guide.html "Guide") and ![a lamp](lamp.png).\n\n```\n[x](y)\n```\n[end](e)'
    assert strip_links(text) == "See the guide and a lamp.\n\n```\n[x](y)\n```\nend"


def test_word_and_epub(tmp_path: Path) -> None:
    """Headings are Markdown headings; the title is the file's own, else its first heading."""
    put(tmp_path, "a.docx", docx("Refunds", "You get your money back."))
    put(tmp_path, "b.epub", epub("The Book", ("One", "It began."), ("Two", "It ended.")))
    ((word, book), report) = read(tmp_path)
    assert report.failed == []
    assert (word.title, word.text.split()) == (
        "Refunds",
        ["#", "Refunds", "You", "get", "your", "money", "back."],
    )
    assert book.title == "The Book"
    assert book.text.index("# One") < book.text.index("It began.") < book.text.index("# Two")


@pytest.mark.parametrize("name", ["chapter 1", "été", "a&b", "a+b", "100%", "a%20b", "one"])
@pytest.mark.parametrize("encode", [quote, escape])
def test_chapters_of_any_name(tmp_path: Path, name: str, encode: Callable[[str], str]) -> None:
    """A book names its chapters by URLs; some write them as the files are called."""
    book = epub("The Book", ("One", "It began."), ("Two", "It ended."), names=(name, "two"), encode=encode)
    ((one,), report) = read(put(tmp_path, "b.epub", book))
    assert report.failed == []
    assert one.text.index("It began.") < one.text.index("It ended.")


def test_slides_are_sections(tmp_path: Path) -> None:
    """The title of each slide is a heading."""
    put(tmp_path, "a.pptx", pptx(("Refunds", "Within fourteen days."), ("Lamps", "They glow.")))
    ((one,), report) = read(tmp_path)
    assert report.failed == []
    assert one.title == "Refunds"
    assert one.text.split("\n") == [
        "## Refunds",
        "",
        "Within fourteen days.",
        "",
        "## Lamps",
        "",
        "They glow.",
        "",
    ]


def test_rows_of_a_workbook_name_their_columns(tmp_path: Path) -> None:
    """Each sheet is a section, and each row reads by itself; lines above the header are text."""
    book = xlsx(
        Prices=[
            ["All prices"],
            ["item", "price", "since"],
            ["Lamp", 12.5, date(2026, 1, 2)],
            ["Desk", None, time(14, 30)],
        ],
        Empty=[],
        Notes=[["Just a line"], ["Another"]],
    )
    ((one,), report) = read(put(tmp_path, "a.xlsx", book))
    assert report.failed == []
    assert one.text == (
        "# Prices\n\nAll prices\n\nitem: Lamp\nprice: 12.5\nsince: 2026-01-02 00:00:00\n\nitem: Desk\n"
        "since: 14:30:00\n\n# Notes\n\nJust a line\n\nAnother"
    )


def test_rows_of_a_workbook_are_documents_where_a_column_is_the_text(tmp_path: Path) -> None:
    """As in a table, with its types; the other sheets are one document."""
    book = xlsx(
        Faq=[
            ["id", "text", "stars", "zip"],
            ["q1", "How?", 5, "01234"],
            [None, "Why?", 4, "9"],
            ["q3", "So.", 3, "1"],
        ],
        Plain=[["text"], ["A row."]],
        Other=[["a", "b"], ["x", "y"]],
    )
    documents, report = read(put(tmp_path, "a.xlsx", book))
    assert [(one.id, one.text) for one in documents] == [
        ("q1", "How?"),
        ("q3", "So."),
        ("a.xlsx#Plain#2", "A row."),
        ("a.xlsx", "# Other\n\na: x\nb: y"),
    ]
    assert documents[0].metadata == {"stars": 5, "zip": "01234"}
    assert report.types == {"stars": ["number"], "zip": ["string"]}
    assert [one.reason for one in report.failed] == ["no id: field 'id' is empty"]
    documents, _ = read(tmp_path, options=SourceOptions(text_fields=("*",), title_field="a"))
    assert [one.text for one in documents][-1] == "b: y"


def changed(content: bytes, name: str, part: bytes, more: int = 0) -> bytes:
    """An archive with another content in one of its files, and so many files more."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for one in {*old.namelist(), name}:
            new.writestr(one, part if one == name else old.read(one))
        for at in range(more):
            new.writestr(f"more/{at}", b"")
    return made.getvalue()


ENTITY = b'<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><r>&x;</r>'
BOOK, TALK, NOVEL = xlsx(A=[["a", "b"], [1, 2]]), pptx(("One", "first")), epub("Book", ("One", "Text."))
STRINGS = (
    '<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">' + "<si><t>x</t></si>" * 300_000
)
HOSTILE: dict[str, tuple[bytes | Callable[[], bytes], str]] = {
    "entity.xlsx": (lambda: changed(BOOK, "xl/workbook.xml", ENTITY), "cannot be read"),
    "entity.pptx": (lambda: changed(TALK, "ppt/slides/slide1.xml", ENTITY), "cannot be read"),
    "bomb.xlsx": (lambda: changed(BOOK, "xl/worksheets/sheet1.xml", bytes(50_000_000)), "no text"),
    "start.pptx": (
        lambda: changed(TALK, "ppt/slides/slide1.xml", b"<p:sld " + b" " * 50_000_000),
        "cannot be read",
    ),
    "deep.pptx": (lambda: changed(TALK, "ppt/slides/slide1.xml", b"<a>" * 300_000), "nested too deeply"),
    "many.xlsx": (lambda: changed(BOOK, "more", b"", 20_000), "a: 1"),
    "strings.xlsx": (lambda: changed(BOOK, "xl/sharedStrings.xml", f"{STRINGS}</sst>".encode()), "a: 1"),
    "book.pptx": (BOOK, "no text"),
    "talk.xlsx": (TALK, "cannot be read"),
    "plain.epub": (b"Text.", "another kind of file"),
    "old.docx": (b"\xd0\xcf\x11\xe0" + bytes(600), "encrypted"),
    **{f"cut{at}.xlsx": (BOOK[: len(BOOK) * at // 10], "damaged or cut short") for at in range(1, 10, 4)},
    **{f"cut{at}.pptx": (TALK[: len(TALK) * at // 10], "damaged or cut short") for at in range(1, 10, 4)},
    **{f"cut{at}.epub": (NOVEL[: len(NOVEL) * at // 10], "damaged or cut short") for at in range(1, 10, 4)},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_uploads_that_attack(name: str) -> None:
    """End with a text, or with an error that names the file; neither reads other files nor takes long."""
    made, said = HOSTILE[name]
    content = made if isinstance(made, bytes) else made()
    found = extract(content, name, 1_000_000)
    assert found is not None
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        text = found.run()
    except InvalidInput as error:
        text = str(error)
        assert name in text
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert said in text
    assert "root:" not in text
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < CPU_S_MIN + CPU_S_PER_MB * len(content) / 1e6 + 1


def test_what_is_hidden_is_not_read(tmp_path: Path) -> None:
    """Sheets and slides are skipped by name; a file of nothing else says so."""
    rows = [["a", "b"], ["secret", "y"]]
    states = {"Old": "hidden", "Lists": "veryHidden"}
    book = put(
        tmp_path, "a.xlsx", xlsx(states, Old=rows, Lists=[["text"], ["secret"]], Open=[["a", "b"], [1, 2]])
    )
    slides = pptx(("One", "first"), ("Two", "secret"), ("Three", "third"))
    talk = put(tmp_path, "a.pptx", hiding(slides, "slide2"))
    documents, report = read(book, talk)
    assert [one.text.strip() for one in documents] == [
        "# Open\n\na: 1\nb: 2", "## One\n\nfirst\n\n## Three\n\nthird"
    ]  # fmt: skip
    assert [(one.source, one.reason) for one in report.skipped] == [
        (f"{book}:Lists", "hidden sheets"),
        (f"{book}:Old", "hidden sheets"),
        (f"{talk}:slide2", "hidden slides"),
    ]
    assert "skipped: 2 hidden sheets (a.xlsx:Lists, a.xlsx:Old)" in report.summary()
    uploaded = extract(xlsx({"Old": "hidden"}, Old=rows, Open=[]), "b.xlsx", 1000)
    assert uploaded is not None
    with pytest.raises(InvalidInput, match=r"b\.xlsx.*no text; skipped: Old \(hidden sheets\)"):
        uploaded.run()


def test_an_empty_workbook_is_named(tmp_path: Path) -> None:
    """As every file without text."""
    documents, report = read(put(tmp_path, "a.xlsx", xlsx(Empty=[])))
    assert (documents, report.skips) == ([], {"empty": 1})


def test_pages_of_a_pdf_are_headings(tmp_path: Path) -> None:
    """So that each passage says on which page it stands; packed ones are read, too."""
    put(tmp_path, "a.pdf.gz", gzip.compress(pdf("Refunds take a week.", "", "Lamps . . . . . . . . 7")))
    ((one,), report) = read(tmp_path)
    assert report.failed == []
    assert one.text == "# Page 1\n\nRefunds take a week.\n\n# Page 3\n\nLamps ... 7"
    assert one.metadata == {"pages": 3}
    assert one.title == f"{tmp_path.name}/a.pdf.gz"


def test_a_scanned_pdf_says_so(tmp_path: Path) -> None:
    """A file without any text is no success."""
    put(tmp_path, "scan.pdf", pdf("", ""))
    documents, report = read(tmp_path)
    assert documents == []
    assert "holds no text" in report.failed[0].reason


def test_a_mail_with_a_blank_text_is_read_from_its_page(tmp_path: Path) -> None:
    """As many newsletters are."""
    message = EmailMessage()
    message.set_content(" \n")
    message.add_alternative("<p>The words are here.</p>", subtype="html")
    [document], _ = read(put(tmp_path, "news.eml", bytes(message)))
    assert "The words are here." in document.text


def test_no_part_of_a_mail_is_lost(tmp_path: Path) -> None:
    """A second body is an attachment, and one that names no boundary is text."""
    parts = ["plain\r\n\r\none", "plain\r\n\r\ntwo", "html\r\n\r\n<p>three</p>"]
    raw = "".join(f"--B\r\nContent-Type: text/{part}\r\n" for part in parts)
    head = "Subject: s\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed"
    documents, _ = read(put(tmp_path, "a.eml", f"{head}; boundary=B\r\n\r\n{raw}--B--\r\n".encode()))
    assert [one.text.strip() for one in documents] == ["one", "two", "three"]
    [document], _ = read(put(tmp_path, "b.eml", f"{head}\r\n\r\nfour\r\n".encode()))
    assert document.text.strip() == "four"


def test_mail(tmp_path: Path) -> None:
    """Subject, text, sender and date; encoded words are decoded, of two forms the plain one is read."""
    put(
        tmp_path,
        "a.eml",
        "From: Ann <ann@example.org>\nTo: bob@example.org\nSubject: =?utf-8?q?K=C3=A4se?=\n"
        "Date: Fri, 4 May 2001 14:05:44 -0400\nMIME-Version: 1.0\n"
        'Content-Type: multipart/alternative; boundary="b"\n\n'
        "--b\nContent-Type: text/plain; charset=no-such\n\nPlain text.\n"
        "--b\nContent-Type: text/html\n\n<p>Rich text.</p>\n--b--\n",
    )
    put(tmp_path, "b.eml", "Subject: Rich\nContent-Type: text/html\n\n<h1>Rich</h1><p>text.</p>")
    put(tmp_path, "c.eml", "\n\nno headers")
    ((plain, rich), report) = read(tmp_path)
    assert (plain.title, plain.text.strip()) == ("Käse", "Plain text.")
    assert plain.metadata == {
        "from": "Ann <ann@example.org>",
        "to": "bob@example.org",
        "date": "2001-05-04T14:05:44-04:00",
    }
    assert rich.text.split() == ["#", "Rich", "text."]
    assert "no headers" in report.failed[0].reason


@pytest.mark.parametrize(
    ("named", "kind", "name"),
    [
        ("pic.png", "image/png", "pic.png"),
        ("photo.jpeg", "image/jpeg", "photo.jpeg"),
        ("old.tar.gz", "application/gzip", "old.tar.gz"),
        ("pic", "image/png", "pic"),
        ("v1.2", "application/pdf", "v1.2.pdf"),
        ("notes", "text/plain", "notes.txt"),
        ("TERMS.PDF", "application/octet-stream", "TERMS.PDF"),
        ("", "image/png", "1.png"),
        ("", "application/x-unknown", "1"),
    ],
)
def test_names_of_attachments(tmp_path: Path, named: str, kind: str, name: str) -> None:
    """What is skipped has the name that it was sent with; an ending is added where it says how to read the file."""
    message = EmailMessage()
    message.set_content("Text.")
    maintype, subtype = kind.split("/")
    message.add_attachment(b"x", maintype, subtype, filename=named or None)
    _, report = read(put(tmp_path, "a.eml", bytes(message)))
    ids = [one.id for one in read(tmp_path / "a.eml")[0]]
    said = [one.source for one in (*report.skipped, *report.failed)]
    assert [f"{tmp_path / 'a.eml'}:{name}"] == said or ids[1:] == [f"a.eml/{name}"]


def test_attachments_are_documents(tmp_path: Path) -> None:
    """Each as its kind of file is read, with the message's metadata; those that cannot be read are named."""
    inner = eml("Inner text.", ("note.md", b"---\nlang: en\n---\n# Note\n"), subject="Inner")
    path = put(
        tmp_path,
        "a.eml",
        eml(
            "See attached.",
            ("terms.pdf", pdf("Fourteen days.")),
            ("../../up.txt", b"First."),
            ("up.txt", b"Second."),
            ("prices.csv", b"id,text\n1,Lamp\n1,Desk\n"),
            ("rows.csv", b"text\nA row.\n"),
            ("inner.eml", inner),
            ("pic.png", b"\x89PNG"),
            ("bad.pdf", b"%PDF-1.4 no more"),
            ("latin.txt", b"K\xe4se"),
        ),
    )
    documents, report = read(path)
    assert [(one.id, one.text.strip()) for one in documents] == [
        ("a.eml", "See attached."),
        ("a.eml/terms.pdf", "# Page 1\n\nFourteen days."),
        ("a.eml/up.txt", "First."),
        ("a.eml/3-up.txt", "Second."),
        ("a.eml/prices.csv/1", "Lamp"),
        ("a.eml/rows.csv#2", "A row."),
        ("a.eml/inner.eml", "Inner text."),
        ("a.eml/inner.eml/note.md", "# Note"),
    ]
    assert documents[1].metadata == {
        "from": "ann@example.org", "pages": 1, "attachment": "terms.pdf", "message": "a.eml",
    }  # fmt: skip
    assert documents[7].metadata["lang"] == "en"
    assert documents[1].source == f"{path}:terms.pdf"
    assert report.skips == {"files of other kinds": 1}
    assert [one.source for one in report.failed] == [f"{path}:bad.pdf", f"{path}:latin.txt:1:2"]


def test_a_mail_that_is_nothing_but_a_file(tmp_path: Path) -> None:
    """As scanners and forwarding send them, without parts: the file is read, or named."""
    head = b"Subject: Scan\nMIME-Version: 1.0\nContent-Type: "
    inner = b"Subject: Inner\n\nInner text.\n"
    put(tmp_path, "forwarded.eml", head + b"message/rfc822\n\n" + inner)
    scan = base64.encodebytes(pdf("Fourteen days."))
    encoded = b"application/pdf; name=scan.pdf\nContent-Transfer-Encoding: base64\n\n"
    put(tmp_path, "scan.eml", head + encoded + scan)
    put(tmp_path, "tune.eml", head + b"audio/midi; name=tune.mid\n\nMThd")
    documents, report = read(tmp_path)
    texts = {one.id.removeprefix(f"{tmp_path.name}/"): one.text.strip() for one in documents}
    assert texts["forwarded.eml/1.eml"] == "Inner text."
    assert texts["scan.eml/scan.pdf"] == "# Page 1\n\nFourteen days."
    assert [one.source for one in report.skipped] == [f"{tmp_path / 'tune.eml'}:tune.mid"]


def test_attachments_of_a_mailbox(tmp_path: Path) -> None:
    """Each has an id below its message's. Messages that are attached too deep are reported as failures."""
    nested = b"Innermost."
    for _ in range(6):
        nested = eml("Outer.", ("next.eml", nested))
    put(tmp_path, "list.mbox", b"From a\n" + nested + b"\nFrom b\n" + eml("B.", ("x.txt", b"Text.")))
    documents, report = read(tmp_path)
    name = f"{tmp_path.name}/list.mbox"
    assert [one.id for one in documents][:2] == [f"{name}#1", f"{name}#1/next.eml"]
    assert documents[-1].id == f"{name}#2/x.txt"
    assert report.skips == {}
    assert [one.reason for one in report.failed] == ["more than 4 messages, each attached to the one before"]


def test_a_mailbox_has_a_document_for_each_message(tmp_path: Path) -> None:
    """By its Message-ID, so that messages before it may go; a `From` within a paragraph begins none."""
    put(
        tmp_path,
        "list.mbox",
        "From a Mon\nSubject: One\nMessage-ID: <1@x>\n\nFirst.\nFrom here on it rains.\n\n"
        "From b Tue\nSubject: Two\n\nSecond.\n\nFrom c Wed\nno headers\n",
    )
    put(tmp_path, "other.mbox", "no mailbox")
    ((one, two), report) = read(tmp_path)
    name = f"{tmp_path.name}/list.mbox"
    assert [(one.id, one.title), (two.id, two.title)] == [(f"{name}#1@x", "One"), (f"{name}#2", "Two")]
    assert "From here on" in one.text
    assert two.source == f"{tmp_path}/list.mbox:8"
    assert [failure.source for failure in report.failed] == [
        f"{tmp_path}/list.mbox:13",
        f"{tmp_path}/other.mbox:1",
    ]


def write_parquet(table: pa.Table, folder: Path) -> None:
    pq.write_table(table, folder / "rows.parquet")


def write_arrow(table: pa.Table, folder: Path) -> None:
    with pa.ipc.new_file(folder / "rows.arrow", table.schema) as writer:
        writer.write_table(table)


def write_stream(table: pa.Table, folder: Path) -> None:
    with pa.ipc.new_stream(folder / "rows.arrows", table.schema) as writer:
        writer.write_table(table, max_chunksize=1)


def write_feather(table: pa.Table, folder: Path) -> None:
    feather.write_feather(table, str(folder / "rows.feather"))


def test_a_row_whose_text_is_null_is_skipped(tmp_path: Path) -> None:
    """It is no failure, because the column is there."""
    write_parquet(pa.table({"id": ["1", "2", "3"], "text": ["a", None, ""], "n": [1, 2, 3]}), tmp_path)
    documents, report = read(tmp_path)
    assert [one.id for one in documents] == ["1"]
    assert (report.failed, sum(report.skips.values())) == ([], 2)


@pytest.mark.parametrize("write", [write_parquet, write_arrow, write_stream, write_feather])
def test_tables_with_types(tmp_path: Path, write: Callable[[pa.Table, Path], None]) -> None:
    """Columns keep their types; what JSON cannot hold becomes what it can, or is left out."""
    table = pa.table(
        {
            "id": ["a", "b"],
            "text": ["One.", "Two."],
            "when": [datetime(2026, 1, 2, tzinfo=UTC), None],
            "price": [Decimal("1.50"), Decimal(2)],
            "tags": [["x", "y"], []],
            "blob": [b"1", b"2"],
            "score": [1.5, float("nan")],
            "seen": pa.array([1_000_001_999, None], pa.timestamp("ns")),
            "steps": pa.array([[{"at": 1_999}], None], pa.list_(pa.struct([("at", pa.time64("ns"))]))),
            "labels": pa.array(
                [[("team", ["a"]), ("none", None)], []], pa.map_(pa.string(), pa.list_(pa.string()))
            ),
            "took": pa.array([1, 2], pa.duration("ns")),
        }
    )
    write(table, tmp_path)
    ((one, two), report) = read(tmp_path)
    assert report.failed == []
    assert (one.id, one.text) == ("a", "One.")
    assert one.metadata == {
        "when": "2026-01-02T00:00:00+00:00",
        "price": 1.5,
        "tags": ["x", "y"],
        "score": 1.5,
        "seen": "1970-01-01T00:00:01.000001",
        "steps": [{"at": "00:00:00.000001"}],
        "labels": {"team": ["a"]},
    }
    assert two.metadata == {"price": 2.0, "tags": [], "labels": {}}
    _, report = read(tmp_path, options=SourceOptions(text_fields=("body",)))
    assert "no column 'body'; the columns are id, text, when" in report.failed[0].reason


def test_a_column_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A date beyond the year 9999 and a time zone that does not exist fail the file, by the name of their column."""
    for name, kind, value in (
        ("late", pa.timestamp("s"), 2**62),
        ("where", pa.timestamp("us", "No/Where"), 1),
    ):
        write_arrow(pa.table({"id": ["a"], "text": ["One."], name: pa.array([value], kind)}), tmp_path)
        _, report = read(tmp_path)
        assert f"column '{name}' holds {kind} that cannot be read: " in report.failed[0].reason


def test_json_files(tmp_path: Path) -> None:
    """Objects that have a text are documents, alone or in a list; other JSON is a text itself."""
    put(tmp_path, "a.json", json.dumps([{"id": 1, "text": "One."}, {"id": 2, "text": "Two.", "n": 3}]))
    put(tmp_path, "b.json", json.dumps({"id": "x", "text": "Alone."}))
    put(tmp_path, "c.json", '{"name": "settings"}')
    put(tmp_path, "d.json", "[1, 2")
    documents, report = read(tmp_path)
    assert [one.id for one in documents] == ["1", "2", "x", f"{tmp_path.name}/c.json"]
    assert documents[1].metadata == {"n": 3}
    assert documents[3].text == '{"name": "settings"}'
    assert [(Path(one.source).name, one.reason[:8]) for one in report.failed] == [("d.json", "not JSON")]


def test_source_code_names_its_language(tmp_path: Path) -> None:
    """To filter by it."""
    put(tmp_path, "main.go", "package main")
    ((one,), _) = read(tmp_path)
    assert (one.text, one.metadata) == ("package main", {"programming_language": "go"})


def test_titles_of_rst_are_headings() -> None:
    """Levels follow the order of their first appearance; an underline that is too short makes none."""
    text = "====\nTop\n====\n\nIntro\n*****\n\nText\n\nDeep\n++++\n\nNext\n****\n\nNo title here\n---\n\n----\n\nEnd"
    assert rst_headings(text) == (
        "# Top\n\n\n## Intro\n\n\nText\n\n### Deep\n\n\n## Next\n\n\nNo title here\n---\n\n----\n\nEnd"
    )


# -- what is broken or hostile


def test_broken_files_fail_alone(tmp_path: Path) -> None:
    """Each is named with a reason on one line, and those after it are read."""
    put(tmp_path, "a.pdf", b"%PDF-1.4 and no more")
    put(tmp_path, "b.docx", b"PK\x03\x04 and no more")
    put(tmp_path, "c.epub", docx("Not", "a book"))
    put(tmp_path, "d.parquet", b"PAR1 and no more PAR1")
    put(tmp_path, "e.html.gz", gzip.compress(b"<p>cut short" * 100)[:-10])
    put(tmp_path, "z.html", "<p>Fine.")
    documents, report = read(tmp_path)
    assert [one.text.strip() for one in documents] == ["Fine."]
    assert [Path(one.source).name for one in report.failed] == [
        "a.pdf", "b.docx", "c.epub", "d.parquet", "e.html.gz",
    ]  # fmt: skip
    assert not any("\n" in one.reason for one in report.failed)


def test_a_file_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    """It fails within its process's memory, which is not this one's, and the next is read."""
    put(tmp_path, "a.docx", docx("Bomb", ""))
    with zipfile.ZipFile(tmp_path / "b.docx", "w", zipfile.ZIP_DEFLATED) as bomb:
        with zipfile.ZipFile(tmp_path / "a.docx") as parts:
            for name in parts.namelist():
                if name != "word/document.xml":
                    bomb.writestr(name, parts.read(name))
        with bomb.open("word/document.xml", "w") as part:
            for _ in range(300):
                part.write(b" " * 2**20)
    put(tmp_path, "z.html", "<p>Fine.")
    options = SourceOptions(extracting_memory_bytes_max=512 * 2**20)
    documents, report = read(tmp_path / "b.docx", tmp_path / "z.html", options=options)
    assert [one.text.strip() for one in documents] == ["Fine."]
    assert [Path(one.source).name for one in report.failed] == ["b.docx"]


def test_a_file_that_does_not_end(tmp_path: Path) -> None:
    """Time is up also while native code runs."""
    put(tmp_path, "a.html", "<div>" * 200_000)
    put(tmp_path, "b.html", "<p>Fine.")
    documents, report = read(tmp_path, options=SourceOptions(extracting_s_max=2))
    assert [one.text.strip() for one in documents] == ["Fine."]
    assert [Path(one.source).name for one in report.failed] == ["a.html"]


def test_what_is_left_in_the_middle_ends_its_process(tmp_path: Path) -> None:
    """Whoever stops reading leaves no process behind, and the next file is not answered with the rest of this."""
    mailbox = put(tmp_path, "a.mbox", "".join(f"From x\nSubject: {at}\n\nText.\n\n" for at in range(2000)))
    page = put(tmp_path, "b.html", "<p>Fine.")
    options, report = SourceOptions(), SourceReport()
    with contextlib.closing(Sandbox()) as reader:
        with contextlib.closing(SourceFile(FoundFile(mailbox, "a", "mailbox", 0))) as file:
            with contextlib.closing(reader.documents(file, options, report)) as documents:
                next(documents)
                child = reader._child
        assert child is not None
        assert child.poll() is not None
        with contextlib.closing(SourceFile(FoundFile(page, "b", "html", 0))) as file:
            (fine,) = reader.documents(file, options, report)
    assert fine.text.strip() == "Fine."


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are listed with what to install."""
    monkeypatch.setattr(sandbox, "NEEDS", ("no_such_package",))
    put(tmp_path, "a.pdf", pdf("Text."))
    put(tmp_path, "b.txt", "Fine.")
    documents, report = read(tmp_path)
    assert len(documents) == 1
    assert (
        report.failed[0].reason == "needs the extra files: in a checkout of Nearline, pip install '.[files]'"
    )


def test_an_acl_without_a_value_is_kept(tmp_path: Path) -> None:
    """The service then refuses the document, which everybody could see without its `acl`."""
    put(tmp_path, "cells.csv", "id,text,acl\n1,one,staff\n2,two,\n")
    put(tmp_path, "page.md", "---\nacl: ~\nother: ~\n---\nSome text.")
    put(tmp_path, "lines.jsonl", json.dumps({"id": "3", "text": "three", "acl": None}))
    put(tmp_path, "short.xlsx", xlsx(None, S=[["id", "text", "acl"], ["4", "four", "staff"], ["5", "five"]]))
    pq.write_table(pa.table({"id": ["6"], "text": ["six"], "acl": [None]}), tmp_path / "rows.parquet")
    documents, report = read(tmp_path)
    assert report.failed == []
    found = {one.text.strip(): dict(one.metadata) for one in documents}
    assert found == {
        "one": {"acl": "staff"},
        "two": {"acl": None},
        "Some text.": {"acl": None},
        "three": {"acl": None},
        "four": {"acl": "staff"},
        "five": {"acl": None},
        "six": {"acl": None},
    }


@pytest.mark.parametrize(
    "begin", ["---\nacl: [staff]\nbad: [\n---\n", "---\ntitle: x\nacl: [staff]\n", "+++\nacl = [\n+++\n"]
)
def test_broken_front_matter_with_an_acl_publishes_nothing(tmp_path: Path, begin: str) -> None:
    """The file fails by name; with another key in the place of the `acl` the block stays in the text."""
    put(tmp_path, "a.md", f"{begin}A secret.")
    put(tmp_path, "b.md", f"{begin.replace('acl', 'tag')}No secret: acl: x.")
    documents, report = read(tmp_path)
    assert [one.id.rpartition("/")[2] for one in documents] == ["b.md"]
    assert ["names an acl and cannot be read" in one.reason for one in report.failed] == [True]
