"""Builds sealed lexical indexes by external sorting, and merges several into one.

`LexicalBuilder` is for the builder process: postings are written to disk in sorted runs, then merged.

    texts -> a term number per occurrence -> buffer full: sort by (term, row), count, append as a run
    save:    as many terms as fit the buffer -> their postings from every run -> sort -> append to the result

`merge_sealed` is for the service: it merges small indexes in memory during searches.

Both produce byte for byte the index that a single in-memory build of the same texts would.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from indexes.base.arrays import changes, ends_of
from indexes.base.durable import disk_errors
from indexes.base.errors import InvalidInput
from indexes.base.work import OnStep, do_nothing
from indexes.lexical.analysis import index_terms
from indexes.lexical.names import NO_KEYS, sort_names
from indexes.lexical.postings import TERMS_AT_ONCE, TF_MAX, SealedLexical
from indexes.lexical.runs import Runs
from indexes.lexical.scratch import new_array, save_array

MergedNames = tuple[NDArray[np.uint8], NDArray[np.int64], list[NDArray[np.uint32]]]


class LexicalBuilder:
    """Takes the texts of one index in any order, then writes it. Single-threaded, single use.

    Memory: buffer_bytes + 4 bytes per row + 12 per name + about 200 bytes per distinct term + the terms of the longest
    text. Disk: 6 bytes per posting under `scratch` until `close`, in unnamed temporary files, which also vanish with
    the process. Disk errors raise DiskFull or StorageError.
    """

    def __init__(self, scratch: Path, size: int, *, buffer_bytes: int = 64 << 20) -> None:
        """An index of rows 0 to size-1. `scratch` is an existing folder with space for the postings."""
        self._capacity = max(buffer_bytes // Runs.SORTED_BYTES, 1)
        self._runs = Runs(scratch, size, self._capacity)
        self._lengths = np.zeros(size, np.uint32)
        self._numbers = _Numbers()
        self._names: list[str] = []  # sorted; excludes terms first seen since the last run
        self._rows = array("I")  # rows of the buffered texts
        self._occurrences = array("I")  # their term numbers, concatenated
        self._name_keys, self._name_rows = array("Q"), array("I")

    def add(
        self,
        rows: NDArray[np.int64],
        texts: Sequence[str],
        languages: Iterable[str] = repeat("en"),
        names: Iterable[Sequence[int]] = repeat(()),
    ) -> None:
        """Index each text, in its language, under its row, and that row under the keys of its names. A row without a
        text has no terms.

        Raises InvalidInput for a row outside the index, and for one that already has a text.
        """
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self._lengths)):
            raise InvalidInput(f"rows must be 0 to {len(self._lengths) - 1}", param="rows")
        for row, text, language, keys in zip(rows.tolist(), texts, languages, names, strict=False):
            self._name_keys.extend(keys)
            self._name_rows.extend(repeat(row, len(keys)))
            found = index_terms(text, language)
            if not found:
                continue
            if self._lengths[row]:
                raise InvalidInput(f"row {row} has a text already", param="rows")
            self._lengths[row] = len(found) - 1  # the tag is no word
            self._rows.append(row)
            self._occurrences.extend(map(self._numbers.__getitem__, found))
            if len(self._occurrences) >= self._capacity:
                self._spill()

    def save(self, folder: Path) -> None:
        """Write the files of a SealedLexical into an existing folder. Not synced: the publisher does that."""
        self._spill()
        _, ranks = self._sort_terms()
        name_keys, name_rows = sort_names(
            np.frombuffer(self._name_keys, np.uint64), np.frombuffer(self._name_rows, np.uint32)
        )
        letters = np.fromiter((len(name.encode()) for name in self._names), np.int64, len(self._names))
        with disk_errors(folder):
            starts = ends_of(self._runs.sizes(ranks))
            save_array(folder / "terms.npy", np.frombuffer("".join(self._names).encode(), np.uint8))
            save_array(folder / "offsets.npy", ends_of(letters))
            save_array(folder / "starts.npy", starts)
            save_array(folder / "lengths.npy", self._lengths)
            save_array(folder / "name_keys.npy", name_keys)
            save_array(folder / "name_rows.npy", name_rows)
            with (
                new_array(folder / "rows.npy", np.uint32, int(starts[-1])) as all_rows,
                new_array(folder / "frequencies.npy", np.uint16, int(starts[-1])) as all_frequencies,
            ):
                for rows, frequencies in self._runs.merged(ranks, starts):
                    all_rows.write(rows.data)
                    all_frequencies.write(frequencies.data)

    def close(self) -> None:
        """Free the disk space, whether or not anything was saved. Idempotent."""
        self._runs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spill(self) -> None:
        """Sort the buffer by term and row, and append it as a run.

        New terms may later fall between known ones but never reorder them, so a run sorted by the current ranks is
        also sorted by the final ones.
        """
        if not self._occurrences:
            return
        order, ranks = self._sort_terms()
        rows = np.frombuffer(self._rows, np.uint32)
        keys = ranks[np.frombuffer(self._occurrences, np.uint32)].astype(np.uint64)
        keys <<= np.uint64(32)
        keys |= np.repeat(rows, self._lengths[rows] + 1)
        self._rows, self._occurrences = array("I"), array("I")
        keys.sort()
        first = np.flatnonzero(changes(keys))
        frequencies = np.minimum(np.diff(first, append=len(keys)), TF_MAX).astype(np.uint16)
        keys = keys[first]
        first = np.flatnonzero(changes(keys >> np.uint64(32)))
        counts = np.diff(first, append=len(keys)).astype(np.uint32)
        self._runs.append(order[keys[first] >> np.uint64(32)], counts, keys.astype(np.uint32), frequencies)

    def _sort_terms(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Term number by rank, and rank by term number, over the terms so far."""
        self._names += islice(self._numbers, len(self._names), None)
        self._names.sort()  # by code points, which is the order of the UTF-8 bytes
        order = np.fromiter(map(self._numbers.__getitem__, self._names), np.uint32, len(self._names))
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order), dtype=np.uint32)
        return order, ranks


class _Numbers(dict[str, int]):
    """Term to number, in order of first occurrence."""

    def __missing__(self, term: str) -> int:
        number = self[term] = len(self)
        return number


def merge_sealed(
    parts: Sequence[tuple[SealedLexical, NDArray[np.bool_]]], on_step: OnStep = do_nothing
) -> SealedLexical:
    """One in-memory index of the kept rows (bool [part.size]) of each part, renumbered consecutively.

    Terms in no kept row are omitted. May run during searches: no single step holds the GIL for more than a few
    milliseconds, and between steps it calls `on_step`, which may raise.
    """
    counts = [part.count(kept) for part, kept in parts]
    letters, offsets, ranks = merge_names(
        [names_of(part, n) for (part, _), n in zip(parts, counts, strict=True)], on_step
    )
    sizes = np.zeros(len(offsets) - 1, np.int64)
    for own, count in zip(ranks, counts, strict=True):
        sizes[own] += count[count > 0]
    starts = ends_of(sizes)
    rows, frequencies = np.empty(starts[-1], np.uint32), np.empty(starts[-1], np.uint16)
    free = starts[:-1].copy()  # where the next posting of each term goes
    lengths, name_keys, name_rows = [np.empty(0, np.uint32)], [NO_KEYS], [np.empty(0, np.uint32)]
    for (part, kept), own, count in zip(parts, ranks, counts, strict=True):
        places = np.zeros(len(count), np.int64)
        places[count > 0] = free[own]
        free[own] += count[count > 0]
        renumbered = (np.cumsum(kept) + (sum(map(len, lengths)) - 1)).astype(np.uint32)
        for some, postings in part.slices():
            on_step()
            alive = np.flatnonzero(kept[part.rows[postings]]) + postings.start
            to = np.repeat(places[some] - ends_of(count[some])[:-1], count[some]) + np.arange(len(alive))
            rows[to] = renumbered[part.rows[alive]]
            frequencies[to] = part.frequencies[alive]
        lengths.append(part.lengths[kept])
        named = kept[part.name_rows]
        name_keys.append(part.name_keys[named])
        name_rows.append(renumbered[part.name_rows[named]])
    keys, named_rows = sort_names(np.concatenate(name_keys), np.concatenate(name_rows))
    return SealedLexical(
        {
            "terms": letters,
            "offsets": offsets,
            "starts": starts,
            "rows": rows,
            "frequencies": frequencies,
            "lengths": np.concatenate(lengths),
            "name_keys": keys,
            "name_rows": named_rows,
        }
    )


def names_of(part: SealedLexical, counts: NDArray[np.int64]) -> Iterator[bytes]:
    """The terms of a part with a nonzero count, in order."""
    return (name for name, count in zip(part.names, counts, strict=True) if count)


def merge_names(sources: Sequence[Iterator[bytes]], on_step: OnStep) -> MergedNames:
    """All terms, sorted and concatenated; their offsets, with the end; and the ranks of each source's terms.

    Merged in Python rather than in one sort, which would hold the GIL throughout; `on_step` is called periodically.
    """
    letters, offsets = bytearray(), array("q", [0])
    ranks = [array("I") for _ in sources]
    last: bytes | None = None
    for name, source in heapq.merge(*(zip(names, repeat(at)) for at, names in enumerate(sources))):
        if name != last:
            if len(offsets) % TERMS_AT_ONCE == 0:
                on_step()
            letters += name
            offsets.append(len(letters))
            last = name
        ranks[source].append(len(offsets) - 2)
    return (
        np.frombuffer(letters, np.uint8),
        np.frombuffer(offsets, np.int64),
        [np.frombuffer(one, np.uint32) for one in ranks],
    )
