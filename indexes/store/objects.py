"""Objects in a bucket or a folder: created once, looked for, read, listed, removed. All else here stands on these.

No object is ever replaced, and nothing relies on conditions other than that of creating a new object: `LocalStore` has
no others, and ETags repeat for equal bytes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from indexes.base.errors import Conflict, InvalidInput, NotFound, StorageError, Unavailable

SCHEMES = ("s3", "gs", "az", "file")
TIMEOUT, CONNECT_TIMEOUT = timedelta(seconds=30), timedelta(seconds=5)
RETRY: dict[str, Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
REMOVED_TOGETHER = 1000


class Objects(Protocol):
    """Named by paths with "/". Thread-safe. Every method may raise Unavailable if the store cannot be reached, and
    StorageError if it refuses."""

    def create(self, name: str, content: bytes) -> bool:
        """Make a new object, durable on return. False if there is one of that name, which may be due to an earlier try
        whose answer was lost."""
        ...

    def exists(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes:
        """Raises NotFound."""
        ...

    def names(self, folder: str, after: str = "") -> list[str]:
        """The names in a folder, without those of its folders, in ascending order; only those after `after`, a name
        without the folder's. They come without the folder's name."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; it does not matter if some are missing."""
        ...


def without_slash(url: str) -> str:
    """The URL of a store as it is recorded and compared: a slash at the end means nothing."""
    return url.rstrip("/") if urlsplit(url).path.strip("/") else url


class Bucket:
    """Objects under a URL, by obstore, which takes credentials, region and endpoint from the environment, under the
    names that the provider's own tools use."""

    def __init__(self, url: str, *, makes_folder: bool = False, may_be_away: bool = False) -> None:
        """Raises InvalidInput for a URL that cannot be used, or of a folder that is missing, unless this makes it or it
        may be away: then it is looked for at each use."""
        self.url = without_slash(url)
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise InvalidInput(
                f"store.url {url!r} should begin with {', '.join(f'{one}://' for one in SCHEMES)}",
                param="store.url",
            )
        if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
            raise InvalidInput(
                f"store.url {url!r} should be file:/// and an absolute path", param="store.url"
            )
        try:
            import obstore
            from obstore import store
        except ImportError as error:
            raise InvalidInput(
                'store.url needs obstore: install nearline with the extra "store" (pip install ".[store]")',
                param="store.url",
            ) from error
        self._obstore = obstore
        self._folder = Path(unquote(parts.path)) if parts.scheme == "file" else None
        self._synced = set[Path]()  # folders of it whose names are durable
        self._opened: Any = None
        try:
            from_url: Any = store.from_url  # its overloads want literal options
            if self._folder is not None:
                self._opened = store.LocalStore(prefix=self._folder, mkdir=makes_folder)
            else:
                self._opened = from_url(
                    url,
                    client_options={
                        "timeout": TIMEOUT,
                        "connect_timeout": CONNECT_TIMEOUT,
                        "allow_http": True,
                    },
                    retry_config=RETRY,
                )
        except Exception as error:
            if may_be_away and self._folder is not None:
                return
            raise InvalidInput(f"store.url {url!r}: {first_line(error)}", param="store.url") from error

    @property
    def _store(self) -> Any:
        """Use it within `_errors`."""
        if self._opened is None:
            self._opened = self._obstore.store.LocalStore(prefix=self._folder)
        return self._opened

    def create(self, name: str, content: bytes) -> bool:
        with self._errors(name):
            try:
                self._obstore.put(self._store, name, content, mode="create", use_multipart=False)
            except self._obstore.exceptions.AlreadyExistsError:
                return False
            except FileNotFoundError as error:
                raise Unavailable(f"the store {self.url} does not exist: {first_line(error)}") from error
        if self._folder is not None:  # which obstore does not sync
            with self._errors(name):
                self._sync(self._folder, name)
        return True

    def exists(self, name: str) -> bool:
        try:
            with self._errors(name):
                self._obstore.head(self._store, name)
        except NotFound:
            return False
        return True

    def read(self, name: str) -> bytes:
        with self._errors(name):
            return bytes(self._obstore.get(self._store, name).bytes())

    def names(self, folder: str, after: str = "") -> list[str]:
        offset = f"{folder}/{after}" if after else None
        with self._errors(folder):
            found = [
                str(one["path"])[len(folder) + 1 :]
                for block in self._obstore.list(self._store, folder, offset=offset)
                for one in block
            ]
        return sorted(one for one in found if "/" not in one and one > after)

    def remove(self, names: Iterable[str]) -> None:
        wanted = list(names)
        for start in range(0, len(wanted), REMOVED_TOGETHER):
            some = wanted[start : start + REMOVED_TOGETHER]
            try:
                with self._errors(some[0]):
                    self._obstore.delete(self._store, some)
            except NotFound:  # a folder stops at the first that is missing
                for one in some:
                    with contextlib.suppress(NotFound), self._errors(one):
                        self._obstore.delete(self._store, one)

    def _sync(self, root: Path, name: str) -> None:
        """Sync a new file and its folder; the folders above only with the first file there, which may have made them. A
        file that could not be synced is removed, or the next try would take it for one that was."""
        path = root / name
        above = [] if path.parent in self._synced else path.parent.parents[: len(Path(name).parts) - 1]
        try:
            for one in (path, path.parent, *above):
                descriptor = os.open(one, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._synced.add(path.parent)

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        kinds = self._obstore.exceptions
        try:
            yield
        except (FileNotFoundError, kinds.NotFoundError) as error:
            raise NotFound(f"the store has no {name}") from error
        except (kinds.PermissionDeniedError, kinds.UnauthenticatedError) as error:
            raise Unavailable(f"the store {self.url} refuses access: {first_line(error)}") from error
        except (kinds.BaseError, OSError, TimeoutError) as error:
            raise Unavailable(f"the store {self.url} cannot be used: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """obstore appends a dump of its structures to what it says."""
    return str(error).partition("\n")[0].strip()


def prove(objects: Objects) -> None:
    """Prove that a store creates an object only once: all else relies on it. Raises Conflict if it does not."""
    name = f"proof/{secrets.token_hex(16)}"
    try:
        if not objects.create(name, b"first"):
            raise StorageError(f"the store says that the new object {name} exists already")
        if objects.create(name, b"second") or objects.read(name) != b"first":
            raise Conflict(
                "the store replaces an object that exists when asked to create it (If-None-Match): two services could "
                "both believe to be its writer, so it cannot be used",
                param="store.url",
            )
    finally:
        with contextlib.suppress(Unavailable):
            objects.remove([name])
