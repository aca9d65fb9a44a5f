"""Decodes request bodies into wire types; a body that does not fit raises one error that names the field.

Decoding blocks every other thread, so the values of a large body are counted before it is decoded (`value_budget`).
Some parts of a request also stay JSON until their size is checked, because a decoded megabyte takes up to 30 MB;
`decode_part` decodes them.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import islice
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, inspect

from indexes.base.errors import InvalidInput
from indexes.base.suggestions import suggestion
from retrieval.base.settings import INTEGER_MAX
from retrieval.wire.errors import MalformedRequest
from retrieval.wire.value_budget import check_values

T = TypeVar("T")
INLINE_BYTES = 1 << 18  # of JSON: decoded within 15 ms, whatever it holds
DEPTH_MAX = 1 << 20  # more than msgspec decodes

FilterJson = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["object", "null"]})]
VectorJson = Annotated[
    msgspec.Raw,
    Meta(
        extra_json_schema={
            "type": ["array", "string", "null"],
            "items": {"type": "number"},
            "contentEncoding": "base64",
        }
    ),
]
IdsJson = Annotated[
    msgspec.Raw,
    Meta(
        extra_json_schema={
            "type": ["array", "null"],
            "items": {"type": ["string", "integer"], "minimum": -(2**63), "maximum": INTEGER_MAX},
        }
    ),
]
MetadataJson = Annotated[
    msgspec.Raw,
    Meta(
        description="JSON, returned as it was sent. Filters address values in objects and lists by dotted paths.",
        extra_json_schema={"type": "object"},
    ),
]
SearchJson = Annotated[msgspec.Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/SearchRequest"})]
SearchesJson = Annotated[list[SearchJson], Meta(extra_json_schema={"minItems": 1})]

# Already JSON when the answer is assembled.
SearchOutcome = Annotated[
    msgspec.Raw,
    Meta(
        extra_json_schema={
            "anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("SearchAnswer", "ErrorBody")]
        }
    ),
]


def Doc(text: str) -> Meta:  # noqa: N802 - reads as a type's annotation
    """Return the description of a field for the API description. A test checks that every field has one."""
    return Meta(description=text)


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all request bodies."""


def absent() -> msgspec.Raw:
    return msgspec.Raw(b"null")


def is_absent(raw: msgspec.Raw) -> bool:
    return len(raw) == len(b"null") and bytes(raw) == b"null"


def no_metadata() -> msgspec.Raw:
    return msgspec.Raw(b"{}")


# Names of fields in other servers and libraries. Each of our bodies uses at most one name of a group.
ALIKE = (
    frozenset({"k", "top_k", "topk", "limit", "size", "n_results", "num_results", "n", "count", "top", "max_results"}),
    frozenset({"filter", "filters", "where", "query_filter", "conditions"}),
    frozenset({"query", "q", "text", "question", "query_text", "query_texts", "input", "prompt", "search"}),
    frozenset({"text", "content", "page_content", "body", "document", "chunk", "contents"}),
    frozenset({"metadata", "metadatas", "meta", "payload", "attributes", "properties"}),
    frozenset({"id", "_id", "doc_id", "document_id", "uid", "key"}),
    frozenset({"vector", "vectors", "embedding", "embeddings", "values", "query_vector", "query_embeddings"}),
    frozenset({"documents", "docs", "points", "records", "items", "upserts", "data"}),
    frozenset({"ids", "points", "document_ids"}),
    frozenset({"highlight", "highlighting", "highlights"}),
    frozenset({"facets", "aggs", "aggregations", "facet"}),
    frozenset({"sort", "order_by", "sort_by", "order"}),
    frozenset({"boosts", "boost", "functions", "score_functions"}),
    frozenset({"like", "positive", "more_like_this", "similar_to", "recommend"}),
    frozenset({"unlike", "negative"}),
    frozenset({"typos", "fuzzy", "fuzziness", "typo_tolerance"}),
    frozenset({"expand", "neighbors", "neighbours", "window"}),
    frozenset({"min_score", "score_threshold", "threshold", "min_similarity"}),
    frozenset({"token_budget", "max_tokens", "budget", "tokens"}),
    frozenset({"cursor", "offset", "page_token", "next_cursor", "next_page_offset", "skip", "from"}),
    frozenset({"name", "collection", "collection_name", "index"}),
)  # fmt: skip

_PLACE = re.compile(r"(?:key in )?\$(?P<path>(?:\.\w+|\[[^\[\]]*\])*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_NOT_ALLOWED = re.compile(r"Invalid enum value ")
_TYPES = re.compile(r"(?:Expected|got) `[^`]*`")
NAME_CHARS_SHOWN = 100  # of an unknown field's name, in the error
JSON_WORDS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}  # for Python's types
KEYS_TRIED = 1024  # to find the one at fault; takes a few milliseconds
ANY_KEY = "[...]"  # in msgspec's paths, for a key of an object whose keys are free
TRUNCATED = "Input data was truncated"
HALF = re.compile(rb'\\u[dD][89abAB][0-9a-fA-F]{2}"')
END_BYTES = 12  # an escape and the six bytes that should follow
_STEP = re.compile(r"\[[^\[\]]*\]|[^.\[\]]+")


def decode(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode a body as `kind`. For more than INLINE_BYTES, run it on a thread. Raises MalformedRequest if it is not
    JSON, TooLarge for far too many values, otherwise InvalidInput naming the field."""
    if len(body) > INLINE_BYTES:
        check_values(body, decoded_depth(kind))  # type: ignore[arg-type]  # mypy: a type[T] is not hashable
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise invalid(error, body, kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"the body is not valid JSON: {why_not_json(error, body)}") from None
    except RecursionError:
        raise MalformedRequest("the body is nested too deeply") from None


def why_not_json(error: Exception, text: bytes | msgspec.Raw) -> str:
    """Return the decoder's words, but not that a text is truncated that ends with half of a character in two escapes:
    the decoder looks for the other half beyond the end."""
    words = str(error)
    halved = words == TRUNCATED and HALF.search(bytes(memoryview(text)[-END_BYTES:]))
    return "JSON is malformed: unexpected end of escaped utf-16 surrogate pair" if halved else words


def check_built(built: T) -> T:
    """Check a struct that was built without decoding it. Raises InvalidInput naming the field."""
    try:
        return msgspec.convert(msgspec.to_builtins(built), type(built))
    except msgspec.ValidationError as error:
        raise invalid(error, msgspec.json.encode(built), type(built)) from None


def decode_part(part: bytes | msgspec.Raw, kind: type[T], where: str) -> T:
    """Decode a part of a request body that was left as JSON, as `decode` does; `where` is its path in the body."""
    try:
        return decode(part, kind)
    except InvalidInput as error:
        inside = error.param or ""
        place = where + (inside if inside.startswith("[") or not inside else f".{inside}")
        raise type(error)(f"{place}: {error.message.removeprefix(f'{inside}: ')}", param=place) from None


def invalid(error: msgspec.ValidationError, body: bytes | msgspec.Raw, kind: type) -> InvalidInput:
    """Return msgspec's error with JSON's type names and the path as `param`, suggesting a name for an unknown field."""
    message, path = split_place(_TYPES.sub(in_json_words, str(error)))
    unknown = _UNKNOWN.fullmatch(message)
    if _NOT_ALLOWED.match(message) and (allowed := values_at(kind, path)):
        message = f"{shorten(message)}; allowed: {', '.join(map(repr, allowed))}"
    named = unknown or _MISSING.fullmatch(message)
    name = shorten(named["name"]) if named else ""
    if unknown:
        likely = suggestion(unknown["name"], fields_at(kind, path), ALIKE)
        message = f"Object contains unknown field `{name}`; {likely}"
    if ANY_KEY in path:
        path = path.replace(ANY_KEY, f".{shorten(key_at_fault(body, kind, path))}", 1).removeprefix(".")
    param = ".".join(filter(None, [path, name]))
    return InvalidInput(f"{param}: {message}" if param else message, param=param or None)


def split_place(text: str) -> tuple[str, str]:
    """Split a msgspec message into its text and the path at its end, "" for the whole body."""
    message, _, place = text.rpartition(" - at `")  # the last one: a client's field name may contain it
    found = _PLACE.fullmatch(place)
    return (message, found["path"].removeprefix(".")) if found else (text, "")


def key_at_fault(body: bytes | msgspec.Raw, kind: type, path: str) -> str:
    """Return the key that stands where the path has ANY_KEY: the first whose value fails if sent alone. Return "*" if
    none of the first KEYS_TRIED does, as when a key occurs twice."""
    steps = _STEP.findall(path.partition(ANY_KEY)[0])
    try:
        for step in steps:
            if step.startswith("["):
                body = msgspec.json.decode(body, type=list[msgspec.Raw])[int(step[1:-1])]
            else:
                body = msgspec.json.decode(body, type=dict[str, msgspec.Raw])[step]
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        LookupError,
        RecursionError,
    ):  # cut short behind it, for one
        return "*"
    for key, value in islice(found.items(), KEYS_TRIED):
        alone: object = {key: value}
        for step in reversed(steps):
            alone = [alone] if step.startswith("[") else {step: alone}
        try:
            msgspec.json.decode(msgspec.json.encode(alone), type=kind)
        except msgspec.ValidationError as error:
            if ANY_KEY in split_place(str(error))[1]:
                return key
        except RecursionError:  # too deep to be looked at, and so not at fault first
            continue
    return "*"


def shorten(name: str) -> str:
    """Shorten a name from a request for an error message."""
    return name if len(name) <= NAME_CHARS_SHOWN else f"{name[:NAME_CHARS_SHOWN]}..."


def in_json_words(types: re.Match[str]) -> str:
    return re.sub(r"\w+", lambda word: JSON_WORDS.get(word[0], word[0]), types[0])


def fields_at(kind: type, path: str) -> list[str]:
    """Return the fields that an object at this path may have."""
    structs = [one for one in types_at(kind, path) if isinstance(one, inspect.StructType)]
    return [field.encode_name for one in structs for field in one.fields]


def values_at(kind: type, path: str) -> list[object]:
    """Return the values that a field at this path may have, if it is limited to some."""
    found: list[object] = []
    for one in types_at(kind, path):
        if isinstance(one, inspect.LiteralType):
            found += one.values
        elif isinstance(one, inspect.EnumType):
            found += [member.value for member in one.cls]
    return found


def types_at(kind: type, path: str) -> list[inspect.Type]:
    """Return every type that a value at this path may have."""
    here = [inspect.type_info(kind)]
    for step in _STEP.findall(path):
        here = [inner for one in here for inner in inside(one, step)]
    return [inner for one in here for inner in alternatives(one)]


def inside(one: inspect.Type, step: str) -> list[inspect.Type]:
    """Return the types behind a field name or a list index."""
    found: list[inspect.Type] = []
    for inner in alternatives(one):
        if isinstance(inner, inspect.ListType) and step.startswith("["):
            found.append(inner.item_type)
        elif isinstance(inner, inspect.DictType) and step.startswith("["):
            found.append(inner.value_type)
        elif isinstance(inner, inspect.StructType):
            found += [field.type for field in inner.fields if field.encode_name == step]
    return found


@cache
def decoded_depth(kind: type) -> int:
    """Return the nesting depth of lists and objects that decoding creates, without parts that are left as JSON."""
    return depth_of(inspect.type_info(kind))


def depth_of(one: inspect.Type) -> int:
    depth = 0
    for each in alternatives(one):
        match each:
            case inspect.AnyType():
                return DEPTH_MAX
            case inspect.CollectionType():
                depth = max(depth, 1 + depth_of(each.item_type))
            case inspect.DictType():
                depth = max(depth, 1 + depth_of(each.value_type))
            case inspect.StructType():
                depth = max([depth, *(1 + depth_of(field.type) for field in each.fields)])
    return depth


def alternatives(one: inspect.Type) -> list[inspect.Type]:
    """Return the members of a union, or the type itself, without metadata."""
    while isinstance(one, inspect.Metadata):
        one = one.type
    if not isinstance(one, inspect.UnionType):
        return [one]
    return [inner for each in one.types for inner in alternatives(each)]
