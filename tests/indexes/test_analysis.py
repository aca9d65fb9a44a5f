"""Text analysis in every script: no mark is lost, a word finds itself, and forms that belong together meet."""

from __future__ import annotations

import sys
import threading
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexes.base.languages import TWO_LETTERS, language_of
from indexes.lexical import analysis
from indexes.lexical.analysis import RULED, SNOWBALL, form, index_terms, query_terms, terms
from indexes.lexical.words import ACCENTED, IGNORED, POINTS, fold, words
from tests.support.texts import read_texts

CHARACTERS = [
    one for one in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(one) not in {"Cn", "Co", "Cs"}
]
LANGUAGES = ["xx", "vi", "zh", *SNOWBALL]
SCRIPTS = "a-zA-Z0-9 '_-.\t\x00éßŒ½①ﬁＡ\u0130Iıi\u0345\u0e01\u0e48ກမက東京都ー한국어\u3000\u200bعَربיִנзйё𐐀𠮷िमैं"
TEXTS = st.one_of(st.text(max_size=40), st.text(alphabet=SCRIPTS, max_size=40))


def finds(query: str, text: str, language: str = "en") -> bool:
    """Whether a query in the same language meets a text."""
    return bool(query_terms(query, language).keys() & set(terms(text, language)))


# --- every script ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_letter_and_digit_of_unicode_is_found() -> None:
    """By itself, with nothing to stand on: no character that is a letter or a number goes without a term."""
    lettered = [one for one in CHARACTERS if unicodedata.category(one)[0] in "LN" and not IGNORED.match(one)]
    assert len(lettered) > 130_000
    assert [one for one in lettered if not any(words(one))] == []
    text = " ".join(lettered)
    assert query_terms(text, "xx").keys() <= set(terms(text, "xx"))


def test_no_mark_is_dropped() -> None:
    """Whatever is a mark stays in its word, except accents, the points of Arabic and Hebrew, and invisible ones."""
    marks = [one for one in CHARACTERS if unicodedata.category(one)[0] == "M"]
    kept = [one for one in marks if not POINTS.match(one) and not IGNORED.match(one)]
    assert len(kept) > 1700
    for mark in kept:
        assert any(mark in word for word in words(f"\u0915{mark}\u0915")) or not unicodedata.is_normalized(
            "NFKC", f"\u0915{mark}\u0915"
        )
        assert fold(mark) == unicodedata.normalize("NFKC", mark)
    dropped = {unicodedata.name(one, "").split()[0] for one in marks if POINTS.match(one)}
    assert dropped == {"COMBINING", "ARABIC", "HEBREW"}


@pytest.mark.slow
@given(TEXTS, st.sampled_from(LANGUAGES))
def test_terms_in_steps_are_the_same(text: str, language: str) -> None:
    """Long tokens, which are not cached whole, give the same terms, too."""
    for one in (text, text * 40):
        assert index_terms(one, language, lambda: None) == index_terms(one, language)


def test_folding_is_idempotent() -> None:
    """Of every character, alone and after another."""
    for one in CHARACTERS:
        for text in (one, f"a{one}", f"ا{one}"):
            assert fold(fold(text)) == fold(text)


@pytest.mark.slow
@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_folding_any_text_twice_changes_nothing(text: str) -> None:
    """Also where characters next to each other compose."""
    assert fold(fold(text)) == fold(text)


def test_accents_of_latin_greek_and_cyrillic_are_folded() -> None:
    """No precomposed letter of these scripts keeps an accent, but the short i, which endings have."""
    for one in CHARACTERS:
        if ACCENTED.match(one) and one.isalpha():
            assert not any(map(POINTS.match, unicodedata.normalize("NFD", fold(one).replace("й", ""))))


@given(st.text(max_size=30), st.sampled_from(LANGUAGES))
@settings(max_examples=500, deadline=None)
def test_any_word_finds_itself(text: str, language: str) -> None:
    """Each piece of text that has a term is found by itself, in a text of more."""
    for token in text.split():
        assert all(terms(token, language))  # none is empty
        if terms(token, language):
            assert finds(token, f"before {token} after", language)


@given(TEXTS, TEXTS)
@settings(max_examples=300, deadline=None)
def test_white_space_parts_texts(one: str, other: str) -> None:
    """The terms of two texts together are those of each: nothing reaches across white space."""
    assert terms(f"{one} {other}") == terms(one) + terms(other)


@pytest.mark.parametrize("collection", ["xquad-r", "squad-sent", "alert-runbook", "cranfield"])
def test_words_of_real_text_find_themselves(shared_data: Path, collection: str) -> None:
    """In eleven languages, questions and manuals, analysed as any language."""
    for at, text in enumerate(read_texts(shared_data / collection, limit=100)):
        language = LANGUAGES[at % len(LANGUAGES)]
        held = set(terms(text, language))
        for token in text.split():
            found = query_terms(token, language)
            assert not found or held.intersection(found)


@pytest.mark.slow
def test_a_long_run_takes_linear_time() -> None:
    """50,000 characters without white space, of whatever joins words, is analysed at once."""
    for piece in ("a", "1.", "a&", "a_", "A", "aB", "東", "ก", "+", "a'"):
        assert terms(piece * (50_000 // len(piece))) is not None


# --- forms that belong together -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "text", "language"),
    [
        ("The Running RUNNERS", "runn\u0069ng", "en"),
        ("\uff21pple", "apple", "en"),
        ("cafe", "café", "fr"),
        ("informacion", "informaciones información", "es"),
        ("Strasse", "Straße", "de"),
        ("Häuser", "Haus", "de"),
        ("książki", "książka", "pl"),
        ("Lodz", "Łódź", "pl"),
        ("istanbul", "İstanbul", "tr"),
        ("ISTANBUL", "İstanbul", "tr"),
        ("ıstanbul", "ISTANBUL", "tr"),
        ("istanbul", "ISTANBUL", "en"),
        ("ИСТОРИИ", "история", "ru"),
        ("еще", "ещё", "ru"),
        ("καλος", "Καλός", "el"),
        ("किताबों", "किताब", "hi"),
        ("كتاب", "الكتاب", "ar"),
        ("كِتَاب", "كتاب", "ar"),
        ("שלום", "שָׁלוֹם", "he"),
        ("123", "١٢٣", "ar"),
        ("exam\u00adple", "example", "en"),
        ("viet", "Việt", "vi"),
        ("東", "東京都", "ja"),
        ("京都", "東京都", "ja"),
        ("学", "大学", "zh"),
        ("カ", "カタカナ", "ja"),
        ("학교", "학교에서", "ko"),
        ("책", "책을", "ko"),
        ("ภาษา", "ภาษาไทย", "th"),
        ("ចង់", "ខ្ញុំចង់ផឹកទឹក", "km"),
    ],
)
def test_forms_of_a_word_meet(query: str, text: str, language: str) -> None:
    """Case, accents, endings, points, digits, particles and articles do not keep a word from being found."""
    assert finds(query, text, language)


def test_a_wrong_language_loses_no_exact_word() -> None:
    """Looked up in the languages of the documents, a word is found however it was stemmed there."""
    for language, text in [("de", "Kubernetes installieren"), ("tr", "kitaplar"), ("ru", "истории")]:
        for token in text.split():
            found = query_terms(token, "en", {"es": 0.5, language: 0.1})
            assert found.keys() & set(terms(token, language))
    assert query_terms("apples", "en", {"xx": 0.1}) == {"appl": 1.0, "apples": 0.1}


def test_no_number_of_languages_loses_an_exact_word() -> None:
    """Languages without rules of their own are looked up as one, which has the share of all of them."""
    every = dict.fromkeys([*sorted(TWO_LETTERS - {"en"}), "gom", "jbo"], 1 / 64)
    for language in every:
        for token in ("akşam", "kitaplar", "istorii", "पढ़ीं", "quận"):
            assert query_terms(token, "en", every).keys() & set(terms(token, language)), (language, token)
    plain = sum(share for code, share in every.items() if code not in RULED)
    assert query_terms("apples", "en", every)["apples"] == pytest.approx(plain)


def test_vowel_signs_tell_hindi_words_apart() -> None:
    """They were dropped once, and words fell into consonants."""
    assert not finds("दिन", "दान दीन", "hi")
    assert terms("मैंने", "xx") == ["मैंने"]


# --- identifiers and symbols ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("identifier", "parts"),
    [
        ("getUserName", ["get", "user", "name", "getusername"]),
        ("HTTPServer", ["http", "server", "HTTPSERVER"]),
        ("snake_case", ["snake", "case"]),
        ("kebab-case", ["kebab", "case"]),
        ("dotted.names", ["dotted", "names"]),
        ("v1.2.3", ["v1", "v1.2.3"]),
        ("foo/bar.py", ["foo", "bar", "py", "bar.py"]),
        ("node.js", ["node", "js", "NodeJS"]),
        ("at&t", ["at&t", "t"]),
        ("3.14", ["3.14", "14"]),
        ("10%", ["10%", "10"]),
        (".net", [".NET", "net"]),
        ("1,000", ["1000"]),
    ],
)
def test_identifiers_are_found_whole_and_in_parts(identifier: str, parts: list[str]) -> None:
    """Beside other words, in brackets, and at the end of a sentence."""
    for text in (f"use {identifier} here", f"({identifier}),", f"it is {identifier}."):
        for part in [identifier, *parts]:
            assert finds(part, text)


@pytest.mark.parametrize(
    ("one", "other"),
    [("c++", "c#"), ("c", "C++"), ("f#", "f"), ("r&d", "rd"), ("1.5", "15"), (".net", "netto")],
)
def test_symbols_make_another_word(one: str, other: str) -> None:
    """What differs by its symbols alone is not the same term."""
    assert query_terms(one) != query_terms(other)
    assert not {"c++", "c#", "f#"} & set(terms("c f"))
    assert not finds("c++", "c# and c")


def test_prose_is_not_inflated() -> None:
    """A sentence has one term for each word."""
    text = "The well-known dog's owner doesn't run; she walks (slowly), e.g. at noon."
    assert len(terms(text)) == len(
        [
            "The",
            "well",
            "known",
            "dog",
            "owner",
            "doesn",
            "run",
            "she",
            "walks",
            "slowly",
            "e",
            "g",
            "eg",
            "at",
            "noon",
        ]
    )


# --- stopwords ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("what is the capital of France", ["capit", "franc"]),
        ("What should I do about vitamin A?", ["vitamin", "a"]),
        ("vitamin a", ["vitamin"]),
        ("WHO guidelines", ["who", "guidelin"]),
        ("IT support", ["it", "support"]),
        ("WHO GUIDELINES", ["guidelin"]),
        ("A plan", ["plan"]),
        ("what do I need", ["need"]),
        ("the WHO guidelines", ["who", "guidelin"]),
        ("the who", ["the", "who"]),
        ("to be or not to be", ["to", "be", "or", "not"]),
        ("what's the dog's name?", ["dog", "name"]),
        *(
            (f"{one} to be {one}", ["to", "be"])
            for one in ("-", "?", "*", "_", "🙂", "\ufe0f", '""', "--- …")
        ),
        ("🙂 to be happy", ["happi"]),
        ("- ?", []),
    ],
)
def test_queries_go_without_stopwords_unless_they_matter(query: str, kept: list[str]) -> None:
    """A query of nothing else keeps them, and so do capitals: of words anywhere, of a letter after others."""
    assert list(query_terms(query)) == kept


def test_stopwords_are_indexed() -> None:
    """So that "the who" finds a text with other words."""
    assert finds("the who", "A concert of The Who in London")
    assert not finds("the cat", "the dog")


# --- tags and caches ------------------------------------------------------------------------------------------


def test_a_passage_is_tagged_with_its_language() -> None:
    """By the language alone, without its region; and no text makes such a term."""
    assert index_terms("Olá mundo", "pt-BR")[-1] == "\0pt"
    assert index_terms("...", "pt-BR") == []
    assert not any(term.startswith("\0") for term in terms("\0pt \0 pt", "pt"))


def test_the_cache_stays_within_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words without end fill it no further, in all languages together, and long ones never enter it."""
    monkeypatch.setattr(analysis, "TOKENS_CACHED_MAX", 100)
    for number in range(1000):
        assert terms(f"running word{number}s {'long' * 20}{number}", LANGUAGES[number % 9])[0]
        assert sum(map(len, analysis._known.values())) <= 100
    lengths = [len(token) for known in analysis._known.values() for token in known]
    assert max(lengths) <= analysis.TOKEN_CACHED_CHARS_MAX


def test_threads_share_the_cache_and_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that fill and empty the cache under each other's hands all get the right terms."""
    texts = [" ".join(f"running{at}s the walked{at + n}" for at in range(40)) for n in range(30)]
    expected = [terms(text) for text in texts]
    monkeypatch.setattr(analysis, "TOKENS_CACHED_MAX", 50)
    wrong: list[str] = []

    def work(offset: int) -> None:
        for at in range(100):
            number = (at + offset) % len(texts)
            if terms(texts[number]) != expected[number]:
                wrong.append(texts[number])

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


PUMPED = [
    *("ـ", "ك", "ا", "க", "ா", "à", "a", "\u0301\u0316", "\u200c", "\u0300", "ก", "漢", "か", "가", "\u1100", "ﷺ", "İ"),
    *("ß", "0", ".", "_", "\u00ad", "\ufe0f", "👨\u200d", "\u0e49", "म\u094d", "\u0f71\u0f72", "Aa", "1.", "x_", "@"),
    *("\u3099", "\u0000"),
]  # fmt: skip


def cpu_s(work: Callable[[], object]) -> float:
    begun = process_time()
    work()
    return process_time() - begun


def takes_its_share(work: Callable[[str], object], little: str, much: str) -> bool:
    """Whether eight times the text takes no more than 24 times the CPU. A garbage collection may fall into one of three
    tries."""
    return any(
        (took := cpu_s(partial(work, much))) < 0.1 or took < 24 * cpu_s(partial(work, little))
        for _ in range(3)
    )


@pytest.mark.parametrize("pumped", PUMPED, ids=ascii)
def test_no_row_of_characters_takes_long(pumped: str) -> None:
    """Eight times the characters take about eight times the CPU, whatever the language: stemmers and normalization in
    native code would hold the interpreter as long. A character that stands for several counts as those."""
    stands_for = len(unicodedata.normalize("NFKD", pumped)) / len(pumped)
    little, much = (pumped * int(times / stands_for) for times in (2_000, 16_000))
    assert takes_its_share(partial(language_of, ""), little, much)
    for language in ("en", "ar", "ta", "de", "sr", "fa", "ca", "ja", "th", "ko", "tr", ""):
        for analyse in (terms, query_terms):
            assert takes_its_share(lambda text: analyse(text, language), little, much), (language, analyse)  # noqa: B023


@pytest.mark.parametrize("language", SNOWBALL)
def test_no_stemmer_sees_a_long_word(language: str) -> None:
    """Several of them take the square of its length: with 200,000 of these letters the worst took seconds."""
    for letter in "ـكகாàúsа\u200c":
        assert any(cpu_s(partial(form, letter * 200_000, language)) < 0.3 for _ in range(3)), letter


def test_marks_beyond_thirty_two_in_a_row_are_left_out() -> None:
    """Real words have a few, and sorting them takes the square of their number."""
    assert terms("a" + "\u0301" * 1000, "vi") == terms("a" + "\u0301" * 32, "vi")


def test_what_is_longer_than_words_is_not_stemmed() -> None:
    """Some stemmers take the square of its length."""
    assert terms("x" * 100 + "ing", "en") == ["x" * 100 + "ing"]
