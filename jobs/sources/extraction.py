"""Extracts the text of uploaded PDF and office files, in a child process as `nearline ingest` does."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path, PurePath

from indexes.base.errors import InvalidInput
from jobs.sources.files import FORMATS, FoundFile, SourceFile
from jobs.sources.model import SourceError, SourceOptions, SourceReport
from jobs.sources.sandbox import NEEDS, READERS, Sandbox

# HTML and mail are text already, and Parquet holds rows.
EXTRACTED = frozenset({"pdf", "docx", "epub", "pptx", "xlsx"}) & READERS.keys()
SECONDS_MAX = 60
# CPU time grows with the unpacked size, in some libraries quadratically: a kilobyte can cost minutes.
CPU_S_MIN, CPU_S_PER_MB = 2.0, 20.0
MEMORY_BYTES_MAX = 4 * 1024**3  # address space; libraries reserve more than they use


def extract(content: bytes, filename: str, bytes_max: int) -> FileExtraction | None:
    """Return the extraction of a file, or None if its extension is not one of EXTRACTED. `bytes_max` bounds the
    text."""
    kind = FORMATS.get(PurePath(filename).suffix.lower())
    return FileExtraction(content, filename, kind, bytes_max) if kind in EXTRACTED else None


class FileExtraction:
    """Extracts the text of one file, which is passed to the child as a temporary file."""

    def __init__(self, content: bytes, filename: str, kind: str, bytes_max: int) -> None:
        self._content, self._filename, self._kind = content, filename, kind
        self._options = SourceOptions(
            text_fields=(),  # an upload is one document: rows of sheets become lines with all their columns
            document_bytes_max=bytes_max,
            extracted_bytes_max=len(content) or 1,
            extracting_s_max=SECONDS_MAX,
            extracting_cpu_s_max=min(SECONDS_MAX, CPU_S_MIN + CPU_S_PER_MB * len(content) / 1e6),
            extracting_memory_bytes_max=MEMORY_BYTES_MAX,
        )
        self._sandbox = Sandbox()
        self._ended = threading.Event()

    def run(self) -> str:
        if not all(map(find_spec, NEEDS)):
            raise self._refusal(
                "reading it needs the extra files: in a checkout of Nearline, pip install '.[files]'"
            )
        if not self._content:
            raise self._refusal("is empty")
        if self._ended.is_set():
            raise self._refusal("its reading was ended")
        report = SourceReport()
        try:
            with tempfile.TemporaryDirectory(prefix="nearline-") as folder:
                path = Path(folder) / f"upload.{self._kind}"
                path.write_bytes(self._content)
                found = FoundFile(path, self._filename, self._kind, len(self._content))
                with contextlib.closing(SourceFile(found)) as file:
                    texts = [one.text for one in self._sandbox.documents(file, self._options, report)]
        except SourceError as error:
            raise self._refusal(error.reason) from error
        finally:
            self._sandbox.close()
        if report.failed:
            raise self._refusal(report.failed[0].reason)
        if not any(text.strip() for text in texts):
            skipped = [
                f"{one.source.rpartition(':')[2]} ({one.reason})"
                for one in report.skipped
                if ":" in one.source
            ]
            raise self._refusal(f"holds no text{'; skipped: ' * bool(skipped)}{', '.join(skipped)[:500]}")
        return "\n\n".join(texts)

    def end(self) -> None:
        self._ended.set()
        self._sandbox.kill()

    def _refusal(self, reason: str) -> InvalidInput:
        return InvalidInput(f"the file {self._filename!r}: {reason}", param="file")
