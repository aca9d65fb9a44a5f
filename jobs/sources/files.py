"""Tells formats from file names, and reads a file with bounded memory: decompressed, decoded, with bytes counted."""

from __future__ import annotations

import codecs
import copy
import dataclasses
import gzip
import io
import itertools
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO, cast

from indexes.base.errors import escape_controls
from jobs.sources.model import SourceError

LANGUAGES = {
    ".bash": "shell", ".c": "c", ".cc": "c++", ".clj": "clojure", ".cpp": "c++", ".cs": "c#", ".css": "css",
    ".dart": "dart", ".erl": "erlang", ".ex": "elixir", ".exs": "elixir", ".go": "go", ".h": "c", ".hpp": "c++",
    ".hs": "haskell", ".ini": "ini", ".java": "java", ".jl": "julia", ".js": "javascript", ".jsx": "javascript",
    ".kt": "kotlin", ".lua": "lua", ".mjs": "javascript", ".ml": "ocaml", ".php": "php", ".pl": "perl", ".pm": "perl",
    ".proto": "protobuf", ".ps1": "powershell", ".py": "python", ".pyi": "python", ".r": "r", ".rb": "ruby",
    ".rs": "rust", ".scala": "scala", ".sh": "shell", ".sql": "sql", ".swift": "swift", ".tf": "terraform",
    ".toml": "toml", ".ts": "typescript", ".tsx": "typescript", ".yaml": "yaml", ".yml": "yaml", ".zig": "zig",
}  # fmt: skip
FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".parquet": "parquet",
    **dict.fromkeys([".arrow", ".arrows", ".feather"], "arrow"),
    ".md": "markdown",
    ".markdown": "markdown",
    ".rst": "rst",
    **dict.fromkeys([".txt", ".text", ".adoc", ".org"], "text"),
    **dict.fromkeys([".html", ".htm", ".xhtml"], "html"),
    ".pdf": "pdf",
    ".docx": "docx",
    ".pptx": "pptx",
    ".xlsx": "xlsx",
    ".epub": "epub",
    ".eml": "mail",
    ".mbox": "mailbox",
    **dict.fromkeys(LANGUAGES, "code"),
}
# Text files that conventionally have no extension. Debian appends its own: changelog.Debian.amd64.gz.
BARE_NAMES = re.compile(
    r"(authors|bugs|change(log|s)|contribut(ing|ors)|copying|copyright|credits|faq|hacking|history|install|licen[cs]e"
    r"|maintainers|news|notice|readme|thanks|todo)(\.debian(\.\w+)?)?"
)
READ_AHEAD_BYTES = 256 * 1024
# Longest first: the UTF-32 mark begins with the UTF-16 mark.
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
MARK_BYTES_MAX = max(map(len, MARKS))
ENCODING_HINT = "--encoding says which it is, such as cp1252"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to read. `name` is its path from the given folder, that folder's name included, or its file name."""

    path: Path
    name: str
    format: str
    size_bytes: int
    named: bool = False
    """Whether the user named the file itself and not a folder around it."""
    place: str = ""
    """Its location as shown to people, if not the path: an attachment's message and name."""


def format_of(file_name: str) -> str | None:
    name = strip_gz(file_name)
    return FORMATS.get(PurePath(name).suffix) or ("text" if BARE_NAMES.fullmatch(name) else None)


def language_of(file_name: str) -> str:
    """Return the programming language of a file of the format `code`."""
    return LANGUAGES[PurePath(strip_gz(file_name)).suffix]


def strip_gz(file_name: str) -> str:
    return file_name.lower().removesuffix(".gz")


class SourceFile:
    """One open file, which the caller closes. It raises only `SourceError`, starting with the file's path."""

    def __init__(self, found: FoundFile, encoding: str | None = None) -> None:
        """Open `found`; .gz is decompressed transparently. Text is decoded by its byte order mark, else as
        `encoding`, else as UTF-8."""
        self.found = found
        self.encoding = encoding
        try:
            found.name.encode()  # a document's id must be valid Unicode
            self._raw = io.FileIO(found.path)
        except UnicodeEncodeError as error:
            raise self.error("the file's name is not UTF-8") from error
        except OSError as error:
            raise self.error(f"cannot be opened: {error.strerror}") from error
        stream = io.BufferedReader(self._raw, READ_AHEAD_BYTES)
        zipped = found.path.name.lower().endswith(".gz")
        self._stream = cast("BinaryIO", gzip.GzipFile(fileobj=stream) if zipped else stream)

    def close(self) -> None:
        self._raw.close()

    def part(self, name: str) -> SourceFile:
        """Return the same open file under the name of one of its parts, for documents of that part."""
        part = copy.copy(self)
        part.found = dataclasses.replace(self.found, name=f"{self.found.name}#{name}")
        return part

    @property
    def bytes_read(self) -> int:
        """Bytes read from disk so far, including read-ahead."""
        return self._raw.tell()

    def advance(self, to: int) -> None:
        """Count the bytes up to this one as read, of a file that a library reads by itself."""
        self._raw.seek(to)

    def error(self, reason: str, line: int | None = None, column: int | None = None) -> SourceError:
        """Return an error located in this file, at the line and column if given."""
        return SourceError(self.place(line, column), reason)

    def place(self, line: int | None = None, column: int | None = None) -> str:
        """Return `path:line:column`, which editors and terminals turn into links."""
        place = self.found.place or printable(self.found.path)
        return ":".join(str(part) for part in (place, line, column) if part is not None)

    def content(self, bytes_max: int) -> bytes:
        """Read the whole file, decompressed. Raises SourceError if it is longer than `bytes_max`."""
        content = self._read(lambda: self._stream.read(bytes_max + 1))
        if len(content) > bytes_max:
            raise self.error(f"larger than the {bytes_max:,} bytes that are read of such a file")
        return content

    def text(self, bytes_max: int) -> str:
        """Read the whole file as text with `\\n` line endings. Raises SourceError if it is longer than `bytes_max`."""
        self._read_as_utf8()
        text = self.decode(self.content(bytes_max))
        if "\0" in text:
            raise self.error(
                "holds NUL bytes: it is no text, or UTF-16, which --encoding utf-16-le or utf-16-be reads"
            )
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def lines(self, bytes_max: int) -> Iterator[tuple[int, bytes | SourceError]]:
        """Yield the lines, numbered from 1, as UTF-8 with their line endings and without a byte order mark.

        Lines of mailboxes are not decoded, because each message has its own encoding.
        A line longer than `bytes_max` is never held in memory: an error is yielded in its place.
        """
        if self.found.format != "mailbox":
            self._read_as_utf8()
        for number in itertools.count(1):
            line = self._read(lambda: self._stream.readline(bytes_max + 1), number)
            if not line:
                return
            if len(line) <= bytes_max:
                yield number, line
                continue
            while line and not line.endswith(b"\n"):
                line = self._read(lambda: self._stream.readline(READ_AHEAD_BYTES), number)
            reason = f"a line longer than the {bytes_max:,} bytes a document may have"
            yield number, self.error(reason, number)

    def decode(self, content: bytes, line: int | None = None) -> str:
        """Decode `content` as UTF-8. Raises SourceError with the position of the first invalid byte."""
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            good = content[: error.start].decode("utf-8")
            where = line or good.count("\n") + 1
            column = len(good) - (good.rfind("\n") + 1) + 1
            found = f"found byte 0x{content[error.start]:02x}"
            raise self.error(f"not UTF-8 text ({found}); {ENCODING_HINT}", where, column) from error

    def _read_as_utf8(self) -> None:
        """Skip the byte order mark, and convert the stream to UTF-8 if it has another encoding."""
        start = self._read(lambda: self._stream.peek(MARK_BYTES_MAX))  # type: ignore[attr-defined]
        mark = next((mark for mark in MARKS if start.startswith(mark)), b"")
        self._read(lambda: self._stream.read(len(mark)))
        encoding = MARKS.get(mark) or self.encoding or "utf-8"
        if codecs.lookup(encoding).name != "utf-8":
            self._stream = cast(
                "BinaryIO", io.BufferedReader(_Utf8(self._stream, encoding), READ_AHEAD_BYTES)
            )

    def _read(self, read: Callable[[], bytes], line: int | None = None) -> bytes:
        try:
            return read()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.error(f"damaged or cut short: {error}", line) from error
        except UnicodeError as error:  # some codecs give no more than a message
            encoding, reason = getattr(error, "encoding", self.encoding), getattr(error, "reason", error)
            raise self.error(f"not {encoding} text ({reason}); {ENCODING_HINT}", line) from error
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror}", line) from error


class _Utf8(io.RawIOBase):
    """Converts a stream of text in another encoding to UTF-8."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._pending = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._pending and not self._ended:
            read = self._stream.read(READ_AHEAD_BYTES)
            self._ended = not read
            self._pending = self._decoder.decode(read, final=self._ended).encode("utf-8", "surrogatepass")
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count


def printable(path: Path) -> str:
    """Return `path` as one line of valid UTF-8 for terminals and logs, with undecodable bytes and control characters
    escaped."""
    return escape_controls(os.fsencode(path).decode("utf-8", "backslashreplace"))
