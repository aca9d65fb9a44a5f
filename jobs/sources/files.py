"""Finding files, and reading one of them with bounded memory: decompressed, decoded, counted."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from indexes.errors import InvalidInput, TooLarge
from jobs.sources.model import Format, SourceOptions, SourceReport

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
READ_AHEAD_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to read. `name` is its path beginning with the name of the folder that was given, or its file name."""

    path: Path
    name: str
    format: Format
    size_bytes: int


def find_files(
    paths: Sequence[Path], *, options: SourceOptions, report: SourceReport | None = None
) -> Iterator[FoundFile]:
    """The files of `paths`: those named, and in folders those of a known kind, by name, folder by folder.

    In folders hidden entries are passed over in silence; files of other kinds, and links that lead to a
    folder or out of the given one, are counted in `report`. A named file must exist, be regular and be of a
    known kind.
    """
    report = report if report is not None else SourceReport()
    for path in paths:
        if not path.exists():
            raise InvalidInput(f"{path}: no such file or folder", param="paths")
    for path in paths:
        if path.is_dir():
            yield from _find_in_folder(path, path, path.resolve(), report)
        else:
            yield _named_file(path, options)


def _named_file(path: Path, options: SourceOptions) -> FoundFile:
    file_format = options.format or _format_of(path.name)
    if file_format is None:
        raise InvalidInput(f"{path}: of no known kind; known are {', '.join(FORMATS)}", param="paths")
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInput(f"{path}: not a regular file", param="paths")
    return FoundFile(path, path.name, file_format, status.st_size)


def _find_in_folder(folder: Path, root: Path, real_root: Path, report: SourceReport) -> Iterator[FoundFile]:
    try:
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        raise InvalidInput(
            f"{printable(folder)}: cannot be listed: {error.strerror}", param="paths"
        ) from error
    for entry in entries:
        path = folder / entry.name
        if entry.name.startswith("."):
            continue
        if entry.is_symlink() and not _leads_to_file_inside(path, real_root):
            report.links += 1
            report.note(f"{printable(path)}: a link to a folder or out of {root}, not followed")
        elif entry.is_dir():
            yield from _find_in_folder(path, root, real_root, report)
        elif entry.is_file() and (file_format := _format_of(entry.name)):
            name = f"{real_root.name}/{path.relative_to(root).as_posix()}"
            yield FoundFile(path, name, file_format, entry.stat().st_size)
        else:
            report.other_files += 1
            report.note(f"{printable(path)}: of no known kind, skipped")


def _leads_to_file_inside(link: Path, real_root: Path) -> bool:
    # Mounted Kubernetes volumes consist of such links. Links to folders may lead round in circles.
    try:
        target = link.resolve()
    except (OSError, RuntimeError):  # a link that leads to itself
        return False
    return target.is_file() and target.is_relative_to(real_root)


def _format_of(file_name: str) -> Format | None:
    name = file_name.lower().removesuffix(".gz")
    return FORMATS.get(os.path.splitext(name)[1])  # noqa: PTH122 - a name, not a path


class SourceFile:
    """One open file. Every error it raises is an `InvalidInput` that starts with the file's path."""

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
            raise InvalidInput(f"{printable(found.path)}: the file's name is not UTF-8") from error
        try:
            raw = io.FileIO(found.path, "rb")
        except OSError as error:
            raise InvalidInput(f"{printable(found.path)}: cannot be opened: {error.strerror}") from error
        with raw:
            buffered = io.BufferedReader(raw, READ_AHEAD_BYTES)
            zipped = found.path.name.lower().endswith(".gz")
            yield cls(found, raw, cast("BinaryIO", gzip.GzipFile(fileobj=buffered)) if zipped else buffered)

    @property
    def bytes_read(self) -> int:
        """Bytes taken from the disk so far, read ahead included."""
        return self._raw.tell()

    def error(self, what: str, line: int | None = None, column: int | None = None) -> InvalidInput:
        """An error that begins with this file, and the line and column where they are known."""
        return InvalidInput(f"{self.place(line, column)}: {what}")

    def place(self, line: int | None = None, column: int | None = None) -> str:
        """`path:line:column` as editors and terminals understand it."""
        return ":".join(str(part) for part in (printable(self.found.path), line, column) if part is not None)

    def text(self, bytes_max: int) -> str:
        """The whole file as text, line ends made `\\n`; refused when longer than `bytes_max`."""
        content = self._read(lambda: self._stream.read(bytes_max + 1), line=None)
        if len(content) > bytes_max:
            raise TooLarge(f"{self.place()}: larger than the {bytes_max:,} bytes a document may have")
        text = self.decode(content.removeprefix(b"\xef\xbb\xbf"), line=None)
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def lines(self, bytes_max: int) -> Iterator[tuple[int, bytes]]:
        """Lines with their numbers from 1, line ends kept, without a byte order mark.

        A line longer than `bytes_max` raises `TooLarge`; going on afterwards is not possible.
        """
        number = 0
        while True:
            number += 1
            line = self._read(lambda: self._stream.readline(bytes_max + 1), line=number)
            if not line:
                return
            if len(line) > bytes_max:
                raise TooLarge(
                    f"{self.place(number)}: a line longer than the {bytes_max:,} bytes a document may have"
                )
            yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line

    def decode(self, content: bytes, line: int | None) -> str:
        """`content` as UTF-8, or an error that says where it is not."""
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            good = content[: error.start].decode("utf-8")
            where = line or good.count("\n") + 1
            column = len(good) - (good.rfind("\n") + 1) + 1
            found = f"found byte 0x{content[error.start]:02x}"
            raise self.error(f"not UTF-8 text ({found})", where, column) from error

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
