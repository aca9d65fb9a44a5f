"""Metadata as filters see it: each value under its path, the keys that lead to it joined with dots.

    {"order": 17, "items": [{"sku": "A"}, {"sku": "B"}], "at": {"city": "Ulm", "zip": null}}
      ->  ("order", 17), ("items.sku", "A"), ("items.sku", "B"), ("at.city", "Ulm")

A list adds nothing to the path, so a filter matches if any element does. A null is not a value. Metadata is stored and
returned in its own shape; a key that contains dots is found like an object in an object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from indexes.base.model import Metadata, Scalar
from indexes.base.normalizing import normalize


def leaves(metadata: Metadata) -> Iterator[tuple[str, Scalar]]:
    """Each value with its path, in order."""
    for key, value in metadata.items():
        if isinstance(value, dict | list):
            yield from _below(value, key)
        elif value is not None:
            yield key, value


def values_at(metadata: Metadata, path: str) -> list[Scalar]:
    """All values under a path, as filters see it: in Unicode's composed form. Reads no more of the metadata than what
    the path may lead to."""
    found: list[Scalar] = []
    _collect(metadata, "", normalize("NFC", path), found)
    return found


def value_at(metadata: Metadata, path: str) -> Scalar | list[Scalar] | None:
    """The content of a path for display: None, one value, or a list."""
    found = values_at(metadata, path)
    if len(found) == 1 and not isinstance(metadata.get(path), list):
        return found[0]
    return found or None


def _collect(metadata: dict[str, Any], before: str, wanted: str, found: list[Scalar]) -> None:
    """Add the values under a path; `before` is the one that leads here, with its dot."""
    for key, value in metadata.items():
        path = normalize("NFC", f"{before}{key}")
        if path == wanted:
            found += [one for one in _items(value) if isinstance(one, str | int | float)]
        elif wanted.startswith(f"{path}."):
            for one in _items(value):
                if isinstance(one, dict):
                    _collect(one, f"{path}.", wanted, found)


def _items(value: object) -> Iterator[object]:
    """A value, or what is in a list and in lists within it."""
    if isinstance(value, list):
        for inner in value:
            yield from _items(inner)
    else:
        yield value


def _below(value: object, path: str) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _below(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _below(inner, path)
    elif isinstance(value, str | int | float):  # a boolean is an int
        yield path, value
