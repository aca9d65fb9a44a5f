"""Text analysis: turns passages and queries into terms of the same vocabulary.

Unicode is folded (NFKC, case), words are runs of letters and digits, English stopwords are dropped, and the rest is
reduced to Snowball stems. Scripts written without spaces become overlapping character bigrams, the usual substitute
for word segmentation. A text made only of stopwords keeps them: "to be or not to be".
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator

import Stemmer

ANALYSIS_VERSION = "snowball-english-1"  # recorded in every generation: other rules produce other terms

# Function words without topical meaning. Includes question words, because queries are usually questions.
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
# For ASCII, which NFKC leaves unchanged: lower case, and a space for everything but letters and digits.
ASCII_FOLDED = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))

# A few words make up most of a text, and a lookup costs a tenth of stemming. Together the limits bound the cache's
# memory: 4 MiB with English words, less than 20 MiB in the worst case.
WORDS_CACHED_MAX = 32_768
WORD_CACHED_CHARS_MAX = 32

_local = threading.local()


def terms(text: str) -> list[str]:
    """The terms of a text, in order, with repetitions. Thread-safe."""
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
    """The Snowball stem. Stemmers are not thread-safe, so every thread has its own."""
    stemmer: Stemmer.Stemmer | None = getattr(_local, "stemmer", None)
    if stemmer is None:
        stemmer = _local.stemmer = Stemmer.Stemmer("english")
        stemmer.maxCacheSize = 0  # `_stems` caches instead, shared by all threads
    stem: str = stemmer.stemWord(word)
    return stem


class _Stems(dict[str, str | None]):
    """Cache of word to stem, None for a stopword.

    Shared by all threads: single dict reads and writes are atomic, and a word lost when another thread clears the
    cache is simply stemmed again.
    """

    def __missing__(self, word: str) -> str | None:
        stem = None if word in STOPWORDS else _stem(word)
        if len(word) <= WORD_CACHED_CHARS_MAX:
            if len(self) >= WORDS_CACHED_MAX:
                self.clear()  # frequent words return within a few texts
            self[word] = word if stem == word else stem
        return stem


_stems = _Stems()
