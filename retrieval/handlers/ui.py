"""The page at `/ui`: the files of retrieval/ui/ as they are. The page calls the API with its user's key."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from aiohttp import ETag, web

from indexes.base.errors import NotFound

FOLDER = Path(__file__).parents[1] / "ui"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Nothing inline and nothing from other origins. Text is parsed as markup only where `markup.js` reads HTML files, into
# a document that is never shown.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types nearline-read"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # revalidated each time, sent only when changed: no file of an older version lingers
}


class File(msgspec.Struct, frozen=True):
    content: bytes
    media: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> File:
        content = path.read_bytes()
        return cls(content, TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:32])


FILES = {path.name: File.read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}
PAGE = FILES.pop("index.html")


async def page(request: web.Request) -> web.Response:
    return respond_with(request, PAGE)


async def asset(request: web.Request) -> web.Response:
    """Serve a file of the page. Only files present at startup: no path is built from client input."""
    file = FILES.get(request.match_info["name"])
    if file is None:
        raise NotFound("no such path: the page has no such file")
    return respond_with(request, file)


def respond_with(request: web.Request, file: File) -> web.Response:
    """Return the file, or 304 if the browser has it."""
    known = any(one.value in (file.etag, "*") for one in request.if_none_match or ())
    if known:
        answer = web.Response(status=304, headers=HEADERS)
    else:
        answer = web.Response(body=file.content, content_type=file.media, charset="utf-8", headers=HEADERS)
    answer.etag = ETag(file.etag)
    return answer
