"""LlamaIndex: `NearlineVectorStore` and `NearlineRetriever`. Needs the extra `llama-index`.

    retriever = NearlineRetriever("docs", url="http://127.0.0.1:8080", k=5)
    store = NearlineVectorStore("nodes", url="http://127.0.0.1:8080")
    index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(embed_dim=1))

The retriever searches any collection and returns passages. The vector store stores nodes and returns them whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.span import BaseSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.schema import (
    BaseNode,
    NodeWithScore,
    QueryBundle,
    TransformComponent,
)
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)

from retrieval.clients.client import Client
from retrieval.clients.errors import ServiceError
from retrieval.clients.llamaindex_nodes import (
    SOURCE,
    document_of,
    expanded_document,
    is_cut,
    node_of,
    passage,
)
from retrieval.clients.llamaindex_queries import condition_of, narrow, search_of
from retrieval.clients.stores import (
    CollectionStore,
    check_options,
    matching,
    read_documents,
    remove,
    remove_matching,
    search_hits,
    without_blanks,
    write_with_text,
)

if TYPE_CHECKING:
    from retrieval.clients.endpoints import Endpoints

K = 2  # LlamaIndex's own default
# Entries of a store's dictionary that follow from the others.
DERIVED = {"class_name", "stores_text", "is_embedding_query"}


class NearlineVectorStore(BasePydanticVectorStore):
    """A collection of nodes, created on first use if it does not exist. Methods that call the service raise
    ServiceError.

    The service embeds nodes and queries, so the nodes' own embeddings are not used; with `own_vectors` they are, and
    need as many dimensions as the collection's model.

    The store can be pickled and restored from its `to_dict`; neither holds an access key, so NEARLINE_KEY is used
    then.
    """

    stores_text: bool = True
    is_embedding_query: bool = False
    collection: str
    url: str | None = None
    own_vectors: bool = Field(default=False, frozen=True)

    _reached: CollectionStore = PrivateAttr()

    def __init__(
        self,
        collection: str,
        *,
        url: str | None = None,
        client: Client | None = None,
        own_vectors: bool = False,
        **derived: Any,
    ) -> None:
        """`derived` takes the other fields of `to_dict`. Raises TypeError for anything else."""
        if unknown := derived.keys() - DERIVED:
            raise TypeError(f"unexpected arguments {', '.join(sorted(unknown))}")
        store = CollectionStore(collection, url=url, client=client, create=True, own_vectors=own_vectors)
        super().__init__(
            collection=collection,
            url=store.client.url,
            own_vectors=own_vectors,
            is_embedding_query=own_vectors,
        )
        self._reached = store

    @property
    def _store(self) -> CollectionStore:
        """Return the store that the fields name now, so that a changed collection takes effect."""
        reached = self._reached
        if (self.collection, self.url) != (reached.collection, reached.client.url):
            client = reached.client if self.url == reached.client.url else None
            self._reached = CollectionStore(
                self.collection, url=self.url, client=client, create=True, own_vectors=self.own_vectors
            )
        return self._reached

    def __getstate__(self) -> dict[str, Any]:
        """Return what LlamaIndex's `__setstate__` passes to the constructor."""
        return {"__dict__": {"collection": self.collection, "url": self.url, "own_vectors": self.own_vectors}}

    @classmethod
    def class_name(cls) -> str:
        return "NearlineVectorStore"

    @property
    def client(self) -> Client:
        return self._store.client

    # -- nodes

    def add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        """Write nodes durably and return their ids, in order. A known id replaces its node.

        A node with a blank text, which no search could find, is not stored, and any node with its id is deleted; a
        warning names it. Raises RefusedDocument for the first node that the service refuses, after storing all
        others.
        """
        documents = self._documents(nodes)
        without_blanks(documents)
        self._store.run(write_with_text, documents)
        return [node.node_id for node in nodes]

    async def async_add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        documents = self._documents(nodes)
        without_blanks(documents)
        await self._store.awaited(write_with_text, documents)
        return [node.node_id for node in nodes]

    def _documents(self, nodes: Sequence[BaseNode]) -> list[dict[str, Any]]:
        return [document_of(node, with_vector=self.own_vectors) for node in nodes]

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return the nodes with these ids, or those that match the filters; with neither, all."""
        if node_ids is not None and filters is None:
            return [node_of(one) for one in self._store.run(read_documents, node_ids)]
        return [node_of(one) for one in self._store.run(matching, condition_of(filters, node_ids=node_ids))]

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        if node_ids is not None and filters is None:
            return [node_of(one) for one in await self._store.awaited(read_documents, node_ids)]
        condition = condition_of(filters, node_ids=node_ids)
        return [node_of(one) for one in await self._store.awaited(matching, condition)]

    def delete(self, ref_doc_id: str, **_: Any) -> None:
        """Delete the nodes of this document."""
        self._store.run(remove_source, ref_doc_id)

    async def adelete(self, ref_doc_id: str, **_: Any) -> None:
        await self._store.awaited(remove_source, ref_doc_id)

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **_: Any
    ) -> None:
        """Delete nodes that have these ids and match the filters. Raises ValueError for neither: `clear` deletes
        all."""
        if node_ids is not None and filters is None:
            self._store.run(remove, node_ids)
        else:
            self._store.run(remove_matching, some(condition_of(filters, node_ids=node_ids)))

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **_: Any
    ) -> None:
        if node_ids is not None and filters is None:
            await self._store.awaited(remove, node_ids)
        else:
            await self._store.awaited(remove_matching, some(condition_of(filters, node_ids=node_ids)))

    def clear(self) -> None:
        self._store.run(remove_matching, None)

    async def aclear(self) -> None:
        await self._store.awaited(remove_matching, None)

    # -- search

    def query(self, query: VectorStoreQuery, **search: Any) -> VectorStoreQueryResult:
        """Return whole nodes, each once, best first; `similarities` are the service's scores.

        `search` takes options of the service's search, or LlamaIndex's `mmr_threshold`. Raises ValueError for what
        the service does not support: the learned modes, and filters by text.
        """
        return self._store.run(search_nodes, search_of(query, search, own_vectors=self.own_vectors))

    async def aquery(self, query: VectorStoreQuery, **search: Any) -> VectorStoreQueryResult:
        wanted = search_of(query, search, own_vectors=self.own_vectors)
        return await self._store.awaited(search_nodes, wanted)


class NearlineRetriever(BaseRetriever):
    """Searches any collection; the service embeds the query.

    Each node is a passage; `start_char_idx` and `end_char_idx` are its position in the document `ref_doc_id`. Its
    metadata is the document's; under `nearline` it has the passage's quality (`score`, `relevance`) and source.
    """

    def __init__(
        self,
        collection: str,
        *,
        url: str | None = None,
        client: Client | None = None,
        k: int = K,
        filters: MetadataFilters | None = None,
        **search: Any,
    ) -> None:
        """`search` takes options of the service's search, such as `mode`, `rerank`, `min_relevance`,
        `group_by_document`, or a `filter` in its own grammar, which is combined with `filters`. Raises TypeError for
        anything else."""
        super().__init__()
        check_options(search)
        self._store = CollectionStore(collection, url=url, client=client, create=False)
        self._search = narrow({"k": k, **search}, condition_of(filters))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [passage(hit) for hit in self._store.run(search_hits, self._wanted(query_bundle))]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [passage(hit) for hit in await self._store.awaited(search_hits, self._wanted(query_bundle))]

    def _wanted(self, query: QueryBundle) -> dict[str, Any]:
        return {**self._search, "query": query.query_str}


async def search_nodes(core: Endpoints, collection: str, search: dict[str, Any]) -> VectorStoreQueryResult:
    """Search in one request, with one more for each document that is longer than `expand` shows."""
    hits = await search_hits(core, collection, {**search, "group_by_document": True, "expand": "document"})
    cut = [hit["document_id"] for hit in hits if is_cut(hit)]
    whole: dict[str, Mapping[str, Any]] = {
        one["id"]: one for one in await read_documents(core, collection, cut)
    }
    whole |= {hit["document_id"]: expanded_document(hit) for hit in hits if not is_cut(hit)}
    kept = [hit for hit in hits if hit["document_id"] in whole]  # without those deleted in between
    return VectorStoreQueryResult(
        nodes=[node_of(whole[hit["document_id"]]) for hit in kept],
        similarities=[hit["score"] for hit in kept],
        ids=[hit["document_id"] for hit in kept],
    )


async def remove_source(core: Endpoints, collection: str, ref_doc_id: str) -> None:
    try:
        wanted = {"type": "eq", "key": SOURCE, "value": ref_doc_id, "literal": True}
        await remove_matching(core, collection, wanted)
    except ServiceError as error:
        if error.status != 422:  # no document has the key
            raise


def some(condition: dict[str, Any] | None) -> dict[str, Any]:
    if condition is None:
        raise ValueError("delete_nodes: expected node_ids or filters; clear deletes all nodes")
    return condition


# -- pipelines


class EmbedInService(TransformComponent):
    """The last step of a pipeline into a NearlineVectorStore: keeps nodes without an embedding. A pipeline passes
    its store only nodes with an embedding. An empty embedding means that the service makes it."""

    own_vectors: bool

    def __call__(self, nodes: Sequence[BaseNode], **_: Any) -> Sequence[BaseNode]:
        """Return copies of the nodes it changes. Raises ValueError if nodes must bring their vectors but do not."""
        bare = sum(node.embedding is None for node in nodes)
        if bare and self.own_vectors:
            raise ValueError(
                f"{bare} of {len(nodes)} nodes have no embedding, which own_vectors needs: add an embedding model to "
                "the transformations"
            )
        return [
            node if node.embedding is not None else node.model_copy(update={"embedding": []})
            for node in nodes
        ]


class PipelineHandler(BaseSpanHandler[BaseSpan]):
    """Adds EmbedInService to each pipeline into a NearlineVectorStore when it starts.

    LlamaIndex's pipeline silently drops nodes without an embedding before a store sees them. This instrumentation is
    the only hook that runs before that.
    """

    def new_span(
        self,
        id_: str,
        bound_args: Any,
        instance: Any = None,
        parent_span_id: str | None = None,
        tags: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if not isinstance(instance, IngestionPipeline):
            return
        store, steps = instance.vector_store, instance.transformations
        others = [one for one in steps if not isinstance(one, EmbedInService)]
        if isinstance(store, NearlineVectorStore):
            instance.transformations = [*others, EmbedInService(own_vectors=store.own_vectors)]
        elif len(others) < len(steps):  # the pipeline had one of our stores before
            instance.transformations = others

    def prepare_to_exit_span(self, *_: Any, **__: Any) -> None:
        """There are no spans to keep."""

    def prepare_to_drop_span(self, *_: Any, **__: Any) -> None:
        """There are no spans to keep."""


get_dispatcher(IngestionPipeline.__module__).add_span_handler(PipelineHandler())
