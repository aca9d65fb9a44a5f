"""Finding files, and reading one of them with bounded memory: decompressed, decoded, counted."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import BinaryIO, cast

from indexes.errors import InvalidInput
from jobs.sources.model import Format, SourceError, SourceOptions, SourceReport

FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "text",
    ".text": "text",
    ".rst": "text",
    ".adoc": "text",
    ".org": "text",
}
# Text by custom, though no ending says so; Debian adds endings of its own: changelog.Debian.amd64.gz.
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
    format: Format
    size_bytes: int


def find_files(paths: Sequence[Path], *, options: SourceOptions, report: SourceReport) -> Iterator[FoundFile]:
    """The files of `paths`: those named, and in folders those of a known kind, by name, folder by folder.

    In folders hidden entries are passed over in silence; files of other kinds, what is excluded, and links that
    lead to a folder or out of the given one, are counted in `report`. A named file must be regular and of a known
    kind. Raises InvalidInput, before the first file, if a path does not exist.
    """
    for path in paths:
        if not path.exists():
            raise InvalidInput(f"{path}: no such file or folder", param="paths")
    for path in paths:
        if path.is_dir():
            yield from _Folder(path, options, report).files(path)
            continue
        try:
            yield _named_file(path, options)
        except SourceError as error:
            report.fail(error)


def _named_file(path: Path, options: SourceOptions) -> FoundFile:
    file_format = options.format or _format_of(path.name)
    if file_format is None:
        raise SourceError(printable(path), f"of no known kind; known are {', '.join(FORMATS)}")
    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(printable(path), f"cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(printable(path), "not a regular file")
    return FoundFile(path, path.name, file_format, status.st_size)


class _Folder:
    """One of the folders that were given, and all below it."""

    def __init__(self, root: Path, options: SourceOptions, report: SourceReport) -> None:
        self._root = root
        self._real_root = root.resolve()
        self._exclude = [pattern.rstrip("/") for pattern in options.exclude]
        self._report = report

    def files(self, folder: Path) -> Iterator[FoundFile]:
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            self._report.fail(SourceError(printable(folder), f"cannot be listed: {error.strerror}"))
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                yield from self._entry(entry, folder / entry.name)
            except OSError as error:
                self._report.fail(
                    SourceError(printable(folder / entry.name), f"cannot be read: {error.strerror}")
                )

    def _entry(self, entry: os.DirEntry[str], path: Path) -> Iterator[FoundFile]:
        below = path.relative_to(self._root).as_posix()
        if any(fnmatchcase(name, pattern) for name in (entry.name, below) for pattern in self._exclude):
            self._report.excluded += 1
        elif entry.is_symlink() and not _leads_to_file_inside(path, self._real_root):
            self._report.links += 1
        elif entry.is_dir():
            yield from self.files(path)
        elif entry.is_file() and (file_format := _format_of(entry.name)):
            yield FoundFile(path, f"{self._real_root.name}/{below}", file_format, entry.stat().st_size)
        else:
            self._report.other_files[_ending(entry.name)] += 1


def _leads_to_file_inside(link: Path, real_root: Path) -> bool:
    # Mounted Kubernetes volumes consist of such links. Links to folders may lead round in circles.
    try:
        target = link.resolve()
    except (OSError, RuntimeError):  # a link that leads to itself
        return False
    return target.is_file() and target.is_relative_to(real_root)


def _format_of(file_name: str) -> Format | None:
    name = file_name.lower().removesuffix(".gz")
    return FORMATS.get(PurePath(name).suffix) or ("text" if BARE_NAMES.fullmatch(name) else None)


def _ending(file_name: str) -> str:
    return PurePath(file_name.lower().removesuffix(".gz")).suffix or "without an ending"


class SourceFile:
    """One open file. Every error it raises is a `SourceError` that starts with the file's path."""

    def __init__(self, found: FoundFile, raw: io.FileIO, stream: BinaryIO) -> None:
        self.found = found
        self._raw = raw
        self._stream = stream

    @classmethod
    @contextmanager
    def open(cls, found: FoundFile) -> Iterator[SourceFile]:
        """Open `found`, and close it whatever happens; .gz is decompressed on the way."""
        try:
            found.name.encode()  # a name of arbitrary bytes can be no document's id
        except UnicodeEncodeError as error:
            raise SourceError(printable(found.path), "the file's name is not UTF-8") from error
        try:
            raw = io.FileIO(found.path, "rb")
        except OSError as error:
            raise SourceError(printable(found.path), f"cannot be opened: {error.strerror}") from error
        with raw:
            buffered = io.BufferedReader(raw, READ_AHEAD_BYTES)
            zipped = found.path.name.lower().endswith(".gz")
            yield cls(found, raw, cast("BinaryIO", gzip.GzipFile(fileobj=buffered)) if zipped else buffered)

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
        content = self._read(lambda: self._stream.read(bytes_max + 1), line=None)
        if len(content) > bytes_max:
            raise self.error(f"larger than the {bytes_max:,} bytes a document may have")
        self._refuse_utf16(content)
        text = self.decode(content.removeprefix(b"\xef\xbb\xbf"), line=None)
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def lines(self, bytes_max: int) -> Iterator[tuple[int, bytes | SourceError]]:
        """Lines with their numbers from 1, line ends kept, without a byte order mark.

        A line longer than `bytes_max` is passed over, never held; an error takes its place.
        """
        number = 0
        while True:
            number += 1
            line = self._read(lambda: self._stream.readline(bytes_max + 1), line=number)
            if not line:
                return
            if number == 1:
                self._refuse_utf16(line)
            if len(line) <= bytes_max:
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                continue
            while line and not line.endswith(b"\n"):
                line = self._read(lambda: self._stream.readline(READ_AHEAD_BYTES), line=number)
            yield (
                number,
                self.error(f"a line longer than the {bytes_max:,} bytes a document may have", number),
            )

    def decode(self, content: bytes, line: int | None) -> str:
        """`content` as UTF-8, or an error that says where it is not."""
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            good = content[: error.start].decode("utf-8")
            where = line or good.count("\n") + 1
            column = len(good) - (good.rfind("\n") + 1) + 1
            found = f"found byte 0x{content[error.start]:02x}"
            raise self.error(f"not UTF-8 text ({found}); convert it with iconv", where, column) from error

    def _refuse_utf16(self, content: bytes) -> None:
        if content.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise self.error("UTF-16 text, expected UTF-8 (in Excel: save as CSV UTF-8)")

    def _read(self, read: Callable[[], bytes], line: int | None) -> bytes:
        try:
            return read()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.error(f"damaged or cut short: {error}", line) from error
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror}", line) from error


def printable(path: Path) -> str:
    """`path` as text that any terminal and log can take, whatever bytes are in it."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
