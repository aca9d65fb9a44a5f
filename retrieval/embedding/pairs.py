"""Pairs of a query and a passage, as a cross-encoder reads them."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Encoding, Tokenizer

from retrieval.embedding.tokens import CHARS_READ_MAX, SpecialTokens, Tokens, read_enough

QUERY_SHARE = 2  # a query takes at most half of the window, the passage the rest


def read_query(tokenizer: Tokenizer, query: str, tokens_max: int) -> Encoding:
    """Return the tokens of a query without special tokens, at most its share of the window."""
    most = tokens_max // QUERY_SHARE
    read = tokenizer.encode(query[:CHARS_READ_MAX], add_special_tokens=False)
    return (
        read
        if len(read.ids) <= most
        else tokenizer.encode(query[: read.offsets[most][0]], add_special_tokens=False)
    )


def pairs(
    tokenizer: Tokenizer, frame: SpecialTokens, query: Encoding, texts: Sequence[str], tokens_max: int
) -> list[Tokens]:
    """Return one Tokens per text, in order, with the tokenizer's own special tokens around both parts. Long texts are
    cut."""
    read = read_enough(tokenizer, texts, tokens_max, special_tokens=False)
    return [
        frame.cut(tokenizer.post_process(query, encoding).ids, tokens_max, whole=whole)
        for encoding, whole in read
    ]
