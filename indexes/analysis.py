"""Text to search terms: the same for passages and queries, so that both meet in one vocabulary.

Unicode is folded (NFKC, case), words are runs of letters and digits, English function words are dropped and the
rest is cut to its Snowball stem. Scripts written without spaces become overlapping pairs of characters, the
usual stand-in for a word segmenter. A text made only of function words keeps them: "to be or not to be".
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterable

import Stemmer

VERSION = "snowball-english-1"  # part of every sealed index: other rules make other terms

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
WORD = re.compile(rf"[{UNSPACED}]+|(?:(?![{UNSPACED}])[^\W_])+")
FIRST_UNSPACED = re.compile(f"[{UNSPACED}]")

_local = threading.local()


def terms(text: str) -> list[str]:
    """The terms of a text, in order, repeated as often as they occur. Safe from any thread."""
    words = list(_words(unicodedata.normalize("NFKC", text).casefold()))
    kept = [word for word in words if word not in STOPWORDS] or words
    stems: list[str] = _stemmer().stemWords(kept)
    return stems


def _words(text: str) -> Iterable[str]:
    for match in WORD.finditer(text):
        word = match.group()
        if len(word) > 1 and FIRST_UNSPACED.match(word):
            yield from (word[i : i + 2] for i in range(len(word) - 1))
        else:
            yield word


def _stemmer() -> Stemmer.Stemmer:
    """A stemmer keeps state while it works, so every thread has its own."""
    stemmer: Stemmer.Stemmer | None = getattr(_local, "stemmer", None)
    if stemmer is None:
        stemmer = _local.stemmer = Stemmer.Stemmer("english")
    return stemmer
