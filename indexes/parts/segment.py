"""Segments of the hot tier: sealed deltas, alone or merged. Immutable.

A segment holds float16 vectors, their product codes, which searches scan unless few rows are to be compared, and sealed
lexical and filter indexes: in memory when it is made, then mapped from its files (`segment_shelf`). Sealing and merging
may take seconds: run them off the search and writer threads. Between steps they call `on_step`, which may raise to
cancel them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from indexes.base.arrays import find_sorted
from indexes.base.errors import Damaged
from indexes.base.masks import Bits, bits_at, count_bits
from indexes.base.model import TIERS, Floats, Ids, Rows, Tier
from indexes.base.residency import Files
from indexes.base.work import OnStep, do_nothing
from indexes.dense.codes import Codes, rescored_for
from indexes.dense.cold import RANKS
from indexes.dense.vectors import Found, StoredVectors
from indexes.filters.columns import SealedFilters
from indexes.lexical.building import merge_sealed
from indexes.lexical.postings import SealedLexical
from indexes.parts.delta import DeltaView
from indexes.parts.part import WIDENING_MAX, scan, widen
from indexes.parts.visible import Visible

CODED_ROWS_MIN = 1024  # fewer are scanned exactly, like the delta
COPIED_ROWS = 1024  # per step, between calls of `on_step`
IDS, VECTORS, CODES, LEXICAL, FILTERS = "ids.npy", "vectors.f16", "codes.faiss", "lexical", "filters"


class Segment:
    """A sealed part. Safe from any thread.

    `covers`: the passages from which its rows are; those without a row were dead when it was made. `files` are those
    that it is mapped from, None for one in memory.
    """

    def __init__(
        self,
        covers: range,
        ids: Ids,
        vectors: StoredVectors,
        codes: Codes | None,
        lexical: SealedLexical,
        filters: SealedFilters,
        files: Files | None = None,
    ) -> None:
        self.covers, self.files = covers, files
        self.size = len(ids)
        self.ids = ids
        self.vectors = vectors
        self._codes = codes
        self.lexical = lexical
        self.filters = filters

    @staticmethod
    def seal(view: DeltaView, *, on_step: OnStep = do_nothing) -> Segment:
        """A segment with the rows of a full delta, in the same order."""
        vectors = copy_rows([(view.vectors, np.arange(view.size))], view.vectors.halves.shape[1], on_step)
        return Segment(
            range(int(view.ids[0]), view.newest + 1),
            view.ids.copy(),
            vectors,
            codes_of(vectors, on_step),
            view.delta.lexical.seal(view.size, on_step),
            view.delta.filters.seal(view.size),
        )

    @staticmethod
    def merged(sources: Sequence[Visible], *, on_step: OnStep = do_nothing) -> Segment:
        """One segment of the live rows of several; `sources` must be in ascending order of passage ids."""
        segments = [visible.part for visible in sources if isinstance(visible.part, Segment)]
        kept = [visible.alive_flags() for visible in sources]
        pairs = list(zip(segments, kept, strict=True))
        vectors = copy_rows(
            [(segment.vectors, np.flatnonzero(flags)) for segment, flags in pairs],
            segments[0].vectors.halves.shape[1],
            on_step,
        )
        return Segment(
            range(segments[0].covers.start, segments[-1].covers.stop),
            np.concatenate([segment.ids[flags] for segment, flags in pairs]),
            vectors,
            codes_of(vectors, on_step),
            merge_sealed([(segment.lexical, flags) for segment, flags in pairs], on_step),
            SealedFilters.merged([(segment.filters, flags) for segment, flags in pairs]),
        )

    def save(self, folder: Path) -> None:
        """Write the files of a segment into an existing folder. Raises OSError and StorageError."""
        np.save(folder / IDS, self.ids)
        self.vectors.save(folder / VECTORS)
        if self._codes is not None:
            self._codes.save(folder / CODES)
        (folder / LEXICAL).mkdir()
        self.lexical.save(folder / LEXICAL)
        (folder / FILTERS).mkdir()
        self.filters.save(folder / FILTERS)

    @staticmethod
    def load(folder: Path, covers: range, dimensions: int, files: Files) -> Segment:
        """Map the files of a folder, which were verified. Raises Damaged if they cannot be parsed, and OSError."""
        try:
            ids: Ids = files.array(folder / IDS)  # type: ignore[assignment]
            coded = len(ids) >= CODED_ROWS_MIN
            return Segment(
                covers,
                ids,
                StoredVectors.load(folder / VECTORS, len(ids), dimensions, files),
                Codes.load(folder / CODES) if coded else None,
                SealedLexical.load(folder / LEXICAL, files),
                SealedFilters.load(folder / FILTERS, files),
                files,
            )
        except (ValueError, EOFError, LookupError, msgspec.MsgspecError) as error:
            raise Damaged(f"{folder}: {error!r}") from error

    @property
    def bytes(self) -> int:
        held = 0 if self.files else int(self.ids.nbytes + self.lexical.bytes)
        return self._dense_bytes + held + self.filters.bytes

    @property
    def newest(self) -> int:
        return int(self.ids[-1]) if self.size else 0

    @property
    def _dense_bytes(self) -> int:
        return (0 if self.files else self.vectors.bytes) + (self._codes.bytes if self._codes else 0)

    def tier_bytes(self) -> dict[Tier, int]:
        return {"hot": self._dense_bytes}

    def ids_of(self, rows: Rows) -> Ids:
        return self.ids[rows]

    def rows_of(self, ids: Ids) -> Rows:
        return find_sorted(self.ids, ids)

    def rows_after(self, passage_id: int) -> Rows:
        return np.arange(np.searchsorted(self.ids, passage_id, "right"), self.size)

    def tiers_of(self, rows: Rows) -> NDArray[np.int8]:
        return np.full(len(rows), TIERS.index("hot"), np.int8)

    def tier_rows(self) -> dict[Tier, range]:
        return {"hot": range(self.size)}

    def nearest(
        self, query: Floats, depth: int, allowed: Bits | None, scan_max: int, ranks: int = RANKS
    ) -> Found:
        count = self.size if allowed is None else count_bits(allowed)
        enough = rescored_for(depth)
        # With this few rows, at least half would be rescored anyway: scan them all.
        few = 2 * enough if allowed is None else max(2 * enough, min(scan_max, self.size // 2))
        rows = self._promising(query, enough, allowed, count) if count > few else None
        return scan(self, query, depth, allowed) if rows is None else self.vectors.best(rows, query, depth)

    def _promising(self, query: Floats, enough: int, allowed: Bits | None, count: int) -> Rows | None:
        """Candidates to rescore among the `count` allowed rows; None if scanning all of those is cheaper."""
        if self._codes is None:
            return None
        if allowed is None:
            return self._codes.candidates(query, enough)
        # The codes cannot filter: widen the search so that enough candidates should be allowed.
        width = widen(enough, count, self.size)
        if width > max(WIDENING_MAX, 2 * enough):
            return None
        rows = self._codes.candidates(query, width)
        kept: Rows = rows[bits_at(allowed, rows)][:enough]
        return kept if len(kept) == enough else None

    def nearest_warm(
        self, query: Floats, depth: int, allowed: Bits | None, scan_max: int, ranks: int = RANKS
    ) -> Found:
        return self.nearest(query, depth, allowed, scan_max)


def copy_rows(
    sources: Sequence[tuple[StoredVectors, Rows]], dimensions: int, on_step: OnStep
) -> StoredVectors:
    """The chosen rows of several stores, concatenated into a new store."""
    copied = StoredVectors.allocate(sum(len(rows) for _, rows in sources), dimensions)
    at = 0
    for source, rows in sources:
        for start in range(0, len(rows), COPIED_ROWS):
            on_step()
            some = rows[start : start + COPIED_ROWS]
            # With `mode`, `take` writes directly into `out` and releases the GIL.
            source.halves.take(some, 0, out=copied.halves[at : at + len(some)], mode="clip")
            at += len(some)
    return copied


def codes_of(vectors: StoredVectors, on_step: OnStep) -> Codes | None:
    return Codes.of(vectors, on_step) if vectors.rows >= CODED_ROWS_MIN else None
