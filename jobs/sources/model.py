"""Documents read from files, the options for reading them, and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from indexes.errors import InvalidInput
from jobs.sources.columns import ColumnType

NOTES_KEPT_MAX = 20
FAILURES_KEPT_MAX = 100_000  # a few hundred bytes each
KINDS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDocument:
    """One document as sent to the service, and where it came from.

    `source` is its location for people: `faq.jsonl:12`, or just the file if the file is the document. `bytes_read`
    counts the on-disk bytes of all files read so far; it never decreases and stays within `total_bytes` of the same
    paths unless a file grows.
    """

    id: str
    text: str
    title: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    expires_at: str | int | None = None
    source: str = ""
    bytes_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """How files are found and read."""

    exclude: tuple[str, ...] = ()
    """Globs matched against names and against paths below the folder; matches are not read or entered."""
    id_field: str | None = None
    """None means `id`, else `_id`; rows with neither get the id `<file>#<line>`."""
    prefix_ids: bool = False
    """Prefix row ids with the file's name, so that ids unique within their file are unique overall."""
    text_fields: tuple[str, ...] = ("text",)
    """Several are joined as paragraphs."""
    title_field: str = "title"
    expires_field: str | None = None
    """Holds when a row's document expires: a date, or milliseconds since 1970."""
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    """Types of table columns by name; the others are inferred."""
    document_bytes_max: int = 16 * 1024 * 1024
    """Maximum size of a line, row or text file; larger ones are refused before they are held in memory."""
    extracted_bytes_max: int = 64 * 1024 * 1024
    """Maximum size of a file that text is extracted from, decompressed, and of a PDF, book or message."""
    extracting_s_max: int = 60
    """Seconds that extracting one document may take, in a process of its own."""
    extracting_memory_bytes_max: int = 4 * 1024 * 1024 * 1024
    """Address space of that process; libraries reserve more than they use."""


class SourceError(InvalidInput):
    """Something that cannot be read or written. `place` is the file, with line and column if known."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Failure:
    """A SourceError without its traceback."""

    source: str
    reason: str


@dataclass(slots=True, kw_only=True)
class SourceReport:
    """What a run found, filled while its documents are consumed.

    `notes` and `failed` keep the first NOTES_KEPT_MAX and FAILURES_KEPT_MAX entries; the counts are complete.
    """

    files: int = 0
    documents: int = 0
    failed: list[Failure] = field(default_factory=list)
    """Folders, files, lines and rows that could not be read, and documents that the service refused."""
    failures: int = 0
    empty: int = 0
    """Rows and files without text and title: skipped."""
    duplicates: int = 0
    """Documents with an id seen before in this run: still yielded, and the service keeps the last."""
    other_files: Counter[str] = field(default_factory=Counter)
    """Files of unknown kinds in folders, by extension: skipped."""
    links: int = 0
    """Links in folders to other folders, or to files outside the folder: not followed."""
    excluded: int = 0
    """Files and folders matched by an `exclude` pattern."""
    types: dict[str, list[str]] = field(default_factory=dict)
    """Types of table columns; several if files differ."""
    misfits: Counter[str] = field(default_factory=Counter)
    """Cells that do not fit their column's type, by column: kept as strings."""
    notes: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        """Keep `line` for the summary, if there is room."""
        if len(self.notes) < NOTES_KEPT_MAX:
            self.notes.append(line)

    def fail(self, error: SourceError) -> None:
        """Record a failure; reading continues."""
        self.failures += 1
        if len(self.failed) < FAILURES_KEPT_MAX:
            self.failed.append(Failure(error.place, error.reason))

    def add(self, other: SourceReport) -> None:
        """Record what reading one file found elsewhere."""
        self.empty += other.empty
        for line in other.notes:
            self.note(line)
        for one in other.failed:
            self.fail(SourceError(one.source, one.reason))

    def typed(self, columns: Mapping[str, ColumnType]) -> None:
        """Record the types of one file's columns."""
        for column, column_type in columns.items():
            kinds = self.types.setdefault(column, [])
            if column_type.kind not in kinds:
                kinds.append(column_type.kind)

    def summary(self) -> list[str]:
        """Lines saying what was read, what was skipped and why, and the column types."""
        left_out = [
            (self.failures, "failed"),
            (self.empty, "empty"),
            (self.duplicates, "with an id seen before"),
            (self.other_files.total(), f"files of other kinds: {self._other_kinds()}"),
            (self.links, "links not followed"),
            (self.excluded, "excluded"),
        ]
        remarks = "; ".join(f"{count:,} {what}" for count, what in left_out if count)
        read = f"read {self.documents:,} documents from {self.files:,} files"
        lines = [f"{read} ({remarks})" if remarks else read]
        if self.types:
            lines.append("types: " + ", ".join(map(self._column, sorted(self.types))))
        return lines

    def _other_kinds(self) -> str:
        kinds = [f"{count:,} {kind}" for kind, count in self.other_files.most_common(KINDS_SHOWN)]
        return ", ".join([*kinds, "..."] if len(self.other_files) > KINDS_SHOWN else kinds)

    def _column(self, name: str) -> str:
        misfits = f" ({self.misfits[name]:,} cells are not, and stay strings)" if self.misfits[name] else ""
        return f"{name} {' or '.join(self.types[name])}{misfits}"


class FirstFailure(SourceReport):
    """Raises the first failure instead of recording it."""

    def fail(self, error: SourceError) -> None:
        raise error
