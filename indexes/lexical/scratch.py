"""Arrays on disk, for builds that must not hold them in memory: scratch columns, and .npy files written in pieces."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from indexes.base.errors import StorageError


class IntegerFile:
    """Integers in an unnamed temporary file: append-only, random reads, deleted on close or process exit.

    Unbuffered, so a full disk raises OSError at the write that fails.
    """

    def __init__(self, folder: Path, kind: DTypeLike) -> None:
        self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 - closed by `close`
        self._dtype = np.dtype(kind)
        self.size = 0

    def append(self, values: NDArray[Any]) -> None:
        self._file.seek(self.size * self._dtype.itemsize)
        left = np.ascontiguousarray(values, self._dtype).view(np.uint8).data
        while len(left):
            left = left[self._file.write(left) :]
        self.size += len(values)

    def read(self, at: range) -> NDArray[Any]:
        values = np.empty(len(at), self._dtype)
        self._file.seek(at.start * self._dtype.itemsize)
        if (found := self._file.readinto(values.view(np.uint8).data)) != values.nbytes:
            raise StorageError(f"a scratch file gave {found} bytes of {values.nbytes}")
        return values

    def close(self) -> None:
        self._file.close()


@contextmanager
def new_array(path: Path, kind: DTypeLike, length: int) -> Iterator[IO[bytes]]:
    """Open a .npy file for `length` numbers and yield it for writing their bytes; the result equals np.save's.

    np.save drops the errno of a full disk, which makes it indistinguishable from a broken disk.
    """
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(kind)),
        "fortran_order": False,
        "shape": (length,),
    }
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        yield file


def save_array(path: Path, values: NDArray[Any]) -> None:
    with new_array(path, values.dtype, len(values)) as file:
        file.write(values.data)
