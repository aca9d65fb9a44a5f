"""Redis as operators run it: with TLS, users of few rights, Sentinels, as a cluster. All servers are real."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import os
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from redis import Redis
from redis.exceptions import NoPermissionError

from indexes.base.errors import InvalidInput
from retrieval.access.limits import SCRIPT
from retrieval.cache.redis_client import open_client
from retrieval.cache.redis_store import RedisStore
from tests.support.redis_server import RedisServer, free_port, redis_server

pytestmark = pytest.mark.redis
ROOT = Path(__file__).parents[2]
SECRET = b"s" * 32
ACL = (
    "~nearline:* resetchannels -@all +get +set +mget +eval +time +hmget +hset +expire +select "
    "+cluster|slots +command +readonly"
)  # the line of docs/operations.md
ASKED = (1_000_000, 2_000_000, -1, 1, 0)  # of the limits' script: one a second, two at once


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisStore]:
    """With more patience than a service has: a loaded machine must not turn a hit into a miss."""
    store = RedisStore(
        url, secret=SECRET, timeout_ms=3000, retry_after_s=0.05, prefix=b"nearline", clock=time.monotonic
    )
    try:
        yield store
    finally:
        await store.close()


async def serves(store: RedisStore, within_s: float = 20.0) -> None:
    """Puts and gets hundred keys, in any slots, and runs the script of the limits; waits until that works."""
    keys = [b"key %d" % number for number in range(100)]
    deadline_s = time.monotonic() + within_s
    while True:
        for key in keys:
            await store.put(key, b"value of " + key, 60)
        await store.drain()
        found = await asyncio.gather(*(store.get(key) for key in keys))
        reply = await store.run_script(SCRIPT, b"limits:one", *ASKED)
        if found == [b"value of " + key for key in keys] and reply is not None:
            assert len(reply) == 4
            return
        assert time.monotonic() < deadline_s, (store.health, store.counts, reply)
        await asyncio.sleep(0.05)


# --- TLS -------------------------------------------------------------------------------------------------------------


class Authority:
    """Signs certificates for 127.0.0.1 and for clients."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca of the tests")])
        self.certificate = self._write("ca", self._signed(self._name, self._key, is_ca=True), None)[0]

    def issue(self, name: str) -> tuple[Path, Path]:
        """Files of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        return self._write(name, self._signed(subject, key, is_ca=False), key)

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_ca: bool
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(host, critical=False)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def _write(
        self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey | None
    ) -> tuple[Path, Path]:
        pem, private = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        if key is not None:
            private.write_bytes(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            )
        return pem, private


@contextlib.asynccontextmanager
async def tls_before(port: int, authority: Authority) -> AsyncIterator[int]:
    """A port that speaks TLS before the server's, because its build does not, and wants a client's certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*authority.issue("server"))
    pipes: set[asyncio.Task[None]] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        for ends in ((reader, inner_writer), (inner_reader, writer)):
            pipes.add(asyncio.create_task(pipe(*ends)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for one in pipes:
            one.cancel()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


def test_tls_with_a_private_authority_and_a_client_certificate(redis: RedisServer, tmp_path: Path) -> None:
    """The files are named in the url; an unknown authority is an outage, and so is a client without a certificate."""
    (tmp_path / "stranger").mkdir()
    authority, stranger = Authority(tmp_path), Authority(tmp_path / "stranger")
    certificate, key = authority.issue("client")

    async def story() -> None:
        async with tls_before(redis.port, authority) as port:
            address = f"rediss://127.0.0.1:{port}/0"
            own = f"ssl_certfile={certificate}&ssl_keyfile={key}"
            async with opened(f"{address}?ssl_ca_certs={authority.certificate}&{own}") as store:
                await serves(store)
            for refused in (
                f"ssl_ca_certs={stranger.certificate}&{own}",
                f"ssl_ca_certs={authority.certificate}",
            ):
                async with opened(f"{address}?{refused}") as store:
                    assert await store.get(b"key 1") is None
                    assert not store.up

    asyncio.run(story())


# --- users -----------------------------------------------------------------------------------------------------------


def test_a_user_that_may_only_what_is_needed(redis: RedisServer) -> None:
    """With the rights of docs/operations.md nothing fails, and the user can do nothing else."""
    assert f"on >PASSWORD {ACL}" in " ".join((ROOT / "docs/operations.md").read_text().split())

    async def story() -> None:
        async with opened(f"redis://nearline:secret@127.0.0.1:{redis.port}/0") as store:
            await serves(store)
            assert (store.counts.failures, store.counts.timeouts) == (0, 0)

    with Redis.from_url(redis.url) as admin:
        admin.execute_command("ACL", "SETUSER", "nearline", "on", ">secret", *ACL.split())
        admin.set("other", "value")
    asyncio.run(story())
    with Redis.from_url(f"redis://nearline:secret@127.0.0.1:{redis.port}/0") as user:
        for command in (
            ("GET", "other"),
            ("KEYS", "*"),
            ("FLUSHALL",),
            ("CONFIG", "GET", "*"),
            ("DEL", "nearline:1"),
        ):
            with pytest.raises(NoPermissionError):
                user.execute_command(*command)


# --- several servers -------------------------------------------------------------------------------------------------


def folders(folder: Path, count: int) -> list[Path]:
    made = [folder / str(at) for at in range(count)]
    for one in made:
        one.mkdir()
    return made


def test_sentinels_name_the_new_master(tmp_path: Path) -> None:
    """When the master dies its replica is promoted, and the store goes on there by itself, past a Sentinel that hangs
    and one that is gone."""
    first, second, third, fourth = folders(tmp_path, 4)
    with (
        redis_server(first) as master,
        redis_server(second, "--replicaof", "127.0.0.1", str(master.port)) as replica,
        redis_server(third, "--sentinel") as sentinel,
        redis_server(fourth, "--sentinel") as hung,
    ):
        with Redis.from_url(sentinel.url) as asked:
            asked.execute_command("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", str(master.port), "1")
            for name, value in (("down-after-milliseconds", "300"), ("failover-timeout", "3000")):
                asked.execute_command("SENTINEL", "SET", "mymaster", name, value)
            while not asked.execute_command("SENTINEL", "REPLICAS", "mymaster"):
                time.sleep(0.1)  # the test's own time limit ends this

        async def story() -> None:
            hung.pause()
            ports = ",".join(f"127.0.0.1:{port}" for port in (hung.port, free_port(), sentinel.port))
            async with opened(f"redis+sentinel://{ports}/mymaster/0") as store:
                await serves(store)
                master.kill()
                assert await store.get(b"key 1") is None
                await serves(store, within_s=60)

        asyncio.run(story())
        with Redis.from_url(replica.url) as promoted:
            assert promoted.dbsize() > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_a_refused_login_is_one_outage(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """One line with Redis's own words, and none that it answers again because a Sentinel does."""
    first, second = folders(tmp_path, 2)
    cluster = ("--cluster-enabled", "yes", "--cluster-port", str(free_port())) if kind == "cluster" else ()
    with redis_server(first, *cluster) as master, redis_server(second, "--sentinel") as sentinel:
        with Redis.from_url(master.url) as redis, Redis.from_url(sentinel.url) as asked:
            redis.config_set("requirepass", "tops3cret")
            asked.execute_command("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", str(master.port), "1")
            asked.execute_command("SENTINEL", "SET", "mymaster", "auth-pass", "tops3cret")
        place = f"{sentinel.port}/mymaster/0" if kind == "sentinel" else str(master.port)

        async def story() -> None:
            async with opened(f"redis+{kind}://:wr0ng-one@127.0.0.1:{place}") as store:
                while store.counts.failures < 4:
                    assert await store.get(b"key") is None
                    await asyncio.sleep(0.01)

        with caplog.at_level("INFO"):
            asyncio.run(story())
    [line] = [one.getMessage() for one in caplog.records if one.name.startswith("retrieval.cache")]
    assert line.startswith("Redis refuses requests: invalid username-password pair or user is disabled; ")


@pytest.mark.slow
def test_a_cluster_of_three(tmp_path: Path) -> None:
    """Keys lie in all three nodes, gets of many are one call, and a node that comes back is used again."""
    with contextlib.ExitStack() as stack:
        ports = [
            free_port() for _ in range(3)
        ]  # on which the nodes talk; by default too high for a port as we choose it
        nodes = [
            stack.enter_context(redis_server(folder, "--cluster-enabled", "yes", "--cluster-port", str(port)))
            for folder, port in zip(folders(tmp_path, 3), ports, strict=True)
        ]
        clients = [stack.enter_context(Redis.from_url(node.url)) for node in nodes]
        bounds = (0, 5461, 10923, 16384)
        for at, client in enumerate(clients):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[at], bounds[at + 1] - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, ports[0])

        def agreed() -> bool:
            return all(len(client.execute_command("CLUSTER", "SLOTS")) == 3 for client in clients)

        while not agreed():
            time.sleep(0.1)

        async def story() -> None:
            async with opened(f"redis+cluster://127.0.0.1:{nodes[1].port}") as store:
                await serves(store)
                assert all(client.dbsize() for client in clients)
                nodes[2].pause()
                found = await asyncio.gather(*(store.get(b"key %d" % number) for number in range(100)))
                assert all(value in (None, b"value of key %d" % number) for number, value in enumerate(found))
                nodes[2].resume()
                await serves(store, within_s=60)

        asyncio.run(story())


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://user:secret@host:26379",
        "redis+sentinel://user:secret@host/mymaster/x",
        "redis+cluster://user:secret@host:6379/1",
        "redis+other://user:secret@host",
        "redis+cluster://user:secret@host:port",
        "redis+cluster://user:secret@host:99999",
        "redis://user:secret@host:99999/0",
        "redis://user:secret@host/first",
        "redis://user:secret@host/0?colour=red",
        "redis://user:secret@host/0?socket_timeout=abc",
        "redis+sentinel://user:secret@host/mymaster?colour=red",
        "redis+cluster://user:secret@host?colour=red",
        "redis://user:secret@[::1/0",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_quoting_it(url: str) -> None:
    """Before it is used, naming the setting."""

    async def story() -> None:
        with pytest.raises(InvalidInput, match=r"redis\.url is not a usable address") as refusal:
            open_client(url, connections_max=1)
        assert "secret" not in str(refusal.value)

    asyncio.run(story())


def test_an_address_that_cannot_be_used_is_one_line(tmp_path: Path, model_folder: Path) -> None:
    """The service does not start."""
    environ = {
        "NEARLINE_MODELS_FOLDER": str(model_folder.parent),
        "NEARLINE_REDIS_URL": "redis://host:99999/0",
    }
    command = [sys.executable, "-m", "jobs.cli", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    ended = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("nearline: redis.url is not a usable address")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "url",
    [
        "redis://host",
        "redis://user:secret@host:6379/2?health_check_interval=3",
        "rediss://host/0?ssl_ca_certs=/etc/ca.pem&ssl_certfile=/etc/me.pem&ssl_keyfile=/etc/me.key",
        "unix:///run/redis.sock?db=1",
        "redis+sentinel://user:secret@host:26379,other:26379/mymaster/1",
        "rediss+sentinel://user:secret@host/mymaster?sentinel_password=x",
        "redis+cluster://user:secret@host:6379,other:6379",
    ],
)
def test_the_forms_of_addresses_are_accepted(url: str) -> None:
    """Those that docs/operations.md shows, without connecting."""

    async def story() -> None:
        await open_client(url, connections_max=1).close()

    asyncio.run(story())
