"""Finds the hidden sheets of a workbook and removes the hidden slides of a presentation, so that they are not read."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree as ET  # nosec B405 # read in a child of bounded memory and time
from zipfile import ZipFile, ZipInfo

from jobs.sources.model import Skip

HIDDEN_SHEET, HIDDEN_SLIDE = Skip("hidden sheets"), Skip("hidden slides")
SLIDE = re.compile(r"ppt/slides/([^/]+)\.xml", re.IGNORECASE)
SLIDE_START_BYTES = 4096
SLIDE_TAG = re.compile(rb"<(?:\w{1,32}:)?sld\s([^<>]*)")
HIDES = re.compile(rb"""\bshow\s*=\s*["'](?:0|false)["']""")
NO_SLIDE = '<p:sld xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"><p:cSld><p:spTree/></p:cSld></p:sld>'


def find_hidden_sheets(workbook: bytes) -> set[str]:
    """Return the names of the hidden and very hidden sheets of an XLSX file."""
    with ZipFile(io.BytesIO(workbook)) as archive:
        name = next(name for name in archive.namelist() if name.lower() == "xl/workbook.xml")
        book = ET.fromstring(archive.read(name))  # noqa: S314  # nosec B314 # as above
    return {
        one.get("name", "")
        for one in book.iterfind(".//{*}sheet")
        if one.get("state", "visible") != "visible"
    }


def empty_hidden_slides(presentation: bytes) -> tuple[bytes, list[str]]:
    """Return the PPTX file with its hidden slides emptied, and their names. Nothing else is unpacked."""
    content = io.BytesIO(presentation)
    with ZipFile(content, "a") as archive:
        hidden = []
        for one in list(archive.infolist()):
            named = SLIDE.fullmatch(one.filename)
            if named is None:
                continue
            with archive.open(one) as slide:
                tag = SLIDE_TAG.search(slide.read(SLIDE_START_BYTES))
            if tag is None or HIDES.search(tag[1]) is None:
                continue
            hidden.append(named[1])
            replace_file(archive, one, NO_SLIDE)
    return (content.getvalue() if hidden else presentation), hidden


def replace_file(archive: ZipFile, file: ZipInfo, content: bytes | str) -> None:
    """Replace a file in an archive that is open for appending, without writing the others again."""
    archive.filelist.remove(file)
    del archive.NameToInfo[file.filename]
    archive.writestr(file.filename, content)
