"""Small files of the formats that folders hold, built by hand."""

from __future__ import annotations

import email
import io
import mimetypes
import zipfile
from collections.abc import Callable, Mapping, Sequence
from email.message import EmailMessage
from email.policy import default
from urllib.parse import quote

import openpyxl

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def zipped(files: Mapping[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def docx(heading: str, text: str) -> bytes:
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml"
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
            '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/word/document.xml" ContentType="{kind}.document.main+xml"/>'
            f'<Override PartName="/word/styles.xml" ContentType="{kind}.styles+xml"/></Types>',
            "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r1" '
            f'Type="{OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>',
            "word/_rels/document.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship '
            f'Id="r1" Type="{OFFICE}/styles" Target="styles.xml"/></Relationships>',
            "word/styles.xml": f'<w:styles xmlns:w="{WORD}"><w:style w:type="paragraph" w:styleId="Heading1">'
            '<w:name w:val="heading 1"/><w:pPr><w:outlineLvl w:val="0"/></w:pPr></w:style></w:styles>',
            "word/document.xml": f'<w:document xmlns:w="{WORD}"><w:body>'
            '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr>'
            f"<w:r><w:t>{heading}</w:t></w:r></w:p><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:body></w:document>",
        }
    )


def pptx(*slides: tuple[str, str]) -> bytes:
    """Slides of a title and a text each."""
    point, draw = (
        f"http://schemas.openxmlformats.org/{name}/2006/main" for name in ("presentationml", "drawingml")
    )
    kind = "application/vnd.openxmlformats-officedocument.presentationml"
    ids = range(1, len(slides) + 1)

    def shape(place: str, text: str) -> str:
        return (
            f'<p:sp><p:nvSpPr><p:cNvPr id="2" name="x"/><p:cNvSpPr/><p:nvPr><p:ph {place}/></p:nvPr></p:nvSpPr>'
            f"<p:spPr/><p:txBody><a:bodyPr/><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:txBody></p:sp>"
        )

    def slide(title: str, text: str) -> str:
        return (
            f'<p:sld xmlns:p="{point}" xmlns:a="{draw}"><p:cSld><p:spTree>'
            + shape('type="title"', title)
            + shape('idx="1"', text)
            + "</p:spTree></p:cSld></p:sld>"
        )

    parts = "".join(
        f'<Override PartName="/ppt/slides/slide{at}.xml" ContentType="{kind}.slide+xml"/>' for at in ids
    )
    listed = "".join(f'<p:sldId id="{255 + at}" r:id="s{at}"/>' for at in ids)
    targets = "".join(
        f'<Relationship Id="s{at}" Type="{OFFICE}/slide" Target="slides/slide{at}.xml"/>' for at in ids
    )
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
            '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/ppt/presentation.xml" ContentType="{kind}.presentation.main+xml"/>{parts}</Types>',
            "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r1" '
            f'Type="{OFFICE}/officeDocument" Target="ppt/presentation.xml"/></Relationships>',
            "ppt/presentation.xml": f'<p:presentation xmlns:p="{point}" xmlns:r="{OFFICE}">'
            f"<p:sldIdLst>{listed}</p:sldIdLst></p:presentation>",
            "ppt/_rels/presentation.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
            f"{targets}</Relationships>",
            **{f"ppt/slides/slide{at}.xml": slide(*one) for at, one in enumerate(slides, 1)},
        }
    )


def hiding(presentation: bytes, *names: str) -> bytes:
    """A presentation with these slides hidden."""
    with zipfile.ZipFile(io.BytesIO(presentation)) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    for name in names:
        files[f"ppt/slides/{name}.xml"] = files[f"ppt/slides/{name}.xml"].replace(
            "<p:sld ", '<p:sld show="0" '
        )
    return zipped(files)


def xlsx(hidden: Mapping[str, str] | None = None, **sheets: Sequence[Sequence[object]]) -> bytes:
    """`hidden`: the state of sheets that are not visible."""
    book, content = openpyxl.Workbook(), io.BytesIO()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        sheet.sheet_state = (hidden or {}).get(name, "visible")
        for row in rows:
            sheet.append(row)
    book.save(content)
    return content.getvalue()


def eml(text: str, *attachments: tuple[str, bytes], subject: str = "Subject") -> bytes:
    message = EmailMessage()
    message["From"], message["Subject"] = "ann@example.org", subject
    message.set_content(text)
    for name, content in attachments:
        if name.endswith(".eml"):
            message.add_attachment(email.message_from_bytes(content, policy=default), filename=name)
            continue
        kind, _, ending = (mimetypes.guess_type(name)[0] or "application/octet-stream").partition("/")
        message.add_attachment(content, maintype=kind, subtype=ending, filename=name)
    return bytes(message)


def epub(
    title: str, *chapters: tuple[str, str], names: Sequence[str] = (), encode: Callable[[str], str] = quote
) -> bytes:
    """`names`: what the files of the chapters are called, without their extension."""
    ids = [f"c{at}" for at in range(len(chapters))]
    names = names or ids
    items = "".join(
        f'<item id="{one}" href="{encode(name)}.xhtml" media-type="application/xhtml+xml"/>'
        for one, name in zip(ids, names)
    )
    spine = "".join(f'<itemref idref="{one}"/>' for one in ids)
    page = '<html xmlns="http://www.w3.org/1999/xhtml"><body><h1>{}</h1><p>{}</p></body></html>'
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container version="1.0" '
            'xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile '
            'full-path="book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>',
            "book.opf": '<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata '
            f'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>'
            f"<manifest>{items}</manifest><spine>{spine}</spine></package>",
            **{f"{name}.xhtml": page.format(*chapter) for name, chapter in zip(names, chapters)},
        }
    )


def pdf(*pages: str) -> bytes:
    """Without a table of its objects, which readers then find by themselves."""
    kids = " ".join(f"{10 + 2 * at} 0 R" for at in range(len(pages)))
    objects = {
        1: "<< /Type /Catalog /Pages 2 0 R >>",
        2: f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        3: "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    }
    for at, text in enumerate(pages):
        drawn = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        objects[10 + 2 * at] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {11 + 2 * at} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects[11 + 2 * at] = f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream"
    body = "\n".join(f"{number} 0 obj\n{content}\nendobj" for number, content in objects.items())
    return f"%PDF-1.4\n{body}\ntrailer << /Root 1 0 R /Size 99 >>\n%%EOF\n".encode()
