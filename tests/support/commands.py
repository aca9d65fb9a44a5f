"""The command `nearline`, run in forks of a process that has loaded all of it.

Loading it takes most of the time of a command, and the tests run hundreds. Each still runs in a process of its own,
from the arguments to the exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jobs import cli

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240
ENVIRON = {"COLUMNS": "200", "PYTHONPATH": str(ROOT)}


def nearline(*arguments: object, cwd: Path | str = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, without input."""
    asked = [*map(str, arguments)], str(cwd), {**os.environ, **ENVIRON, **environ}
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, ours:
        _, template = start_template()
        with theirs:
            socket.send_fds(template, [b"\n"], [out.fileno(), err.fileno(), theirs.fileno()])
        ours.sendall(json.dumps(asked).encode() + b"\n")
        ours.settimeout(TIMEOUT_S)
        status = int(ours.recv(16))
        printed = [(file.seek(0), file.read().decode())[1] for file in (out, err)]
    return subprocess.CompletedProcess(asked[0], status, *printed)


@functools.cache
def start_template() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process that is forked, and the connection to it. It ends when this one does."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **ENVIRON},
            cwd=ROOT,
        )
    atexit.register(process.wait)
    atexit.register(ours.close)  # before that
    return process, ours


def be_forked(requests: socket.socket) -> None:
    """Return in a new process for each request, ready to run the command; exit at the end of requests."""
    for name in cli.COMMANDS:
        importlib.import_module(f"jobs.commands.{cli.TOGETHER.get(name) or name.replace('-', '_')}")
    for name in [name for name in sys.modules if name.startswith("jobs.commands")]:
        del sys.modules[name]  # they look at their environment when they are imported
    gc.freeze()
    while True:
        asked, files, _, _ = socket.recv_fds(requests, 1, 3)
        if not asked:
            sys.exit()
        if not os.fork():
            requests.close()
            begin(*files)
            return
        for file in files:
            os.close(file)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def begin(out: int, err: int, connection: int) -> None:
    """Return in a child with these files and what was asked; report its exit code once it has ended."""
    with socket.socket(fileno=connection) as reply:
        arguments, folder, environ = json.loads(reply.makefile().readline())
        if child := os.fork():
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            reply.sendall(str(status).encode())
            os._exit(0)
    for file, place in ((out, 1), (err, 2)):
        os.dup2(file, place)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    sys.argv = [str(cli.__file__), *arguments]
    sys.modules["__main__"].__package__ = "jobs"  # as after `python -m jobs.cli`, for usage errors


if __name__ == "__main__":
    be_forked(socket.socket(fileno=int(sys.argv[1])))
    cli.main()
