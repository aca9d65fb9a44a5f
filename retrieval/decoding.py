"""Request bodies as wire types; what does not fit becomes one error that names the field."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from indexes.errors import InvalidInput
from indexes.model import Metadata
from retrieval.errors import MalformedRequest

T = TypeVar("T")

_PLACE = re.compile(r" - at `(?:key in )?\$\.?(?P<path>.*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>.*?)`")
_MISSING = re.compile(r"missing required field `(?P<name>.*?)`")
_SOME_KEY = re.compile(r"documents\[(?P<at>\d+)\]\.metadata(?P<key>\[\.\.\.\])")


def decode(body: bytes, kind: type[T]) -> T:
    """A request body as `kind`. Raises MalformedRequest if it is not JSON, InvalidInput naming the field otherwise."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise invalid(error, body) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise MalformedRequest("the body is nested too deep") from None


def invalid(error: msgspec.ValidationError, body: bytes) -> InvalidInput:
    """msgspec's message without its path notation, and the path as `param`."""
    text = str(error)
    place = _PLACE.search(text)
    path = with_key(place["path"], body) if place else ""
    named = _UNKNOWN.search(text) or _MISSING.search(text)
    param = ".".join(filter(None, [path, named["name"] if named else ""]))
    return InvalidInput(f"{param}: {_PLACE.sub('', text)}" if param else text, param=param or None)


def with_key(path: str, body: bytes) -> str:
    """The path with the key of the metadata that is meant, for which msgspec writes `[...]`."""
    some = _SOME_KEY.match(path)
    if some is None:
        return path
    try:
        metadata = msgspec.json.decode(body)["documents"][int(some["at"])]["metadata"]
        key = next(key for key, value in metadata.items() if not fits(value))
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError, StopIteration):
        return path  # further on the body is no JSON, or says the same thing twice
    return path.replace(some["key"], f".{key}", 1)


def fits(value: Any) -> bool:
    """Whether this may be a value of metadata."""
    try:
        msgspec.convert({"": value}, Metadata)
    except msgspec.ValidationError:
        return False
    return True
