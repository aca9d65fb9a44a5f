"""msgspec learns a type at its first use, and crashes the process if two threads make that first use at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import msgspec

_learning = threading.Lock()
_known: set[type[msgspec.Struct]] = set()


def learn_structs() -> None:
    """Have msgspec learn every struct that is defined by now, which takes some .1 s once. Call it before threads
    decode."""
    with _learning:
        for kind in set(structs(msgspec.Struct)) - _known:
            with contextlib.suppress(
                NameError
            ):  # one that is never decoded: it names what only type checkers import
                msgspec.msgpack.Decoder(kind)
            _known.add(kind)


def structs(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for kind in base.__subclasses__():
        yield kind
        yield from structs(kind)
