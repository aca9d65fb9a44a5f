"""What reading yields, how it may be steered, and what it reports beside the documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MetadataValue = str | int | float | bool | list[str]
Format = Literal["jsonl", "csv", "tsv", "markdown", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDocument:
    """One document as it goes to the service, and where it came from.

    `source` names the place for people: `faq.jsonl:12`, or the file alone where the file is the document.
    `bytes_read` counts the bytes of all files read so far (compressed ones as they lie on disk), never falls
    from one document to the next, and never passes `total_bytes` of the same paths unless a file grows.
    """

    id: str
    text: str
    title: str | None = None
    metadata: dict[str, MetadataValue] = field(default_factory=dict)
    source: str = ""
    bytes_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """How files are read. The defaults refuse what is doubtful; `lenient` skips it and reports."""

    format: Format | None = None
    """Of every file that is named itself; None goes by the file name. Folders always go by file names."""
    id_field: str = "id"
    text_field: str = "text"
    title_field: str = "title"
    number_rows: bool = False
    """Give rows without an id the id `<file>#<line>`. They follow the position: append to the file only."""
    other_fields: bool = True
    """Take the remaining fields of a row as metadata."""
    number_fields: frozenset[str] = frozenset()
    """Columns of a CSV that hold numbers, so that filters can compare them; all others stay strings."""
    quoted: bool = True
    """Whether quotes in CSV and TSV enclose fields. False for the plain kind of TSV that has none."""
    lenient: bool = False
    """Skip and report what cannot be read, instead of raising `InvalidInput` at the first."""
    document_bytes_max: int = 16 * 1024 * 1024
    """Of one line, row or text file; a larger one is refused before it is held in memory."""


@dataclass(slots=True, kw_only=True)
class SourceReport:
    """What a run met, filled while the documents are consumed.

    `notes` holds the first lines worth showing, at most `notes_max`; the counts are complete.
    """

    files: int = 0
    documents: int = 0
    empty: int = 0
    """Rows and files without any text: skipped."""
    duplicates: int = 0
    """Documents whose id came before in this run: yielded all the same, and the service keeps the last."""
    other_files: int = 0
    """Files in folders that are not of a known kind: skipped."""
    links: int = 0
    """Links in folders to other folders, or to files outside the folder: not followed."""
    unreadable: int = 0
    """Files, lines and rows skipped because of `lenient`."""
    notes: list[str] = field(default_factory=list)
    notes_max: int = 20

    def note(self, line: str) -> None:
        """Keep `line` for the summary, if there is room."""
        if len(self.notes) < self.notes_max:
            self.notes.append(line)

    def summary(self) -> str:
        """One line: what was read, and what was left out and why."""
        left_out = [
            (self.empty, "empty"),
            (self.duplicates, "with an id seen before"),
            (self.other_files, "files of other kinds"),
            (self.links, "links"),
            (self.unreadable, "unreadable"),
        ]
        remarks = ", ".join(f"{count:,} {what}" for count, what in left_out if count)
        return f"{self.documents:,} documents from {self.files:,} files" + (
            f" ({remarks})" if remarks else ""
        )
