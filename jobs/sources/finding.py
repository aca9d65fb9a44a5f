"""Finds the files below the given paths, and reports what it skips."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from pathspec import GitIgnoreSpec

from indexes.base.errors import InvalidInput, message_of
from jobs.sources.files import FORMATS, FoundFile, format_of, printable, strip_gz
from jobs.sources.generated import REPETITION, find_generated_name, is_site, repeats_siblings
from jobs.sources.model import (
    EXCLUDED,
    HIDDEN,
    IGNORED,
    LINK,
    OTHER_KIND,
    Skip,
    SourceError,
    SourceOptions,
    SourceReport,
)

IGNORE_FILE = ".gitignore"
IGNORE_BYTES_MAX = 1_000_000
OFFICE_LOCK = "~$"  # begins the names of files that stand beside documents which an office program has open


def find_files(paths: Sequence[Path], *, options: SourceOptions, report: SourceReport) -> Iterator[FoundFile]:
    """Yield the files of `paths`: named files, and files of known kinds in folders, depth first in name order.

    In folders, files that are hidden, excluded, ignored by Git, generated or of another kind are skipped and recorded
    in `report`, as are links to folders or out of the given folder. A folder whose ignore file cannot be followed is a
    failure, and left out: what it hides may be secret. A named file must be regular and of a known kind.
    Raises InvalidInput, before the first file, if a path does not exist.
    """
    for path in paths:
        if not path.exists():
            raise InvalidInput(f"{path}: no such file or folder", param="paths")
    for path in paths:
        if path.is_dir():
            yield from _Search(path, path.resolve(), as_named(path).name, options, report).below(
                _Folder(path)
            )
        elif (file_format := format_of(path.name)) is None:
            report.fail(SourceError(printable(path), f"of no known kind; known are {', '.join(FORMATS)}"))
        elif not path.is_file():
            report.fail(SourceError(printable(path), "not a regular file"))
        else:
            yield FoundFile(path, path.name, file_format, path.stat().st_size, named=True)


def as_named(folder: Path) -> Path:
    """Return the absolute path of a folder, whose last part is as the caller named it, even if it is a link: a link to
    the newest of several folders names their files alike."""
    return folder.resolve() if folder.name in ("", "..") else folder.parent.resolve() / folder.name


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder to search, the ignore files that apply to it, outermost first, and whether it is in a generated site."""

    path: Path
    ignores: tuple[tuple[Path, GitIgnoreSpec], ...] = ()
    site: bool = False
    site_root: bool = False

    def ignored(self, path: Path, *, folder: bool) -> bool:
        """Whether `path` is ignored. The innermost ignore file with a matching pattern decides, as in Git."""
        for base, patterns in reversed(self.ignores):
            name = path.relative_to(base).as_posix() + "/" * folder
            if (found := patterns.check_file(name).include) is not None:
                return found
        return False


@dataclass(frozen=True, slots=True)
class _Search:
    root: Path
    real_root: Path
    name: str
    options: SourceOptions
    report: SourceReport

    def below(self, folder: _Folder) -> Iterator[FoundFile]:
        try:
            with os.scandir(folder.path) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            self.report.fail(SourceError(printable(folder.path), f"cannot be listed: {error.strerror}"))
            return
        try:
            inside = self._opened(folder, {entry.name for entry in entries})
        except (OSError, ValueError) as error:
            reason = (
                f"left out: its {IGNORE_FILE} cannot be followed: {message_of(error)}; --no-ignore reads it"
            )
            self.report.fail(SourceError(printable(folder.path), reason))
            return
        for entry in entries:
            path = folder.path / entry.name
            try:
                if skip := self._skip(entry, path, inside):
                    self.report.skip(printable(path), skip)
                elif entry.is_dir():
                    yield from self.below(_Folder(path, inside.ignores, inside.site))
                else:
                    below = path.relative_to(self.root).as_posix()
                    name = f"{self.name}/{below}"
                    yield FoundFile(path, name, format_of(path.name) or "", entry.stat().st_size)
            except OSError as error:
                self.report.fail(SourceError(printable(path), f"cannot be read: {error.strerror}"))

    def _opened(self, folder: _Folder, names: set[str]) -> _Folder:
        """Return the folder with its own ignore file, and whether its entries mark it as a site. Raises OSError or
        ValueError if the ignore file cannot be followed."""
        ignores = folder.ignores
        if IGNORE_FILE in names and not self.options.no_ignore:
            lines = self._ignore_lines(folder.path / IGNORE_FILE)
            ignores = (*ignores, (folder.path, GitIgnoreSpec.from_lines(lines)))
        if "search" in names and (folder.path / "search" / "search_index.json").exists():
            names = names | {"search_index.json"}  # where MkDocs has it
        root = is_site(names)
        return _Folder(folder.path, ignores, folder.site or root, root)

    def _ignore_lines(self, path: Path) -> list[str]:
        if not _leads_to_file_inside(path, self.real_root):
            raise ValueError("it is no plain file, or a link out of the folder")
        with path.open("rb") as file:
            content = file.read(IGNORE_BYTES_MAX + 1)
        if len(content) > IGNORE_BYTES_MAX:
            raise ValueError(f"it is larger than {IGNORE_BYTES_MAX:,} bytes")
        return content.decode("utf-8", "surrogateescape").splitlines()

    def _skip(self, entry: os.DirEntry[str], path: Path, folder: _Folder) -> Skip | None:
        """Return why the entry is skipped, or None."""
        if entry.name.startswith((".", OFFICE_LOCK)):
            return HIDDEN
        below = path.relative_to(self.root).as_posix()
        patterns = [pattern.rstrip("/") for pattern in self.options.exclude]
        if any(fnmatchcase(name, pattern) for name in (path.name, below) for pattern in patterns):
            return EXCLUDED
        is_folder = entry.is_dir(follow_symlinks=False)
        if folder.ignored(path, folder=is_folder):
            return IGNORED
        if entry.is_symlink() and not _leads_to_file_inside(path, self.real_root):
            return LINK
        if not self.options.include_generated:
            site, root = folder.site, folder.site_root
            if skip := find_generated_name(entry.name, folder=is_folder, site=site, site_root=root):
                return skip
            if not is_folder and repeats_siblings(path):
                return REPETITION
        if is_folder or (entry.is_file() and format_of(path.name)):
            return None
        self.report.other_files[PurePath(strip_gz(path.name)).suffix or "without an ending"] += 1
        return OTHER_KIND


def _leads_to_file_inside(path: Path, real_root: Path) -> bool:
    # Kubernetes volume mounts consist of such links. Links to folders could form cycles.
    try:
        target = path.resolve()
    except (OSError, RuntimeError):  # a link to itself
        return False
    return target.is_file() and target.is_relative_to(real_root)
