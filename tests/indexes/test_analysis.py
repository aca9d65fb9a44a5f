"""Terms against the rules, spelled out plainly and without any shortcut."""

from __future__ import annotations

import re
import threading
import unicodedata
from pathlib import Path

import pytest
import Stemmer
from hypothesis import given, settings
from hypothesis import strategies as st

from indexes.lexical import analysis
from indexes.lexical.analysis import STOPWORDS, UNSPACED, terms
from tests.support.texts import read_texts

SCRIPTS = "a-zA-Z0-9 '_-\t\x00éßŒ½①ﬁＡ\u0130\u0345\u0e01\u0e48ກမក東京都ー한国\u3000\u200bعраз𐐀𠮷\ud800"


def plain_terms(text: str, stemmer: Stemmer.Stemmer) -> list[str]:
    """Fold, split, pair, drop function words, stem: one step after the other, nothing remembered."""
    words: list[str] = []
    for match in re.finditer(
        rf"[{UNSPACED}]+|(?:(?![{UNSPACED}])[^\W_])+", unicodedata.normalize("NFKC", text).casefold()
    ):
        word = match.group()
        if len(word) > 1 and re.match(f"[{UNSPACED}]", word):
            words += [word[at : at + 2] for at in range(len(word) - 1)]
        else:
            words.append(word)
    kept = [word for word in words if word not in STOPWORDS] or words
    return [stemmer.stemWord(word) for word in kept]


WORDS = st.sampled_from(
    ["the", "The", "running", "RUNNERS", "to", "be", "東京都", "x東y", "ﬁsh", "Straße", "_", "don't"]
)
TEXTS = st.one_of(
    st.text(max_size=40), st.text(alphabet=SCRIPTS, max_size=40), st.lists(WORDS, max_size=12).map(" ".join)
)


@given(TEXTS)
@settings(max_examples=500, deadline=None)
def test_terms_follow_the_rules(text: str) -> None:
    """The short ways for ASCII and for known words change no term of any text."""
    assert terms(text) == plain_terms(text, Stemmer.Stemmer("english"))


@pytest.mark.parametrize("code", range(0, 0x110000, 0x10000))
def test_every_character_counts_as_before(code: int) -> None:
    """Letter, digit, gap or unspaced script: each code point by itself, and between two letters."""
    stemmer = Stemmer.Stemmer("english")
    text = " ".join(f"{chr(at)} q{chr(at)}z" for at in range(code, code + 0x10000))
    assert terms(text) == plain_terms(text, stemmer)


@pytest.mark.parametrize("collection", ["xquad-r", "squad-sent", "alert-runbook", "cranfield"])
def test_real_text_gives_the_same_terms(shared_data: Path, collection: str) -> None:
    """Eleven languages, questions and manuals: no term differs."""
    stemmer = Stemmer.Stemmer("english")
    for text in read_texts(shared_data / collection, limit=4000):
        assert terms(text) == plain_terms(text, stemmer)


def test_the_cache_stays_within_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words without end fill it no further, long words never enter it, and the terms stay right."""
    monkeypatch.setattr(analysis, "WORDS_CACHED_MAX", 100)
    analysis._stems.clear()
    stemmer = Stemmer.Stemmer("english")
    for number in range(1000):
        text = f"running word{number}s {'long' * 20}{number}"
        assert terms(text) == plain_terms(text, stemmer)
        assert len(analysis._stems) <= 100
    assert max(map(len, analysis._stems)) <= analysis.WORD_CACHED_CHARS_MAX


def test_threads_share_the_cache_and_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that fill and empty the cache under each other's hands all get the right terms."""
    monkeypatch.setattr(analysis, "WORDS_CACHED_MAX", 50)
    stemmer = Stemmer.Stemmer("english")
    texts = [" ".join(f"running{at}s the walked{at + n}" for at in range(40)) for n in range(30)]
    expected = [plain_terms(text, stemmer) for text in texts]
    wrong: list[str] = []

    def work(offset: int) -> None:
        for at in range(600):
            number = (at + offset) % len(texts)
            if terms(texts[number]) != expected[number]:
                wrong.append(texts[number])

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
