"""Text analysis: turns passages and queries into terms of the same vocabulary.

    text -> words, of identifiers whole and parts (`words`) -> lower case -> Snowball stem of the language -> folded

A passage is analysed in its document's language. A query may meet documents in several: each of its words is looked up
as it would be indexed in each of them, so that a wrong guess of its language loses no word that is written the same.
Stopwords are indexed, and left out of queries that have other words.
"""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain

import regex
import Stemmer

from indexes.languages import primary
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
TAG = "\0"  # before a language; no term begins with it
DOTTED_I = ("az", "tr")  # the capital of i is İ, that of ı is I
TONAL = ("vi", "yo")  # marks tell words apart

# Most of a text are a few words, and finding one takes a hundredth of analysing it. About 10 MB with English words.
TOKENS_CACHED_MAX = 32_768  # over all languages
TOKEN_CACHED_CHARS_MAX = 32

_local = threading.local()


def terms(text: str, language: str = "en") -> list[str]:
    """The terms of a passage, with repetitions. `language` is any BCP 47 code, stemmer or not. Thread-safe."""
    code = primary(language)
    known = _known[code] if code in _known else _known.setdefault(code, _Known(code))
    return list(chain.from_iterable(map(known.__getitem__, text.split())))


def indexed(text: str, language: str) -> list[str]:
    """What a passage is indexed under: its terms and, unless it has none, the tag of its language."""
    found = terms(text, language)
    return [*found, TAG + primary(language)] if found else []


def query_terms(text: str, languages: Sequence[str] = ("en",)) -> list[str]:
    """The terms of a query, with repetitions: what its words become in each of these languages, its own first.

    Without stopwords of its own language, unless it has nothing else. A single capital letter ("vitamin A"), and a word
    in capitals among others that are not ("WHO guidelines"), are no stopwords.
    """
    tokens = text.split()
    stopwords = STOPWORDS.get(primary(languages[0]), frozenset())
    kept = [
        token
        for at, token in enumerate(tokens)
        if not _stops(token, stopwords, marked=at > 0 and not text.isupper())
    ]
    codes = tuple(dict.fromkeys(map(primary, languages)))
    return [term for token in kept or tokens for term in _looked_up(token, codes)]


def _stops(token: str, stopwords: frozenset[str], *, marked: bool) -> bool:
    bare = BARE.sub("", CLITIC.sub("", unicodedata.normalize("NFKC", token)))
    return bare.casefold() in stopwords and not (marked and bare.isupper() and bare != "I")


BARE = regex.compile(r"^[^\w]+|[^\w]+$")


@lru_cache(4096)
def _looked_up(token: str, languages: tuple[str, ...]) -> tuple[str, ...]:
    """What to look up for a token of a query: each word once for each different form."""
    return tuple(
        term
        for word in words(token)
        for term in dict.fromkeys(next(_forms(word, language)) for language in languages)
    )


def _forms(word: str, language: str) -> Iterator[str]:
    """What a word is indexed as: folded stem, or where accents tell words apart the word with them; then, for those who
    type none, the stem of the folded word if it is another."""
    lower = word.replace("İ", "i").replace("I", "ı") if language in DOTTED_I else word
    lower = lower.casefold().replace("i\u0307", "i")
    plain = fold(lower)
    first = lower if language in TONAL else fold(_stem(lower, language)) or plain
    yield first
    second = _stem(plain, language) if plain != lower else first
    if second != first:
        yield second


def _stem(word: str, language: str) -> str:
    """The Snowball stem. Stemmers are not thread-safe, so every thread has its own."""
    stemmers: dict[str, Stemmer.Stemmer] = _local.__dict__.setdefault("stemmers", {})
    if language not in SNOWBALL:
        return word
    if language not in stemmers:
        stemmers[language] = Stemmer.Stemmer(SNOWBALL[language])
        stemmers[language].maxCacheSize = 0  # `_known` caches instead, shared by all threads
    stem: str = stemmers[language].stemWord(word)
    return stem


class _Known(dict[str, tuple[str, ...]]):
    """Cache of a language's tokens, that is what stands between white space, to their terms.

    Shared by all threads: single dict reads and writes are atomic, and a token lost when another thread clears the
    caches is simply analysed again.
    """

    def __init__(self, language: str) -> None:
        self.language = language

    def __missing__(self, token: str) -> tuple[str, ...]:
        found = tuple(form for word in words(token) for form in _forms(word, self.language))
        if len(token) <= TOKEN_CACHED_CHARS_MAX:
            if sum(map(len, _known.copy().values())) >= TOKENS_CACHED_MAX:
                for known in _known.copy().values():
                    known.clear()  # frequent words return within a few texts
            self[token] = found
        return found


_known: dict[str, _Known] = {}
