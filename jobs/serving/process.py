"""A real service in a child process on a free loopback port, for the demo, benchmarks and tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from indexes.base.errors import NearlineError
from jobs.serving.service import READY_LINE

START_S = 120.0
STOP_S = 40.0


class ServerProcess:
    """`nearline serve` as a child process, ready when the constructor returns. Callers `stop` or `kill` it."""

    def __init__(
        self,
        data: Path,
        environ: Mapping[str, str] | None = None,
        checkout: Path | None = None,
        port: int = 0,
        run_by: Sequence[str] = (),
        config: Path | None = None,
    ) -> None:
        """`checkout` runs the code of another working tree with this Python; `port` 0 is a free one. `run_by` is what
        the command begins with.

        Raises NearlineError with the child's last line if it exits before it is ready.
        """
        elsewhere = {} if checkout is None else {"PYTHONPATH": str(checkout.resolve())}
        command = [
            *run_by,
            sys.executable,
            "-m",
            "jobs.cli",
            "serve",
            "--data",
            str(data.absolute()),
            "--port",
            str(port),
            *(() if config is None else ("--config", str(config))),
        ]
        self._log = log_of(data).open("ab")
        self._child = subprocess.Popen(
            command,
            cwd=checkout,
            env={**os.environ, **(environ or {}), **elsewhere},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        try:
            self.url = self._wait_for_url()
        except BaseException:  # including Ctrl-C, which does not reach a child in its own session
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    def stop(self) -> int:
        """SIGTERM and wait; returns the exit status."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        try:
            return self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NearlineError("the service did not stop in time") from None
        finally:
            self._log.close()

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._child.kill()
        self._child.wait()
        self._log.close()

    def _wait_for_url(self) -> str:
        late = threading.Timer(START_S, self._child.kill)
        late.start()
        try:
            for line in self._child.stdout or ():
                if line.startswith(READY_LINE):
                    return line.removeprefix(READY_LINE).strip()
        finally:
            late.cancel()
        self.kill()
        tail = Path(self._log.name).read_text(errors="replace").strip().splitlines()[-1:]
        raise NearlineError(f"the service did not start: {tail[0] if tail else 'no message'}")


def log_of(data: Path) -> Path:
    """Where services started here for a data directory log to."""
    return data.with_name(f"{data.name}.server.log")


@contextlib.contextmanager
def serving(
    data: Path,
    environ: Mapping[str, str] | None = None,
    checkout: Path | None = None,
    port: int = 0,
    config: Path | None = None,
) -> Iterator[ServerProcess]:
    """A service that runs for the duration of a with-block."""
    server = ServerProcess(data, environ, checkout, port, config=config)
    try:
        yield server
    finally:
        server.stop()
