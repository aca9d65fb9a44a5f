"""The command `nearline`, run in forks of a process that has loaded all of it.

Loading it takes most of the time of a command and of the start of a service, and the tests run hundreds of both. Each
still runs in a process of its own, from the arguments to the exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO

from indexes.base import durable, failpoints
from indexes.base.errors import NearlineError
from indexes.base.languages import chance_of
from indexes.base.structs import learn_structs
from jobs import cli
from retrieval.base.settings import Config
from retrieval.embedding import models
from retrieval.server.app import create_app

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240
ENVIRON = {"COLUMNS": "200", "PYTHONPATH": str(ROOT)}
OF_A_SERVICE = ("NEARLINE_", "AWS_", "PYTEST_")  # variables that nothing looks at when it is loaded


def nearline(*arguments: object, cwd: Path | str = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, without input."""
    asked = [*map(str, arguments)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        status = Fork(asked, cwd, {**os.environ, **ENVIRON, **environ}, out.fileno(), err.fileno()).wait(
            TIMEOUT_S
        )
        printed = [(file.seek(0), file.read().decode())[1] for file in (out, err)]
    return subprocess.CompletedProcess(asked, status, *printed)


def fork_services() -> None:
    """Let `ServerProcess` fork its services too, as long as this process runs."""
    from jobs.serving import process

    vars(process)["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": start_service})


def start_service(
    command: list[str],
    *,
    cwd: Path | None,
    env: dict[str, str],
    stdout: int,
    stderr: IO[bytes],
    text: bool,
    start_new_session: bool,
) -> Fork | subprocess.Popen[str]:
    """Fork it; or start it as a user does, if its code, what libraries read from the environment, or its machine is not
    that of the tests."""
    assert (stdout, text, start_new_session) == (subprocess.PIPE, True, True)
    _, _, loaded_with = start_template()
    other = {name for name, _ in env.items() ^ loaded_with.items() if not name.startswith(OF_A_SERVICE)}
    if cwd is not None or other or command[0] != sys.executable:
        return subprocess.Popen(
            command, cwd=cwd, env=env, stdout=stdout, stderr=stderr, text=True, start_new_session=True
        )
    reading, writing = os.pipe()
    try:
        service = Fork(command[command.index("serve") :], Path.cwd(), env, writing, stderr.fileno())
    finally:
        os.close(writing)
    service.stdout = os.fdopen(reading)
    return service


class Fork:
    """A command that runs in a fork of the template, with the part of subprocess.Popen that the tests need."""

    def __init__(
        self, arguments: list[str], cwd: Path | str, environ: Mapping[str, str], out: int, err: int
    ) -> None:
        self.args = arguments
        self.stdout: IO[str] | None = None
        self.returncode: int | None = None
        self._reports, theirs = socket.socketpair()
        _, template, _ = start_template()
        with theirs:
            socket.send_fds(template, [b"\n"], [out, err, theirs.fileno()])
        self._reports.sendall(json.dumps((arguments, str(cwd), dict(environ))).encode() + b"\n")
        self._lines = self._reports.makefile("rb", buffering=0)
        self.pid = int(self._lines.readline())

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ready = select.poll()  # unlike select(), for any number of open files
            ready.register(self._lines, select.POLLIN)
            if not ready.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._reports.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def start_template() -> tuple[subprocess.Popen[bytes], socket.socket, Mapping[str, str]]:
    """The process that is forked, the connection to it, and the variables here. It ends when this process does."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **ENVIRON},
            cwd=ROOT,
            start_new_session=True,  # Ctrl-C is for the tests, which end their services
        )
    atexit.register(process.wait)
    atexit.register(ours.close)  # before that
    return process, ours, dict(os.environ)


def be_forked(requests: socket.socket) -> None:
    """Return in a new process for each request, ready to run the command; exit at the end of requests."""
    for name in cli.COMMANDS:
        importlib.import_module(f"jobs.commands.{cli.TOGETHER.get(name) or name.replace('-', '_')}")
    for name in [name for name in sys.modules if name.startswith("jobs.commands")]:
        del sys.modules[name]  # they look at their environment when they are imported
    learn_structs()
    check_models_once()
    with tempfile.TemporaryDirectory() as folder:
        create_app(Config(), Path(folder))  # compiles the patterns of its routes
    chance_of("load the detector of languages", (), {})
    gc.freeze()
    while True:
        asked, files, _, _ = socket.recv_fds(requests, 1, 3)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not asked:
            sys.exit()
        if not os.fork():
            requests.close()
            begin(*files)
            return
        for file in files:
            os.close(file)


def check_models_once() -> None:
    """Hash the files of the models now, and again in a fork only if they have changed."""

    @functools.cache
    def check(path: Path, size: int, digest: str, *_state: int) -> None:
        durable.verify(path, size, digest)

    def verify(path: Path, size: int, digest: str) -> None:
        if path.is_file():
            found = path.stat()
            check(path.resolve(), size, digest, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
        else:
            durable.verify(path, size, digest)

    vars(models)["verify"] = verify
    for folder in models.find_models(ROOT / "models").values():
        with contextlib.suppress(NearlineError):  # then it is no better in a fork
            models.load_model(folder)


def begin(out: int, err: int, connection: int) -> None:
    """Return in a child with these files and what was asked. Report its number, and its exit code once it has ended."""
    reply = socket.socket(fileno=connection)
    arguments, folder, environ = json.loads(reply.makefile().readline())
    if child := os.fork():
        os.close(out)
        os.close(err)
        reply.sendall(b"%d\n" % child)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            reply.sendall(b"%d\n" % status)
        os._exit(0)
    reply.close()
    os.setsid()
    for file, place in ((out, 1), (err, 2)):
        os.dup2(file, place)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    failpoints._armed = failpoints.from_environment()
    sys.argv = [str(cli.__file__), *arguments]
    sys.modules["__main__"].__package__ = "jobs"  # as after `python -m jobs.cli`, for usage errors


if __name__ == "__main__":
    be_forked(socket.socket(fileno=int(sys.argv[1])))
    cli.main()
