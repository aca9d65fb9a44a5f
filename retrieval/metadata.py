"""Metadata as people send it, in the flat form that is stored and filtered; and changes to what is stored.

    {"a": {"b": 1}, "tags": ["x", null, 2], "none": null}  ->  {"a.b": 1, "tags": ["x", 2]}

A null means that there is no value. Errors name the key; `where` is the place of the metadata in the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from indexes import InvalidInput, Metadata, Scalar, TooLarge, fits, instant_of_date
from retrieval.auth import ACL
from retrieval.decoding import decode_part
from retrieval.settings import Config

RAW_FACTOR = 16  # of the bytes that may be stored: white space, escapes and nulls are not
SECOND_US = 1_000_000
EXPIRES_MS_MAX = 253_402_300_799_999  # the end of the year 9999
SECONDS_MAX = 2**63 / SECOND_US  # 290,000 years
DEPTH_MAX = 8  # objects inside one another: more is data, not metadata, and recursion needs a bound


def metadata_of(raw: msgspec.Raw, where: str, config: Config) -> dict[str, Any]:
    """What a request has as metadata. Raises TooLarge before decoding far too much."""
    most = RAW_FACTOR * config.limits.metadata_bytes_max
    if len(raw) > most:
        raise TooLarge(f"{where} has {len(raw)} bytes, at most {most} are read", param=where)
    return decode_part(raw, dict[str, Any], where)


def flattened(metadata: Mapping[str, Any], where: str) -> Metadata:
    """Nested objects as keys with dots, without what is null. Raises InvalidInput for what no filter could compare."""
    flat: Metadata = {}
    for path, value in _leaves(metadata, where):
        if value is None or isinstance(value, dict):
            continue
        place = f"{where}.{path}"
        if "\0" in path:
            raise InvalidInput(f"{place}: the key holds a NUL character", param=place)
        if path in flat:
            raise InvalidInput(f"{place} comes twice: in an object, and as a key with dots", param=place)
        flat[path] = _listed(value, place) if isinstance(value, list) else _scalar(value, place)
    return flat


@dataclass(frozen=True, slots=True)
class Patch:
    """A JSON merge patch (RFC 7396) of flat metadata, in which a key with dots is an object in an object.

    A null removes a key and all below it; an object changes what is below its key; anything else takes the place of
    a key and all below it.
    """

    added: Metadata
    named: frozenset[str]
    replaced: frozenset[str]  # with all below them: those that are named and no object

    @staticmethod
    def of(patch: Mapping[str, Any], where: str) -> Patch:
        """Raises InvalidInput as `flattened` does."""
        named = list(_leaves(patch, where, with_objects=True))
        replaced = (path for path, value in named if not isinstance(value, dict))
        return Patch(flattened(patch, where), frozenset(path for path, _ in named), frozenset(replaced))

    def applied(self, metadata: Metadata) -> Metadata:
        """The metadata after the patch; the very same where it changes nothing."""
        kept = {key: value for key, value in metadata.items() if not self._takes(key)}
        changed = kept | self.added
        return metadata if same(changed, metadata) else changed

    def _takes(self, key: str) -> bool:
        above = (key[:at] for at, character in enumerate(key) if character == ".")
        return key in self.named or any(path in self.replaced for path in above)


def check_acl(metadata: Metadata, where: str) -> None:
    """Raises InvalidInput for an `acl` that is no list of groups: an empty list would be no value, and so visible to
    all."""
    groups = metadata.get(ACL)
    listed = groups if isinstance(groups, list) else [groups]
    nested = any(key.startswith(f"{ACL}.") for key in metadata)
    if nested or (ACL in metadata and not (listed and all(isinstance(one, str) for one in listed))):
        place = f"{where}.{ACL}"
        raise InvalidInput(f"{place} must list the groups that may see the document", param=place)


def check_limits(title: str, metadata: Metadata, where: str, config: Config) -> None:
    """Raises TooLarge, and InvalidInput for `acl`. Title and metadata share a limit: both are read again with each
    hit."""
    check_acl(metadata, where)
    limits = config.limits
    if len(metadata) > limits.metadata_keys_max:
        raise TooLarge(
            f"{where} has {len(metadata)} keys, at most {limits.metadata_keys_max} are allowed", param=where
        )
    if (size := len(msgspec.json.encode((title, metadata)))) > limits.metadata_bytes_max:
        raise TooLarge(
            f"{where} has {size} bytes with the title, at most {limits.metadata_bytes_max} are allowed",
            param=where,
        )


def instant_at(value: Scalar) -> int | None:
    """In microseconds since 1970: an ISO 8601 date, UTC unless it says otherwise, or a number of seconds. None for what
    is neither."""
    if isinstance(value, str):
        return instant_of_date(value)
    return None if isinstance(value, bool) or not abs(value) < SECONDS_MAX else int(value * SECOND_US)


def expires_ms_of(value: str | int | None, where: str) -> int | None:
    """In milliseconds since 1970: an ISO 8601 date, UTC unless it says otherwise, or the milliseconds themselves."""
    if value is None:
        return None
    micros = instant_of_date(value) if isinstance(value, str) else 1000 * value
    if micros is None or not 0 <= micros // 1000 <= EXPIRES_MS_MAX:
        raise InvalidInput(
            f"{where} must be a date such as 2027-01-31T12:00:00Z, or milliseconds since 1970, found {value!r:.40}",
            param=where,
        )
    return micros // 1000


def date_of(instant_ms: int) -> str:
    """As `expires_ms_of` reads it."""
    date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=instant_ms)
    return date.isoformat(timespec="milliseconds" if instant_ms % 1000 else "seconds").replace("+00:00", "Z")


def same(one: Metadata, other: Metadata) -> bool:
    """Whether they are equal as JSON, in any order. To Python 1, 1.0 and True are equal."""
    return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")


def _leaves(
    metadata: Mapping[str, Any], where: str, *, with_objects: bool = False, above: str = "", depth: int = 1
) -> Iterator[tuple[str, Any]]:
    """Everything that is no object, and with `with_objects` the objects too, by its keys joined with dots."""
    for key, value in metadata.items():
        path = f"{above}{key}"
        if not isinstance(value, dict):
            yield path, value
            continue
        if depth == DEPTH_MAX:
            place = f"{where}.{path}"
            raise InvalidInput(f"{place} is nested too deep, at most {DEPTH_MAX} objects", param=place)
        if with_objects:
            yield path, value
        yield from _leaves(value, where, with_objects=with_objects, above=f"{path}.", depth=depth + 1)


def _listed(values: list[Any], place: str) -> list[Scalar]:
    kept = [value for value in values if value is not None]
    for value in kept:
        if isinstance(value, dict | list):
            found = "an object" if isinstance(value, dict) else "a list"
            raise InvalidInput(
                f"{place} is a list that holds {found}, expected strings, numbers or booleans", param=place
            )
        _scalar(value, place)
    return kept


def _scalar(value: Scalar, place: str) -> Scalar:
    if not fits(value):
        raise InvalidInput(f"{place} does not fit into 64 bits", param=place)
    if isinstance(value, str) and "\0" in value:
        raise InvalidInput(f"{place} holds a NUL character", param=place)
    return value
