"""Readers of formats whose files can do harm, in a process of their own: one that is broken or hostile fails alone.

    parent    Isolated().documents(found, options, report)
    child     recv file -> a document at a time, then the report -> recv file ...

Native code reads these files, so a crash must not end the run; a small file can unpack to gigabytes, so memory is
limited; some never end, so time is. The child ends itself by an alarm, also while native code runs; the next file gets
another.
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
CHILD = "import sys; from jobs.sources.isolated import answer_files; answer_files(int(sys.argv[1]))"
# A child is replaced before what its libraries keep adds up.
FILES_PER_CHILD = 500


class Isolated:
    """Reads files one after the other in a child, which `close` ends. The child starts with the first file."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._files = 0

    def documents(
        self, file: SourceFile, options: SourceOptions, report: SourceReport
    ) -> Generator[SourceDocument, None, None]:
        """The documents of one file. Raises SourceError if the child did not survive it or the extra is missing."""
        if not all(map(find_spec, NEEDS)):
            raise file.error("needs the extra files: in a checkout of Nearline, pip install '.[files]'")
        if self._files >= FILES_PER_CHILD:
            self.close()
        connection = self._connected()
        self._files += 1
        finished = False
        try:
            connection.send((file.found, options))
            while isinstance(answer := connection.recv(), SourceDocument):
                yield answer
            finished = True
            report.add(answer)
        except (EOFError, ConnectionError) as error:
            raise file.error(self._end(options)) from error
        finally:
            if not finished:  # the child is in the middle of a file
                self.close()

    def kill(self) -> None:
        """From any thread: end the child. The file that it reads then raises SourceError."""
        if (child := self._child) is not None:
            child.kill()

    def close(self) -> None:
        if self._child is not None and self._connection is not None:
            self._connection.close()
            self._child.kill()
            self._child.wait()
        self._child = self._connection = None
        self._files = 0

    def _connected(self) -> Connection:
        if self._connection is None:
            # Not by multiprocessing: a fork would count our memory against the child's limit, and what it spawns
            # imports our main module. -P: modules in the folder that is being read are not the child's.
            self._connection, theirs = Pipe()
            descriptor = theirs.fileno()
            command = [sys.executable, "-P", "-c", CHILD, str(descriptor)]
            # Each thread of the libraries would reserve an arena of its own out of the address space.
            environ = {**os.environ, "MALLOC_ARENA_MAX": "2"}
            self._child = subprocess.Popen(
                command, pass_fds=[descriptor], stdin=subprocess.DEVNULL, env=environ
            )
            theirs.close()  # or the end of the child would go unnoticed
        return self._connection

    def _end(self, options: SourceOptions) -> str:
        assert self._child is not None
        status = self._child.wait()
        if status == -signal.SIGALRM:
            return f"reading it took more than {options.extracting_s_max} s"
        if status == -signal.SIGPROF:
            return f"reading it took more than {options.extracting_cpu_s_max:.1f} s of CPU, too much for its size"
        if status == -signal.SIGSEGV:
            return "reading it crashed the process that did: it is nested too deeply, or broken"
        return f"reading it ended the process that did, perhaps for lack of memory (exit code {status})"


def answer_files(descriptor: int) -> None:
    """The child's main function: until the parent closes the connection or ends."""
    connection = Connection(descriptor)
    with contextlib.suppress(OSError):  # where memory ends, this process ends before others
        Path("/proc/self/oom_score_adj").write_text("1000")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    os.nice(10)  # searches come first
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            _answer(connection, *connection.recv())


def _answer(connection: Connection, found: FoundFile, options: SourceOptions) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (options.extracting_memory_bytes_max, hard))
    report = SourceReport()
    try:
        with contextlib.closing(SourceFile(found, options.encoding)) as file:
            documents = READERS[found.format](file, options, report)
            while True:
                # Not while sending, which waits for the parent.
                signal.alarm(options.extracting_s_max)
                signal.setitimer(signal.ITIMER_PROF, options.extracting_cpu_s_max)
                document = next(documents, None)
                signal.alarm(0)
                signal.setitimer(signal.ITIMER_PROF, 0)
                if document is None:
                    break
                connection.send(document)
    except SourceError as error:
        report.fail(error)
    except MemoryError:
        report.fail(SourceError(str(found.path), "reading it takes more memory than is allowed"))
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a library raises about a file is about that file
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        report.fail(SourceError(str(found.path), f"cannot be read as {found.format}: {reason}"))
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    connection.send(report)
