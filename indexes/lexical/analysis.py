"""Text analysis: turns passages and queries into terms of the same vocabulary.

    text -> words, of identifiers whole and parts (`words`) -> lower case -> Snowball stem of the language -> folded

A passage is analysed in its document's language. A query may meet documents in several: its words are looked up as each
of them would have them, so that a wrong guess of its language loses no word that is written the same.
Stopwords are indexed, and left out of queries that have other words.
"""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain
from math import inf

import regex
import Stemmer

from indexes.base.languages import primary
from indexes.lexical.stopwords import STOPWORDS
from indexes.lexical.words import CLITIC, fold, words

ANALYSIS_VERSION = "unicode-1"  # recorded in every generation: other rules produce other terms

SNOWBALL = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "english",
    "eo": "esperanto", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish",
    "fr": "french", "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian",
    "it": "italian", "lt": "lithuanian", "nb": "norwegian", "ne": "nepali", "nl": "dutch", "nn": "norwegian",
    "no": "norwegian", "pl": "polish", "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian",
    "st": "sesotho", "sv": "swedish", "ta": "tamil", "tr": "turkish", "yi": "yiddish",
}  # fmt: skip
NONE: Mapping[str, float] = {}
TAG = "\0"  # before a language; no term begins with it
DOTTED_I = ("az", "tr")  # the capital of i is İ, that of ı is I
TONAL = ("vi", "yo")  # marks tell words apart

# Most of a text are a few words, and finding one takes a hundredth of analysing it. About 10 MB with English words.
TOKENS_CACHED_MAX = 32_768  # over all languages
TOKEN_CACHED_CHARS_MAX = 32


def terms(text: str, language: str = "en") -> list[str]:
    """The terms of a passage, with repetitions. `language` is any BCP 47 code, stemmer or not. Thread-safe."""
    code = primary(language)
    known = _known[code] if code in _known else _known.setdefault(code, _Known(code))
    return list(chain.from_iterable(map(known.__getitem__, text.split())))


def indexed(text: str, language: str) -> list[str]:
    """What a passage is indexed under: its terms and, unless it has none, the tag of its language, last."""
    found = terms(text, language)
    return [*found, TAG + primary(language)] if found else []


def query_terms(text: str, language: str = "en", others: Mapping[str, float] = NONE) -> dict[str, float]:
    """The terms of a query in this language, each with its weight: how often it occurs.

    What its words would be in `others`, languages of the passages and their shares, is looked up too, weighed by the
    share. Stopwords are left out unless there is nothing else. A word of two or more capitals is none where the query
    is not all in capitals ("WHO guidelines"), nor is a single one but "I" after other words ("vitamin A").
    """
    return query_terms_and_own(text, language, others)[0]


def query_terms_and_own(
    text: str, language: str, others: Mapping[str, float]
) -> tuple[dict[str, float], set[str]]:
    """The same, and which of them are terms in the query's own language."""
    tokens, own, codes = text.split(), primary(language), tuple(others)
    stopwords, shouting = STOPWORDS.get(own, frozenset()), text.isupper()
    kept = [
        token
        for at, token in enumerate(tokens)
        if not _stops(token, stopwords, capitals_min=inf if shouting else 2 - (at > 0))
    ]
    weights: dict[str, float] = {}
    own_terms: set[str] = set()
    for token in kept or tokens:
        cached = len(token) <= TOKEN_CACHED_CHARS_MAX
        look_up = _looked_up if cached else _looked_up.__wrapped__
        for term, code in look_up(token, own, codes):
            weights[term] = weights.get(term, 0.0) + (1.0 if code == own else others[code])
            if code == own:
                own_terms.add(term)
    return weights, own_terms


def _stops(token: str, stopwords: frozenset[str], *, capitals_min: float) -> bool:
    """Whether a token is a stopword; not in capitals, of so many letters or more."""
    bare, folded = _bare(token) if len(token) <= TOKEN_CACHED_CHARS_MAX else _bare.__wrapped__(token)
    return folded in stopwords and not (bare.isupper() and bare != "I" and len(bare) >= capitals_min)


@lru_cache(4096)
def _bare(token: str) -> tuple[str, str]:
    """A token without what stands around its word, as it is and without case."""
    bare = BARE.sub("", CLITIC.sub("", unicodedata.normalize("NFKC", token)))
    return bare, bare.casefold()


BARE = regex.compile(r"^[^\w]+|[^\w]+$")


@lru_cache(8192)
def _looked_up(token: str, own: str, others: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The terms of a token of a query: of each word its own, and what else it would be in other languages, which is
    named with it."""
    found: list[tuple[str, str]] = []
    for word in words(token):
        languages: dict[str, str] = {}
        usual = _lower(word, own)
        for code in (own, *others):
            lower = _lower(word, code) if code in DOTTED_I or own in DOTTED_I else usual
            languages.setdefault(_folded_stem(lower, code), code)
        found += languages.items()
    return tuple(found)


def forms(word: str, language: str) -> Iterator[str]:
    """What a word is indexed as: its `form`; then, for those who type no accents, the stem of the folded word if it is
    another."""
    lower = _lower(word, language)
    first, plain = _folded_stem(lower, language), fold(lower)
    yield first
    second = _stem(plain, language) if plain != lower else first
    if second and second != first:  # a stemmer may leave nothing of a word without its accents
        yield second


def form(word: str, language: str) -> str:
    """The folded stem of a word, or where accents tell words apart the word with them."""
    return _folded_stem(_lower(word, language), language)


def _folded_stem(lower: str, language: str) -> str:
    if language in TONAL:
        return lower
    stem = _stem(lower, language)
    return stem if stem and stem.isascii() else fold(stem) or fold(lower)


def _lower(word: str, language: str) -> str:
    if language in DOTTED_I:
        word = word.replace("İ", "i").replace("I", "ı")
    return word.lower() if word.isascii() else word.casefold().replace("i\u0307", "i")


class _Stemmers(threading.local):
    """Stemmers are not thread-safe, so every thread has its own."""

    def __init__(self) -> None:
        self.by_language: dict[str, Stemmer.Stemmer] = {}


def _stem(word: str, language: str) -> str:
    """The Snowball stem; the word where there is no stemmer."""
    stemmers = _stemmers.by_language
    if language not in stemmers:
        if language not in SNOWBALL:
            return word
        stemmers[language] = Stemmer.Stemmer(SNOWBALL[language])
        stemmers[language].maxCacheSize = 0  # `_known` caches instead, shared by all threads
    stem: str = stemmers[language].stemWord(word)
    return stem


_stemmers = _Stemmers()


class _Known(dict[str, tuple[str, ...]]):
    """Cache of a language's tokens, that is what stands between white space, to their terms.

    Shared by all threads: single dict reads and writes are atomic, and a token lost when another thread clears the
    caches is simply analysed again.
    """

    def __init__(self, language: str) -> None:
        self.language = language

    def __missing__(self, token: str) -> tuple[str, ...]:
        found = tuple(form for word in words(token) for form in forms(word, self.language))
        if len(token) <= TOKEN_CACHED_CHARS_MAX:
            if sum(map(len, _known.copy().values())) >= TOKENS_CACHED_MAX:
                for known in _known.copy().values():
                    known.clear()  # frequent words return within a few texts
            self[token] = found
        return found


_known: dict[str, _Known] = {}
