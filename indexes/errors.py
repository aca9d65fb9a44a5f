"""Every error that Nearline raises on purpose, in one tree.

    NearlineError
    ├── InvalidInput            well-formed, but not something we can do; names the field
    │   └── TooLarge            over a configured limit; names the field and the limit
    ├── NotFound                no collection, document, job or generation of that name
    ├── Conflict                the name is taken, or the state forbids it now
    │   ├── ModelMismatch       vectors of one model meet a collection of another
    │   └── RecallTooLow        a build measures below the recall floor, or no settings reach a target
    ├── Unavailable             try again later
    │   ├── Overloaded          a bounded queue is full; carries seconds to wait
    │   ├── DeadlineExceeded    the caller's own deadline has passed
    │   ├── OutOfDescriptors    this process, or the system, has too many files and connections open
    │   └── NotReady            still opening, or already closing
    └── StorageError            the disk, not the caller
        ├── DiskFull            writes refused, reads go on
        ├── Damaged             bytes differ from their checksum; nothing was parsed
        ├── Quarantined         this collection's log is damaged or cannot be opened; the others serve
        ├── NotADataDirectory   the folder holds something that is not ours
        ├── NewerFormat         a newer version wrote it; names both formats
        └── Locked              another process writes here

The service maps each to one HTTP status (`retrieval/errors.py`); a test holds that map complete.
"""

from __future__ import annotations


class NearlineError(Exception):
    """Base of the tree. `message` is one clear line; `param` names the field at fault, if a field is."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidInput(NearlineError):
    """The request can be read but not done: wrong dimension, NaN, an empty text."""


class TooLarge(InvalidInput):
    """A configured limit is exceeded; the message says which and how large it is."""


class NotFound(NearlineError):
    """What the request names does not exist."""


class Conflict(NearlineError):
    """What the request asks for contradicts what is there."""


class ModelMismatch(Conflict):
    """The model's fingerprint differs from the one the collection's vectors were made with."""


class RecallTooLow(Conflict):
    """Something would be served, or set, that measures below the recall it has to have. What was live stays."""


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
    """No file descriptor is left. Nothing was written; closing connections, or a higher `ulimit -n`, makes room."""


class NotReady(Unavailable):
    """The service or the collection is opening or closing."""


class StorageError(NearlineError):
    """The disk failed us. The process should not acknowledge anything it cannot prove."""


class DiskFull(StorageError):
    """No space left: the write was rolled back whole."""


class Damaged(StorageError):
    """A file's bytes are not those that were sealed."""


class Quarantined(StorageError):
    """One collection is out of service until an operator restores or deletes it. The others are unaffected."""


class NotADataDirectory(StorageError):
    """The folder exists, is not empty, and was not made by Nearline."""


class NewerFormat(StorageError):
    """A newer version of Nearline wrote this, and can read it. It was left alone; the message names both formats."""


class Locked(StorageError):
    """Another process holds the data directory."""
