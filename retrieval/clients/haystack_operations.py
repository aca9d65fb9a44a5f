"""The operations of Haystack's store as coroutines, and the translation of filters.

Metadata statistics that the service does not compute are computed from all matching documents, read without texts.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from haystack import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError

from retrieval.clients.errors import ServiceError
from retrieval.clients.stores import (
    matching,
    provenance,
    read_documents,
    remove_matching,
    search_hits,
    write,
)

if TYPE_CHECKING:
    from retrieval.clients.endpoints import Endpoints
    from retrieval.clients.wire.answers import Hit
    from retrieval.clients.wire.records import DocumentBody

PROVENANCE_KEY = "nearline"
ORDERS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
LISTS = {"in": "in", "not in": "nin"}
PAGE = 1000  # documents without their texts; the service may answer with fewer
TYPES = {bool: "boolean", int: "int", float: "float", str: "keyword"}  # Haystack's names

Value = str | int | float | bool


async def count_matching(core: Endpoints, collection: str, condition: Any = None) -> int:
    with refused_filters():
        return (await core.count(collection, **({} if condition is None else {"filter": condition})))[
            "documents"
        ]


async def read_matching(core: Endpoints, collection: str, condition: Any) -> list[Document]:
    with refused_filters():
        return [whole(one) for one in await matching(core, collection, condition)]


async def write_under_policy(
    core: Endpoints, collection: str, documents: list[dict[str, Any]], policy: DuplicatePolicy
) -> int:
    if policy in {DuplicatePolicy.FAIL, DuplicatePolicy.SKIP}:
        ids = [one["id"] for one in documents]
        present = {one["id"] for one in await read_documents(core, collection, ids)}
        if policy == DuplicatePolicy.FAIL:
            for document_id, number in Counter(ids).items():
                if document_id in present:
                    known = f"there is a document {document_id!r} already"
                elif number > 1:
                    known = f"{number} of the documents have the id {document_id!r}"
                else:
                    continue
                raise DuplicateDocumentError(f"{known}, and nothing was written")
        # The first document with an id is kept.
        documents = list({one["id"]: one for one in reversed(documents) if one["id"] not in present}.values())
    await write(core, collection, documents)
    return len(documents)


async def delete_by_filter(core: Endpoints, collection: str, condition: Any) -> int:
    with refused_filters():
        return await remove_matching(core, collection, condition)


async def update_by_filter(core: Endpoints, collection: str, condition: Any, meta: dict[str, Any]) -> int:
    with refused_filters():
        ids = [one["id"] for one in await matching(core, collection, condition)]
    updated = 0
    for document_id in ids:
        try:
            await core.patch(collection, document_id, meta)
            updated += 1
        except ServiceError as error:
            if error.status != 404:  # deleted in between
                raise
    return updated


async def search_passages(
    core: Endpoints, collection: str, query: str | list[float], condition: Any, options: dict[str, Any]
) -> list[Document]:
    asked = {"query": query} if isinstance(query, str) else {"mode": "dense", "vector": query}
    narrowed = {} if condition is None else {"filter": condition}
    with refused_filters():
        return [passage(hit) for hit in await search_hits(core, collection, {**asked, **options, **narrowed})]


async def values_of(
    core: Endpoints, collection: str, condition: Any = None
) -> AsyncIterator[tuple[str, Value]]:
    """Yield each metadata value of each matching document with its dotted path, as filters see it."""
    narrowed = {} if condition is None else {"filter": condition}
    with refused_filters():
        async for document in core.scroll(collection, limit=PAGE, text=False, **narrowed):
            for path, value in leaves(document["metadata"]):
                yield path, value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Value]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path)
    elif value is not None:
        yield path, value


async def describe_fields(core: Endpoints, collection: str) -> dict[str, dict[str, str]]:
    found: dict[str, set[str]] = {}
    async for key, value in values_of(core, collection):
        found.setdefault(key, set()).add(TYPES[type(value)])
    return {key: {"type": joint_type(types)} for key, types in found.items()}


def joint_type(types: set[str]) -> str:
    if len(types) == 1:
        return next(iter(types))
    return "float" if types == {"int", "float"} else "keyword"


async def extremes(core: Endpoints, collection: str, field: str) -> dict[str, Any]:
    key = key_of(field)
    values = [value async for one, value in values_of(core, collection) if one == key]
    if not values or len({isinstance(value, str) for value in values}) > 1:
        return {"min": None, "max": None}
    return {"min": min(values), "max": max(values)}


async def search_values(
    core: Endpoints, collection: str, field: str, search_term: str | None, page: slice, condition: Any
) -> tuple[list[Any], int]:
    key, wanted = key_of(field), (search_term or "").lower()
    # In Python 1, 1.0 and True are equal, but they are distinct values.
    values = {
        (str(value), type(value).__name__): value
        async for one, value in values_of(core, collection, condition)
        if one == key and wanted in str(value).lower()
    }
    return [values[one] for one in sorted(values)[page]], len(values)


async def count_unique(core: Endpoints, collection: str, fields: list[str], condition: Any) -> dict[str, int]:
    found: dict[str, set[tuple[type, Value]]] = {key_of(field): set() for field in fields}
    async for key, value in values_of(core, collection, condition):
        if key in found:
            found[key].add((type(value), value))
    return {field: len(found[key_of(field)]) for field in fields}


def key_of(field: str) -> str:
    return field.removeprefix("meta.")


@contextlib.contextmanager
def refused_filters() -> Iterator[None]:
    """Raise the service's refusal of a filter as Haystack's error."""
    try:
        yield
    except ServiceError as error:
        if error.status in {400, 422} and (error.param or "").startswith("filter"):
            raise FilterError(error.message) from error
        raise


# --- documents ------------------------------------------------------------------------------------------------------


def documents_of(documents: Sequence[Document]) -> list[dict[str, Any]]:
    """Return the documents in the form the service takes. Raises ValueError."""
    if not isinstance(documents, list) or not all(isinstance(one, Document) for one in documents):
        raise ValueError("documents: expected a list of haystack Documents")
    for at, one in enumerate(documents):
        if one.content is None:
            raise ValueError(f"documents[{at}]: expected text in content, found none; blobs are not kept")
    return [{"id": one.id, "text": one.content, "metadata": one.meta} for one in documents]


def whole(document: DocumentBody) -> Document:
    return Document(id=document["id"], content=document["text"], meta=dict(document["metadata"]))


def passage(hit: Hit) -> Document:
    return Document(
        id=f"{hit['document_id']}:{hit['passage']}",
        content=hit["text"],
        meta={**hit["metadata"], PROVENANCE_KEY: provenance(hit)},
        score=hit["score"],
    )


# --- filters --------------------------------------------------------------------------------------------------------


def condition_of(filters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Translate filters to the service's grammar; None means everything. Raises FilterError."""
    return combination(filters) if filters else None


def combination(filters: dict[str, Any]) -> dict[str, Any]:
    if "field" in filters:
        return comparison(filters)
    operator, conditions = part(filters, "operator"), part(filters, "conditions")
    if operator not in {"AND", "OR", "NOT"}:
        raise FilterError(f"operator: expected AND, OR or NOT beside conditions, found {operator!r}")
    parts = [combination(one) for one in conditions]
    if operator == "NOT":
        return {"type": "not", "filter": {"type": "and", "filters": parts}}
    return {"type": operator.lower(), "filters": parts}


def comparison(wanted: dict[str, Any]) -> dict[str, Any]:
    key = key_of(part(wanted, "field"))
    operator, value = part(wanted, "operator"), part(wanted, "value")
    if operator in {"==", "!="}:
        if value is None:
            return {"type": "exists", "key": key, "value": operator == "!="}
        return {"type": "eq" if operator == "==" else "ne", "key": key, "value": value}
    if operator in LISTS:
        if not isinstance(value, list):
            raise FilterError(f"{key}: {operator} expects a list, found {value!r}")
        return {"type": LISTS[operator], "key": key, "value": value}
    if operator not in ORDERS:
        raise FilterError(f"{key}: the operator {operator!r} is not supported")
    if value is None:  # None has no order
        return {
            "type": "and",
            "filters": [{"type": "exists", "key": key, "value": one} for one in (True, False)],
        }
    if isinstance(value, str) and not is_date(value):
        raise FilterError(f"{key}: {operator} expects a number or an ISO date, found {value!r}")
    return {"type": ORDERS[operator], "key": key, "value": value}


def part(filters: Any, name: str) -> Any:
    if not isinstance(filters, dict) or name not in filters:
        raise FilterError(f"expected {name} in the filter, found {filters!r}")
    return filters[name]


def is_date(value: str) -> bool:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def some(condition: dict[str, Any] | None) -> dict[str, Any]:
    if condition is None:
        raise FilterError("expected filters, found none; delete_all_documents deletes all")
    return condition
