"""TLS by two settings: what clients see, a renewed certificate, and files that are none."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from indexes.base.errors import InvalidInput
from jobs.serving.service import READY_LINE
from jobs.serving.tls import Tls, tls_context, tls_of
from retrieval.base.settings import ServerSection


@dataclass
class Secured:
    """A service that speaks TLS, and the folder of its certificate `c.pem` with its key `k.pem`."""

    child: subprocess.Popen[str]
    url: str
    folder: Path

    @property
    def address(self) -> tuple[str, int]:
        at = urlsplit(self.url)
        return str(at.hostname), int(at.port or 0)


def write(authority: trustme.CA, folder: Path) -> None:
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    (folder / "k.pem").write_bytes(certificate.private_key_pem.bytes())
    (folder / "c.pem").write_bytes(b"".join(one.bytes() for one in certificate.cert_chain_pems))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    write(authority, folder)
    settings = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_SERVER_TLS_CERTIFICATE": str(folder / "c.pem"),
        "NEARLINE_SERVER_TLS_KEY": str(folder / "k.pem"),
        "NEARLINE_SERVER_HEADER_TIMEOUT_S": "2",
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "jobs.cli", "serve", "--data", str(folder / "data"), "--port", "0"],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        url = child.stdout.readline().removeprefix(READY_LINE).strip()
        yield Secured(child, url, folder)
    finally:
        child.terminate()
        child.wait(40)


CLIENT = """
import sys
from nearline import Client
with Client(sys.argv[1]) as client:
    client.ensure_collection("docs")
    client.ingest("docs", [{"id": "a", "text": "Whales sing."}])
    print(client.search("docs", query="songs of whales")["hits"][0]["text"])
"""


@pytest.mark.slow
@pytest.mark.model
def test_clients_reach_it(secured: Secured) -> None:
    """The Python client and the command line, with the authority in SSL_CERT_FILE."""
    python = [sys.executable, "-c", CLIENT, secured.url]
    shell = [sys.executable, "-m", "jobs.cli", "search", "--url", secured.url, "-c", "docs", "whales"]
    assert secured.url.startswith("https://")
    for command in (python, shell):
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "SSL_CERT_FILE": str(secured.folder / "ca.pem")},
        )
        assert "Whales sing." in ended.stdout, ended.stderr


@pytest.mark.model
def test_others_do_not(secured: Secured) -> None:
    """A client that does not trust the authority, and one that speaks HTTP."""
    with socket.create_connection(secured.address, 10) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in receive(plain)
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"{secured.url}/readyz", timeout=10)


def receive(wire: socket.socket) -> bytes:
    try:
        return wire.recv(1 << 16)
    except ConnectionResetError:
        return b""


@pytest.mark.model
def test_a_handshake_that_does_not_come_is_not_waited_for(secured: Secured) -> None:
    """A silent client is closed after `server.header_timeout_s`."""
    with socket.create_connection(secured.address, 20) as silent:
        assert receive(silent) == b""


def shown(secured: Secured) -> str:
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate(secured.address, timeout=10)


@pytest.mark.model
def test_a_renewed_certificate_is_taken_over(secured: Secured) -> None:
    """SIGHUP reads both files again; a pair that does not fit changes nothing, and open connections go on."""
    first = shown(secured)
    trusting = ssl.create_default_context(cafile=str(secured.folder / "ca.pem"))
    with contextlib.closing(http.client.HTTPSConnection(*secured.address, context=trusting)) as connection:
        assert status(connection) == 200
        (secured.folder / "k.pem").write_text("no key")
        secured.child.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert shown(secured) == first
        write(trustme.CA(), secured.folder)
        secured.child.send_signal(signal.SIGHUP)
        until = time.monotonic() + 20
        while shown(secured) == first:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert status(connection) == 200


@pytest.mark.model
@pytest.mark.parametrize("hidden", ["c.pem", "k.pem"])
def test_a_pipe_in_place_of_a_file_freezes_nothing(secured: Secured, hidden: str) -> None:
    """SIGHUP while a file is a pipe: the service goes on with what it has, and takes the next good pair."""
    first = shown(secured)
    (secured.folder / hidden).unlink()
    os.mkfifo(secured.folder / hidden)
    secured.child.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert shown(secured) == first
    (secured.folder / hidden).unlink()
    write(trustme.CA(), secured.folder)
    until = time.monotonic() + 20
    while shown(secured) == first:
        assert time.monotonic() < until
        secured.child.send_signal(signal.SIGHUP)
        time.sleep(0.1)


def test_a_pair_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is read in the middle of a renewal, handshakes go on with a whole pair: with the old one where the files
    are in error, and with the new one as soon as they fit."""
    old, new = trustme.CA(), trustme.CA()
    write(old, tmp_path)
    tls = Tls(ServerSection(tls_certificate=str(tmp_path / "c.pem"), tls_key=str(tmp_path / "k.pem")))
    handshake(tls, old)
    kept = (tmp_path / "k.pem").read_bytes()
    load, times = ssl.SSLContext.load_cert_chain, list[int]()

    def load_and_change(context: ssl.SSLContext, *args: Any, **options: Any) -> None:
        """The certificate is new and the key is not from the second reading on."""
        if times:
            (tmp_path / "k.pem").write_bytes(kept)
        times.append(1)
        load(context, *args, **options)

    write(new, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_cert_chain", load_and_change)
        tls.renew()
        handshake(tls, new)
        with pytest.raises(InvalidInput):
            tls.renew()
    handshake(tls, new)
    write(old, tmp_path)
    tls.renew()
    handshake(tls, old)


def handshake(tls: Tls, authority: trustme.CA) -> None:
    """Raises ssl.SSLError unless a client that trusts this authority alone gets a connection."""
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    for name in ("localhost", "127.0.0.1"):  # no name is sent for an address
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(to_client, to_server, server_hostname=name)
        server = tls.context.wrap_bio(to_server, to_client, server_side=True)
        ended: set[ssl.SSLObject] = set()
        for side in (client, server) * 4:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                ended.add(side)
        assert len(ended) == 2


def status(connection: http.client.HTTPSConnection) -> int:
    connection.request("GET", "/readyz")
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_files_that_are_no_pair(tmp_path: Path) -> None:
    """Each is refused with the setting that names it."""
    write(trustme.CA(), tmp_path)
    good, key = str(tmp_path / "c.pem"), str(tmp_path / "k.pem")
    other = tmp_path / "other"
    other.mkdir()
    write(trustme.CA(), other)
    for certificate, of_key, named in [
        (good, "", "tls_key"),
        ("", key, "tls_certificate"),
        (str(tmp_path / "absent.pem"), key, "tls_certificate"),
        (good, str(tmp_path / "absent.pem"), "tls_key"),
        (good, str(other / "k.pem"), "tls_certificate"),
        (key, key, "tls_certificate"),
    ]:
        with pytest.raises(InvalidInput, match=named):
            tls_context(ServerSection(tls_certificate=certificate, tls_key=of_key))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match=r"tls_key.*not a regular file"):
        tls_context(ServerSection(tls_certificate=good, tls_key=str(tmp_path / "pipe")))
    assert tls_of(ServerSection()) is None
    assert tls_context(ServerSection(tls_certificate=good, tls_key=key)) is not None
