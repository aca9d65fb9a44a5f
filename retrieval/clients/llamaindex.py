"""LlamaIndex: `NearlineVectorStore` and `NearlineRetriever`. Needs the extra `llama-index`.

    retriever = NearlineRetriever("docs", url="http://127.0.0.1:8080", k=5)
    store = NearlineVectorStore("nodes", url="http://127.0.0.1:8080")
    index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(embed_dim=1))

The retriever searches any collection and returns passages. The vector store keeps nodes and returns them whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

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

K = 2  # LlamaIndex's own default
CONTENT, KIND, SOURCE, NODE = "_node_content", "_node_type", "ref_doc_id", "node_id"
BOOKKEEPING = {CONTENT, KIND, SOURCE, NODE}  # metadata that this module adds
PROVENANCE_KEY = "nearline"
MODES = {
    VectorStoreQueryMode.HYBRID: "hybrid",
    VectorStoreQueryMode.SEMANTIC_HYBRID: "hybrid",
    VectorStoreQueryMode.TEXT_SEARCH: "lexical",
    VectorStoreQueryMode.SPARSE: "lexical",
}
COMPARISONS = {
    FilterOperator.EQ: "eq",
    FilterOperator.NE: "ne",
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
    FilterOperator.IN: "in",
    FilterOperator.NIN: "nin",
    FilterOperator.ANY: "in",  # the service compares each value of a list
    FilterOperator.CONTAINS: "eq",
}


class NearlineVectorStore(BasePydanticVectorStore):
    """A collection of nodes, made on first use if it is absent. Everything that reaches the service raises
    ServiceError.

    The service embeds nodes and queries, so the embeddings that LlamaIndex gives nodes are not used; with
    `own_vectors` they are, and need as many dimensions as the collection's model.
    """

    stores_text: bool = True
    is_embedding_query: bool = False
    collection: str
    own_vectors: bool = False

    _store: Store = PrivateAttr()

    def __init__(
        self,
        collection: str,
        *,
        url: str | None = None,
        client: Client | None = None,
        own_vectors: bool = False,
    ) -> None:
        super().__init__(collection=collection, own_vectors=own_vectors, is_embedding_query=own_vectors)
        self._store = Store(collection, url=url, client=client, create=True)

    @classmethod
    def class_name(cls) -> str:
        return "NearlineVectorStore"

    @property
    def client(self) -> Client:
        return self._store.client

    # -- nodes

    def add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        """Durable and searchable when it returns. A known id replaces its node. Returns the ids."""
        self._store.run(written, self._documents(nodes))
        return [node.node_id for node in nodes]

    async def async_add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        await self._store.awaited(written, self._documents(nodes))
        return [node.node_id for node in nodes]

    def _documents(self, nodes: Sequence[BaseNode]) -> list[dict[str, Any]]:
        return [document_of(node, with_vector=self.own_vectors) for node in nodes]

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Those with these ids, or that match the filters; with neither, all."""
        if node_ids is not None and filters is None:
            return [node_of(one) for one in self._store.run(stored, node_ids)]
        return [node_of(one) for one in self._store.run(matching, condition_of(filters, node_ids=node_ids))]

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        if node_ids is not None and filters is None:
            return [node_of(one) for one in await self._store.awaited(stored, node_ids)]
        condition = condition_of(filters, node_ids=node_ids)
        return [node_of(one) for one in await self._store.awaited(matching, condition)]

    def delete(self, ref_doc_id: str, **_: Any) -> None:
        """The nodes made of this document."""
        self._store.run(removed_source, ref_doc_id)

    async def adelete(self, ref_doc_id: str, **_: Any) -> None:
        await self._store.awaited(removed_source, ref_doc_id)

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **_: Any
    ) -> None:
        """Those with these ids and that match the filters. Raises ValueError for neither: `clear` deletes all."""
        if node_ids is not None and filters is None:
            self._store.run(removed, node_ids)
        else:
            self._store.run(removed_matching, some(condition_of(filters, node_ids=node_ids)))

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **_: Any
    ) -> None:
        if node_ids is not None and filters is None:
            await self._store.awaited(removed, node_ids)
        else:
            await self._store.awaited(removed_matching, some(condition_of(filters, node_ids=node_ids)))

    def clear(self) -> None:
        self._store.run(removed_matching, None)

    async def aclear(self) -> None:
        await self._store.awaited(removed_matching, None)

    # -- search

    def query(self, query: VectorStoreQuery, **search: Any) -> VectorStoreQueryResult:
        """Nodes, best first, each once and whole; `similarities` are the service's scores.

        `search` are options of the service's search. Raises ValueError for what the service does not do: MMR, the
        learned modes, and filters by text.
        """
        return self._store.run(nodes_found, {**search_of(query, own_vectors=self.own_vectors), **search})

    async def aquery(self, query: VectorStoreQuery, **search: Any) -> VectorStoreQueryResult:
        wanted = {**search_of(query, own_vectors=self.own_vectors), **search}
        return await self._store.awaited(nodes_found, wanted)


class NearlineRetriever(BaseRetriever):
    """Searches any collection; the service embeds the query.

    Each node is a passage, `start_char_idx` and `end_char_idx` its place in the document that `ref_doc_id` names. Its
    metadata is the document's, and says under `nearline` how good the passage is (`score`, `relevance`) and where it
    is from.
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
        """`search`: options of the service's search, such as `mode`, `rerank`, `min_relevance`, `group_by_document`, or
        a `filter` in its own grammar in place of `filters`."""
        super().__init__()
        self._store = Store(collection, url=url, client=client, create=False)
        condition = condition_of(filters)
        self._search = {"k": k, **({} if condition is None else {"filter": condition}), **search}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [passage(hit) for hit in self._store.run(found, self._wanted(query_bundle))]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [passage(hit) for hit in await self._store.awaited(found, self._wanted(query_bundle))]

    def _wanted(self, query: QueryBundle) -> dict[str, Any]:
        return {**self._search, "query": query.query_str}


def document_of(node: BaseNode, *, with_vector: bool) -> dict[str, Any]:
    """A node as the service takes it: the text in its place, and all else in the metadata."""
    metadata = node_to_metadata_dict(node, remove_text=True)
    for copy in ("document_id", "doc_id"):  # of SOURCE, under the names that other stores filter by
        if copy not in node.metadata:
            del metadata[copy]
    if node.ref_doc_id is None:
        del metadata[SOURCE]
    document: dict[str, Any] = {
        "id": node.node_id,
        "text": node.get_content(metadata_mode=MetadataMode.NONE),
        "metadata": {**metadata, **node.metadata, NODE: node.node_id},
    }
    if with_vector:
        document["vector"] = plain(node.get_embedding())
    return document


def node_of(document: DocumentBody) -> BaseNode:
    """The node as it was added; of a document that was written otherwise, a node with its text and metadata."""
    if CONTENT not in document["metadata"]:
        return TextNode(id_=document["id"], text=document["text"], metadata=dict(document["metadata"]))
    node: BaseNode = metadata_dict_to_node(document["metadata"], text=document["text"])
    return node


def passage(hit: Hit) -> NodeWithScore:
    metadata = {key: value for key, value in hit["metadata"].items() if key not in BOOKKEEPING}
    node = TextNode(
        id_=f"{hit['document_id']}:{hit['passage']}",
        text=hit["text"],
        start_char_idx=hit["start"],
        end_char_idx=hit["end"],
        metadata={**metadata, PROVENANCE_KEY: provenance(hit)},
        excluded_llm_metadata_keys=[PROVENANCE_KEY],
        excluded_embed_metadata_keys=[PROVENANCE_KEY],
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=hit["document_id"])},
    )
    return NodeWithScore(node=node, score=hit["score"])


async def nodes_found(core: Endpoints, collection: str, search: dict[str, Any]) -> VectorStoreQueryResult:
    scores = {
        hit["document_id"]: hit["score"]
        for hit in await found(core, collection, {**search, "group_by_document": True})
    }
    documents = await stored(core, collection, list(scores))
    return VectorStoreQueryResult(
        nodes=[node_of(one) for one in documents],
        similarities=[scores[one["id"]] for one in documents],
        ids=[one["id"] for one in documents],
    )


async def removed_source(core: Endpoints, collection: str, ref_doc_id: str) -> None:
    try:
        await removed_matching(core, collection, {"type": "eq", "key": SOURCE, "value": ref_doc_id})
    except ServiceError as error:
        if error.status != 422:  # no document has the key
            raise


def search_of(query: VectorStoreQuery, *, own_vectors: bool) -> dict[str, Any]:
    """A query as the service takes it. DEFAULT is by the vector that is given, else as the service does by default."""
    wanted: dict[str, Any] = {"k": query.similarity_top_k}
    if query.mode != VectorStoreQueryMode.DEFAULT:
        if query.mode not in MODES:
            raise ValueError(f"mode: {query.mode.value} is not supported, only {', '.join(sorted(MODES))}")
        wanted["mode"] = MODES[query.mode]
    elif own_vectors:
        wanted["mode"] = "dense"
    if query.query_str is not None:
        wanted["query"] = query.query_str
    if own_vectors and query.query_embedding is not None:
        wanted["vector"] = plain(query.query_embedding)
    if wanted.get("mode") == "hybrid":
        wanted["k"] = query.hybrid_top_k or query.similarity_top_k
        if query.alpha is not None:
            wanted["fusion"] = {"weights": {"dense": query.alpha, "lexical": 1 - query.alpha}}
    # VectorStoreIndex means no restriction by an empty list.
    condition = condition_of(query.filters, node_ids=query.node_ids or None, sources=query.doc_ids or None)
    return wanted if condition is None else {**wanted, "filter": condition}


def condition_of(
    filters: MetadataFilters | None,
    *,
    node_ids: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
) -> dict[str, Any] | None:
    """In the service's grammar; None: everything. Raises ValueError for an operator that it does not have."""
    parts = [] if filters is None or not filters.filters else [joined(filters)]
    for key, values in ((NODE, node_ids), (SOURCE, sources)):
        if values is not None:
            parts.append({"type": "in", "key": key, "value": list(values)})
    return all_of(parts) if parts else None


def joined(filters: MetadataFilters) -> dict[str, Any]:
    parts = [joined(one) if isinstance(one, MetadataFilters) else comparison(one) for one in filters.filters]
    if filters.condition == FilterCondition.NOT:
        return {"type": "not", "filter": {"type": "or", "filters": parts}}
    if filters.condition == FilterCondition.OR:
        return {"type": "or", "filters": parts}
    return all_of(parts)


def comparison(wanted: MetadataFilter) -> dict[str, Any]:
    if wanted.operator == FilterOperator.IS_EMPTY:
        return {"type": "exists", "key": wanted.key, "value": False}
    if wanted.operator == FilterOperator.ALL:
        values = wanted.value if isinstance(wanted.value, list) else [wanted.value]
        return all_of([{"type": "eq", "key": wanted.key, "value": value} for value in values])
    if wanted.operator not in COMPARISONS:
        raise ValueError(f"filter on {wanted.key}: the operator {wanted.operator.value} is not supported")
    return {"type": COMPARISONS[wanted.operator], "key": wanted.key, "value": wanted.value}


def all_of(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return parts[0] if len(parts) == 1 else {"type": "and", "filters": parts}


def some(condition: dict[str, Any] | None) -> dict[str, Any]:
    if condition is None:
        raise ValueError("delete_nodes: expected node_ids or filters; clear deletes all nodes")
    return condition
