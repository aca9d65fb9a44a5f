"""A sandbox for readers of risky formats: a child process, so that a broken or hostile file fails alone.

    parent    Sandbox().documents(found, options, report)
    child     recv file -> some documents at a time, then the report -> recv file ...

Native code reads these files, so a crash must not end the run. A small file can unpack to gigabytes or take forever, so
memory and time are limited. An alarm ends the child even in native code; the next file gets a new child.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Generator
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from jobs.sources.files import FoundFile, SourceFile
from jobs.sources.mail import read_mail, read_mailbox
from jobs.sources.model import SourceDocument, SourceError, SourceOptions, SourceReport
from jobs.sources.readers import EXTRA_READERS, Reader

READERS: dict[str, Reader] = {**EXTRA_READERS, "mail": read_mail, "mailbox": read_mailbox}
NEEDS = ("kreuzberg", "pyarrow", "selectolax")
CHILD = "import sys; from jobs.sources.sandbox import serve_files; serve_files(int(sys.argv[1]))"
# A child is replaced regularly, before memory that its libraries leak adds up.
FILES_PER_CHILD = 500
# Rows are sent together, which takes a third of the time. Other documents are sent one by one: the child may end at the
# next one.
ROWS_TOGETHER: dict[str, int] = {"arrow": 64, "parquet": 64}
CHARS_TOGETHER = 1_000_000


class Sandbox:
    """Reads files one after the other in a child process, which starts with the first file and ends with `close`."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._files = 0

    def documents(
        self, file: SourceFile, options: SourceOptions, report: SourceReport
    ) -> Generator[SourceDocument, None, None]:
        """Yield the documents of one file. Raises SourceError if the child died reading it or the extra is missing."""
        if not all(map(find_spec, NEEDS)):
            raise file.error("needs the extra files: in a checkout of Nearline, pip install '.[files]'")
        if self._files >= FILES_PER_CHILD:
            self.close()
        connection = self._connect()
        self._files += 1
        finished = False
        try:
            connection.send((file.found, options))
            while isinstance(answer := connection.recv(), list):
                yield from answer
            finished = True
            report.add(answer)
        except (EOFError, ConnectionError) as error:
            raise file.error(self._explain_end(options)) from error
        finally:
            if not finished:  # the child is in the middle of a file
                self.close()

    def kill(self) -> None:
        """Kill the child, from any thread. The file being read then raises SourceError."""
        if (child := self._child) is not None:
            child.kill()

    def close(self) -> None:
        if self._child is not None and self._connection is not None:
            self._connection.close()
            self._child.kill()
            self._child.wait()
        self._child = self._connection = None
        self._files = 0

    def _connect(self) -> Connection:
        if self._connection is None:
            # Not multiprocessing: a fork would count our memory against the child's limit, and a spawned child would
            # import our main module. -P: modules in the folder being read must not shadow the child's.
            self._connection, theirs = Pipe()
            descriptor = theirs.fileno()
            command = [sys.executable, "-P", "-c", CHILD, str(descriptor)]
            # Otherwise each library thread would reserve its own arena of address space.
            environ = {**os.environ, "MALLOC_ARENA_MAX": "2"}
            self._child = subprocess.Popen(
                command, pass_fds=[descriptor], stdin=subprocess.DEVNULL, env=environ
            )
            theirs.close()  # otherwise the end of the child would go unnoticed
        return self._connection

    def _explain_end(self, options: SourceOptions) -> str:
        assert self._child is not None
        status = self._child.wait()
        if status == -signal.SIGALRM:
            return f"reading it took more than {options.extracting_s_max} s"
        if status == -signal.SIGPROF:
            return f"reading it took more than {options.extracting_cpu_s_max:.1f} s of CPU, too much for its size"
        if status == -signal.SIGSEGV:
            return "reading it crashed the process that did: it is nested too deeply, or broken"
        return f"reading it ended the process that did, perhaps for lack of memory (exit code {status})"


def serve_files(descriptor: int) -> None:
    """Serve as the child's main function, until the parent closes the connection or ends."""
    connection = Connection(descriptor)
    with contextlib.suppress(OSError):  # if memory runs out, kill this process first
        Path("/proc/self/oom_score_adj").write_text("1000")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    os.nice(10)  # searches come first
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            _serve_file(connection, *connection.recv())


def _serve_file(connection: Connection, found: FoundFile, options: SourceOptions) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (options.extracting_memory_bytes_max, hard))
    report, waiting, chars = SourceReport(), list[SourceDocument](), 0
    together = ROWS_TOGETHER.get(found.format, 1)
    try:
        with contextlib.closing(SourceFile(found, options.encoding)) as file:
            documents = READERS[found.format](file, options, report)
            while True:
                # Off while sending, which waits for the parent.
                signal.alarm(options.extracting_s_max)
                signal.setitimer(signal.ITIMER_PROF, options.extracting_cpu_s_max)
                document = next(documents, None)
                signal.alarm(0)
                signal.setitimer(signal.ITIMER_PROF, 0)
                if document is None:
                    break
                waiting.append(document)
                chars += len(document.text)
                if len(waiting) >= together or chars >= CHARS_TOGETHER:
                    connection.send(waiting)
                    waiting, chars = [], 0
    except SourceError as error:
        report.fail(error)
    except MemoryError:
        report.fail(SourceError(str(found.path), "reading it takes more memory than is allowed"))
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # noqa: BLE001 - any error of a library concerns this file only
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        report.fail(SourceError(str(found.path), f"cannot be read as {found.format}: {reason}"))
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    if waiting:
        connection.send(waiting)
    connection.send(report)
