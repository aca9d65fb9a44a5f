"""Text to search terms: the same for passages and queries, so that both meet in one vocabulary.

Unicode is folded (NFKC, case), words are runs of letters and digits, English function words are dropped and the
rest is cut to its Snowball stem. Scripts written without spaces become overlapping pairs of characters, the
usual stand-in for a word segmenter. A text made only of function words keeps them: "to be or not to be".
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator

import Stemmer

ANALYSIS_VERSION = "snowball-english-1"  # part of every sealed index: other rules make other terms

# Function words that carry no topic. Questions are the usual query, so their question words are among them.
STOPWORDS = frozenset(
    """
    a about after all also am an and any are as at be because been before being between both but by can could did do
    does doing down during each few for from further had has have having he her here hers him his how i if in into is it
    its just me more most my no nor not of off on once only or other our out over own same she should so some such than
    that the their them then there these they this those through to too under until up very was we were what when where
    which while who whom why will with would you your s t
    """.split()  # noqa: SIM905 - a page of quoted words is harder to read than the words
)

UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Japanese, Han
)
WORD = re.compile(rf"[^\W_{UNSPACED}]+|[{UNSPACED}]+")
FIRST_UNSPACED = re.compile(f"[{UNSPACED}]")
# For ASCII, which is in NFKC already: lower case, and a space for all that is neither letter nor digit.
ASCII_FOLDED = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))

# Few words make up most of a text, and looking one up costs a tenth of stemming it. Both limits together bound
# what the cache may hold: 4 MiB with English words, less than 20 MiB at the worst.
WORDS_CACHED_MAX = 32_768
WORD_CACHED_CHARS_MAX = 32

_local = threading.local()


def terms(text: str) -> list[str]:
    """The terms of a text, in order, repeated as often as they occur. Safe from any thread."""
    words = text.translate(ASCII_FOLDED).split() if text.isascii() else _words(text)
    kept = [stem for stem in map(_stems.__getitem__, words) if stem is not None]
    return kept or [_stem(word) for word in words]


def _words(text: str) -> list[str]:
    folded = unicodedata.normalize("NFKC", text).casefold()
    words: list[str] = WORD.findall(folded)
    return list(_pairs(words)) if FIRST_UNSPACED.search(folded) else words


def _pairs(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if len(word) > 1 and FIRST_UNSPACED.match(word):
            yield from (word[i : i + 2] for i in range(len(word) - 1))
        else:
            yield word


def _stem(word: str) -> str:
    """The Snowball stem. A stemmer keeps state while it works, so every thread has its own."""
    stemmer: Stemmer.Stemmer | None = getattr(_local, "stemmer", None)
    if stemmer is None:
        stemmer = _local.stemmer = Stemmer.Stemmer("english")
        stemmer.maxCacheSize = 0  # `_stems` remembers instead, once for all threads
    stem: str = stemmer.stemWord(word)
    return stem


class _Stems(dict[str, str | None]):
    """Word to stem, None for a function word; filled as words are met.

    All threads share it. Single reads and writes of a dict are atomic, and whoever finds a word gone after another
    thread has emptied the cache works it out again.
    """

    def __missing__(self, word: str) -> str | None:
        stem = None if word in STOPWORDS else _stem(word)
        if len(word) <= WORD_CACHED_CHARS_MAX:
            if len(self) >= WORDS_CACHED_MAX:
                self.clear()  # the frequent words are back after a few texts
            self[word] = word if stem == word else stem
        return stem


_stems = _Stems()
