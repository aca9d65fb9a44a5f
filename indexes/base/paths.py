"""Metadata as filters see it: each value under its path, the keys that lead to it joined with dots.

    {"order": 17, "items": [{"sku": "A"}, {"sku": "B"}], "at": {"city": "Ulm", "zip": null}}
      ->  ("order", 17), ("items.sku", "A"), ("items.sku", "B"), ("at.city", "Ulm")

A list adds nothing to the path, so a filter matches if any element does. A null is not a value. Metadata is stored and
returned in its own shape; a key that contains dots is found like an object in an object.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    """All values under a path, as filters see it: in Unicode's composed form."""
    wanted = normalize("NFC", path)
    return [value for found, value in leaves(metadata) if normalize("NFC", found) == wanted]


def value_at(metadata: Metadata, path: str) -> Scalar | list[Scalar] | None:
    """The content of a path for display: None, one value, or a list."""
    found = values_at(metadata, path)
    if len(found) == 1 and not isinstance(metadata.get(path), list):
        return found[0]
    return found or None


def _below(value: object, path: str) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _below(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _below(inner, path)
    elif isinstance(value, str | int | float):  # a boolean is an int
        yield path, value
