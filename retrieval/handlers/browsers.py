"""Prevents web pages open in a user's browser from calling this service without permission.

A browser sends requests from any page to any address, including one that only this machine can reach. Four headers
are enough to decide, and no page can forge them:

    Host            the name the page used. A foreign name can be made to resolve to our address (DNS rebinding), and
                    its pages would then count as same-origin, so names are on an allow-list. An IP address cannot be
                    rebound. The host of an absolute URI is checked like it.
    Origin          the page itself, sent with every request that is more than a plain read: ours, or one of
                    server.cors_origins.
    Sec-Fetch-Site  where a plain read comes from, such as that of <img> or <link rel=prefetch>. The page could not see
                    the answer, but whether there is one. Another site, or another port of this machine, may only lead
                    its user to one of our pages.
    Content-Type    JSON. Types that a form or a script may send without a preflight (text/plain, multipart) are
                    refused, except for uploads, which must then have an Origin.

Clients other than browsers send no Origin and need no settings. `curl -d` and urllib label any body a form, and many
libraries do not label it at all: both are read as JSON unless a browser sent them.
"""

from __future__ import annotations

import ipaddress
import re

from aiohttp import web

from retrieval.handlers.state import CONFIG
from retrieval.wire.errors import ForeignOrigin, UnknownHost, UnsupportedMediaType

HOST = re.compile(r"\[(?P<v6>[0-9a-fA-F:.]+)\](:\d+)?|(?P<name>[^:\[\]]*)(:\d+)?")
FORM, UPLOADS = "multipart/form-data", "/v1/files"  # the only path that takes a form
LABELS_UNASKED = frozenset({"", "application/x-www-form-urlencoded"})
BROWSER_HEADERS = ("Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode")
ELSEWHERE = ("cross-site", "same-site")  # another port is of the same site
PAGES = frozenset({"/", "/ui", "/docs"})  # a page of another origin may link to these
SHOWN_CHARS = 200  # of a header quoted in an error
# For every answer but our own page, which sets its own policy: load nothing, and never appear in a frame.
POLICY = "default-src 'none'; frame-ancestors 'none'"


def require_known_caller(request: web.Request) -> None:
    """Raises UnknownHost, ForeignOrigin or UnsupportedMediaType for a request that a browser may not send. Reads
    headers only."""
    server = request.app[CONFIG].server
    host = request.headers.get("Host", "")
    for named in (host, host_of_target(request)):
        if not known_host(named, [server.host, *server.hosts]):
            raise UnknownHost(
                f"the host {named[:SHOWN_CHARS]!r} is not one this service answers to; add it to server.hosts"
            )
    origin = request.headers.get("Origin")
    if origin is None:
        if is_read_from_elsewhere(request) and "*" not in server.cors_origins:
            raise ForeignOrigin(
                "pages of other origins may not load this; those that server.cors_origins lists may fetch it"
            )
    elif not known_origin(origin, host, server.cors_origins):
        raise ForeignOrigin(
            f"pages from the origin {origin[:SHOWN_CHARS]!r} may not call this service; "
            "server.cors_origins lists the origins that may"
        )
    if request.body_exists and not says_json(request) and not is_upload(request):
        raise UnsupportedMediaType("a body must come with the header Content-Type: application/json")


def known_host(host: str, names: list[str]) -> bool:
    """Whether a Host header holds an IP address, localhost or one of these names. A request without Host is not from
    a browser."""
    if not host or "*" in names:
        return True
    parts = HOST.fullmatch(host)
    if parts is None:
        return False
    name = (parts["v6"] or parts["name"]).lower().removesuffix(".")
    return name == "localhost" or name.endswith(".localhost") or name in names or is_address(name)


def host_of_target(request: web.Request) -> str:
    """Return the host, with its port, of a request for an absolute URI; "" for a path."""
    if request.raw_path.startswith("/"):
        return ""
    return request.url.host_port_subcomponent or ""


def is_read_from_elsewhere(request: web.Request) -> bool:
    """Whether a page of another origin made a browser send this, other than by a link to one of our pages. All common
    browsers have said so since 2023."""
    site, mode, target = (request.headers.get(f"Sec-Fetch-{name}") for name in ("Site", "Mode", "Dest"))
    if site not in ELSEWHERE:
        return False
    opened = mode == "navigate" and target == "document"
    return not (opened and request.method in ("GET", "HEAD") and request.path in PAGES)


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def known_origin(origin: str, host: str, allowed: list[str]) -> bool:
    """Whether the page's origin is listed or is this service. The scheme may differ: a proxy may terminate HTTPS for
    us."""
    return origin in allowed or "*" in allowed or origin.partition("://")[2].lower() == host.lower() != ""


def says_json(request: web.Request) -> bool:
    label = request.content_type if "Content-Type" in request.headers else ""
    if label == "application/json" or label.endswith("+json"):
        return True
    return label in LABELS_UNASKED and not any(name in request.headers for name in BROWSER_HEADERS)


def is_upload(request: web.Request) -> bool:
    """Whether this is a form on a path that takes one. Browsers always send the Origin of a form, which has been
    checked."""
    named = "Origin" in request.headers or not any(name in request.headers for name in BROWSER_HEADERS)
    return request.content_type == FORM and request.path == UPLOADS and named


def let_page_read(request: web.Request, answer: web.StreamResponse) -> None:
    """Set the CORS headers for pages of the configured origins. A stream needs them before it begins."""
    allowed = request.app[CONFIG].server.cors_origins
    if not allowed or "Vary" in answer.headers:
        return
    origin = request.headers.get("Origin", "")
    answer.headers.add("Vary", "Origin")
    if origin in allowed or "*" in allowed:
        answer.headers["Access-Control-Allow-Origin"] = "*" if "*" in allowed else origin
        answer.headers["Access-Control-Expose-Headers"] = "*"


async def protective_headers(request: web.Request, answer: web.StreamResponse) -> None:
    """Set the protective headers; a handler of `on_response_prepare`."""
    protect(answer)


def protect(answer: web.StreamResponse) -> None:
    """Forbid content sniffing, frames and loading by pages of other origins, and hide versions from `Server`."""
    answer.headers["Server"] = "nearline"
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers["Cross-Origin-Resource-Policy"] = (
        "same-origin"  # a page that CORS allows may still fetch it
    )
    answer.headers["X-Frame-Options"] = "DENY"  # for browsers that do not support frame-ancestors
    answer.headers.setdefault("Content-Security-Policy", POLICY)
