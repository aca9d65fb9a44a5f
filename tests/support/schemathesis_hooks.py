"""What schemathesis sends, made what clients send. Loaded beside schemathesis.toml."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """To JSON Schema 5.0 is an integer, and no client writes one so. The service takes 5 and refuses 5.0."""
    return whole(body)


def whole(value: Any) -> Any:
    """The same with whole numbers as integers, at any depth."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: whole(one) for key, one in value.items()}
        case list():
            return [whole(one) for one in value]
        case _:
            return value
