"""Haystack: `NearlineDocumentStore`, and the components `NearlineRetriever` and `NearlineEmbeddingRetriever`. Needs the
extra `haystack`.

    store = NearlineDocumentStore("docs", url="http://127.0.0.1:8080")
    store.write_documents([Document(id="refunds", content="Refunds take five days.")])
    pipeline.add_component("retriever", NearlineRetriever(store, top_k=5))

The service embeds texts and splits long documents. The store reads whole documents, the retriever returns passages.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy
from haystack.errors import FilterError
from haystack.utils import Secret

from retrieval.clients.calling import ServiceError
from retrieval.clients.client import Client
from retrieval.clients.stores import (
    Store,
    found,
    matching,
    plain,
    provenance,
    removed,
    removed_matching,
    stored,
    written,
)

if TYPE_CHECKING:
    from retrieval.clients.endpoints import Endpoints
    from retrieval.clients.wire.answers import Hit
    from retrieval.clients.wire.records import DocumentBody

TOP_K = 10  # Haystack's own default
KEY = "NEARLINE_KEY"
PUBLIC = "nearline.haystack"  # the module that saved pipelines name
PROVENANCE_KEY = "nearline"
ORDERS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
LISTS = {"in": "in", "not in": "nin"}
PAGE = 1000  # documents without their texts; the service may answer with fewer
TYPES = {bool: "boolean", int: "int", float: "float", str: "keyword"}  # in Haystack's words

Value = str | int | float | bool


class NearlineDocumentStore:
    """A collection as Haystack's document store, made on first use if it is absent.

    Embeddings of documents are neither used nor kept. Everything that reaches the service raises ServiceError, and
    FilterError for filters that it refuses. A copy, also an unpickled one, has a connection of its own.
    """

    __module__ = PUBLIC

    def __init__(
        self,
        collection: str,
        *,
        url: str | None = None,
        key: Secret = Secret.from_env_var(KEY, strict=False),  # noqa: B008 - immutable, as Haystack does it
    ) -> None:
        """`url`: default NEARLINE_URL, else this machine's port 8080. `key`: where the service asks for keys."""
        self.collection = collection
        self.url = url
        self.key = key
        client = Client(url, key=key.resolve_value())
        self._store = Store(collection, url=None, client=client, create=True)

    def to_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = default_to_dict(
            self, collection=self.collection, url=self.url, key=self.key.to_dict()
        )
        return made

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        given = data["init_parameters"]
        key = {"key": Secret.from_dict(given["key"])} if isinstance(given.get("key"), dict) else {}
        made: Self = default_from_dict(cls, {**data, "init_parameters": {**given, **key}})
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (type(self), self.collection, self.url, self.key)

    # -- documents

    def count_documents(self) -> int:
        return self._store.run(counted)

    async def count_documents_async(self) -> int:
        return await self._store.awaited(counted)

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        return self._store.run(counted, condition_of(filters))

    async def count_documents_by_filter_async(self, filters: dict[str, Any]) -> int:
        return await self._store.awaited(counted, condition_of(filters))

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Whole documents, in the order of writing; without filters all."""
        return self._store.run(filtered, condition_of(filters))

    async def filter_documents_async(self, filters: dict[str, Any] | None = None) -> list[Document]:
        return await self._store.awaited(filtered, condition_of(filters))

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Durable and searchable when it returns; how many were written. NONE overwrites.

        FAIL and SKIP look before they write: a document that another writer adds in between is overwritten. FAIL
        writes nothing if any document is there. Raises ValueError for what is no document with text.
        """
        return self._store.run(written_under, checked(documents), policy)

    async def write_documents_async(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        return await self._store.awaited(written_under, checked(documents), policy)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Ids that are absent are no error."""
        self._store.run(removed, document_ids)

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        await self._store.awaited(removed, document_ids)

    def delete_all_documents(self) -> None:
        self._store.run(removed_matching, None)

    async def delete_all_documents_async(self) -> None:
        await self._store.awaited(removed_matching, None)

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """How many were deleted. Raises FilterError for empty filters."""
        return self._store.run(removed_by, some(condition_of(filters)))

    async def delete_by_filter_async(self, filters: dict[str, Any]) -> int:
        return await self._store.awaited(removed_by, some(condition_of(filters)))

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Merge into the metadata of each document that matches; how many those are. A None removes a key."""
        return self._store.run(updated_by, some(condition_of(filters)), meta)

    async def update_by_filter_async(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        return await self._store.awaited(updated_by, some(condition_of(filters)), meta)

    # -- metadata: each of these reads the metadata, not the texts, of every document that matches

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """The type of each field: `keyword`, `int`, `float` or `boolean`.

        A list counts as its elements. A field whose values are of several types is `float` where all are numbers,
        else `keyword`.
        """
        return self._store.run(fields_described)

    async def get_metadata_fields_info_async(self) -> dict[str, dict[str, str]]:
        return await self._store.awaited(fields_described)

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """`min` and `max` of a field. Both are None where it has no values, or some that cannot be compared."""
        return self._store.run(extremes, metadata_field)

    async def get_metadata_field_min_max_async(self, metadata_field: str) -> dict[str, Any]:
        return await self._store.awaited(extremes, metadata_field)

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """A page of the different values in the order of their text, and how many there are in all.

        A list counts as its elements. `search_term` is looked for in each value, without regard to case.
        """
        return self._store.run(
            values_found, metadata_field, search_term, slice(from_, from_ + size), condition_of(filters)
        )

    async def get_metadata_field_unique_values_async(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        return await self._store.awaited(
            values_found, metadata_field, search_term, slice(from_, from_ + size), condition_of(filters)
        )

    def count_unique_metadata_by_filter(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """How many different values each field has."""
        return self._store.run(unique_counted, metadata_fields, condition_of(filters))

    async def count_unique_metadata_by_filter_async(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        return await self._store.awaited(unique_counted, metadata_fields, condition_of(filters))

    # -- search

    def search(
        self, query: str | list[float], filters: dict[str, Any] | None, options: dict[str, Any]
    ) -> list[Document]:
        """Passages for a text or a vector, best first."""
        return self._store.run(passages_found, query, condition_of(filters), options)

    async def search_async(
        self, query: str | list[float], filters: dict[str, Any] | None, options: dict[str, Any]
    ) -> list[Document]:
        return await self._store.awaited(passages_found, query, condition_of(filters), options)


def _opened(kind: type[NearlineDocumentStore], collection: str, url: str | None, key: Secret) -> Any:
    return kind(collection, url=url, key=key)


class Retriever:
    """What both retrievers share: their settings, and how to save them.

    Each document's `id` is its passage's (`refunds:0`), `score` the service's. Its metadata is the whole document's,
    and says under `nearline` where the passage is from (`document_id`, `passage`, `start`, `end`, `title`, `heading`)
    and how good it is (`score`, `relevance`).
    """

    def __init__(
        self,
        document_store: NearlineDocumentStore,
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = TOP_K,
        filter_policy: FilterPolicy | str = FilterPolicy.REPLACE,
        search: dict[str, Any] | None = None,
    ) -> None:
        """`search`: options of the service's search, such as `mode`, `rerank`, `min_relevance`, `group_by_document`."""
        self.document_store = document_store
        self.filters = filters
        self.top_k = top_k
        self.filter_policy = (
            filter_policy if isinstance(filter_policy, FilterPolicy) else FilterPolicy.from_str(filter_policy)
        )
        self.search = search or {}

    def to_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            filter_policy=self.filter_policy.value,
            search=self.search,
        )
        return made

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        given = data["init_parameters"]
        store = given["document_store"]
        if isinstance(store, dict):
            store = NearlineDocumentStore.from_dict(store)
        made: Self = default_from_dict(cls, {**data, "init_parameters": {**given, "document_store": store}})
        return made

    def _wanted(
        self, filters: dict[str, Any] | None, top_k: int | None
    ) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        both = apply_filter_policy(self.filter_policy, self.filters, filters)
        return both, {**self.search, "k": self.top_k if top_k is None else top_k}


@component
class NearlineRetriever(Retriever):
    """Passages for a query, best first."""

    __module__ = PUBLIC

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        return {"documents": self.document_store.search(query, *self._wanted(filters, top_k))}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        return {"documents": await self.document_store.search_async(query, *self._wanted(filters, top_k))}


@component
class NearlineEmbeddingRetriever(Retriever):
    """Passages for the vector of a query, best first. The vector must be of the collection's own model, as from a text
    embedder that asks this service for it."""

    __module__ = PUBLIC

    @component.output_types(documents=list[Document])
    def run(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        return {"documents": self.document_store.search(query_embedding, *self._wanted(filters, top_k))}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        wanted = self._wanted(filters, top_k)
        return {"documents": await self.document_store.search_async(query_embedding, *wanted)}


# --- operations -----------------------------------------------------------------------------------------------------


async def counted(core: Endpoints, collection: str, condition: Any = None) -> int:
    with refused_filters():
        return (await core.count(collection, **({} if condition is None else {"filter": condition})))[
            "documents"
        ]


async def filtered(core: Endpoints, collection: str, condition: Any) -> list[Document]:
    with refused_filters():
        return [whole(one) for one in await matching(core, collection, condition)]


async def written_under(
    core: Endpoints, collection: str, documents: list[dict[str, Any]], policy: DuplicatePolicy
) -> int:
    if policy in {DuplicatePolicy.FAIL, DuplicatePolicy.SKIP}:
        ids = [one["id"] for one in documents]
        present = {one["id"] for one in await stored(core, collection, ids)}
        if policy == DuplicatePolicy.FAIL and (present or len(set(ids)) < len(ids)):
            twice = next(one for at, one in enumerate(ids) if one in present or one in ids[:at])
            raise DuplicateDocumentError(f"there is a document {twice!r} already, and nothing was written")
        # Of equal ids the first is kept.
        documents = list({one["id"]: one for one in reversed(documents) if one["id"] not in present}.values())
    await written(core, collection, documents)
    return len(documents)


async def removed_by(core: Endpoints, collection: str, condition: Any) -> int:
    with refused_filters():
        return await removed_matching(core, collection, condition)


async def updated_by(core: Endpoints, collection: str, condition: Any, meta: dict[str, Any]) -> int:
    with refused_filters():
        ids = [one["id"] for one in await matching(core, collection, condition)]
    updated = 0
    for document_id in ids:
        try:
            await core.patch(collection, document_id, meta)
            updated += 1
        except ServiceError as error:
            if error.status != 404:  # deleted meanwhile
                raise
    return updated


async def passages_found(
    core: Endpoints, collection: str, query: str | list[float], condition: Any, options: dict[str, Any]
) -> list[Document]:
    asked = {"query": query} if isinstance(query, str) else {"mode": "dense", "vector": plain(query)}
    narrowed = {} if condition is None else {"filter": condition}
    with refused_filters():
        return [passage(hit) for hit in await found(core, collection, {**asked, **options, **narrowed})]


async def values_of(
    core: Endpoints, collection: str, condition: Any = None
) -> AsyncIterator[tuple[str, Value]]:
    """Each value of the metadata of each document that matches, with its key; of a list, each element."""
    narrowed = {} if condition is None else {"filter": condition}
    with refused_filters():
        async for document in core.scroll(collection, limit=PAGE, text=False, **narrowed):
            for key, value in document["metadata"].items():
                for one in value if isinstance(value, list) else [value]:
                    yield key, one


async def fields_described(core: Endpoints, collection: str) -> dict[str, dict[str, str]]:
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


async def values_found(
    core: Endpoints, collection: str, field: str, search_term: str | None, page: slice, condition: Any
) -> tuple[list[Any], int]:
    key, wanted = key_of(field), (search_term or "").lower()
    # To Python 1, 1.0 and True are equal, but they are different values.
    values = {
        (str(value), type(value).__name__): value
        async for one, value in values_of(core, collection, condition)
        if one == key and wanted in str(value).lower()
    }
    return [values[one] for one in sorted(values)[page]], len(values)


async def unique_counted(
    core: Endpoints, collection: str, fields: list[str], condition: Any
) -> dict[str, int]:
    found: dict[str, set[tuple[type, Value]]] = {key_of(field): set() for field in fields}
    async for key, value in values_of(core, collection, condition):
        if key in found:
            found[key].add((type(value), value))
    return {field: len(found[key_of(field)]) for field in fields}


def key_of(field: str) -> str:
    return field.removeprefix("meta.")


@contextlib.contextmanager
def refused_filters() -> Iterator[None]:
    """The service's refusal of a filter as Haystack's error."""
    try:
        yield
    except ServiceError as error:
        if error.status in {400, 422} and (error.param or "").startswith("filter"):
            raise FilterError(error.message) from error
        raise


# --- documents ------------------------------------------------------------------------------------------------------


def checked(documents: Sequence[Document]) -> list[dict[str, Any]]:
    """As the service takes them. Raises ValueError."""
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
    """In the service's grammar; None: everything. Raises FilterError."""
    return joined(filters) if filters else None


def joined(filters: dict[str, Any]) -> dict[str, Any]:
    if "field" in filters:
        return comparison(filters)
    operator, conditions = part(filters, "operator"), part(filters, "conditions")
    if operator not in {"AND", "OR", "NOT"}:
        raise FilterError(f"operator: expected AND, OR or NOT beside conditions, found {operator!r}")
    parts = [joined(one) for one in conditions]
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
    if value is None:  # nothing is more or less than it
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
