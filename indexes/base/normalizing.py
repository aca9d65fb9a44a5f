"""Unicode normalization in time that grows with the text."""

from __future__ import annotations

import unicodedata
from typing import Literal

import regex

# Normalizing sorts each run of combining marks by insertion, and holds the interpreter while it does. Words of any
# language have a few marks in a row; Unicode's own stream-safe format allows 30 (UAX #15).
LONG_RUN = regex.compile(r"(\p{M}{32})\p{M}++")
# A character may stand for up to 18, but in no text that people write do most of them stand for several. Decomposed, a
# letter is itself and its marks.
LONGER_MAX, DECOMPOSED_MAX, LONGER_CHARS = 2, 4, 256
# The first eighth of a long text is normalized by itself: if that is long enough, the rest need not be.
PROBED = 8


def normalize(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Return the text in this normal form. Of more than 32 combining marks in a row, the first 32 are kept; of what
    becomes far longer, the beginning."""
    if text.isascii():
        return text
    most = (LONGER_MAX if form in ("NFC", "NFKC") else DECOMPOSED_MAX) * len(text) + LONGER_CHARS
    for part in (text,) if len(text) <= LONGER_CHARS else (text[: len(text) // PROBED], text):
        normal = unicodedata.normalize(form, LONG_RUN.sub(r"\1", part))
        if len(normal) >= most:
            break  # the rest would be left out
    return normal[:most]


def utf8_bytes(text: str) -> int:
    """Return the size of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
