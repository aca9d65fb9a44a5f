"""How much of a text the default model reads, judged by its tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from retrieval.embedding.models import TOKENIZER
from retrieval.embedding.reading import share_read


@pytest.fixture(scope="module")
def tokenizer(model_folder: Path) -> Tokenizer:
    loaded = Tokenizer.from_file(str(model_folder / TOKENIZER))
    loaded.no_padding()
    loaded.no_truncation()
    return loaded


@pytest.mark.parametrize(
    "text",
    [
        "How many points did the Panthers defense surrender?",
        "pod stuck in ImagePullBackOff",
        "shoes",
        "iPhone 12",
    ],
)
def test_english_is_read(tokenizer: Tokenizer, text: str) -> None:
    """English questions, names and jargon are read whole, or nearly."""
    assert share_read(tokenizer, text) >= 0.7


@pytest.mark.parametrize(
    "text",
    [
        "Сколько очков пропустила защита «Пантерз»?",
        "كم عدد النقاط التي تخلى عنها دفاع بانثرز؟",
        "फुटबॉल टीम ने कितने अंक दिए?",
        "แพนเธอร์สเสียไปกี่แต้ม",
        "黑豹队的防守丢了多少分？",
        "팬서스 수비진은 몇 점을 내줬나요?",
        "?!",
        "\N{ROCKET}",
        "",
    ],
)
def test_other_scripts_are_not_read(tokenizer: Tokenizer, text: str) -> None:
    """An English vocabulary has letters of other scripts at most, so nothing of such a text is read."""
    assert share_read(tokenizer, text) == 0


@pytest.mark.parametrize(("text", "least"), [("x", 1), ("\N{ROCKET}", 0), ("\N{OLD PERSIAN SIGN A}", 0)])
def test_a_language_says_nothing_of_unknown_tokens(tokenizer: Tokenizer, text: str, least: float) -> None:
    assert share_read(tokenizer, text, least=0.9) == least


def test_other_languages_are_read_in_part(tokenizer: Tokenizer) -> None:
    """Pieces of German words are in an English vocabulary: more than nothing, less than all."""
    assert 0 < share_read(tokenizer, "Wie viele Punkte ließ die Verteidigung der Panthers zu?") < 0.5


def test_long_texts_cost_little(tokenizer: Tokenizer) -> None:
    """Only the beginning counts."""
    assert share_read(tokenizer, "the lighthouse " * 100_000) == 1
