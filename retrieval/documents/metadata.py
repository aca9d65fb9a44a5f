"""Metadata in requests: validation, size limits, and patches to stored metadata.

Metadata is JSON and is returned as it was sent. Filters address its values by dotted paths (`indexes/base/paths`).
Errors name the path; `where` is the location of the metadata in the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from indexes.base.errors import InvalidInput, TooLarge
from indexes.base.model import ACL, Metadata, Scalar
from indexes.base.paths import leaves
from indexes.filters.dates import instant_of_date
from indexes.filters.grammar import fits
from retrieval.access.key_file import GROUP_CHARS_MAX
from retrieval.base.merge_patch import apply_patch
from retrieval.base.settings import Config
from retrieval.wire.decoding import decode_part

RAW_FACTOR = 16  # times the bytes that may be stored: white space, escapes and nulls are not stored
SECOND_US = 1_000_000
SECONDS_MAX = 2**63 / SECOND_US  # 290,000 years
PATH_CHARS_MAX = 512  # each path names a column of the filter index
PATH_CHARS_SHOWN = 100
DEPTH_MAX = 32  # of nested objects and lists: recursion needs a bound


def metadata_of(raw: msgspec.Raw, where: str, config: Config) -> Metadata:
    """Decode and check (`check_metadata`) the metadata of a request. Raises TooLarge before decoding far too much."""
    most = RAW_FACTOR * config.limits.metadata_bytes_max
    if len(raw) > most:
        raise TooLarge(f"{where} has {len(raw)} bytes, at most {most} are read", param=where)
    return check_metadata(decode_part(raw, dict[str, Any], where), where)


def check_metadata(metadata: Metadata, where: str) -> Metadata:
    """Return the same metadata. Raises InvalidInput for what cannot be stored or compared: integers beyond 64 bits,
    NUL characters, long paths, and deep nesting."""
    for path, value, depth in _nodes(metadata):
        fault = None
        if len(path) > PATH_CHARS_MAX:
            fault = f"is a path of more than {PATH_CHARS_MAX} characters"
        elif depth > DEPTH_MAX:
            fault = f"is nested too deeply, at most {DEPTH_MAX} objects and lists"
        elif "\0" in path:
            fault = "has a NUL character in its key"
        elif isinstance(value, str) and "\0" in value:
            fault = "holds a NUL character"
        elif isinstance(value, int) and not fits(value):
            fault = "does not fit into 64 bits"
        if fault:
            shown = path if len(path) <= PATH_CHARS_MAX else f"{path[:PATH_CHARS_SHOWN]}..."
            raise InvalidInput(f"{where}.{shown} {fault}", param=f"{where}.{shown}")
    return metadata


def patch_metadata(metadata: Metadata, patch: Metadata) -> Metadata:
    """Apply a JSON merge patch (RFC 7396); return the same object if the patch changes nothing."""
    changed = apply_patch(metadata, patch)
    return metadata if same(changed, metadata) else changed


def check_acl(metadata: Metadata, where: str) -> None:
    """Raises InvalidInput for an `acl` that is not a list of groups: null or an empty list would have no value and be
    visible to all."""
    groups = metadata.get(ACL)
    listed = [one for one in (groups if isinstance(groups, list) else [groups]) if one is not None]
    nested = any(key.startswith(f"{ACL}.") for key in metadata)
    named = listed and all(
        isinstance(one, str) and one.strip() and len(one) <= GROUP_CHARS_MAX for one in listed
    )
    if nested or (ACL in metadata and not named):
        place = f"{where}.{ACL}"
        raise InvalidInput(
            f"{place} must list the groups that may see the document, each of 1 to {GROUP_CHARS_MAX} characters",
            param=place,
        )


def check_limits(title: str, metadata: Metadata, where: str, config: Config) -> None:
    """Raises TooLarge, and InvalidInput for `acl`. Title and metadata share a limit, because both are read with each
    hit."""
    check_acl(metadata, where)
    limits = config.limits
    paths = {key: [path for path, _ in leaves({key: value})] for key, value in metadata.items()}
    sizes = {key: len(msgspec.json.encode(value)) for key, value in metadata.items()}
    bytes_all = len(msgspec.json.encode(metadata)) + len(title.encode())
    for unit, most, of_each, total in (
        ("bytes with the title", limits.metadata_bytes_max, sizes, bytes_all),
        ("values", limits.metadata_values_max, {key: len(some) for key, some in paths.items()}, None),
        (
            "different keys",
            limits.metadata_keys_max,
            {key: len({*some}) for key, some in paths.items()},
            None,
        ),
    ):
        found = sum(of_each.values()) if total is None else total
        if found > most:
            key = max(of_each, key=of_each.__getitem__, default="")
            share = f"; {of_each[key]} of them are in {key!r:.100}" if of_each else ""
            raise TooLarge(f"{where} has {found} {unit}, at most {most} are allowed{share}", param=where)


def instant_at(value: Scalar) -> int | None:
    """Return microseconds since 1970 for an ISO 8601 date (UTC by default) or a number of seconds, or None for
    neither."""
    if isinstance(value, str):
        return instant_of_date(value)
    return None if isinstance(value, bool) or not abs(value) < SECONDS_MAX else int(value * SECOND_US)


def same(one: Metadata, other: Metadata) -> bool:
    """Whether they are equal as JSON, with keys in any order. In Python, 1, 1.0 and True are equal."""
    return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")


def _nodes(metadata: Metadata) -> Iterator[tuple[str, object, int]]:
    """Yield every value with its path and depth, objects and lists before their contents."""
    for key, value in metadata.items():
        yield from _nodes_of(value, key, 1)


def _nodes_of(value: object, path: str, depth: int) -> Iterator[tuple[str, object, int]]:
    yield path, value, depth
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _nodes_of(inner, f"{path}.{key}", depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _nodes_of(inner, path, depth + 1)
