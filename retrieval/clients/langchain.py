"""LangChain: `NearlineVectorStore` and `NearlineRetriever`. Needs the extra `langchain`.

    store = NearlineVectorStore("docs", url="http://127.0.0.1:8080")
    store.add_documents([Document("Refunds take five days.", id="refunds")])
    retriever = NearlineRetriever(collection="docs", k=5, rerank=True)

The service embeds texts and splits long documents; searches return passages. A passage's `id` is that of its
document, and `get_by_ids` returns the whole document.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field, PrivateAttr

from retrieval.clients.client import Client
from retrieval.clients.mongo_filters import condition_of
from retrieval.clients.stores import (
    CollectionStore,
    check_options,
    provenance,
    read_documents,
    remove,
    remove_matching,
    search_hits,
    several,
    without_blanks,
    without_none,
    write_with_text,
)

if TYPE_CHECKING:
    from retrieval.clients.wire.answers import Hit
    from retrieval.clients.wire.records import DocumentBody

K = 4  # LangChain's own default
PROVENANCE_KEY = "nearline"


class NearlineVectorStore(VectorStore):
    """A collection as LangChain's vector store.

    Searches take the options of the service's own search as keyword arguments (`filter`, `mode`, `rerank`,
    `min_relevance`, `group_by_document` and so on); options given to the constructor apply to all searches. Filters
    are plain dictionaries, {"lang": "en", "price": {"$lt": 3}}, or in the service's grammar. Methods that call the
    service raise ServiceError.
    """

    def __init__(
        self,
        collection: str,
        *,
        url: str | None = None,
        client: Client | None = None,
        embedding: Embeddings | None = None,
        **search: Any,
    ) -> None:
        """The collection is created on first use if it does not exist.

        `embedding` makes the vectors instead of the service, one per document of any length. The collection is then
        made for them; one that exists must have as many dimensions. Raises TypeError for unknown search options.
        """
        check_options(search)
        own = embedding is not None
        self._store = CollectionStore(collection, url=url, client=client, create=True, own_vectors=own)
        self._embedding = embedding
        self._search = search

    @property
    def embeddings(self) -> Embeddings | None:
        return self._embedding

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        collection: str = "langchain",
        **options: Any,
    ) -> Self:
        """Create a store with these texts. `options` are those of the constructor."""
        store = cls(collection, embedding=embedding, **options)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        collection: str = "langchain",
        **options: Any,
    ) -> Self:
        store = cls(collection, embedding=embedding, **options)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    # -- documents

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        batch_size: int | None = None,
    ) -> list[str]:
        """Write texts durably and return their ids, in order.

        A known id replaces its document; a text without an id gets a new one. A blank text, which no search could
        find, is not stored, and any document with its id is deleted; a warning names it. `batch_size` has no effect:
        requests have the size that suits the service. Raises RefusedDocument for the first text that the service
        refuses, after storing all others.
        """
        documents = documents_of(texts, metadatas, ids)
        full = without_blanks(documents)
        if self._embedding is not None:
            add_vectors(full, self._embedding.embed_documents([one["text"] for one in full]))
        self._store.run(write_with_text, documents)
        return [one["id"] for one in documents]

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        batch_size: int | None = None,
    ) -> list[str]:
        documents = documents_of(texts, metadatas, ids)
        full = without_blanks(documents)
        if self._embedding is not None:
            add_vectors(full, await self._embedding.aembed_documents([one["text"] for one in full]))
        await self._store.awaited(write_with_text, documents)
        return [one["id"] for one in documents]

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return whole documents, without those that do not exist."""
        return [whole(one) for one in self._store.run(read_documents, ids)]

    async def aget_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        return [whole(one) for one in await self._store.awaited(read_documents, ids)]

    def delete(self, ids: Sequence[str] | None = None, *, filter: Any = None) -> bool:  # noqa: A002
        """Delete by ids or by a filter; with neither, all documents."""
        if ids is not None:
            self._store.run(remove, one_of(ids, filter))
        else:
            self._store.run(remove_matching, delete_condition(filter))
        return True

    async def adelete(self, ids: Sequence[str] | None = None, *, filter: Any = None) -> bool:  # noqa: A002
        if ids is not None:
            await self._store.awaited(remove, one_of(ids, filter))
        else:
            await self._store.awaited(remove_matching, delete_condition(filter))
        return True

    # -- search by a query

    def similarity_search(self, query: str, k: int = K, **search: Any) -> list[Document]:
        """Return passages, best first, with the metadata of their documents."""
        return [passage(hit) for hit in self._hits(query, k, search)]

    async def asimilarity_search(self, query: str, k: int = K, **search: Any) -> list[Document]:
        return [passage(hit) for hit in await self._ahits(query, k, search)]

    def similarity_search_with_score(
        self, query: str, k: int = K, **search: Any
    ) -> list[tuple[Document, float]]:
        """Return passages with the service's scores: higher is better, comparable only within one search."""
        return with_scores(self._hits(query, k, search))

    async def asimilarity_search_with_score(
        self, query: str, k: int = K, **search: Any
    ) -> list[tuple[Document, float]]:
        return with_scores(await self._ahits(query, k, search))

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = K, **search: Any
    ) -> list[tuple[Document, float]]:
        """Return hits with their relevance, from 0 to 1, so that a `score_threshold` means the same in every search."""
        return with_relevance(self._hits(query, k, search))

    async def _asimilarity_search_with_relevance_scores(
        self, query: str, k: int = K, **search: Any
    ) -> list[tuple[Document, float]]:
        return with_relevance(await self._ahits(query, k, search))

    def max_marginal_relevance_search(
        self, query: str, k: int = K, fetch_k: int = 0, lambda_mult: float = 0.5, **search: Any
    ) -> list[Document]:
        """Return diverse passages. The service chooses among its first 128 candidates, regardless of `fetch_k`."""
        return [passage(hit) for hit in self._hits(query, k, {"mmr": lambda_mult, **search})]

    async def amax_marginal_relevance_search(
        self, query: str, k: int = K, fetch_k: int = 0, lambda_mult: float = 0.5, **search: Any
    ) -> list[Document]:
        return [passage(hit) for hit in await self._ahits(query, k, {"mmr": lambda_mult, **search})]

    def _hits(self, query: str, k: int, search: dict[str, Any]) -> list[Hit]:
        wanted = self._wanted({"query": query, "k": k, **search})
        if self._embedding is not None and wanted.get("mode") != "lexical":
            wanted.setdefault("vector", self._embedding.embed_query(query))
        return self._store.run(search_hits, wanted)

    async def _ahits(self, query: str, k: int, search: dict[str, Any]) -> list[Hit]:
        wanted = self._wanted({"query": query, "k": k, **search})
        if self._embedding is not None and wanted.get("mode") != "lexical":
            wanted.setdefault("vector", await self._embedding.aembed_query(query))
        return await self._store.awaited(search_hits, wanted)

    # -- search by a vector, dense only

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = K, **search: Any
    ) -> list[Document]:
        return [passage(hit) for hit in self._hits_near(embedding, k, search)]

    async def asimilarity_search_by_vector(
        self, embedding: list[float], k: int = K, **search: Any
    ) -> list[Document]:
        return [passage(hit) for hit in await self._ahits_near(embedding, k, search)]

    def similarity_search_with_score_by_vector(
        self, embedding: list[float], k: int = K, **search: Any
    ) -> list[tuple[Document, float]]:
        """Return hits with their cosine similarity."""
        return with_scores(self._hits_near(embedding, k, search))

    async def asimilarity_search_with_score_by_vector(
        self, embedding: list[float], k: int = K, **search: Any
    ) -> list[tuple[Document, float]]:
        return with_scores(await self._ahits_near(embedding, k, search))

    def similarity_search_by_vector_with_relevance_scores(
        self, embedding: list[float], k: int = K, **search: Any
    ) -> list[tuple[Document, float]]:
        """Return hits with their cosine similarity, 0 where it is negative."""
        return with_relevance(self._hits_near(embedding, k, search))

    async def asimilarity_search_by_vector_with_relevance_scores(
        self, embedding: list[float], k: int = K, **search: Any
    ) -> list[tuple[Document, float]]:
        return with_relevance(await self._ahits_near(embedding, k, search))

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = K, fetch_k: int = 0, lambda_mult: float = 0.5, **search: Any
    ) -> list[Document]:
        return [passage(hit) for hit in self._hits_near(embedding, k, {"mmr": lambda_mult, **search})]

    async def amax_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = K, fetch_k: int = 0, lambda_mult: float = 0.5, **search: Any
    ) -> list[Document]:
        return [passage(hit) for hit in await self._ahits_near(embedding, k, {"mmr": lambda_mult, **search})]

    def _hits_near(self, vector: list[float], k: int, search: dict[str, Any]) -> list[Hit]:
        wanted = self._wanted({"vector": vector, "k": k, "mode": "dense", **search})
        return self._store.run(search_hits, wanted)

    async def _ahits_near(self, vector: list[float], k: int, search: dict[str, Any]) -> list[Hit]:
        wanted = self._wanted({"vector": vector, "k": k, "mode": "dense", **search})
        return await self._store.awaited(search_hits, wanted)

    def _wanted(self, search: dict[str, Any]) -> dict[str, Any]:
        return with_condition({**self._search, **search})


class NearlineRetriever(BaseRetriever):
    """Searches a collection. The fields are the options of the service's search; `options` holds any others.

    Each document's metadata has under `nearline` the passage's source (`document_id`, `passage`, `start`, `end`,
    `title`, `heading`) and quality (`score`, `relevance`). `invoke` takes the same options as keyword arguments, and
    another `collection`, for one search. Changed fields apply from the next search on; unknown fields are refused.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    collection: str
    url: str | None = None
    client: Client | None = Field(default=None, exclude=True, repr=False)
    k: int = K
    mode: Literal["hybrid", "dense", "lexical"] | None = None
    filter: dict[str, Any] | None = None
    rerank: bool | dict[str, Any] | None = None
    min_relevance: float | None = None
    group_by_document: bool | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    # By url. Copies of the retriever share the clients, even if they search another collection.
    _stores: dict[str | None, CollectionStore] = PrivateAttr(default_factory=dict)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **search: Any
    ) -> list[Document]:
        store, wanted = self._planned(query, **search)
        return [passage(hit, with_provenance=True) for hit in store.run(search_hits, wanted)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **search: Any
    ) -> list[Document]:
        store, wanted = self._planned(query, **search)
        return [passage(hit, with_provenance=True) for hit in await store.awaited(search_hits, wanted)]

    def _planned(
        self, query: str, *, collection: str | None = None, **search: Any
    ) -> tuple[CollectionStore, dict[str, Any]]:
        """Return where to search and what for, from the current fields."""
        if self.client is None and self.url not in self._stores:
            self._stores[self.url] = CollectionStore(self.collection, url=self.url, client=None, create=False)
        client = self.client or self._stores[self.url].client
        store = CollectionStore(collection or self.collection, url=None, client=client, create=False)
        names = ("k", "mode", "filter", "rerank", "min_relevance", "group_by_document")
        fields = without_none({name: getattr(self, name) for name in names})
        return store, with_condition({**fields, **self.options, "query": query, **search})


def documents_of(
    texts: Iterable[str], metadatas: Sequence[dict[str, Any]] | None, ids: Sequence[str | None] | None
) -> list[dict[str, Any]]:
    """Return documents as the service takes them. Raises ValueError if the lists differ in length."""
    texts = list(several(texts))
    for name, others in (("metadatas", metadatas), ("ids", ids)):
        if others is not None and len(others) != len(texts):
            raise ValueError(f"{name}: expected as many as texts, {len(texts)}, found {len(others)}")
    return [
        {"id": document_id or str(uuid.uuid4()), "text": text, "metadata": metadata}
        for text, metadata, document_id in zip(
            texts, metadatas or [{}] * len(texts), ids or [None] * len(texts)
        )
    ]


def add_vectors(documents: list[dict[str, Any]], vectors: list[list[float]]) -> None:
    for document, vector in zip(documents, vectors, strict=True):
        document["vector"] = vector


def one_of(ids: Sequence[str], condition: Any) -> Sequence[str]:
    if condition is not None:
        raise ValueError("delete: expected ids or filter, found both")
    return ids


def delete_condition(given: Any) -> dict[str, Any] | None:
    condition = condition_of(given)
    if condition is None and given is not None:
        raise ValueError("delete: the filter is empty; to delete all documents, give none")
    return condition


def with_condition(search: dict[str, Any]) -> dict[str, Any]:
    """Return the search with its filter in the service's grammar."""
    condition = condition_of(search.pop("filter", None))
    return search if condition is None else {**search, "filter": condition}


def passage(hit: Hit, *, with_provenance: bool = False) -> Document:
    metadata: dict[str, Any] = dict(hit["metadata"])
    if with_provenance:
        metadata[PROVENANCE_KEY] = provenance(hit)
    return Document(id=hit["document_id"], page_content=hit["text"], metadata=metadata)


def whole(document: DocumentBody) -> Document:
    return Document(id=document["id"], page_content=document["text"], metadata=dict(document["metadata"]))


def with_scores(hits: list[Hit]) -> list[tuple[Document, float]]:
    return [(passage(hit), hit["score"]) for hit in hits]


def with_relevance(hits: list[Hit]) -> list[tuple[Document, float]]:
    return [(passage(hit), relevance_of(hit)) for hit in hits]


def relevance_of(hit: Hit) -> float:
    """Return the relevance, from 0 to 1. The service has none for a search by the caller's own vector alone; then it
    is LangChain's value for cosine similarity."""
    relevance = hit.get("relevance")
    return relevance if relevance is not None else min(1.0, max(0.0, hit["scores"]["dense"] or 0.0))
