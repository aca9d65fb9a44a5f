"""Token ids as input. They are read as the text they stand for, so that prefixes, windows and limits treat them as they
treat any text.

Whose ids they are depends on the dialect: TEI's clients use the model's own tokenizer (here), OpenAI's `cl100k_base`.
"""

from __future__ import annotations

from collections.abc import Sequence

from indexes.errors import InvalidInput
from retrieval.dialects.embedding import Inputs
from retrieval.embedding.tokens import TokenizerPool


def sequences(inputs: Inputs, *, param: str) -> list[str | list[int]]:
    """Each text or list of ids to embed; a bare text, or a bare list of ids, is one. Raises InvalidInput for mixtures
    that leave this open."""
    if isinstance(inputs, str):
        return [inputs]
    ids = [one for one in inputs if isinstance(one, int)]
    if not ids:
        return [one for one in inputs if not isinstance(one, int)]
    if len(ids) < len(inputs):
        raise InvalidInput(f"`{param}` mixes token ids with texts or lists", param=param)
    return [ids]


def texts_of_ids(pool: TokenizerPool, inputs: Sequence[str | list[int]]) -> list[str]:
    """`inputs` with every list of ids turned into text by a model's tokenizer. Special tokens among them are dropped:
    embedding adds its own.

    Raises InvalidInput naming an id that it does not know. Blocks: call it on a thread.
    """
    with pool.borrow() as tokenizer:
        known = tokenizer.get_vocab_size()
        for ids in inputs:
            if isinstance(ids, list) and not all(0 <= one < known for one in ids):
                strange = next(one for one in ids if not 0 <= one < known)
                raise InvalidInput(
                    f"`inputs` holds the token id {strange}; this model's are 0 to {known - 1}",
                    param="inputs",
                )
        return [tokenizer.decode(ids) if isinstance(ids, list) else ids for ids in inputs]
