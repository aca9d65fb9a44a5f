"""Every error that Nearline raises on purpose, in one tree.

    NearlineError
    ├── InvalidInput            well-formed, but impossible to process; names the field
    │   └── TooLarge            over a configured limit; names the field and the limit
    ├── NotFound                no collection, document, job or generation with that name
    ├── Conflict                the name is taken, or the current state forbids it
    │   ├── ModelMismatch       the vectors and the collection are from different models
    │   └── RecallTooLow        a build measures below the recall floor, or no settings reach a target
    ├── Unavailable             try again later
    │   ├── Overloaded          a bounded queue is full; carries seconds to wait
    │   ├── DeadlineExceeded    the caller's own deadline has passed
    │   ├── OutOfDescriptors    this process, or the system, has too many files and connections open
    │   ├── NotReady            still opening, or already closing
    │   └── WritesHeld          the collection refuses writes for a moment
    └── StorageError            the disk, not the caller
        ├── DiskFull            writes are refused, reads continue
        ├── Damaged             bytes differ from their checksum; nothing was parsed
        ├── Quarantined         this collection's log is damaged or cannot be opened; the others keep serving
        ├── NotADataDirectory   the folder holds files that are not ours
        ├── NewerFormat         a newer version wrote it; names both formats
        ├── OlderFormat         a development version wrote it, before 0.1.0
        └── Locked              another process writes here

The service maps each to one HTTP status (`retrieval/wire/errors.py`); a test keeps that map complete.
"""

from __future__ import annotations

import re


def message_of(error: Exception) -> str:
    """Return what an error says, in one line: of an OSError the path and the system's words, without a number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


class NearlineError(Exception):
    """Base of the tree. `message` is one clear line; `param` names the field at fault, if any."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidInput(NearlineError):
    """The request is well-formed but cannot be processed: wrong dimension, NaN, an empty text."""


class TooLarge(InvalidInput):
    """A configured limit is exceeded; the message names the limit and its value."""


class NotFound(NearlineError):
    """The resource named in the request does not exist."""


class Conflict(NearlineError):
    """The request conflicts with the current state. `job` is the id of the conflicting job, if there is one."""

    def __init__(self, message: str, *, param: str | None = None, job: str | None = None) -> None:
        super().__init__(message, param=param)
        self.job = job


class ModelMismatch(Conflict):
    """The model's fingerprint differs from that of the collection's vectors."""


class RecallTooLow(Conflict):
    """A generation or its settings measured below the required recall. The live ones stay in use."""


class Unavailable(NearlineError):
    """Nothing is wrong with the request; `retry_after_s` says when to try again."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class Overloaded(Unavailable):
    """A bounded queue is full."""


class DeadlineExceeded(Unavailable):
    """The deadline the caller set has passed; the work was dropped."""


class OutOfDescriptors(Unavailable):
    """Out of file descriptors. Nothing was written; close connections or raise `ulimit -n`."""


class NotReady(Unavailable):
    """The service or the collection is opening or closing."""


class WritesHeld(Unavailable):
    """The collection refuses writes for a moment, so that what is read now is all there is. Only the caller may send
    them again: by then they may belong to another collection."""


class StorageError(NearlineError):
    """The storage failed. The process should not acknowledge anything that may not be durable."""

    later = "the storage failed before, restart the service: "
    """What comes before the message, if something is to be acknowledged afterwards."""


class DiskFull(StorageError):
    """No space left; the whole write was rolled back."""


class Damaged(StorageError):
    """A file's bytes differ from those that were sealed."""


class Quarantined(StorageError):
    """One collection is out of service until an operator restores or deletes it. The others are unaffected."""


class NotADataDirectory(StorageError):
    """The folder is not empty and was not created by Nearline."""


class NewerFormat(StorageError):
    """Written by a newer version of Nearline, and left unchanged; the message names both formats."""


class OlderFormat(StorageError):
    """Written by a development version before 0.1.0, and left unchanged. Their formats were numbered, too, but in a
    field of another name, `format_version`."""

    @staticmethod
    def of(path: object) -> OlderFormat:
        return OlderFormat(
            f"a development version of nearline before 0.1.0 wrote {path}, and no version reads that: "
            "ingest the documents into a new data directory"
        )


class Locked(StorageError):
    """Another process has locked the data directory."""


# Characters that change what a terminal shows, or override the direction of text.
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202d\u202e]")


def escape_controls(text: str, kept: str = "") -> str:
    """Return a text that is safe to show in terminals and logs: control characters but those in `kept` are escaped."""

    def escape(found: re.Match[str]) -> str:
        return found[0] if found[0] in kept else found[0].encode("unicode_escape").decode()

    return CONTROLS.sub(escape, text)
