"""Where tokens begin: read word by word, the answer is that of the tokenizer over the whole text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retrieval.embedding import counting
from retrieval.embedding.counting import TokenCounter, read_whole, words_to_read_whole
from retrieval.embedding.models import load_model
from retrieval.embedding.tokens import TokenizerPool, segments

ODD = "a\u0301\u0308 \t\n\r\v\f\x1c\x85\xa0\u200b\u2003\u2028\u3000\ufffdßİ検ไทย1_-.,'[]#@…。\U0001f9d1\u200d\U0001f33e"


@pytest.fixture(scope="module")
def counter(model_folder: Path) -> TokenCounter:
    return TokenCounter(TokenizerPool(load_model(model_folder).tokenizer_path))


def of_whole(counter: TokenCounter, text: str) -> list[int]:
    with counter._pool.borrow() as tokenizer:
        return [
            begin + start for begin, end in segments(text) for start in read_whole(tokenizer, text[begin:end])
        ]


@pytest.mark.model
@settings(max_examples=500, deadline=None)
@given(st.text(alphabet=st.sampled_from(ODD) | st.characters(exclude_categories=["Cs"]), max_size=200))
@example("the [MASK] and [SEP]arate [PAD")
@example("x" * 150 + " y" + "ab" * 60)
@example("  leading, trailing \n\n")
def test_any_text(counter: TokenCounter, text: str) -> None:
    """Unusual white space, combining marks, control characters and special tokens written out change nothing."""
    assert counter.starts(text).tolist() == of_whole(counter, text)


@pytest.mark.model
def test_real_texts(counter: TokenCounter, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do real ones, whatever is remembered of the words before and however often that is dropped."""
    monkeypatch.setattr(counting, "KNOWN_CHARS_MAX", 20_000)
    for name in ("xquad-r", "k8s-docs"):
        with gzip.open(shared_data / name / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
            texts = [json.loads(line)["text"] for line in lines]
        text = "\n\n".join(texts[:: len(texts) // 80])
        assert counter.starts(text).tolist() == of_whole(counter, text)


@pytest.mark.model
def test_what_is_remembered_is_bounded(model_folder: Path) -> None:
    """Words that never come again take no more memory than a language does."""
    counter = TokenCounter(TokenizerPool(load_model(model_folder).tokenizer_path))
    for at in range(0, 300_000, 10_000):
        counter.starts(" ".join(f"w{number}" for number in range(at, at + 10_000)))
        assert sum(map(len, counter._known)) <= counting.KNOWN_CHARS_MAX + 16_384


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ({}, None),
        ({"normalizer": None, "pre_tokenizer": {"type": "ByteLevel"}, "model": {"type": "BPE"}}, None),
        ({"added_tokens": [{"content": "<a b>", "normalized": True}]}, None),
        ({"added_tokens": [{"content": "[SEP]", "normalized": False}]}, ["[SEP]"]),
    ],
    ids=["unknown", "byte pairs", "a token recognised in other spellings", "BERT"],
)
def test_which_tokenizers_read_words_alone(file: dict[str, object], expected: list[str] | None) -> None:
    """Only those of BERT's kind are trusted to; others read all of a text."""
    bert = {
        "normalizer": {"type": "BertNormalizer"},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece"},
    }
    content = {**bert, **file} if "added_tokens" in file else file
    assert words_to_read_whole(json.dumps(content).encode()) == expected
