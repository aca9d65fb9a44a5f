"""A bound on how many values one JSON body decodes into, checked on its bytes before it is decoded.

Decoding holds the interpreter, and so the event loop, for as long as it takes: a text costs a copy, but millions of
tiny values cost seconds. The check runs in numpy, one slice at a time, and lets other threads run. It needs no valid
JSON: up to the first fault it reads what a parser would read, and a parser stops there.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from indexes.base.errors import TooLarge

UNITS_MAX = 1_000_000  # of about 40 ns each; OpenAI lets one request have 300,000 token ids
VALUE_UNITS, PART_UNITS = 1, 4  # of a value; and in addition of a key, a list and an object
SLICE_BYTES = 1 << 18  # what numpy makes of one fits the processor's cache
QUOTE, BACKSLASH, COLON = b'"\\:'
NAMED_DEPTH = 2  # of keys that an error names: `inputs.sentences`

UNITS = np.zeros(256, np.int64)
UNITS[list(b",")] = VALUE_UNITS
UNITS[list(b":[{")] = PART_UNITS
STEPS = np.zeros(256, np.int8)
STEPS[list(b"[{")], STEPS[list(b"]}")] = 1, -1
IS_STRUCTURE = np.zeros(256, np.uint8)
IS_STRUCTURE[list(b",:[]{}")] = 1

Bytes = npt.NDArray[np.uint8]


def check_values(body: bytes | msgspec.Raw, depth_max: int) -> None:
    """Raise TooLarge, naming the field, for more values than one body may have. Those inside more than `depth_max`
    lists and objects do not count: they are not decoded."""
    whole = np.frombuffer(body, np.uint8)
    strings = Strings()
    units = depth = 0
    colons = dict.fromkeys(range(1, NAMED_DEPTH + 1), -1)  # the last one at each depth
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
            within = int(depths[end]) - bool(
                STEPS[found[end]]
            )  # an opening bracket is a value of what is around it
            param = field_at(body, colons, within)
            raise TooLarge(
                f"{param or 'the body'} holds too many values: one request may have {UNITS_MAX}, of which each key, "
                f"list and object counts as {PART_UNITS} more",
                param=param,
            )


class Strings:
    """Where the strings of a text are that comes in slices."""

    def __init__(self) -> None:
        self._inside = self._escaped = 0

    def outside(self, piece: Bytes) -> Bytes:
        """1 for each byte that is in no string, else 0; a quote is either."""
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
        """1 for each byte behind an odd number of backslashes."""
        # A run's length at each of its places is the distance from the last byte that is none.
        places = np.arange(1, len(slashes) + 1)
        runs = places - np.maximum.accumulate(np.where(slashes, -self._escaped, places))
        odd = (runs & 1).astype(np.uint8)
        before, self._escaped = self._escaped, int(odd[-1])
        return np.concatenate((np.array([before], np.uint8), odd[:-1]))


def field_at(body: bytes | msgspec.Raw, colons: dict[int, int], depth: int) -> str | None:
    """The dotted path of the keys whose values a place in the body is inside of, up to the first list."""
    names: list[str] = []
    before = -1
    for level, colon in colons.items():
        if level >= depth or colon <= before:  # such a colon is of an object that has ended
            break
        names.append(key_before(body, colon))
        before = colon
    return ".".join(names) or None


def key_before(body: bytes | msgspec.Raw, colon: int) -> str:
    """The key that ends at a colon; of a long one its end."""
    text = bytes(memoryview(body)[max(0, colon - 200) : colon]).rstrip()[:-1]
    return text[text.rfind(b'"') + 1 :].decode(errors="replace")
