"""Documents that tell their number and version: whoever reads one back knows what it should be, bit by bit."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from indexes.base.model import Floats, NewPassage, StoredDocument, Upsert
from tests.support.vectors import World

WORLD = World(seed=3)
OWNERS = 2


@functools.lru_cache(maxsize=20_000)
def document(number: int, version: int) -> Upsert:
    """Version 1 or later of document `number`: one to three passages, and a term that only this version holds."""
    text = WORLD.text(number, version)
    pieces = 1 + (number + version) % 3
    cuts = [len(text) * at // pieces for at in range(pieces + 1)]
    passages = tuple(
        NewPassage(start, end, end - start, vector(number, version, piece))
        for piece, (start, end) in enumerate(itertools.pairwise(cuts))
    )
    metadata = WORLD.metadata(number) | {"version": version, "owner": number % OWNERS}
    return Upsert(f"d{number}", text, term(number, version), metadata, passages)


def vector(number: int, version: int, piece: int) -> Floats:
    return WORLD.vector(number, version, piece)


def term(number: int, version: int) -> str:
    """The title: in no other document, and in no other version of this one."""
    return f"q{number}x{version}"


def recognise(stored: StoredDocument) -> tuple[int, int]:
    """Number and version of a document read back. Fails if it is not exactly what was written."""
    number, version = int(stored.id.removeprefix("d")), int(str(stored.metadata["version"]))
    written = document(number, version)
    assert (stored.id, stored.text, stored.title) == (written.id, written.text, written.title)
    assert stored.metadata == written.metadata
    assert stored.passages == len(written.passages)
    return number, version


def vectors_of(number: int, version: int) -> Floats:
    """float32 [passages, dimensions]."""
    return np.stack([passage.vector for passage in document(number, version).passages])
