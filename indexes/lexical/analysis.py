"""Text analysis: turns passages and queries into terms of the same vocabulary.

    text -> words, of identifiers whole and parts (`words`) -> lower case -> Snowball stem of the language -> folded

A passage is analyzed in its document's language. A query may meet documents in several languages: its words are looked
up in the form of each, so that a wrong guess of its language loses no word that is spelled the same.
Stopwords are indexed, and left out of queries that have other words.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from math import inf

import msgspec
import regex
import Stemmer

from indexes.base.languages import primary
from indexes.base.normalizing import normalize
from indexes.base.work import OnStep, do_nothing
from indexes.lexical.stopwords import STOPWORDS
from indexes.lexical.words import CLITIC, fold, words

ANALYSIS_VERSION = "unicode-2"  # recorded in every generation: other rules produce other terms

SNOWBALL = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "english",
    "eo": "esperanto", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish",
    "fr": "french", "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian", "id": "indonesian",
    "it": "italian", "lt": "lithuanian", "nb": "norwegian", "ne": "nepali", "nl": "dutch", "nn": "norwegian",
    "no": "norwegian", "pl": "polish", "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian",
    "st": "sesotho", "sv": "swedish", "ta": "tamil", "tr": "turkish", "yi": "yiddish",
}  # fmt: skip
NONE: Mapping[str, float] = {}
TAG = "\0"  # prefix of a language's tag; no term starts with it
DOTTED_I = ("az", "tr")  # the capital of i is İ, that of ı is I
TONAL = ("vi", "yo")  # accents distinguish words
NO_RULES = ""  # stands for all languages whose words are only folded
RULED = SNOWBALL.keys() | {*DOTTED_I, *TONAL}

# A few words make up most of a text, and a lookup takes a hundredth of analyzing one. About 10 MB with English words.
TOKENS_CACHED_MAX = 32_768  # over all languages
TOKEN_CACHED_CHARS_MAX = 32
STEP_TERMS = 512  # analyzed in a few milliseconds
STEMMED_CHARS_MAX = 100  # German has words of 80


def terms(text: str, language: str = "en", on_step: OnStep = do_nothing) -> list[str]:
    """The terms of a passage, with repetitions. `language` is any BCP 47 code, stemmer or not. Calls `on_step` every
    few milliseconds. Thread-safe."""
    code = primary(language)
    known = _known[code] if code in _known else _known.setdefault(code, _Known(code))
    if on_step is do_nothing:
        return list(chain.from_iterable(map(known.__getitem__, text.split())))
    found: list[str] = []
    told = 0
    for some in known.in_parts(text.split()):
        found += some
        if len(found) - told >= STEP_TERMS:
            on_step()
            told = len(found)
    return found


def index_terms(text: str, language: str, on_step: OnStep = do_nothing) -> list[str]:
    """The terms under which a passage is indexed, followed, unless there are none, by the tag of its language."""
    found = terms(text, language, on_step)
    if found:
        found.append(TAG + primary(language))
    return found


class AnalyzedQuery(msgspec.Struct, frozen=True):
    """The terms of a query, each with its number of occurrences as its weight.

    The forms of its words in `others`, languages of the passages with their shares, are added, weighted by the share;
    `own` are those in its own language, and `forms` has the others of each that has some: where no passage has a word
    in its own form, another one counts as much (`weigh`).

    Stopwords are left out unless no other token has a term ("the ?"). In a query that is not all capitals, a word of
    two or more capitals is not a stopword ("WHO guidelines"), nor is a single capital except "I" after other words
    ("vitamin A").
    """

    weights: dict[str, float]
    own: frozenset[str]
    language: str
    others: Mapping[str, float]
    forms: dict[str, list[str]] = {}

    @staticmethod
    def of(text: str, language: str = "en", others: Mapping[str, float] = NONE) -> AnalyzedQuery:
        analyze = _query_terms if len(text) > TOKEN_CACHED_CHARS_MAX else _query_terms.__wrapped__
        weights, own, forms = analyze(text, language, tuple(others.items()))
        return AnalyzedQuery(dict(weights), own, language, others, forms)

    def with_phrases(self, phrases: Iterable[str]) -> AnalyzedQuery:
        """Add the terms of phrases of stopwords alone: a passage that has such a phrase may have no other term."""
        weights, own, forms = self.weights, self.own, self.forms
        for phrase in phrases:
            found = AnalyzedQuery.of(phrase, self.language, self.others)
            if not found.weights.keys() & weights.keys():
                weights, own = {**weights, **found.weights}, own | found.own
                forms = {**forms, **found.forms}
        return AnalyzedQuery(weights, own, self.language, self.others, forms)


def query_terms(text: str, language: str = "en", others: Mapping[str, float] = NONE) -> dict[str, float]:
    """The weights of `AnalyzedQuery`."""
    return AnalyzedQuery.of(text, language, others).weights


@lru_cache(4)  # a request analyzes its query several times: to search, to correct it, to explain its hits
def _query_terms(
    text: str, language: str, shares: tuple[tuple[str, float], ...]
) -> tuple[dict[str, float], frozenset[str], dict[str, list[str]]]:
    others: dict[str, float] = {}
    for code, share in shares:
        rules = code if code in RULED else NO_RULES
        others[rules] = others.get(rules, 0.0) + share
    tokens, own, codes = text.split(), primary(language), tuple(others)
    stopwords, shouting = STOPWORDS.get(own, frozenset()), text.isupper()
    kept = [
        token
        for at, token in enumerate(tokens)
        if not _stops(token, stopwords, capitals_min=inf if shouting else 2 - (at > 0))
    ]
    found = _look_up_all(kept, own, codes) or _look_up_all(tokens, own, codes)
    weights: dict[str, float] = {}
    forms: dict[str, list[str]] = {}
    of_word = ""  # the form in the query's own language, which comes first
    for term, code in found:
        weights[term] = weights.get(term, 0.0) + (1.0 if code == own else others[code])
        if code == own:
            of_word = term
        elif term not in (known := forms.setdefault(of_word, [])):
            known.append(term)
    return weights, frozenset(term for term, code in found if code == own), forms


def _look_up_all(tokens: Iterable[str], own: str, others: tuple[str, ...]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for token in tokens:
        cached = len(token) <= TOKEN_CACHED_CHARS_MAX
        found += (_look_up if cached else _look_up.__wrapped__)(token, own, others)
    return found


def _stops(token: str, stopwords: frozenset[str], *, capitals_min: float) -> bool:
    """Whether a token is a stopword. One in capitals with at least `capitals_min` letters is not."""
    bare, folded = _bare(token) if len(token) <= TOKEN_CACHED_CHARS_MAX else _bare.__wrapped__(token)
    return folded in stopwords and not (bare.isupper() and bare != "I" and len(bare) >= capitals_min)


@lru_cache(4096)
def _bare(token: str) -> tuple[str, str]:
    """A token without the punctuation around its word, in its own case and without case."""
    bare = BARE.sub("", CLITIC.sub("", normalize("NFKC", token)))
    return bare, bare.casefold()


BARE = regex.compile(r"^[^\w]+|[^\w]+$")


@lru_cache(8192)
def _look_up(token: str, own: str, others: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The terms of a query's token, each with its language: those of each word, and its other forms in other
    languages."""
    known: dict[str, dict[str, str]] = {}  # a long token can repeat its words thousands of times
    found: list[tuple[str, str]] = []
    for word in words(token):
        languages = known.get(word)
        if languages is None:
            languages = known[word] = {}
            usual = _lower(word, own)
            for code in (own, *others):
                lower = _lower(word, code) if code in DOTTED_I or own in DOTTED_I else usual
                languages.setdefault(_folded_stem(lower, code), code)
        found += languages.items()
    return tuple(found)


def forms(word: str, language: str) -> Iterator[str]:
    """The terms of a word: its `form`, and, for users who type no accents, the stem of the folded word if it
    differs."""
    lower = _lower(word, language)
    first, plain = _folded_stem(lower, language), fold(lower)
    yield first
    second = _stem(plain, language) if plain != lower else first
    if second and second != first:  # a stemmer may leave nothing of a word without its accents
        yield second


def form(word: str, language: str) -> str:
    """The folded stem of a word, or the word with its accents in languages where accents distinguish words."""
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
    """The Snowball stem, or the word itself if there is no stemmer, or it is longer than words are: some stemmers take
    time that grows with the square of its length, and hold the interpreter."""
    if len(word) > STEMMED_CHARS_MAX:
        return word
    stemmers = _stemmers.by_language
    if language not in stemmers:
        if language not in SNOWBALL:
            return word
        stemmers[language] = Stemmer.Stemmer(SNOWBALL[language])
        stemmers[language].maxCacheSize = 0  # `_known` caches instead, shared by all threads
    stem: str = stemmers[language].stemWord(word)
    return stem


_stemmers = _Stemmers()


@lru_cache(16_384)
def _forms_of(word: str, language: str) -> tuple[str, ...]:
    return tuple(forms(word, language))


class _Known(dict[str, tuple[str, ...]]):
    """Caches the terms of a language's tokens, the text between white space.

    Shared by all threads: single dict reads and writes are atomic, and a token lost when another thread clears the
    caches is simply analyzed again.
    """

    def __init__(self, language: str) -> None:
        self.language = language

    def __missing__(self, token: str) -> tuple[str, ...]:
        found = tuple(chain.from_iterable(self.in_parts([token])))
        if len(token) <= TOKEN_CACHED_CHARS_MAX:
            if sum(map(len, _known.copy().values())) >= TOKENS_CACHED_MAX:
                for known in _known.copy().values():
                    known.clear()  # frequent words return within a few texts
            self[token] = found
        return found

    def in_parts(self, tokens: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """Yield the terms of tokens, of long ones those of each word: without spaces, a text is one token."""
        for token in tokens:
            if (known := self.get(token)) is not None:
                yield known
            else:
                cached = len(token) > TOKEN_CACHED_CHARS_MAX
                found = _forms_of if cached else _forms_of.__wrapped__
                yield from (found(word, self.language) for word in words(token))


_known: dict[str, _Known] = {}
