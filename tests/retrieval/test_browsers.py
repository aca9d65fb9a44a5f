"""What a page in somebody's browser may do: nothing, unless it is ours or was allowed."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from indexes.base.errors import InvalidInput
from jobs.serving.service import require_private
from retrieval.base.config import load_config
from retrieval.base.settings import ServerSection
from retrieval.handlers.browsers import PAGES, known_host
from retrieval.server.routes import ROUTES
from tests.support.http import Http, Reply

EVIL = "https://evil.example.com"
FETCH = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}


def ask(at: Http, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> Reply:
    """With exactly these headers, beside Host (unless given) and Content-Length."""
    connection = http.client.HTTPConnection(urlsplit(at.url).netloc, timeout=30)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        return Reply(answer.status, content, answer.headers)
    finally:
        connection.close()


def netloc(at: Http) -> str:
    return urlsplit(at.url).netloc


@pytest.mark.parametrize("label", ["text/plain", "application/json", None])
@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1:1", "http://localhost.evil.example.com"])
def test_a_foreign_page_writes_nothing(http: Http, origin: str, label: str | None) -> None:
    """Whatever it calls its body: the document it sends is not there, and the one it deletes still is."""
    name = http.new_collection()
    http.write(name, {"id": "mine", "text": "mine"})
    headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"} | ({"Content-Type": label} if label else {})
    path = f"/v1/collections/{name}/documents"
    body = json.dumps({"documents": [{"id": "theirs", "text": "theirs"}]}).encode()
    assert ask(http, "POST", path, headers, body).status == 403
    assert ask(http, "POST", f"{path}/delete", headers, b'{"ids": ["mine"]}').status == 403
    assert ask(http, "POST", f"/v1/collections/{name}/rollback", headers).status == 403
    listed = http.ok("GET", path)["documents"]
    assert [one["id"] for one in listed] == ["mine"]


@pytest.mark.parametrize(
    ("label", "headers", "status"),
    [
        ("application/json", {}, 200),
        ("application/json; charset=utf-8", FETCH, 200),
        ("application/vnd.nearline+json", FETCH, 200),
        ("application/x-www-form-urlencoded", {}, 200),  # curl -d
        (None, {}, 200),
        ("application/x-www-form-urlencoded", FETCH, 415),
        (None, FETCH, 415),
        ("text/plain", {}, 415),
        ("text/plain", FETCH, 415),
        ("multipart/form-data; boundary=x", {}, 415),
        ("application/octet-stream", {}, 415),
        ("nonsense", {}, 415),
    ],
)
def test_bodies_are_declared_as_json(
    http: Http, label: str | None, headers: dict[str, str], status: int
) -> None:
    """Except where a client that is no browser says nothing, or what `curl -d` says of everything."""
    sent = headers | ({"Content-Type": label} if label else {})
    reply = ask(http, "POST", "/v1/embeddings", sent, b'{"model": "all-MiniLM-L6-v2", "input": "x"}')
    assert reply.status == status, reply
    if status == 415:
        assert b"Content-Type: application/json" in reply.body


def test_a_request_without_a_body_needs_no_type(http: Http) -> None:
    """Also where it comes from our own page."""
    own = {**FETCH, "Origin": http.url}
    name = http.new_collection()
    assert ask(http, "POST", f"/v1/collections/{name}/documents/count", own).status == 200
    assert ask(http, "DELETE", f"/v1/collections/{name}", {**own, "Content-Length": "0"}).status == 204


def test_our_own_page_may_call(http: Http) -> None:
    """Its origin is the host it was loaded from, whatever that host is called, and behind a proxy with TLS."""
    port = urlsplit(http.url).port
    for host in (netloc(http), f"localhost:{port}", f"LOCALHOST:{port}"):
        for scheme in ("http", "https"):
            headers = {
                "Host": host,
                "Origin": f"{scheme}://{host.lower()}",
                "Content-Type": "application/json",
            }
            assert ask(http, "POST", "/v1/embeddings", headers, b"{}").status == 400  # read, and found wrong


@pytest.mark.parametrize(
    "host", ["evil.example.com", "evil.example.com:8080", "localhost.evil.com", "a b", "[::1"]
)
def test_a_name_that_is_not_ours_reads_nothing(http: Http, host: str) -> None:
    """A page whose name was made to resolve to our address looks same-origin to the browser."""
    for path in ("/v1/collections", "/docs", "/metrics", "/nothing"):
        reply = ask(http, "GET", path, {"Host": host})
        assert reply.status == 421, reply
        assert b"server.hosts" in reply.body


def test_the_host_of_an_absolute_uri_is_checked(http: Http) -> None:
    """Whatever the Host header says; one that is ours is answered, also by a client that sends no Host."""
    for host in (netloc(http), ""):
        for name, status in [
            ("evil.example.com", 421),
            (netloc(http), 200),
            ("[::1]", 200),
            ("localhost:1", 200),
        ]:
            headers = {"Host": host} if host else {}
            version = b"1.1" if host else b"1.0"
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
            asked = b"GET http://%s/v1/collections HTTP/%s\r\n%s\r\n" % (name.encode(), version, head)
            assert answer_status(http, asked) == status, asked


def answer_status(at: Http, sent: bytes) -> int:
    url = urlsplit(at.url)
    with socket.create_connection((url.hostname, url.port), timeout=20) as connection:
        connection.sendall(sent)
        return int(connection.recv(1 << 16).split()[1])


VISIT = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
ASSETS = [("GET", "/docs/assets/swagger-ui.css"), ("GET", "/ui/assets/main.js")]
LOADED = sorted(
    {(one.method, re.sub(r"{[^}]*}", "x", one.path)) for one in ROUTES} | {*ASSETS, ("GET", "/nothing")}
)


@pytest.mark.parametrize(("method", "path"), LOADED)
def test_a_foreign_page_learns_nothing_from_loading_a_path(http: Http, method: str, path: str) -> None:
    """A plain read has no Origin. Whatever is there, it gets 403, except for a link to one of our pages."""
    for site in ("cross-site", "same-site"):
        for sent in ({"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "empty"}, VISIT):
            pages = method == "GET" and path in PAGES and sent is VISIT
            reply = ask(http, method, path, {"Sec-Fetch-Site": site, **sent})
            assert reply.status == ((302 if path == "/" else 200) if pages else 403), reply
            assert reply.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        framed = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
        assert ask(http, method, path, framed).status == 403


def test_pages_are_what_a_browser_shows() -> None:
    """And the path that leads to one of them."""
    assert {one.path for one in ROUTES if one.media == "text/html"} | {"/"} == PAGES


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_our_own_page_and_the_user_read_every_path(http: Http, site: str) -> None:
    """A script of our page, and an address that the user typed."""
    for path in ("/v1/collections", "/metrics", "/openapi.json", "/ui/assets/main.js"):
        assert ask(http, "GET", path, {"Sec-Fetch-Site": site, **VISIT}).status == 200


def test_names_and_addresses_that_are_ours() -> None:
    """Addresses and localhost always, names where the settings say so, all where they say `*`."""
    for host in ("127.0.0.1:8080", "10.1.2.3", "[::1]:8080", "[fe80::1]", "localhost", "app.localhost:1", ""):
        assert known_host(host, ["127.0.0.1"])
    for host in ("nearline", "nearline:8080", "NEARLINE", "nearline."):
        assert known_host(host, ["0.0.0.0", "nearline"])
        assert not known_host(host, ["0.0.0.0"])
    assert known_host("anything.example.com:1", ["*"])


@pytest.mark.parametrize("wrong", ["UPPER", "a:80", "http://a", "[::1]", "", "*.example.com"])
def test_hosts_that_could_never_match(wrong: str) -> None:
    """They are refused at the start, naming the key."""
    with pytest.raises(InvalidInput, match="hosts: expected a list of names in lower case") as caught:
        load_config(None, {"NEARLINE_SERVER_HOSTS": json.dumps([wrong])})
    assert caught.value.param == "server.hosts"


@pytest.mark.parametrize(
    ("path", "status"), [("/healthz", 200), ("/docs", 200), ("/docs/assets/swagger-ui.css", 200), ("/x", 404)]
)
def test_every_answer_protects_itself(http: Http, path: str, status: int) -> None:
    """Types are not guessed, no frame shows it, nothing is loaded, and `Server` tells no version."""
    reply = ask(http, "GET", path, {})
    assert reply.status == status
    assert reply.headers["Server"] == "nearline"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["X-Frame-Options"] == "DENY"
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


def test_the_page_runs_its_own_scripts_only(http: Http) -> None:
    """Every script and style sheet it names is served, and its inline script is allowed by its hash alone."""
    page = ask(http, "GET", "/docs", {})
    policy = page.headers["Content-Security-Policy"]
    scripts = re.search(r"script-src ([^;]*);", policy)
    assert scripts is not None
    assert re.fullmatch(r"'self' 'sha256-[A-Za-z0-9+/]{43}='", scripts[1])
    loaded = re.findall(r'(?:href|src)="(/[^"]*)"', page.body.decode())
    assert len(loaded) == 2
    for path in loaded:
        reply = ask(http, "GET", path, {})
        assert reply.status == 200
        assert reply.headers["Content-Type"].startswith(("text/css", "text/javascript"))


@pytest.mark.parametrize("name", ["x" * 5000, "%00", "..%2f..%2fetc%2fpasswd", "swagger-ui.js", "%ff"])
def test_files_beside_the_page_are_404(http: Http, name: str) -> None:
    """Also those with a name longer than a file system takes."""
    assert ask(http, "GET", f"/docs/assets/{name}", {}).status == 404


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.com"])
def test_a_public_address_has_to_be_allowed(host: str) -> None:
    """One clear error names the setting and the flag; loopback addresses and services with keys need neither."""
    with pytest.raises(InvalidInput, match="--insecure") as caught:
        require_private(ServerSection(host=host), keys=False)
    assert caught.value.param == "server.host"
    require_private(ServerSection(host=host, insecure=True), keys=False)
    require_private(ServerSection(host=host), keys=True)
    for private in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        require_private(ServerSection(host=private), keys=False)


def test_serving_a_public_address_ends_before_anything_is_opened(tmp_path: Path) -> None:
    """Exit code 1, one line, and no data directory was made."""
    command = [
        sys.executable,
        "-m",
        "jobs.cli",
        "serve",
        "--data",
        str(tmp_path / "data"),
        "--host",
        "0.0.0.0",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "--insecure" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "data").exists()
