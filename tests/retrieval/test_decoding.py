"""What a body that does not fit is told: the field, by the name the sender gave it, and the likely one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from msgspec import inspect

from indexes.base.errors import InvalidInput
from retrieval.dialects.vector_store_schemas import OpenAIAttachFiles
from retrieval.server.routes import ROUTES
from retrieval.wire.collections import SetRanking
from retrieval.wire.decoding import alternatives, decode, decode_part
from retrieval.wire.documents import ScrollDocuments, WriteDocuments
from retrieval.wire.search import ContextRequest, SearchRequest


@pytest.mark.parametrize(
    ("body", "kind", "param", "words"),
    [
        ('{"query": "x", "top_k": 5}', SearchRequest, "top_k", "did you mean 'k'?"),
        ('{"query": "x", "n_results": 5}', SearchRequest, "n_results", "did you mean 'k'?"),
        ('{"query": "x", "where": {}}', SearchRequest, "where", "did you mean 'filter'?"),
        ('{"query": "x", "filters": []}', SearchRequest, "filters", "did you mean 'filter'?"),
        ('{"q": "x"}', SearchRequest, "q", "did you mean 'query'?"),
        ('{"text": "x"}', SearchRequest, "text", "did you mean 'query'?"),
        ('{"query": "x", "qury": "y"}', SearchRequest, "qury", "did you mean 'query'?"),
        ('{"query": "x", "zzz": "y"}', SearchRequest, "zzz", "known names: boosts, cache"),
        ('{"size": 5}', ScrollDocuments, "size", "did you mean 'limit'?"),
        ('{"query": "x", "max_tokens": 5}', ContextRequest, "max_tokens", "did you mean 'token_budget'?"),
        ('{"fusion": {"weights": {"dens": 1}}}', SearchRequest, "fusion.weights.dens", "did you mean 'dense'?"),
        ('{"docs": []}', WriteDocuments, "docs", "did you mean 'documents'?"),
        ('{"documents": [{"content": "x"}]}', WriteDocuments, "documents[0].content", "did you mean 'text'?"),
        ('{"documents": [{"metadatas": 1}]}', WriteDocuments, "documents[0].metadatas", "did you mean 'metadata'?"),
        ('{"documents": [{"embedding": []}]}', WriteDocuments, "documents[0].embedding", "did you mean 'vector'?"),
    ],
)  # fmt: skip
def test_an_unknown_field_names_the_likely_one(body: str, kind: type, param: str, words: str) -> None:
    """The name other systems use for it, or one that is spelled nearly so; else the fields there are."""
    with pytest.raises(InvalidInput) as refused:
        decode(body.encode(), kind)
    assert refused.value.param == param
    assert refused.value.message.startswith(f"{param}: Object contains unknown field")
    assert words in refused.value.message


def structs_in(one: inspect.Type, found: dict[type, inspect.StructType]) -> None:
    for inner in alternatives(one):
        if isinstance(inner, inspect.ListType):
            structs_in(inner.item_type, found)
        elif isinstance(inner, inspect.StructType) and inner.cls not in found:
            found[inner.cls] = inner
            for field in inner.fields:
                structs_in(field.type, found)


def test_a_value_that_is_not_allowed_is_told_those_that_are() -> None:
    """In every request there is, for every field that has only some values."""
    found: dict[type, inspect.StructType] = {}
    for route in ROUTES:
        if route.request is not None:
            structs_in(inspect.type_info(route.request), found)
    tried = 0
    for kind, struct in found.items():
        for field in struct.fields:
            types = alternatives(field.type)
            lists = [
                each
                for inner in types
                if isinstance(inner, inspect.ListType)
                for each in alternatives(inner.item_type)
            ]
            for choices, value in ((types, "no such"), (lists, ["no such"])):
                literals = [one for one in choices if isinstance(one, inspect.LiteralType)]
                if not literals or any(isinstance(one, inspect.StrType) for one in choices):
                    continue
                with pytest.raises(InvalidInput) as refused:
                    decode(json.dumps({field.encode_name: value}).encode(), kind)
                assert str(refused.value.param).startswith(field.encode_name)
                assert all(
                    repr(one) in refused.value.message for literal in literals for one in literal.values
                )
                tried += 1
    assert tried > 10


@pytest.mark.parametrize(
    ("part", "kind", "place"),
    [
        (b'{"limit": 5}', SearchRequest, "searches[1].limit"),
        (b"[]", SearchRequest, "searches[1]"),
        (b'[1, "a"]', list[float], "searches[1][1]"),
    ],
)
def test_a_part_is_named_by_its_place_in_the_body(part: bytes, kind: type, place: str) -> None:
    """What is decoded later is refused as if it had been decoded with the rest."""
    with pytest.raises(InvalidInput) as refused:
        decode_part(part, kind, "searches[1]")
    assert refused.value.param == place
    assert refused.value.message.startswith(f"{place}: ")


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ('{"coefficients": {"a": [1], "b": [1, "x"]}}', SetRanking, "coefficients.b[1]"),
        ('{"coefficients": {"a.b": 5}}', SetRanking, "coefficients.a.b"),
        ('{"coefficients": {"a": 5, "a": [1]}}', SetRanking, "coefficients.*"),
        ('{"coefficients": {"a": 5, "b": [1', SetRanking, "coefficients.*"),
        ('{"files": [{"file_id": "x"}, {"attributes": {"b": null}}]}', OpenAIAttachFiles, "files[1].attributes.b"),
        ('{"files": [{"attributes": {"a": []}}], "files": []}', OpenAIAttachFiles, "files[0].attributes.*"),
        ('{"attributes": {"a": []}, "attributes": null}', OpenAIAttachFiles, "attributes.*"),
        ('{"a": [1], "b": ["x"]}', dict[str, list[int]], "b[0]"),
    ],
)  # fmt: skip
def test_a_key_of_free_choice_is_named(body: str, kind: type, param: str) -> None:
    """Whose value does not fit, wherever its object is."""
    with pytest.raises(InvalidInput) as refused:
        decode(body.encode(), kind)
    assert refused.value.param == param


def test_types_have_the_names_of_json() -> None:
    """A sender who writes no Python knows no `str`."""
    with pytest.raises(InvalidInput, match=r"^query: Expected `string \| null`, got `integer`$"):
        decode(b'{"query": 1}', SearchRequest)
    with pytest.raises(InvalidInput, match=r"^group_by_document: Expected `boolean`, got `string`$"):
        decode(b'{"query": "x", "group_by_document": "yes"}', SearchRequest)


@pytest.mark.parametrize("name", ["' - at `$" * 25_000 + "\n", "`" * 200_000, "[" * 200_000, "a - at `$.b`"])
def test_a_name_that_looks_like_a_message_is_a_name(name: str) -> None:
    """The field is what the sender wrote, shortened, and not what it seems to say; time grows with its length."""
    began = time.process_time()
    with pytest.raises(InvalidInput, match="unknown field") as refused:
        decode(json.dumps({"query": "x", name: 1}).encode(), SearchRequest)
    assert refused.value.param is not None
    assert refused.value.param.removesuffix("...") == name[: len(refused.value.param.removesuffix("..."))]
    assert len(refused.value.message) < 1_000
    assert time.process_time() - began < 0.5


def structs_of(kind: inspect.Type, place: str) -> Iterator[tuple[str, inspect.StructType]]:
    """Every struct inside a type, with its place."""
    if isinstance(kind, inspect.StructType):
        yield place, kind
        for field in kind.fields:
            yield from structs_of(field.type, f"{place}.{field.name}")
    inner = [getattr(kind, name, None) for name in ("item_type", "value_type", "type")]
    for one in (*inner, *getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
        if isinstance(one, inspect.Type):
            yield from structs_of(one, place)


def test_no_unknown_field_is_ignored_anywhere() -> None:
    """In no object of any request of our own API, however deep. Requests of other servers' APIs may have more."""
    requests = {route.request for route in ROUTES if route.request is not None}
    own = [one for one in requests if "dialects" not in one.__module__]
    found = [pair for one in own for pair in structs_of(inspect.type_info(one), one.__name__)]
    assert len(found) > 40
    assert [place for place, kind in found if not kind.forbid_unknown_fields] == []
