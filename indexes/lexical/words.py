"""Splits text of any script into words, and folds the forms in which one word is written.

A word is a run of letters, digits and marks. Scripts written without spaces are segmented by ICU's dictionaries,
Chinese and Japanese into letters too; Korean, where particles stick to words, becomes letters and pairs of letters.
Identifiers (getUserName, snake_case, node.js) are words whole and in parts, and symbols that make another word of a
letter or a number stay: c++, .net, r&d, 10%, v1.2.3. Words with hyphens are their parts only: indexing them whole too
cost more than it gained.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Generator, Iterator

import regex
from icu4py.breakers import WordBreaker

from indexes.base.normalizing import normalize

WHOLE_CHARS_MAX = 64  # of an identifier kept whole
LETTER = r"[\p{Alphabetic}\p{M}\p{N}]"
HAN = r"[[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\u30fc]--\p{Nd}]"
HANGUL = r"[\p{Hangul}--\p{Nd}]"
OTHERS_UNSPACED = r"[\p{Line_Break=SA}--\p{Nd}]"  # Thai, Lao, Khmer, Burmese and their kin
SPACED = rf"[{LETTER}--[{HAN}{HANGUL}{OTHERS_UNSPACED}]]"
WORD = regex.compile(
    rf"(?V1){SPACED}++|(?P<han>{HAN}++)|(?P<hangul>{HANGUL}++)|(?P<unspaced>{OTHERS_UNSPACED}++)"
)

# The letter before ++ or # is not a word of its own: c is another language.
LETTER_SYMBOL = regex.compile(rf"(?V1)(?<!{LETTER})\p{{L}}(?:\+\+|\#)(?!\p{{L}})")
# Repetitions are bounded, so that long rows of numbers take linear time.
SYMBOLED = regex.compile(
    rf"(?V1)(?<!{LETTER})(?:(?<!\.)\.\p{{L}}{LETTER}++|{SPACED}++(?:&{SPACED}++){{1,9}}"
    rf"|\p{{L}}?\p{{Nd}}++(?:[.,]\p{{Nd}}++){{1,9}}%?|\p{{Nd}}++%)(?!{LETTER})"
)
NUMBERED = regex.compile(r"\p{L}?\p{Nd}+(?:[.,]\p{Nd}+)+")
COMPOUND = regex.compile(rf"(?V1)(?<!{SPACED}){SPACED}++(?:[_.]{SPACED}++)++")
JOINED = str.maketrans("", "", "_.")
HUMP = regex.compile(r"\p{Ll}\p{Lu}|\p{Lu}\p{Lu}\p{Ll}")
HUMPS = regex.compile(r"(?V1)\p{Lu}++(?!\p{Ll})\p{N}*+|\p{Lu}?[\p{Ll}\p{M}]++\p{N}*+|\p{Lu}+(?=\p{Lu}\p{Ll})")
CLITIC = regex.compile(r"(?i)(?<=\p{L})['\u2019](?:s|t|d|m|ll|re|ve)(?!\w)")
APOSTROPHES, LETTER_SYMBOLS, SYMBOLS, JOINTS = map(frozenset, ("'\u2019", "+#", ".,&%", "_."))
# Soft hyphens, joiners, variation selectors and the like. A zero-width space parts words.
IGNORED = regex.compile(r"(?V1)[[\p{Default_Ignorable_Code_Point}\p{Cf}]--[\u200b\p{L}]]+")


def words(text: str) -> Iterator[str]:
    """The words of a text in NFKC, in the case they are written in; in no order, with repetitions.

    Neither they nor their number depends on words beyond white space.
    """
    text = normalize("NFKC", text)
    if not text.isascii():
        text = IGNORED.sub("", text)
    if not text.isalnum():
        text = yield from _words_with_symbols(text)
    for match in WORD.finditer(text):
        word = match.group()
        if match.lastgroup is None or len(word) == 1:
            yield word
            if not word.islower() and HUMP.search(word):
                yield from (part for part in HUMPS.findall(word) if len(part) > 1)
        elif match.lastgroup == "hangul":
            yield from word
            yield from (word[at : at + 2] for at in range(len(word) - 1))
        else:
            for segment in WordBreaker(word, "root"):
                yield segment
                if match.lastgroup == "han" and len(segment) > 1:
                    yield from segment


def _words_with_symbols(text: str) -> Generator[str, None, str]:
    """Yield the words that symbols belong to; return the text in which the others are.

    Each pattern needs one of certain characters; to look for those takes a tenth of its time.
    """
    if not APOSTROPHES.isdisjoint(text):
        text = CLITIC.sub("", text)
    if not LETTER_SYMBOLS.isdisjoint(text):
        yield from LETTER_SYMBOL.findall(text)
        text = LETTER_SYMBOL.sub(" ", text)
    if not SYMBOLS.isdisjoint(text):
        for symboled in SYMBOLED.findall(text):
            yield symboled.replace(",", "")
    if not JOINTS.isdisjoint(text):
        for compound in COMPOUND.findall(text):
            if len(compound) <= WHOLE_CHARS_MAX and not NUMBERED.fullmatch(compound):
                yield compound.translate(JOINED)
    return text


def fold(word: str) -> str:
    """The form that all spellings of a word share: without case, compatibility forms, accents of Latin, Greek and
    Cyrillic, points of Arabic and Hebrew; digits are ASCII. Idempotent. A word of nothing else keeps them."""
    if word.isascii():
        return word.lower()
    plain = normalize("NFKC", normalize("NFKC", word).casefold())
    return normalize("NFKC", plain.translate(_folded)) or plain


class _Folded(dict[int, str]):
    """What each character becomes, found out when it is first met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        digit = unicodedata.decimal(character, None)
        if character in SPELLINGS:
            folded = SPELLINGS[character]
        elif digit is not None:
            folded = str(digit)
        elif POINTS.match(character):
            folded = ""
        elif ACCENTED.match(character):
            plain = POINTS.sub("", normalize("NFKD", character))
            folded = "".join(SPELLINGS.get(one, one) for one in plain)
        else:
            folded = character
        self[code] = folded
        return folded


# Accents of any base; vowel points, signs of recitation and tatweel of Arabic; points of Hebrew. No other mark goes.
POINTS = regex.compile(
    r"[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
    r"\u0610-\u061a\u0640\u064b-\u0652\u0656-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed"
    r"\u08ca-\u08e1\u08e3-\u08ff\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]+"
)
ACCENTED = regex.compile(r"(?V1)[[\p{Latin}\p{Greek}\p{Cyrillic}]--\u0439]")
# Letters with a stroke, ligatures, the dotless i, and what Arabic and Persian write in several forms. The short i of
# Cyrillic is no accent: endings have it.
SPELLINGS = dict(
    pair.split(":")
    for pair in "ø:o đ:d ł:l ħ:h ŧ:t ı:i æ:ae œ:oe ð:d þ:th أ:ا إ:ا آ:ا ٱ:ا ى:ي ی:ي ک:ك ة:ه".split()  # noqa: SIM905
)
_folded = _Folded()
