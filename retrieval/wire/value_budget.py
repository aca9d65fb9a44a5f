"""A bound on how many values one JSON body decodes into, checked on its bytes before it is decoded.

Decoding blocks the interpreter, and so the event loop, until it is done: a text costs a copy, but millions of tiny
values cost seconds. The check runs in numpy, one slice at a time, and lets other threads run. It does not need valid
JSON: up to the first error it reads what a parser would read, and a parser stops there.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from indexes.base.errors import TooLarge

UNITS_MAX = 1_000_000  # about 40 ns each; OpenAI allows 300,000 token ids per request
VALUE_UNITS, PART_UNITS = 1, 4  # for a value, and in addition for a key, list or object
SLICE_BYTES = 1 << 18  # numpy's temporary arrays for one slice fit the CPU cache
QUOTE, BACKSLASH, COLON = b'"\\:'
NAMED_DEPTH = 2  # of the keys in an error: `inputs.sentences`

UNITS = np.zeros(256, np.int64)
UNITS[list(b",")] = VALUE_UNITS
UNITS[list(b":[{")] = PART_UNITS
STEPS = np.zeros(256, np.int8)
STEPS[list(b"[{")], STEPS[list(b"]}")] = 1, -1
IS_STRUCTURE = np.zeros(256, np.uint8)
IS_STRUCTURE[list(b",:[]{}")] = 1

Bytes = npt.NDArray[np.uint8]


def check_values(body: bytes | msgspec.Raw, depth_max: int) -> None:
    """Raise TooLarge, naming the field, if a body has too many values. Values nested more than `depth_max` lists and
    objects deep do not count, because they are not decoded."""
    if units_at_most(body) <= UNITS_MAX:
        return
    whole = np.frombuffer(body, np.uint8)
    strings = Strings()
    units = depth = 0
    colons = dict.fromkeys(range(1, NAMED_DEPTH + 1), -1)  # the last colon at each depth
    for start in range(0, len(whole), SLICE_BYTES):
        piece = whole[start : start + SLICE_BYTES]
        is_structure = IS_STRUCTURE[piece] & strings.outside(piece)
        found = piece[is_structure.view(np.bool_)]
        depths = depth + np.cumsum(STEPS[found], dtype=np.int32)
        depth = int(depths[-1]) if len(depths) else depth
        counted = depths <= depth_max
        if not counted.any():
            continue
        spent = units + np.cumsum(UNITS[found] * counted)
        units = int(spent[-1])
        end = len(found) if units <= UNITS_MAX else int(np.argmax(spent > UNITS_MAX))
        at = np.flatnonzero(is_structure)[:end]
        for level in colons:
            if len(its := at[(found[:end] == COLON) & (depths[:end] == level)]):
                colons[level] = start + int(its[-1])
        if units > UNITS_MAX:
            # An opening bracket is a value of what surrounds it.
            within = int(depths[end]) - bool(STEPS[found[end]])
            param = field_at(body, colons, within)
            raise TooLarge(
                f"{param or 'the body'} holds too many values: one request may have {UNITS_MAX}, of which each key, "
                f"list and object counts as {PART_UNITS} more",
                param=param,
            )


def units_at_most(body: bytes | msgspec.Raw) -> int:
    """Return what a body would count if no comma, colon or bracket stood inside a string, or too deep to be decoded.

    This is nearly all that most bodies need: it takes a thirtieth of the time of looking where their strings end.
    """
    view, units = memoryview(body), 0
    for start in range(0, len(view), SLICE_BYTES):
        piece = bytes(view[start : start + SLICE_BYTES])
        units += VALUE_UNITS * piece.count(b",") + PART_UNITS * sum(map(piece.count, (b":", b"[", b"{")))
    return units


class Strings:
    """Tracks where the strings are in a JSON text that arrives in slices."""

    def __init__(self) -> None:
        self._inside = self._escaped = 0

    def outside(self, piece: Bytes) -> Bytes:
        """Return 1 for each byte outside strings, else 0; a quote may be either."""
        quotes = (piece == QUOTE).view(np.uint8)
        slashes = piece == BACKSLASH
        if self._escaped or slashes.any():
            quotes &= ~self._escapes(slashes)
        inside: Bytes = np.bitwise_xor.accumulate(quotes)
        inside ^= np.uint8(self._inside)
        self._inside = int(inside[-1])
        outside: Bytes = inside ^ np.uint8(1)
        return outside

    def _escapes(self, slashes: npt.NDArray[np.bool_]) -> Bytes:
        """Return 1 for each byte after an odd number of backslashes."""
        # The length of a run of backslashes so far is the distance from the last other byte.
        places = np.arange(1, len(slashes) + 1)
        runs = places - np.maximum.accumulate(np.where(slashes, -self._escaped, places))
        odd = (runs & 1).astype(np.uint8)
        before, self._escaped = self._escaped, int(odd[-1])
        return np.concatenate((np.array([before], np.uint8), odd[:-1]))


def field_at(body: bytes | msgspec.Raw, colons: dict[int, int], depth: int) -> str | None:
    """Return the dotted path of the keys around a position in the body, up to the first list."""
    names: list[str] = []
    before = -1
    for level, colon in colons.items():
        if level >= depth or colon <= before:  # this colon belongs to an object that has ended
            break
        names.append(key_before(body, colon))
        before = colon
    return ".".join(names) or None


def key_before(body: bytes | msgspec.Raw, colon: int) -> str:
    """Return the key that ends at a colon; of a long key, its end."""
    text = bytes(memoryview(body)[max(0, colon - 200) : colon]).rstrip()[:-1]
    return text[text.rfind(b'"') + 1 :].decode(errors="replace")
