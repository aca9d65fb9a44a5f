"""Finding files, and reading one of them with bounded memory: decompressed, decoded, counted."""

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

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".md": "markdown",
    ".markdown": "markdown",
    **dict.fromkeys([".txt", ".text", ".rst", ".adoc", ".org"], "text"),
}
# Text files that have no extension by convention. Debian adds some of its own: changelog.Debian.amd64.gz.
BARE_NAMES = re.compile(
    r"(authors|bugs|change(log|s)|contribut(ing|ors)|copying|copyright|credits|faq|hacking|history|install|licen[cs]e"
    r"|maintainers|news|notice|readme|thanks|todo)(\.debian(\.\w+)?)?"
)
READ_AHEAD_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to read. `name` is its path beginning with the name of the folder that was given, or its file name."""

    path: Path
    name: str
    format: str
    size_bytes: int


def find_files(paths: Sequence[Path], *, options: SourceOptions, report: SourceReport) -> Iterator[FoundFile]:
    """The files of `paths`: those named, and in folders those of a known kind, by name, folder by folder.

    In folders hidden entries are skipped silently; files of other kinds, what is excluded, and links that lead to a
    folder or out of the given one, are counted in `report`. A named file must be regular and of a known kind. Raises
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
    # Mounted Kubernetes volumes consist of such links. Links to folders may form cycles.
    try:
        target = link.resolve()
    except (OSError, RuntimeError):  # a link to itself
        return False
    return target.is_file() and target.is_relative_to(real_root)


def _format_of(file_name: str) -> str | None:
    name = _unzipped(file_name)
    return FORMATS.get(PurePath(name).suffix) or ("text" if BARE_NAMES.fullmatch(name) else None)


def _unzipped(file_name: str) -> str:
    return file_name.lower().removesuffix(".gz")


class SourceFile:
    """One open file; close it. Every error it raises is a `SourceError` that starts with the file's path."""

    def __init__(self, found: FoundFile) -> None:
        """Open `found`; .gz is decompressed on the way."""
        self.found = found
        try:
            found.name.encode()  # else it cannot be a document's id
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
        """Bytes taken from the disk so far, read ahead included."""
        return self._raw.tell()

    def error(self, reason: str, line: int | None = None, column: int | None = None) -> SourceError:
        """An error that begins with this file, and the line and column where they are known."""
        return SourceError(self.place(line, column), reason)

    def place(self, line: int | None = None, column: int | None = None) -> str:
        """`path:line:column` as editors and terminals understand it."""
        return ":".join(str(part) for part in (printable(self.found.path), line, column) if part is not None)

    def text(self, bytes_max: int) -> str:
        """The whole file as text, line ends made `\\n`; refused when longer than `bytes_max`."""
        content = self._read(lambda: self._stream.read(bytes_max + 1))
        if len(content) > bytes_max:
            raise self.error(f"larger than the {bytes_max:,} bytes a document may have")
        text = self.decode(self._without_mark(content))
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def lines(self, bytes_max: int) -> Iterator[tuple[int, bytes | SourceError]]:
        """Lines with their numbers from 1, line ends kept, without a byte order mark.

        A line longer than `bytes_max` is skipped without being held; an error takes its place.
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
        """`content` as UTF-8, or an error that says where it is not."""
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            good = content[: error.start].decode("utf-8")
            where = line or good.count("\n") + 1
            column = len(good) - (good.rfind("\n") + 1) + 1
            found = f"found byte 0x{content[error.start]:02x}"
            raise self.error(f"not UTF-8 text ({found}); convert it with iconv", where, column) from error

    def _without_mark(self, content: bytes) -> bytes:
        """The beginning of a file without its byte order mark. Raises SourceError for that of UTF-16."""
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
    """`path` as text that any terminal and log can take, whatever bytes are in it."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
