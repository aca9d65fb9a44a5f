"""Finds files, and reads one with bounded memory: decompressed, decoded, counted."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import BinaryIO, cast

from indexes.errors import InvalidInput
from jobs.sources.model import SourceError, SourceOptions, SourceReport

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
    ".md": "markdown",
    ".markdown": "markdown",
    ".rst": "rst",
    **dict.fromkeys([".txt", ".text", ".adoc", ".org"], "text"),
    **dict.fromkeys([".html", ".htm", ".xhtml"], "html"),
    ".pdf": "pdf",
    ".docx": "docx",
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


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to read. `name` is its path from the given folder, that folder's name included, or its file name."""

    path: Path
    name: str
    format: str
    size_bytes: int


def find_files(paths: Sequence[Path], *, options: SourceOptions, report: SourceReport) -> Iterator[FoundFile]:
    """The files of `paths`: named files, and files of known kinds in folders, depth first in name order.

    In folders, hidden entries are skipped silently; files of other kinds, excluded ones, and links to folders or out of
    the given folder are skipped and counted in `report`. A named file must be regular and of a known kind. Raises
    InvalidInput, before the first file, if a path does not exist.
    """
    for path in paths:
        if not path.exists():
            raise InvalidInput(f"{path}: no such file or folder", param="paths")
    for path in paths:
        if path.is_dir():
            yield from _files_below(path, options, report)
        elif (file_format := _format_of(path.name)) is None:
            report.fail(SourceError(printable(path), f"of no known kind; known are {', '.join(FORMATS)}"))
        elif not path.is_file():
            report.fail(SourceError(printable(path), "not a regular file"))
        else:
            yield FoundFile(path, path.name, file_format, path.stat().st_size)


def _files_below(root: Path, options: SourceOptions, report: SourceReport) -> Iterator[FoundFile]:
    real_root = root.resolve()
    exclude = [pattern.rstrip("/") for pattern in options.exclude]

    def in_folder(folder: Path) -> Iterator[FoundFile]:
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            report.fail(SourceError(printable(folder), f"cannot be listed: {error.strerror}"))
            return
        for entry in entries:
            if not entry.name.startswith("."):
                try:
                    yield from at(entry, folder / entry.name)
                except OSError as error:
                    place = printable(folder / entry.name)
                    report.fail(SourceError(place, f"cannot be read: {error.strerror}"))

    def at(entry: os.DirEntry[str], path: Path) -> Iterator[FoundFile]:
        below = path.relative_to(root).as_posix()
        if any(fnmatchcase(name, pattern) for name in (path.name, below) for pattern in exclude):
            report.excluded += 1
        elif entry.is_symlink() and not _leads_to_file_inside(path, real_root):
            report.links += 1
        elif entry.is_dir():
            yield from in_folder(path)
        elif entry.is_file() and (file_format := _format_of(path.name)):
            yield FoundFile(path, f"{real_root.name}/{below}", file_format, entry.stat().st_size)
        else:
            report.other_files[PurePath(_unzipped(path.name)).suffix or "without an ending"] += 1

    return in_folder(root)


def _leads_to_file_inside(link: Path, real_root: Path) -> bool:
    # Kubernetes volume mounts consist of such links. Links to folders could form cycles.
    try:
        target = link.resolve()
    except (OSError, RuntimeError):  # a link to itself
        return False
    return target.is_file() and target.is_relative_to(real_root)


def _format_of(file_name: str) -> str | None:
    name = _unzipped(file_name)
    return FORMATS.get(PurePath(name).suffix) or ("text" if BARE_NAMES.fullmatch(name) else None)


def language_of(file_name: str) -> str:
    """The programming language of a file of the format `code`."""
    return LANGUAGES[PurePath(_unzipped(file_name)).suffix]


def _unzipped(file_name: str) -> str:
    return file_name.lower().removesuffix(".gz")


class SourceFile:
    """One open file, which the caller closes. It raises only `SourceError`, starting with the file's path."""

    def __init__(self, found: FoundFile) -> None:
        """Open `found`; .gz is decompressed transparently."""
        self.found = found
        try:
            found.name.encode()  # or it cannot be a document's id
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

    @property
    def bytes_read(self) -> int:
        """Bytes read from disk so far, including read-ahead."""
        return self._raw.tell()

    def error(self, reason: str, line: int | None = None, column: int | None = None) -> SourceError:
        """An error located in this file, at the line and column if given."""
        return SourceError(self.place(line, column), reason)

    def place(self, line: int | None = None, column: int | None = None) -> str:
        """`path:line:column`, which editors and terminals turn into links."""
        return ":".join(str(part) for part in (printable(self.found.path), line, column) if part is not None)

    def content(self, bytes_max: int) -> bytes:
        """The whole file, decompressed; an error if longer than `bytes_max`."""
        content = self._read(lambda: self._stream.read(bytes_max + 1))
        if len(content) > bytes_max:
            raise self.error(f"larger than the {bytes_max:,} bytes that are read of such a file")
        return content

    def text(self, bytes_max: int) -> str:
        """The whole file as text with `\\n` line endings; an error if longer than `bytes_max`."""
        text = self.decode(self._without_mark(self.content(bytes_max)))
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def lines(self, bytes_max: int) -> Iterator[tuple[int, bytes | SourceError]]:
        """Lines numbered from 1, with their line endings and without a byte order mark.

        A line longer than `bytes_max` is never held in memory: an error is yielded in its place.
        """
        for number in itertools.count(1):
            line = self._read(lambda: self._stream.readline(bytes_max + 1), number)
            if not line:
                return
            if number == 1:
                line = self._without_mark(line)
            if len(line) <= bytes_max:
                yield number, line
                continue
            while line and not line.endswith(b"\n"):
                line = self._read(lambda: self._stream.readline(READ_AHEAD_BYTES), number)
            reason = f"a line longer than the {bytes_max:,} bytes a document may have"
            yield number, self.error(reason, number)

    def decode(self, content: bytes, line: int | None = None) -> str:
        """`content` decoded as UTF-8. Raises SourceError with the position of the first invalid byte."""
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            good = content[: error.start].decode("utf-8")
            where = line or good.count("\n") + 1
            column = len(good) - (good.rfind("\n") + 1) + 1
            found = f"found byte 0x{content[error.start]:02x}"
            raise self.error(f"not UTF-8 text ({found}); convert it with iconv", where, column) from error

    def _without_mark(self, content: bytes) -> bytes:
        """The start of a file without its byte order mark. Raises SourceError for UTF-16."""
        if content.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise self.error("UTF-16 text, expected UTF-8 (in Excel: save as CSV UTF-8)")
        return content.removeprefix(b"\xef\xbb\xbf")

    def _read(self, read: Callable[[], bytes], line: int | None = None) -> bytes:
        try:
            return read()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.error(f"damaged or cut short: {error}", line) from error
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror}", line) from error


def printable(path: Path) -> str:
    """`path` as valid UTF-8 for terminals and logs, with undecodable bytes escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
