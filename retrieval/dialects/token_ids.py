"""Token ids as input: only for clients that made them with the model's own tokenizer, as TEI's may.

They are read as the text they stand for, so that prefixes, windows and limits treat them as they treat any text.
Special tokens among them are dropped: embedding puts its own where they belong.
"""

from __future__ import annotations

from collections.abc import Sequence

from indexes.errors import InvalidInput
from retrieval.embedding.tokens import TokenizerPool


def texts_of_ids(pool: TokenizerPool, inputs: Sequence[str | list[int]]) -> list[str]:
    """`inputs` with every list of ids turned into text by a model's tokenizer.

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
