"""Parts of bodies that are JSON of their own.

Those of requests stay as they came until their bytes are counted: decoded, a megabyte takes up to 30 MB, and holds up
every other thread for as long as 100 ms. `decoding.decode_part` reads them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

FilterJson = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["object", "null"]})]
VectorJson = Annotated[
    msgspec.Raw, Meta(extra_json_schema={"type": ["array", "null"], "items": {"type": "number"}})
]
IdsJson = Annotated[
    msgspec.Raw,
    Meta(extra_json_schema={"type": ["array", "null"], "items": {"type": ["string", "integer"]}}),
]
MetadataJson = Annotated[
    msgspec.Raw,
    Meta(
        description="Strings, numbers, booleans and lists of them. A null is no value; objects become keys with dots.",
        extra_json_schema={"type": "object"},
    ),
]
SearchJson = Annotated[msgspec.Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/SearchRequest"})]

# Already JSON when the answer is put together.
SearchOutcome = Annotated[
    msgspec.Raw,
    Meta(
        extra_json_schema={
            "anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("SearchAnswer", "ErrorBody")]
        }
    ),
]


def absent() -> msgspec.Raw:
    return msgspec.Raw(b"null")


def is_absent(raw: msgspec.Raw) -> bool:
    return len(raw) == len(b"null") and bytes(raw) == b"null"


def no_metadata() -> msgspec.Raw:
    return msgspec.Raw(b"{}")
