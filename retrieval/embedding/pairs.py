"""Pairs of a query and a passage, as a cross-encoder reads them."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from retrieval.embedding.tokens import Frame, Tokens

CHARS_PER_TOKEN = 32  # what is read of a huge text, at most
QUERY_SHARE = 2  # a query takes at most half of the window, the passage what is left


def pairs(
    tokenizer: Tokenizer, frame: Frame, query: str, texts: Sequence[str], tokens_max: int
) -> list[Tokens]:
    """One Tokens a text, in order, with the tokenizer's own special tokens around both parts. Long texts are cut."""
    chars = CHARS_PER_TOKEN * tokens_max
    head = tokenizer.encode(query[:chars], add_special_tokens=False)
    most = tokens_max // QUERY_SHARE
    if len(head.ids) > most:
        query = query[: head.offsets[most][0]]
    encodings = tokenizer.encode_batch_fast([(query, text[:chars]) for text in texts])
    found = [frame.cut(encoding.ids, tokens_max) for encoding in encodings]
    return [
        Tokens(tokens.ids, tokens.truncated or len(text) > chars)
        for tokens, text in zip(found, texts, strict=True)
    ]
