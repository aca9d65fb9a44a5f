"""Decodes names of chapters in books, because kreuzberg looks for `chapter%201.xhtml` as it is written."""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Collection
from functools import partial
from urllib.parse import unquote
from xml.sax.saxutils import quoteattr, unescape  # nosec B406 # parses nothing
from zipfile import ZipFile

from jobs.sources.hidden_parts import replace_file

HREF = re.compile(
    rb"""(?P<start>\shref\s{0,9}=\s{0,9})(?P<quote>["'])(?P<path>[^"'<>%]*%[^"'<>]*)(?P=quote)"""
)


def decode_chapter_names(book: bytes) -> bytes:
    """Return the EPUB with names decoded in its package, where the archive has them only decoded."""
    content = io.BytesIO(book)
    changed = False
    with ZipFile(content, "a") as archive:
        names = frozenset(archive.namelist())
        for one in archive.infolist().copy():
            if one.filename.lower().endswith(".opf"):
                package = archive.read(one)
                folder = posixpath.dirname(one.filename)
                decoded = HREF.sub(partial(_decode, folder=folder, names=names), package)
                if decoded != package:
                    changed = True
                    replace_file(archive, one, decoded)
    return content.getvalue() if changed else book


def _decode(found: re.Match[bytes], folder: str, names: Collection[str]) -> bytes:
    path = unescape(found["path"].decode("utf-8", "replace"))
    name = unquote(path)
    there = [posixpath.normpath(posixpath.join(folder, one)) in names for one in (path, name)]
    if there != [False, True]:
        return found[0]
    return found["start"] + quoteattr(name).encode("ascii", "xmlcharrefreplace")
