"""Haystack: `NearlineDocumentStore`, and the components `NearlineRetriever` and `NearlineEmbeddingRetriever`.

    store = NearlineDocumentStore("docs", url="http://127.0.0.1:8080")
    store.write_documents([Document(id="refunds", content="Refunds take five days.")])
    pipeline.add_component("retriever", NearlineRetriever(store, top_k=5))

Needs the extra `haystack`. The service embeds texts and splits long documents. The store reads whole documents, the
retriever returns passages.
"""

from __future__ import annotations

from typing import Any, Self

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy
from haystack.utils import Secret

from retrieval.clients.client import Client
from retrieval.clients.haystack_operations import (
    condition_of,
    count_matching,
    count_unique,
    delete_by_filter,
    describe_fields,
    documents_of,
    extremes,
    read_matching,
    search_passages,
    search_values,
    some,
    update_by_filter,
    write_under_policy,
)
from retrieval.clients.stores import CollectionStore, remove, remove_matching

TOP_K = 10  # Haystack's own default
KEY = "NEARLINE_KEY"
PUBLIC = "nearline.haystack"  # the module that saved pipelines name


class NearlineDocumentStore:
    """A collection as Haystack's document store, created on first use if it does not exist.

    Embeddings of documents are neither used nor stored. Methods that call the service raise ServiceError, and
    FilterError for filters that it refuses. A copy, including an unpickled one, has its own connection.
    """

    __module__ = PUBLIC

    def __init__(
        self,
        collection: str,
        *,
        url: str | None = None,
        key: Secret = Secret.from_env_var(KEY, strict=False),  # noqa: B008 - immutable, as Haystack does it
    ) -> None:
        """`url` defaults to NEARLINE_URL, else port 8080 of this machine. `key` is for services that require keys."""
        self.collection = collection
        self.url = url
        self.key = key
        client = Client(url, key=key.resolve_value())
        self._store = CollectionStore(collection, url=None, client=client, create=True)

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
        return _open, (type(self), self.collection, self.url, self.key)

    # -- documents

    def count_documents(self) -> int:
        return self._store.run(count_matching)

    async def count_documents_async(self) -> int:
        return await self._store.awaited(count_matching)

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        return self._store.run(count_matching, condition_of(filters))

    async def count_documents_by_filter_async(self, filters: dict[str, Any]) -> int:
        return await self._store.awaited(count_matching, condition_of(filters))

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return whole documents in the order of writing, all of them without filters."""
        return self._store.run(read_matching, condition_of(filters))

    async def filter_documents_async(self, filters: dict[str, Any] | None = None) -> list[Document]:
        return await self._store.awaited(read_matching, condition_of(filters))

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents durably and return how many were written. NONE overwrites.

        FAIL and SKIP check before they write: a document that another writer adds in between is overwritten. FAIL
        writes nothing if any document exists. Raises ValueError for anything but documents with text.
        """
        return self._store.run(write_under_policy, documents_of(documents), policy)

    async def write_documents_async(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        return await self._store.awaited(write_under_policy, documents_of(documents), policy)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents by id, ignoring ids that do not exist."""
        self._store.run(remove, document_ids)

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        await self._store.awaited(remove, document_ids)

    def delete_all_documents(self) -> None:
        self._store.run(remove_matching, None)

    async def delete_all_documents_async(self) -> None:
        await self._store.awaited(remove_matching, None)

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match and return how many. Raises FilterError for empty filters."""
        return self._store.run(delete_by_filter, some(condition_of(filters)))

    async def delete_by_filter_async(self, filters: dict[str, Any]) -> int:
        return await self._store.awaited(delete_by_filter, some(condition_of(filters)))

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Merge into the metadata of each matching document and return how many match. None removes a key."""
        return self._store.run(update_by_filter, some(condition_of(filters)), meta)

    async def update_by_filter_async(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        return await self._store.awaited(update_by_filter, some(condition_of(filters)), meta)

    # -- metadata: each of these reads the metadata, not the texts, of every document that matches

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Return the type of each field: `keyword`, `int`, `float` or `boolean`. A list counts as its elements. A
        field with values of several types is `float` if all are numbers, else `keyword`."""
        return self._store.run(describe_fields)

    async def get_metadata_fields_info_async(self) -> dict[str, dict[str, str]]:
        return await self._store.awaited(describe_fields)

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Return `min` and `max` of a field. Both are None if it has no values, or values that cannot be compared."""
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
        """Return a page of the distinct values in the order of their text, and their total number. A list counts as
        its elements. `search_term` matches values that contain it, ignoring case."""
        return self._store.run(
            search_values, metadata_field, search_term, slice(from_, from_ + size), condition_of(filters)
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
            search_values, metadata_field, search_term, slice(from_, from_ + size), condition_of(filters)
        )

    def count_unique_metadata_by_filter(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        """Return the number of distinct values of each field."""
        return self._store.run(count_unique, metadata_fields, condition_of(filters))

    async def count_unique_metadata_by_filter_async(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        return await self._store.awaited(count_unique, metadata_fields, condition_of(filters))

    # -- search

    def search(
        self, query: str | list[float], filters: dict[str, Any] | None, options: dict[str, Any]
    ) -> list[Document]:
        """Return passages for a text or a vector, best first."""
        return self._store.run(search_passages, query, condition_of(filters), options)

    async def search_async(
        self, query: str | list[float], filters: dict[str, Any] | None, options: dict[str, Any]
    ) -> list[Document]:
        return await self._store.awaited(search_passages, query, condition_of(filters), options)


def _open(kind: type[NearlineDocumentStore], collection: str, url: str | None, key: Secret) -> Any:
    return kind(collection, url=url, key=key)


class Retriever:
    """The settings that both retrievers share, and how they are saved.

    Each document's `id` is that of its passage (`refunds:0`), and `score` is the service's. Its metadata is the
    whole document's; under `nearline` it has the passage's source (`document_id`, `passage`, `start`, `end`,
    `title`, `heading`) and quality (`score`, `relevance`).
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
        """`search` holds options of the service's search, such as `mode`, `rerank`, `min_relevance`,
        `group_by_document`."""
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
    """Retrieves passages for a query, best first."""

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
    """Retrieves passages for the vector of a query, best first. The vector must come from the collection's own
    model, for example from a text embedder that uses this service."""

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
