"""Documents read from files, the options for reading them, and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypeVar

from indexes.base.errors import InvalidInput
from indexes.base.wording import format_count
from jobs.sources.columns import ColumnType

Value = TypeVar("Value")

NOTES_KEPT_MAX = 20
FAILURES_KEPT_MAX = 100_000  # a few hundred bytes each
NAMES_SHOWN = 3
COLUMNS_SHOWN, COLUMN_CHARS_SHOWN = 20, 60
COLUMNS_KEPT_MAX = 1000


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
    language: str | None = None
    vector: str | Sequence[float] | None = None
    source: str = ""
    bytes_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """How files are found and read."""

    exclude: tuple[str, ...] = ()
    """Globs matched against names and against paths below the folder; matches are not read or entered."""
    no_ignore: bool = False
    """Also read files that `.gitignore` files in the folders exclude."""
    include_generated: bool = False
    """Also read generated files: search indexes, minified scripts, lock files (`generated`)."""
    encoding: str | None = None
    """Encoding of text files without a byte order mark; None means UTF-8, and Windows-1252 for other web pages."""
    id_field: str | None = None
    """None means `id`, else `_id`; rows with neither get the id `<file>#<line>`."""
    prefix_ids: bool = False
    """Prefix row ids with the file's name, so that ids unique within their file are unique overall."""
    text_fields: tuple[str, ...] = ("text",)
    """Several are joined as paragraphs; `*` stands for all columns, each a line `column: value`."""
    title_field: str = "title"
    expires_field: str | None = None
    """The field with the time when a row's document expires: a date, or milliseconds since 1970."""
    language_field: str | None = None
    """The field with the BCP 47 code of the language of a row's document."""
    vector_field: str | None = None
    """The field with a vector of the row's own, a list of numbers or base64. Texts without one are embedded."""
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    """Types of table columns by name; the others are inferred."""
    columns: tuple[str, ...] = ()
    """The columns, fields and front matter keys that become metadata; empty means all."""
    skip_columns: tuple[str, ...] = ()
    """Columns, fields and front matter keys that become neither metadata nor text."""
    metadata_keys_max: int = 64
    """The maximum number of keys in a document's metadata."""
    document_bytes_max: int = 16 * 1024 * 1024
    """Maximum size of a line, row or text file; larger ones are refused before they are held in memory."""
    extracted_bytes_max: int = 64 * 1024 * 1024
    """Maximum size of a file that text is extracted from, decompressed, and of a PDF, book or message."""
    extracting_s_max: int = 60
    extracting_cpu_s_max: float = 60.0
    """Seconds that extracting one document may take, in its child process."""
    extracting_memory_bytes_max: int = 4 * 1024 * 1024 * 1024
    """Address space of that process; libraries reserve more than they use."""

    def fields_wanted(self) -> list[tuple[str, str]]:
        """Return the columns and fields of rows that were chosen, each after the option that names it, except that of
        the id: a row without it fails."""
        texts = () if self.text_fields in {("text",), ("*",)} else self.text_fields
        named = [("--text-field", field) for field in texts]
        named += [("--title-field", self.title_field)] if self.title_field != "title" else []
        others = {"expires": self.expires_field, "language": self.language_field, "vector": self.vector_field}
        return named + [(f"--{role}-field", field) for role, field in others.items() if field is not None]


class SourceError(InvalidInput):
    """Something that cannot be read or written. `place` is the file, with line and column if known."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SourceFailure:
    """A SourceError without its traceback."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Skip:
    """Why files or rows are skipped, in the words of the summary, and the option that includes them."""

    reason: str
    option: str = ""


EMPTY = Skip("empty")
HIDDEN = Skip("hidden")
EXCLUDED = Skip("excluded")
IGNORED = Skip("ignored by .gitignore", "--no-ignore")
LINK = Skip("links not followed")
OTHER_KIND = Skip("files of other kinds")


@dataclass(slots=True, kw_only=True)
class SourceReport:
    """What a run found, filled while its documents are consumed.

    `notes` keeps the first NOTES_KEPT_MAX entries, `failed` and `skipped` the first FAILURES_KEPT_MAX; the counts are
    complete.
    """

    files: int = 0
    documents: int = 0
    failed: list[SourceFailure] = field(default_factory=list)
    """Folders, files, lines and rows that could not be read, and documents that the service refused."""
    failures: int = 0
    skipped: list[SourceFailure] = field(default_factory=list)
    """Folders, files and rows that were left out on purpose, with the reason."""
    skips: Counter[str] = field(default_factory=Counter)
    """Their number by reason."""
    duplicates: int = 0
    """Documents not written because an earlier one has the same id."""
    other_files: Counter[str] = field(default_factory=Counter)
    """Skipped files of unknown kinds, by extension."""
    options: dict[str, str] = field(default_factory=dict)
    """The option that includes the skipped files, by reason."""
    columns_found: set[str] = field(default_factory=set)
    """The `columns` and `skip_columns` of the options that were found."""
    columns_known: set[str] = field(default_factory=set)
    """If the options name some: the first COLUMNS_KEPT_MAX columns, fields and keys found."""
    fields_known: set[str] = field(default_factory=set)
    """If the options name fields of rows: those that were found, and the first COLUMNS_KEPT_MAX others."""
    types: dict[str, list[str]] = field(default_factory=dict)
    """Types of table columns; several if files differ."""
    misfits: Counter[str] = field(default_factory=Counter)
    """Cells that do not fit their column's type, by column: kept as strings."""
    notes: list[str] = field(default_factory=list)
    notes_dropped: int = 0

    def note(self, line: str) -> None:
        """Keep `line` for the summary, if there is room."""
        if len(self.notes) < NOTES_KEPT_MAX:
            self.notes.append(line)
        else:
            self.notes_dropped += 1

    def fail(self, error: SourceError) -> None:
        """Record a failure; reading continues."""
        self.failures += 1
        if len(self.failed) < FAILURES_KEPT_MAX:
            self.failed.append(SourceFailure(error.place, error.reason))

    def skip(self, place: str, why: Skip) -> None:
        """Record a file, folder or row that is skipped."""
        self.skips[why.reason] += 1
        if why.option:
            self.options[why.reason] = why.option
        if len(self.skipped) < FAILURES_KEPT_MAX:
            self.skipped.append(SourceFailure(place, why.reason))

    def add(self, other: SourceReport) -> None:
        """Add the report of a file read in another process."""
        for line in other.notes:
            self.note(line)
        for one in other.skipped:
            self.skip(one.source, Skip(one.reason, other.options.get(one.reason, "")))
        self.other_files += other.other_files
        self.columns_found |= other.columns_found
        self.columns_known |= other.columns_known
        self.fields_known |= other.fields_known
        for column, kinds in other.types.items():
            known = self.types.setdefault(column, [])
            known.extend(kind for kind in kinds if kind not in known)
        self.misfits += other.misfits
        self.notes_dropped += other.notes_dropped
        for one in other.failed:
            self.fail(SourceError(one.source, one.reason))

    def add_new(self, again: SourceReport) -> None:
        """Add the failures and notes of files that were read again, if they are others than before."""
        for one in again.failed:
            if one not in self.failed:
                self.fail(SourceError(one.source, one.reason))
        for line in again.notes:
            if line not in self.notes:
                self.note(line)

    def note_fields(self, fields: Iterable[str], options: SourceOptions) -> None:
        """Keep the columns or fields of rows for `check_columns`, until all that the options name were found."""
        wanted, known = {name for _, name in options.fields_wanted()}, {*fields}
        if wanted <= self.fields_known:
            return
        self.fields_known |= known & wanted
        if len(self.fields_known) < COLUMNS_KEPT_MAX:
            self.fields_known |= known

    def check_columns(self, options: SourceOptions) -> None:
        """Record a failure for each name that an option such as `--columns` or `--expires-field` gives and nothing has.
        Call it after everything is read."""
        if not self.documents:
            return
        for option, name in options.fields_wanted():
            if name not in self.fields_known:
                there = _names_nearest(name, self.fields_known)
                reason = f"no row that was read has a column or field {name!r}; there are {there}"
                self.fail(SourceError(option, reason))
        for option, names in (("--columns", options.columns), ("--skip-columns", options.skip_columns)):
            for name in sorted({*names} - self.columns_found):
                self.fail(SourceError(option, _explain_absent(name, self.columns_known)))
        for name in sorted(options.types.keys() - self.types.keys()):
            self.fail(SourceError("--types", _explain_absent(name, self.types)))

    def add_types(self, columns: Mapping[str, ColumnType]) -> None:
        """Record the types of one file's columns."""
        for column, column_type in columns.items():
            kinds = self.types.setdefault(column, [])
            if column_type.kind not in kinds:
                kinds.append(column_type.kind)

    def summary(self) -> list[str]:
        """Return lines on what was read, the column types, and what was skipped and why."""
        left_out = [
            (self.failures, "failed"),
            (self.skips.total(), "skipped"),
            (self.duplicates, "not written, their ids came before"),
            (self.notes_dropped, "more notes"),
        ]
        remarks = "; ".join(f"{count:,} {what}" for count, what in left_out if count)
        documents, files = format_count(self.documents, "document"), format_count(self.files, "file")
        read = f"read {documents} from {files}"
        lines = [f"{read} ({remarks})" if remarks else read]
        if self.types:
            # Columns with misfits first: they are the ones to look at.
            columns = sorted(self.types, key=lambda name: (-self.misfits[name], name))
            lines.append("types: " + shorten_names(map(self._column, columns)))
        return [*lines, *map(self._skipped, self.skips)]

    def _skipped(self, reason: str) -> str:
        if reason == OTHER_KIND.reason:
            shown = [f"{count:,} {ending}" for ending, count in self.other_files.most_common(NAMES_SHOWN + 1)]
        else:
            files = (one.source.rpartition("/")[2] for one in self.skipped if one.reason == reason)
            shown = list(dict.fromkeys(files))
        names = ", ".join([*shown[:NAMES_SHOWN], "..."] if len(shown) > NAMES_SHOWN else shown)
        option = f"; {self.options[reason]} reads them" if reason in self.options else ""
        return f"skipped: {self.skips[reason]:,} {reason} ({names}){option}"

    def _column(self, name: str) -> str:
        misfits = f" ({self.misfits[name]:,} cells are not, and stay strings)" if self.misfits[name] else ""
        return f"{name} {' or '.join(self.types[name])}{misfits}"


def _explain_absent(name: str, known: Iterable[str]) -> str:
    there = _names_nearest(name, known)
    return f"nothing that was read has a column, field or key {name!r} of metadata; there are {there}"


def _names_nearest(name: str, known: Iterable[str]) -> str:
    """Return the known names for a message, those first that are like this one."""
    similar = get_close_matches(name, known := sorted(known))
    return shorten_names([*similar, *(one for one in known if one not in similar)]) or "none"


def named_twice(columns: Sequence[str]) -> str:
    """Return the names that several columns have, for a message; "" if there are none."""
    return shorten_names(sorted({name for name in columns if name and columns.count(name) > 1}))


def shorten_names(names: Iterable[str]) -> str:
    """Format the first of `names` for a message, with the number of the others."""
    listed = list(names)
    shown = [f"{name[:COLUMN_CHARS_SHOWN]}..." if len(name) > COLUMN_CHARS_SHOWN else name for name in listed]
    more = f" and {len(listed) - COLUMNS_SHOWN:,} more" if len(listed) > COLUMNS_SHOWN else ""
    return ", ".join(shown[:COLUMNS_SHOWN]) + more


def metadata_of(
    fields: Mapping[str, Value], options: SourceOptions, report: SourceReport
) -> dict[str, Value]:
    """Return the columns, fields or front matter keys that the options select; all if they name none."""
    if options.columns or options.skip_columns:
        report.columns_found.update(n for n in (*options.columns, *options.skip_columns) if n in fields)
        if len(report.columns_known) < COLUMNS_KEPT_MAX:
            report.columns_known.update(fields)
    chosen = options.columns or fields
    return {key: value for key, value in fields.items() if key in chosen and key not in options.skip_columns}


class FirstFailure(SourceReport):
    """Raises the first failure instead of recording it."""

    def fail(self, error: SourceError) -> None:
        raise error
