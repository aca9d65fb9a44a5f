"""No integer of a request is too large: 10**30 is refused at once, by its field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from msgspec import NODEFAULT, inspect

from indexes.base.errors import InvalidInput
from indexes.base.model import NewPassage, Upsert
from indexes.collection.collection import Collection
from retrieval.server.examples import FILE, make_examples
from retrieval.server.openapi import PARAMETER, Route, path_of
from retrieval.server.routes import ROUTES
from retrieval.wire.decoding import alternatives, decode
from tests.support.encoders import DIMENSIONS
from tests.support.operations import form
from tests.support.worst_case import NAME, Request, Service, serving_worst_case

HUGE = 10**30
EXAMPLES = make_examples("encoder", "reader")
PATH = EXAMPLES.path | {"collection": NAME}
# Parts that stay JSON until their size is checked, or that are not of one type.
PARTS: dict[str, tuple[Any, str]] = {
    "SearchRequest filter": (
        {"query": "a", "filter": {"type": "gt", "key": "n", "value": HUGE}},
        "filter.value",
    ),
    "ScrollDocuments filter": ({"filter": {"type": "in", "key": "n", "value": [1, HUGE]}}, "filter.value[1]"),
    "WriteDocuments metadata": (
        {"documents": [{"id": "a", "text": "a", "metadata": {"n": HUGE}}]},
        "documents[0].metadata.n",
    ),
    "PatchDocument metadata": ({"metadata": {"n": {"m": HUGE}}}, "metadata.n.m"),
    "AssessRequest outcome": (
        {
            "action": "a",
            "outcome": {"key": "n", "bad": [HUGE]},
            "filter": {"type": "gt", "key": "n", "value": 0},
        },
        "outcome.bad[0]",
    ),
    "DeleteDocuments ids": ({"ids": [HUGE]}, "ids[0]"),
    "PatchDocuments ids": ({"ids": [HUGE], "metadata": {}}, "ids[0]"),
    "OpenAISetAttributes attributes": ({"attributes": {"n": HUGE}}, "attributes.n"),
    "OpenAIStoreSearch filters": (
        {"query": "a", "filters": {"type": "gt", "key": "n", "value": HUGE}},
        "filter.value",  # as our own searches name it
    ),
}
UNSUPPORTED = {"POST /embed_all"}  # the models here have no vectors of tokens
EITHER = {"files": "file_ids"}  # a field takes the place of another


def with_huge(one: inspect.Type) -> Iterator[tuple[str, Any]]:
    """Values of a type with one huge integer in them, each with its place; the rest is what the type requires."""
    for each in alternatives(one):
        match each:
            case inspect.IntType():
                yield "", HUGE
            case inspect.CollectionType():
                yield from ((f"[0]{place}", [value]) for place, value in with_huge(each.item_type))
            case inspect.DictType():
                yield from ((f"[...]{place}", {"n": value}) for place, value in with_huge(each.value_type))
            case inspect.StructType():
                needed = required(each)
                for field in each.fields:
                    for place, value in with_huge(field.type):
                        yield f".{field.encode_name}{place}", {**needed, field.encode_name: value}


def required(struct: inspect.StructType) -> dict[str, Any]:
    fields = [field for field in struct.fields if field.default is NODEFAULT and field.required]
    tag = {struct.tag_field: struct.tag} if struct.tag_field else {}
    return tag | {field.encode_name: least(field.type) for field in fields}


def least(one: inspect.Type) -> Any:
    """A value of this type."""
    first = alternatives(one)[0]
    match first:
        case inspect.LiteralType():
            return first.values[0]
        case inspect.IntType() | inspect.FloatType():
            return first.ge or 1
        case inspect.CollectionType():
            return [least(first.item_type)]
        case inspect.StructType():
            return required(first)
    return "a"


def cases() -> Iterator[tuple[str, Route, Any, str]]:
    for route in ROUTES:
        kind: Any = route.request
        if kind is None or route.sent_as != "application/json" or route_name(route) in UNSUPPORTED:
            continue
        usual = next(iter(EXAMPLES.bodies.get(kind, {}).values()), {})
        for path, body in with_huge(inspect.type_info(kind)):
            place, field = path.removeprefix("."), field_of(path)
            others = {name: value for name, value in {**body, **usual}.items() if name != EITHER.get(field)}
            yield f"{route_name(route)} {place}", route, {**others, field: body[field]}, place
        for part, (body, place) in PARTS.items():
            if part.split()[0] == kind.__name__:
                yield f"{route_name(route)} {place}", route, body, place


def route_name(route: Route) -> str:
    return f"{route.method} {path_of(route)}"


def field_of(place: str) -> str:
    return re.split(r"[.\[]", place.removeprefix("."))[0]


CASES = {name: (route, body, place) for name, route, body, place in cases()}


def fill(collection: Collection) -> None:
    vector = np.ones(DIMENSIONS, np.float32) / np.sqrt(np.float32(DIMENSIONS))
    for name in ("refunds", "shipping"):
        collection.write([Upsert(name, "a text", "", {"n": 1}, (NewPassage(0, 6, 0, vector),))]).result()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_worst_case(tmp_path_factory.mktemp("integers"), fill) as found:
        yield found


@pytest.fixture(scope="module")
def file_id(service: Service) -> str:
    """The id that a file has in the vector store."""
    form_of_file = form({"file": "some text", "purpose": "assistants"})
    _, _, uploaded = service.ask(Request("/v1/files", form_of_file))
    _, status, attached = service.ask(Request(f"/v1/vector_stores/{NAME}/files", {"file_id": uploaded["id"]}))
    assert status == 200, attached
    return str(uploaded["id"])


@pytest.mark.parametrize("case", CASES)
def test_a_huge_integer_is_refused_by_its_field(service: Service, file_id: str, case: str) -> None:
    """A wait for it would end with another status, and so would a path that leads nowhere."""
    route, body, place = CASES[case]
    path = PARAMETER.sub(lambda found: PATH[found[1]], path_of(route)).replace(FILE, file_id)
    sent = json.dumps(body).replace(FILE, file_id).replace('"file_id": "a"', f'"file_id": "{file_id}"')
    _, status, answer = service.ask(Request(path, json.loads(sent), route.method))
    if status == 403:  # a service without keys lets no client make the first one
        with pytest.raises(InvalidInput, match=re.escape(place)):
            decode(sent.encode(), route.request)  # type: ignore[arg-type]
        return
    if "file_batches" in path and status == 200:  # says it of each file
        assert answer["file_counts"]["failed"] == 1
        return
    assert 400 <= status < 500, answer
    assert status != 404, answer
    assert field_of(place) in json.dumps(answer), answer
