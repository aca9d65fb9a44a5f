"""Corrects words of a query that no passage has, to the nearest terms of the dictionary.

A word is compared as the term it would be indexed as, by edits: an insertion, deletion, substitution, or transposition
of letters (optimal string alignment). The number of allowed edits depends on the length of the word as written: "aples"
has five letters, although its term has three. As in most spelling correction, the first letter counts as right. A word
with digits, or in a script without spaces, is a name or a code and stays.

The stem of a word in a language may lack much of a word of another one ("userna" is what Turkish leaves of "username"),
and then it is near terms that the word is not. So it is compared with terms of passages in its language, and a word
that two terms make up is not corrected to the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby, islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import OSA

from indexes.base.languages import primary
from indexes.base.masks import Bits, bits_at
from indexes.base.model import Rows
from indexes.base.work import OnStep, WorkBudget, do_nothing
from indexes.lexical.analysis import BARE, TAG, query_terms
from indexes.lexical.bm25 import LexicalPart
from indexes.lexical.postings import CHARACTER_BYTES_MAX
from indexes.lexical.words import WORD, fold

LETTERS_MIN = 4  # shorter words are near too many others
LETTERS_MAX = 64  # longer ones are no misspelt words
LETTERS_FOR_TWO = 8  # words this long may differ by two edits
EDITS_MAX = 2
OTHERS_MAX = 15  # languages, beside the query's own, whose terms a word is compared with
TERM_LETTERS_FOR_TWO = 6  # if their term is this long: more of it must stay than changes
CORRECTED_MAX = 3  # words of one query
TERMS_MAX = 32  # of a query; a longer one has enough other words
FREQUENCY_COST = 16  # cost of looking up a term's frequency, in comparisons
COMPARED_AT_ONCE = 16_384
FIRST_ROWS = 256  # of a word's passages, one of which can mostly be seen
NEAR_MAX = 32  # terms near a word that one of several shards tells of


class NearTerms(msgspec.Struct, frozen=True):
    """A word that no passage has, the `place`-th of a query: as it is written, folded, and as the terms it would be.
    `names` are the terms near it, with the edits and how many passages have them; `rests` are the terms that may be
    behind one of them in the word."""

    place: int
    written: str
    folded: str
    meant: frozenset[str]
    names: Mapping[str, tuple[int, int]]
    rests: frozenset[str]

    def plus(self, other: NearTerms) -> NearTerms:
        """The same word over the passages of both."""
        names = dict(self.names)
        for name, (edits, count) in other.names.items():
            known = names.get(name, (edits, 0))
            names[name] = min(known[0], edits), known[1] + count
        return msgspec.structs.replace(self, names=names, rests=self.rests | other.rests)

    @property
    def nearest(self) -> str | None:
        """The nearest term, of those as near the one that most passages have. "username" is "user" and "name", so it is
        neither."""
        ranked = sorted((edits, -count, name) for name, (edits, count) in self.names.items())
        return next((name for *_, name in ranked if self.folded.removeprefix(name) not in self.rests), None)


def correct(near: Iterable[NearTerms]) -> dict[str, tuple[frozenset[str], str]]:
    """Return the terms of the first few of these words that can be corrected, and for each the term used for it."""
    found = ((one, one.nearest) for one in sorted(near, key=lambda one: one.place))
    chosen = ((one.written, (one.meant, name)) for one, name in found if name is not None)
    return dict(islice(chosen, CORRECTED_MAX))


class Corrections:
    """Corrects words of one query that no passage has: `found` maps the terms of each to the nearest existing term, the
    most frequent one if several are equally near. Only the first CORRECTED_MAX words are corrected. `held` are the
    terms of words that need none.

    `whole` is False if some words were not tried, because there are more than TERMS_MAX or `work` has no comparisons
    left. `compared`: some were compared at all. `visible` is a mask of the rows of each part, or None for all rows;
    other passages do not count. `known` are terms that need no correction, because other shards have them, or synonyms
    stand for them.
    """

    def __init__(
        self,
        parts: Sequence[LexicalPart],
        on_step: OnStep = do_nothing,
        work: WorkBudget | None = None,
        visible: Sequence[Bits | None] = (),
        known: AbstractSet[str] = frozenset(),
    ) -> None:
        self.found: dict[str, tuple[frozenset[str], str]] = {}
        self.held: set[str] = set()
        self.near: list[NearTerms] = []
        self.whole = True
        self.compared = False
        self._parts, self._on_step = parts, on_step
        self._work = work or WorkBudget()
        self._visible = visible or [None] * len(parts)
        self._known = known

    def look_up(self, text: str, language: str, others: Mapping[str, float]) -> None:
        """Correct the words of a text."""
        for _, meant, asked in self._missing(text, language, others):
            near = [one for term in sorted(meant) if (one := self._nearest(term, asked)) is not None]
            if not self.whole:
                return
            if near:
                self.found[asked.written] = meant, min(near)[-1]
            if len(self.found) == CORRECTED_MAX:
                return

    def gather(self, text: str, language: str, others: Mapping[str, float]) -> None:
        """Put into `near` what is near the words of a text here, for several shards to be decided on together."""
        for place, meant, asked in self._missing(text, language, others):
            near = [one for term in sorted(meant) for one in islice(self._near(term, asked), NEAR_MAX)]
            # Of one name that several terms are near to, the fewest edits count.
            names = {name: (edits, -count) for edits, count, name in sorted(near, reverse=True)}
            if not self.whole:
                return
            rests = self._rests(meant, asked)
            if rests is None:
                return
            self.near.append(NearTerms(place, asked.written, asked.folded, meant, names, rests))
            if sum(bool(one.names) for one in self.near) == 2 * CORRECTED_MAX:
                return

    def _missing(
        self, text: str, language: str, others: Mapping[str, float]
    ) -> Iterator[tuple[int, frozenset[str], _Word]]:
        """Yield the words that may need a correction: their places, the terms they would be, and the words."""
        words = list(dict.fromkeys(text.split()))
        if len(words) > TERMS_MAX:
            self.whole = False
            return
        for place, word in enumerate(words):
            if len(query_terms(word, language)) != 1:
                continue  # parts of an identifier, or a script without spaces
            meant = frozenset(query_terms(word, language, others))
            if any(self._is_held(term) for term in meant):
                self.held |= meant
            elif len(word) <= LETTERS_MAX:
                yield place, meant, _Word.of(word, (language, *islice(others, OTHERS_MAX)))

    def _rests(self, meant: AbstractSet[str], word: _Word) -> frozenset[str] | None:
        """Return the terms that may be behind a name in the word; None if no comparisons are left."""
        found = frozenset(rest for rest in self._ends(meant, word) if self._is_rest(rest, word))
        return found if self.whole else None

    def _ends(self, meant: AbstractSet[str], word: _Word) -> Iterator[str]:
        """Yield what is behind a name in the word, if one of its stems is near that name. Each costs comparisons, once
        for each language; when none are left, `whole` is False."""
        most = len(word.folded) - LETTERS_MIN
        sizes = {len(term) + change for term in meant for change in range(-EDITS_MAX, EDITS_MAX + 1)}
        for size in sorted(size for size in sizes if 0 < size <= most):
            self._on_step()
            self._work.comparisons -= FREQUENCY_COST * len(word.languages)
            if self._work.comparisons < 0:
                self.whole = False
                return
            yield word.folded[size:]

    def _nearest(self, term: str, word: _Word) -> tuple[int, int, str] | None:
        near = self._near(term, word)
        return next((one for one in near if not self._is_first_of_two(one[-1], word)), None)

    def _near(self, term: str, word: _Word) -> Iterator[tuple[int, int, str]]:
        """Yield the terms within the edits allowed for the word, one of whose stems `term` is, as (edits, negative
        frequency, term), in that order. It ends early if no comparisons are left; then `whole` is False.

        A term too short to be compared by itself is only completed: it is near to terms that are long enough.
        """
        letters = len(word.written)
        if letters < LETTERS_MIN or len(term) < LETTERS_MIN - 1 or not _is_plain(term):
            return
        work = self._work
        if work.comparisons < 0:
            self.whole = False
            return None
        edits = EDITS_MAX if letters >= LETTERS_FOR_TWO and len(term) >= TERM_LETTERS_FOR_TWO else 1
        size, room = len(term.encode()), edits * CHARACTER_BYTES_MAX
        least = size - (edits if term.isascii() else room)
        self.compared = True
        known: set[str] = set()
        for part in self._parts:
            self._on_step()
            known.update(part.starting(term[0], least, size + room))
            if len(known) > work.comparisons:
                break
        work.comparisons -= len(known)
        self.whole = work.comparisons >= 0
        near: list[tuple[int, str]] = []
        names = iter(known)
        while self.whole and (some := list(islice(names, COMPARED_AT_ONCE))):
            self._on_step()
            found = process.extract(term, some, scorer=OSA.distance, score_cutoff=edits, limit=None)
            near += [
                (distance, name)
                for name, distance, _ in found
                if _is_plain(name) and (len(term) >= LETTERS_MIN or len(name) >= LETTERS_MIN)
            ]
        for distance, equals in groupby(sorted(near), key=lambda one: one[0]):
            self._on_step()
            alike = [name for _, name in equals]
            work.comparisons -= FREQUENCY_COST * len(alike)
            if work.comparisons < 0:
                self.whole = False
                return
            for count, name in sorted((-self._frequency(name), name) for name in alike):
                if count < 0 and self._is_spoken(name, term, word):
                    yield distance, count, name

    def _is_spoken(self, name: str, term: str, word: _Word) -> bool:
        """Whether a passage in a language in which the word becomes `term` has this name."""
        if len(word.languages) == 1:
            return True
        for part, (rows, seen) in zip(self._parts, self._postings(name), strict=True):
            held = rows if seen is None else rows[bits_at(seen, rows)]
            spoken = [part.postings(TAG + code)[0] for code, terms in word.languages.items() if term in terms]
            if any(
                _have_one_in_common(some, tagged) for some in (held[:FIRST_ROWS], held) for tagged in spoken
            ):
                return True
        return False

    def _is_first_of_two(self, name: str, word: _Word) -> bool:
        """Whether the word is this name with another term behind it, as "username" is "user" and "name"."""
        rest = word.folded.removeprefix(name)
        return LETTERS_MIN <= len(rest) < len(word.folded) and self._is_rest(rest, word)

    def _is_rest(self, rest: str, word: _Word) -> bool:
        terms = {term for code in word.languages for term in query_terms(rest, code)}
        return any(len(term) >= LETTERS_MIN - 1 and self._is_held(term) for term in terms)

    def _frequency(self, term: str) -> int:
        return sum(
            len(rows) if seen is None else int(np.count_nonzero(bits_at(seen, rows)))
            for rows, seen in self._postings(term)
        )

    def _is_held(self, term: str) -> bool:
        return term in self._known or any(
            len(rows) > 0
            if seen is None
            else bits_at(seen, rows[:FIRST_ROWS]).any() or bits_at(seen, rows).any()
            for rows, seen in self._postings(term)
        )

    def _postings(self, term: str) -> Iterator[tuple[Rows, Bits | None]]:
        for part, seen in zip(self._parts, self._visible, strict=True):
            rows: Any = part.postings(term)[0]  # uint32, which converting would copy
            yield rows, seen


class _Word(NamedTuple):
    """A word of a query as it is written, folded, and as terms in each of the query's languages."""

    written: str
    folded: str
    languages: dict[str, dict[str, float]]

    @staticmethod
    def of(word: str, languages: Iterable[str]) -> _Word:
        written = BARE.sub("", word)
        return _Word(written, fold(written), {primary(code): query_terms(word, code) for code in languages})


def _have_one_in_common(some: NDArray[Any], others: NDArray[Any]) -> bool:
    """Whether two ascending lists of rows meet. Takes time by the first."""
    if not len(some) or not len(others):
        return False
    return bool((others.take(others.searchsorted(some), mode="clip") == some).any())


def _is_plain(term: str) -> bool:
    match = WORD.fullmatch(term)
    return match is not None and match.lastgroup is None and term.isalpha()
