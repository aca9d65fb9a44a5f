"""Inverted indexes: posting lists of rows and term frequencies, read by BM25 (`bm25`).

`GrowingLexical` takes passages while it is searched (the delta); `SealedLexical` is a set of arrays on disk or in
memory.
"""

from __future__ import annotations

import bisect
import heapq
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexes.base.arrays import ends_of
from indexes.base.model import Bm25, Rows, Terms
from indexes.base.residency import Files
from indexes.base.work import OnStep, do_nothing
from indexes.lexical.analysis import TAG, index_terms
from indexes.lexical.bm25 import (
    BOUNDED_POSTINGS_MIN,
    DRIFT_MAX,
    NO_POSTINGS,
    NO_ROWS,
    NO_TERMS,
    Formula,
    Impacts,
    saturate,
)
from indexes.lexical.names import NO_KEYS, Keys, NameRows, sort_names
from indexes.lexical.prefixed import Postings

TF_MAX = np.iinfo(np.uint16).max
CHARACTER_BYTES_MAX = 4  # in UTF-8
TERMS_AT_ONCE = 64  # between calls of `on_step`
POSTED_AT_ONCE = 1024  # as above, while a long passage is added
SORTED_TERMS = 1024  # per sort, to bound how long it holds the GIL
SLICE_POSTINGS = 1 << 18  # a numpy call over this many takes about a millisecond
TERMS_CACHED_MAX = 4096  # per sealed index, about 3 MiB: a few words make up most queries
LONG_CHARS = 20_000  # of a text that takes milliseconds to analyze: once analyzed, its terms are used again
# Of an index that grows: its terms, postings and names, as tracemalloc counts them.
TERM_BYTES, POSTING_BYTES, NAME_BYTES = 300, 8, 180
POSTINGS_PER_CHAR = 100  # that are read in less time than a character is analyzed


def analyze(text: str, language: str, on_step: OnStep = do_nothing) -> Terms:
    """Return the terms of a long passage. Calls `on_step` every few milliseconds."""
    counts = Counter(index_terms(text, language, on_step))
    return Terms(list(counts), array("I", counts.values()), length_of(counts))


def length_of(counts: Counter[str]) -> int:
    return max(counts.total() - 1, 0)  # the tag is no word


class GrowingLexical:
    """An inverted index that one thread appends to while others search it through `view`."""

    def __init__(self) -> None:
        self._rows: dict[str, array[int]] = {}
        self._frequencies: dict[str, array[int]] = {}
        self._lengths: array[int] = array("I")
        self.postings_held = 0
        self._tags: list[str] = []  # of the languages met
        self._by_first: dict[str, list[str]] = {}  # terms by their first letter, in the order they came
        self._named: dict[int, array[int]] = {}  # rows by key
        self._long: dict[int, Terms] = {}  # of the rows with long texts
        self._places: dict[Terms, tuple[int, int]] = {}  # their row in the postings, and the newest row
        self._moved = NO_ROWS, NO_ROWS  # where these differ: rows in the postings, and what they became

    @property
    def bytes(self) -> int:
        """About what it holds in memory."""
        words = TERM_BYTES * len(self._rows) + POSTING_BYTES * self.postings_held
        return words + NAME_BYTES * len(self._named)

    def add(self, text: str, language: str = "en", names: Iterable[int] = ()) -> int:
        """Index a passage as the next row, under the keys of its names too; returns its number of terms."""
        if len(text) >= LONG_CHARS:
            terms = analyze(text, language)
            self.add_terms(terms, names)
            return terms.length
        counts = Counter(index_terms(text, language))
        length = length_of(counts)
        self._add_names(names)
        self._post(counts.items())
        self._lengths.append(length)
        return length

    def add_terms(self, terms: Terms, names: Iterable[int] = (), on_step: OnStep = do_nothing) -> None:
        """Index a long passage by its terms as the next row. If another row has the same terms, as `terms_of` returned
        them, its postings become those of the new one, in no time: hide that row before the new one is searched. Calls
        `on_step` every few milliseconds, when what was added before can be searched."""
        self._add_names(names)
        row = len(self._lengths)
        posted, before = self._places.get(terms, (row, row))
        self._places[terms], self._long[row] = (posted, row), terms
        if before == row:
            counts = zip(terms.names, terms.frequencies, strict=True)
            while some := list(islice(counts, POSTED_AT_ONCE)):
                self._post(some)
                on_step()
            self._lengths.append(terms.length)
            return
        self._long[before] = NO_TERMS
        self._moved = np.append(self._moved[0], posted), np.append(self._moved[1], row)
        self._lengths.append(terms.length)

    def _add_names(self, names: Iterable[int]) -> None:
        for key in names:
            self._named.setdefault(key, array("I")).append(len(self._lengths))

    def _post(self, counts: Collection[tuple[str, int]]) -> None:
        """Add these terms of the next row."""
        row = len(self._lengths)
        self.postings_held += len(counts)
        for term, count in counts:
            frequency = min(count, TF_MAX)
            # Frequencies first: a reader that sees a row must also find its frequency.
            if (rows := self._rows.get(term)) is not None:
                self._frequencies[term].append(frequency)
                rows.append(row)
                continue
            self._by_first.setdefault(term[0], []).append(term)
            if term.startswith(TAG):
                self._tags.append(term)
            self._frequencies[term] = array("H", (frequency,))
            self._rows[term] = array("I", (row,))

    def terms_of(self, row: int) -> Terms | None:
        return self._long.get(row)

    def view(self, size: int) -> GrowingView:
        """The first `size` rows, frozen: rows added later are not visible."""
        lengths = np.frombuffer(self._lengths.tobytes(), np.uint32)[:size]
        return GrowingView(self, size, lengths, int(lengths.sum(dtype=np.int64)))

    def read(self, term: str, size: int) -> Postings:
        stored = self._rows.get(term)
        if stored is None:
            return NO_POSTINGS
        # tobytes copies under the GIL; a buffer view would prevent the writer from growing the array.
        rows = np.frombuffer(stored.tobytes(), np.uint32)
        rows = rows[: np.searchsorted(rows, size)]
        frequencies = np.frombuffer(self._frequencies[term].tobytes(), np.uint16)[: len(rows)]
        posted, now = self._moved
        if len(posted):
            held = np.isin(posted, rows) & (now < size)
            rows = rows.copy()
            rows[np.searchsorted(rows, posted[held])] = now[held]  # the last of several stays
            order = np.argsort(rows)
            rows, frequencies = rows[order], frequencies[order]
        return rows, frequencies

    def named(self, keys: range, size: int) -> NameRows:
        stored = b"".join(self._named[key].tobytes() for key in keys if key in self._named)
        rows = np.frombuffer(stored, np.uint32)
        return rows[rows < size]

    def _sealed_names(self, size: int) -> tuple[Keys, NameRows]:
        held = [(key, self.named(range(key, key + 1), size)) for key in list(self._named)]
        keys = np.array([key for key, _ in held], np.uint64).repeat([len(rows) for _, rows in held])
        return sort_names(keys, np.concatenate([NO_POSTINGS[0], *(rows for _, rows in held)]))

    def starting(self, prefix: str) -> list[str]:
        found = self._by_first.get(prefix[0], [])[:]
        return found if len(prefix) == 1 else [term for term in found if term.startswith(prefix)]

    def frequent(self, most: int) -> dict[str, int]:
        sizes = [(len(rows), term) for term, rows in self._rows.copy().items()]
        return {term: size for size, term in heapq.nlargest(most, sizes)}

    def read_starting(self, prefix: str, size: int) -> Postings:
        lists = [self.read(term, size) for term in self.starting(prefix)]
        rows, frequencies = zip(NO_POSTINGS, *lists)
        return np.concatenate(rows), np.concatenate(frequencies)

    def languages(self, size: int) -> dict[str, int]:
        return {tag.removeprefix(TAG): len(self.read(tag, size)[0]) for tag in self._tags.copy()}

    def seal(self, size: int, on_step: OnStep = do_nothing) -> SealedLexical:
        """The first `size` rows as an immutable in-memory index. `on_step` is called periodically, and may raise."""
        names, sizes = [], array("q")
        rows, frequencies = array("I"), array("H")
        moved = set(self._moved[0].tolist())
        for at, name in enumerate(self._sorted_terms(on_step)):
            if at % TERMS_AT_ONCE == 0:
                on_step()
            stored, counts = self._rows[name], self._frequencies[name]
            if moved and not moved.isdisjoint(stored):
                stored, counts = (array(one.dtype.char, one.tobytes()) for one in self.read(name, size))
            count = bisect.bisect_left(stored, size)
            if count:
                names.append(name)
                sizes.append(count)
                rows.extend(stored[:count])
                frequencies.extend(counts[:count])
        return SealedLexical.from_arrays(
            names,
            np.frombuffer(sizes, np.int64),
            np.frombuffer(rows, np.uint32),
            np.frombuffer(frequencies, np.uint16),
            self.view(size).lengths,
            self._sealed_names(size),
        )

    def _sorted_terms(self, on_step: OnStep) -> Iterator[str]:
        """The terms sorted by code points, which is the order of their UTF-8 bytes. Runs are sorted, then merged in
        Python, because a single sort would hold the GIL throughout."""
        terms = list(self._rows)
        runs = []
        for at in range(0, len(terms), SORTED_TERMS):
            on_step()
            runs.append(sorted(terms[at : at + SORTED_TERMS]))
        return heapq.merge(*runs)


@dataclass(frozen=True, slots=True)
class GrowingView:
    """A frozen prefix of a growing index."""

    index: GrowingLexical
    size: int
    lengths: NDArray[np.uint32]
    length: int

    def postings(self, term: str) -> Postings:
        return self.index.read(term, self.size)

    def postings_starting(self, prefix: str) -> Postings:
        return self.index.read_starting(prefix, self.size)

    def named(self, keys: range) -> NameRows:
        return self.index.named(keys, self.size)

    @property
    def languages(self) -> Mapping[str, int]:
        return self.index.languages(self.size)

    def starting(self, prefix: str, bytes_min: int = 0, bytes_max: int = 1 << 32) -> list[str]:
        least = -(-bytes_min // CHARACTER_BYTES_MAX)
        found = self.index.starting(prefix)
        return [term for term in found if least <= len(term) <= bytes_max]

    def frequent(self, most: int) -> dict[str, int]:
        """Rows that came after the first `size` are counted, too."""
        return self.index.frequent(most)

    def impacts(self, term: str, bm25: Bm25, mean_length: float) -> None:
        """None: the postings grow."""

    def frequencies_of(self, rows: Rows) -> dict[str, int]:
        return self.index.seal(self.size).frequencies_of(rows) if len(rows) else {}

    def terms_of(self, row: int, chars: int) -> Terms | None:
        return self.index.terms_of(row)


class SealedLexical:
    """An immutable inverted index: sorted terms, and the concatenated rows and frequencies of their postings.

        terms.npy      uint8   the terms in UTF-8, sorted, concatenated without a separator
        offsets.npy    int64   [terms + 1]  where each term starts in terms.npy
        starts.npy     int64   [terms + 1]  where each term's postings start
        rows.npy       uint32  [postings]   ascending within a term
        frequencies.npy uint16 [postings]
        lengths.npy    uint32  [rows]
        name_keys.npy  uint64  [names]      ascending
        name_rows.npy  uint32  [names]      ascending within a key

    When loaded from a folder, the arrays are copies or memory maps, depending on the budget in `residency`.
    """

    FILES = ("terms", "offsets", "starts", "rows", "frequencies", "lengths", "name_keys", "name_rows")

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        self._arrays = arrays
        self.names = Names(arrays["terms"], arrays["offsets"])  # type: ignore[arg-type]
        self.starts: NDArray[np.int64] = arrays["starts"]  # type: ignore[assignment]
        self.rows: NDArray[np.uint32] = arrays["rows"]  # type: ignore[assignment]
        self.frequencies: NDArray[np.uint16] = arrays["frequencies"]  # type: ignore[assignment]
        self.lengths: NDArray[np.uint32] = arrays["lengths"]  # type: ignore[assignment]
        self.name_keys: Keys = arrays["name_keys"]  # type: ignore[assignment]
        self.name_rows: NameRows = arrays["name_rows"]  # type: ignore[assignment]
        self.length = int(self.lengths.sum(dtype=np.int64))
        self._found: dict[str, Postings] = {}
        self._impacts: dict[tuple[str, Bm25], Impacts] = {}

    @staticmethod
    def from_arrays(
        names: Sequence[str],
        sizes: NDArray[np.int64],
        rows: NDArray[np.uint32],
        frequencies: NDArray[np.uint16],
        lengths: NDArray[np.uint32],
        named: tuple[Keys, NameRows] = (NO_KEYS, NO_POSTINGS[0]),
    ) -> SealedLexical:
        """From sorted terms, the number of postings of each, the concatenated postings, and sorted names."""
        encoded = [name.encode() for name in names]
        offsets = ends_of(np.array([len(name) for name in encoded], np.int64))
        return SealedLexical(
            {
                "terms": np.frombuffer(b"".join(encoded), np.uint8),
                "offsets": offsets,
                "starts": ends_of(sizes),
                "rows": rows.astype(np.uint32, copy=False),
                "frequencies": frequencies.astype(np.uint16, copy=False),
                "lengths": lengths.astype(np.uint32, copy=False),
                "name_keys": named[0],
                "name_rows": named[1],
            }
        )

    @staticmethod
    def load(folder: Path, files: Files | None = None) -> SealedLexical:
        files = files or Files()
        return SealedLexical({name: files.array(folder / f"{name}.npy") for name in SealedLexical.FILES})

    def save(self, folder: Path) -> None:
        """Write the arrays into an existing folder. Not synced: the publisher does that."""
        for name in self.FILES:
            np.save(folder / f"{name}.npy", self._arrays[name])

    def forget(self) -> None:
        """Drop what is kept of earlier searches."""
        self._found.clear()
        self._impacts.clear()

    @property
    def size(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        return sum(values.nbytes for values in self._arrays.values())

    def postings(self, term: str) -> Postings:
        found = self._found.get(term)
        if found is None:
            found = NO_POSTINGS
            if (at := self.names.find(term.encode())) is not None:
                start, end = int(self.starts[at]), int(self.starts[at + 1])
                found = self.rows[start:end], self.frequencies[start:end]
            _cache(self._found, term, found)
        return found

    def named(self, keys: range) -> NameRows:
        low, high = self.name_keys.searchsorted(np.array([keys.start, keys.stop], np.uint64)).tolist()
        return self.name_rows[low:high]

    def starting(self, prefix: str, bytes_min: int = 0, bytes_max: int = 1 << 32) -> list[str]:
        return self.names.starting(prefix.encode(), bytes_min, bytes_max)

    def frequent(self, most: int) -> dict[str, int]:
        sizes = np.diff(self.starts)
        least = np.partition(sizes, -most)[-most] if len(sizes) > most else 0
        more = np.flatnonzero(sizes > least)
        places = np.concatenate([more, np.flatnonzero(sizes == least)[: most - len(more)]])
        return {self.names[at].decode(): int(sizes[at]) for at in places.tolist()}

    def postings_starting(self, prefix: str) -> Postings:
        low, high = self.names.range_of(prefix.encode())
        start, end = int(self.starts[low]), int(self.starts[high])
        return self.rows[start:end], self.frequencies[start:end]

    @cached_property
    def languages(self) -> Mapping[str, int]:
        tags = takewhile(lambda name: name.startswith(TAG.encode()), self.names)  # they sort first
        codes = [name.decode().removeprefix(TAG) for name in tags]
        return {code: int(self.starts[at + 1] - self.starts[at]) for at, code in enumerate(codes)}

    def impacts(self, term: str, bm25: Bm25, mean_length: float) -> Impacts | None:
        """Cached, at one byte per posting."""
        rows, frequencies = self.postings(term)
        if len(rows) < BOUNDED_POSTINGS_MIN:
            return None
        known = self._impacts.get((term, bm25))
        if known is None or not known.mean_length / DRIFT_MAX <= mean_length <= known.mean_length * DRIFT_MAX:
            formula = Formula.of(bm25, mean_length)
            gains = saturate(frequencies, self.lengths.take(rows), formula)
            known = Impacts.of(gains, formula.limit, mean_length)
            _cache(self._impacts, (term, bm25), known)
        return known

    def frequencies_of(self, rows: Rows) -> dict[str, int]:
        if not len(rows):
            return {}
        chosen = np.zeros(self.size, bool)
        chosen[rows] = True
        counts = self.count(chosen)
        return {self.names[at].decode(): int(counts[at]) for at in np.flatnonzero(counts).tolist()}

    def terms_of(self, row: int, chars: int) -> Terms | None:
        if chars < max(LONG_CHARS, len(self.rows) // POSTINGS_PER_CHAR):
            return None
        found = [np.flatnonzero(self.rows[some] == row) + some.start for _, some in self.slices()]
        at = np.concatenate([NO_ROWS, *found])
        terms = np.searchsorted(self.starts, at, side="right") - 1
        names = [self.names[term].decode() for term in terms.tolist()]
        return Terms(names, self.frequencies[at].tolist(), int(self.lengths[row]))

    def count(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Document frequency of each term within the chosen rows (bool [size]), int64 [terms]. Reads all postings."""
        counts = np.empty(len(self.names), np.int64)
        for terms, postings in self.slices():
            before = ends_of(chosen[self.rows[postings]])
            bounds = self.starts[terms.start : terms.stop + 1] - postings.start
            counts[terms] = np.diff(before[bounds])
        return counts

    def slices(self) -> Iterator[tuple[slice, slice]]:
        """Slices of the terms, in order, and of their postings: about `SLICE_POSTINGS` each, or one term.

        Working slice by slice needs little memory and holds the GIL only briefly.
        """
        first = 0
        while first < len(self.names):
            start = int(self.starts[first])
            last = int(np.searchsorted(self.starts, start + SLICE_POSTINGS, side="right")) - 1
            last = min(max(last, first + 1), len(self.names), first + SLICE_POSTINGS)
            yield slice(first, last), slice(start, int(self.starts[last]))
            first = last


class Names(Sequence[bytes]):
    """Sorted terms in one block of bytes, found by bisection; only every 64th is a Python object."""

    SPACING = 64

    def __init__(self, block: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        # Slicing and indexing a memoryview takes a third of the time of an array.
        self._block = block.data
        self._offsets = offsets.data
        self._guides = [self[at] for at in range(0, len(self), self.SPACING)]

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, at: int) -> bytes:  # type: ignore[override]
        return self._block[self._offsets[at] : self._offsets[at + 1]].tobytes()

    def starting(self, prefix: bytes, bytes_min: int, bytes_max: int) -> list[str]:
        """The terms with this prefix and a size between both bounds."""
        low, high = self.range_of(prefix)
        offsets = np.asarray(self._offsets[low : high + 1])
        sizes = np.diff(offsets)
        chosen = np.flatnonzero((sizes >= bytes_min) & (sizes <= bytes_max))
        return [
            self._block[start:end].tobytes().decode()
            for start, end in zip(offsets[chosen].tolist(), offsets[chosen + 1].tolist())
        ]

    def range_of(self, prefix: bytes) -> tuple[int, int]:
        """The places of the terms with this prefix."""
        low = bisect.bisect_left(self, prefix)
        return low, bisect.bisect_left(self, prefix + b"\xff", low)  # no byte of UTF-8 is that large

    def find(self, name: bytes) -> int | None:
        first = max(bisect.bisect_right(self._guides, name) - 1, 0) * self.SPACING
        at = bisect.bisect_left(self, name, first, min(first + self.SPACING, len(self)))
        return at if at < len(self) and self[at] == name else None


def _cache(cached: dict[Any, Any], key: object, value: object) -> None:
    """Thread-safe: each dict operation is atomic, and cleared entries are recomputed."""
    if len(cached) >= TERMS_CACHED_MAX:
        cached.clear()
    cached[key] = value
