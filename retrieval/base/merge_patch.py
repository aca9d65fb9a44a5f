"""JSON merge patches (RFC 7396)."""

from __future__ import annotations

from typing import Any

import msgspec

JSON = dict[str, Any]


def apply_patch(value: JSON, patch: JSON) -> JSON:
    """Return a new object: null removes a key, an object patches what is under its key, any other value replaces it.
    A key with dots is itself, and no path."""
    result = dict(value)
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        elif isinstance(change, dict):
            before = result.get(name)
            if isinstance(before, msgspec.Raw):
                before = msgspec.json.decode(before)
            result[name] = apply_patch(before if isinstance(before, dict) else {}, change)
        else:
            result[name] = change
    return result


def merge_patch(before: JSON, after: JSON) -> JSON:
    """Return the patch that turns `before` into `after`."""
    patch: JSON = {name: None for name in before if name not in after}
    for name, value in after.items():
        if (own := before.get(name)) != value:
            nested = isinstance(own, dict) and isinstance(value, dict)
            patch[name] = merge_patch(own or {}, value) if nested else value
    return patch
