"""LlamaIndex's vector store and retriever on a real service. LlamaIndex has no standard suite in its core: these tests
have the shape of those that its integrations use. Skipped without llama-index-core (the extra `frameworks`)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("llama_index.core", reason="llama-index-core weighs 100 MB; see the extra frameworks")

from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.schema import Document, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from jobs.server_process import ServerProcess
from nearline import Client, ServiceError
from nearline.llamaindex import NearlineRetriever, NearlineVectorStore

NAMES = (f"llamaindex-{number}" for number in itertools.count())


def node(name: str, text: str, source: str, **metadata: Any) -> TextNode:
    relationships = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=source)}
    return TextNode(id_=name, text=text, metadata=metadata, relationships=relationships)


NODES = [
    node("refunds", "Refunds arrive within five days.", "help", topic="money", year=2026, tags=["a", "b"]),
    node("parcels", "A lost parcel is replaced at no charge.", "help", topic="mail", year=2025, tags=["b"]),
    node("socks", "Wash woollen socks by hand.", "care", topic="care", year=2024, nested={"page": 3}),
]


@pytest.fixture
def client(service: ServerProcess) -> Iterator[Client]:
    with Client(service.url) as opened:
        yield opened


@pytest.fixture
def store(client: Client) -> NearlineVectorStore:
    made = NearlineVectorStore(next(NAMES), client=client)
    assert made.add(NODES) == ["refunds", "parcels", "socks"]
    return made


def ids_of(store: NearlineVectorStore, *filters: Any, condition: str = "and") -> set[str]:
    wanted = MetadataFilters(filters=list(filters), condition=FilterCondition(condition))
    return {one.node_id for one in store.get_nodes(filters=wanted)}


def test_nodes_come_back_as_they_were(store: NearlineVectorStore) -> None:
    """With nested metadata and relationships; an id that is absent is left out."""
    assert store.get_nodes(["socks", "absent", "refunds"]) == [NODES[2], NODES[0]]
    assert len(store.get_nodes()) == 3


def test_queries_find_nodes(store: NearlineVectorStore) -> None:
    """By the service's default, by words, or by both with a weight."""
    for mode in ("default", "hybrid", "text_search"):
        query = VectorStoreQuery(
            query_str="lost parcel", similarity_top_k=1, mode=VectorStoreQueryMode(mode), alpha=0.3
        )
        result = store.query(query)
        assert result.ids == ["parcels"]
        assert result.nodes == [NODES[1]]
        assert len(result.similarities or []) == 1
        assert asyncio.run(store.aquery(query)).ids == ["parcels"]


def test_a_long_node_is_found_once_and_whole(store: NearlineVectorStore) -> None:
    """Though the service splits it into passages."""
    text = "\n\n".join(
        f"Paragraph {number} tells of the city of Paris and its river. " * 8 for number in range(9)
    )
    store.add([TextNode(id_="paris", text=text)])
    found = store.query(VectorStoreQuery(query_str="Paris river", similarity_top_k=2)).nodes or []
    assert (found[0].node_id, found[0].get_content()) == ("paris", text)
    assert len({one.node_id for one in found}) == len(found) == 2


def test_nothing_is_no_error(client: Client) -> None:
    """No nodes, no ids, and a collection that is not there: it is made."""
    store = NearlineVectorStore(next(NAMES), client=client)
    assert store.get_nodes([]) == store.get_nodes() == store.add([]) == []
    store.delete_nodes([])
    assert store.query(VectorStoreQuery(query_str="anything")).ids == []


@pytest.mark.parametrize(
    ("operator", "key", "value", "ids"),
    [
        ("==", "topic", "money", {"refunds"}),
        ("!=", "topic", "money", {"parcels", "socks"}),
        (">", "year", 2025, {"refunds"}),
        (">=", "year", 2025, {"refunds", "parcels"}),
        ("<", "year", 2025, {"socks"}),
        ("<=", "year", 2025, {"parcels", "socks"}),
        ("in", "topic", ["money", "mail"], {"refunds", "parcels"}),
        ("nin", "topic", ["money", "mail"], {"socks"}),
        ("any", "tags", ["a", "c"], {"refunds"}),
        ("all", "tags", ["a", "b"], {"refunds"}),
        ("contains", "tags", "b", {"refunds", "parcels"}),
        ("is_empty", "tags", None, {"socks"}),
        ("==", "nested.page", 3, {"socks"}),
    ],
)
def test_filters(store: NearlineVectorStore, operator: str, key: str, value: Any, ids: set[str]) -> None:
    """Each operator selects what LlamaIndex says it does."""
    assert ids_of(store, MetadataFilter(key=key, value=value, operator=FilterOperator(operator))) == ids


def test_filters_are_joined(store: NearlineVectorStore) -> None:
    """By and, or, not, one inside another; what the service cannot do is refused."""
    money, mail = (MetadataFilter(key="topic", value=value) for value in ("money", "mail"))
    assert ids_of(store, money, mail) == set()
    assert ids_of(store, money, mail, condition="or") == {"refunds", "parcels"}
    assert ids_of(store, money, mail, condition="not") == {"socks"}
    either = MetadataFilters(filters=[money, mail], condition=FilterCondition.OR)
    late = MetadataFilter(key="year", value=2025, operator=FilterOperator.GT)
    assert ids_of(store, either, late) == {"refunds"}
    with pytest.raises(ValueError, match="filter on topic: the operator text_match"):
        ids_of(store, MetadataFilter(key="topic", value="m", operator=FilterOperator.TEXT_MATCH))
    with pytest.raises(ServiceError, match="tpoic"):
        ids_of(store, MetadataFilter(key="tpoic", value="money"))


def test_a_query_has_filters_documents_and_nodes(store: NearlineVectorStore) -> None:
    """Which all must hold; a mode that the service does not have is refused."""
    query = VectorStoreQuery(query_str="lost parcel", similarity_top_k=3, doc_ids=["help"])
    assert set(store.query(query).ids or []) == {"refunds", "parcels"}
    query.node_ids = ["refunds", "socks"]
    assert store.query(query).ids == ["refunds"]
    with pytest.raises(ValueError, match="mode: mmr"):
        store.query(VectorStoreQuery(query_str="a", mode=VectorStoreQueryMode.MMR))


def test_deletion(store: NearlineVectorStore) -> None:
    """Of a source, of nodes, by a filter, of everything; a source without nodes is no error."""
    store.delete("absent")
    store.delete("care")
    assert {one.node_id for one in store.get_nodes()} == {"refunds", "parcels"}
    with pytest.raises(ValueError, match="clear"):
        store.delete_nodes()
    store.delete_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="topic", value="mail")]))
    assert {one.node_id for one in store.get_nodes()} == {"refunds"}
    store.delete_nodes(["refunds", "absent"])
    store.add(NODES)
    store.clear()
    assert store.get_nodes() == []
    store.delete("help")


def test_the_async_methods(client: Client) -> None:
    """Do the same on an event loop."""

    async def story() -> None:
        store = NearlineVectorStore(next(NAMES), client=client)
        await store.async_add(NODES)
        assert await store.aget_nodes(["refunds"]) == [NODES[0]]
        await store.adelete("care")
        await store.adelete_nodes(["parcels"])
        assert await store.aget_nodes() == [NODES[0]]
        await store.aclear()
        assert await store.aget_nodes() == []

    asyncio.run(story())


def test_an_index_on_the_store(client: Client) -> None:
    """VectorStoreIndex writes and finds without embeddings of its own, and deletes by document."""
    store = NearlineVectorStore(next(NAMES), client=client)
    index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(embed_dim=1))
    for name, text in (("a", "Refunds arrive within five days."), ("b", "Wash woollen socks by hand.")):
        index.insert(Document(id_=name, text=text))
    (found,) = index.as_retriever(similarity_top_k=1).retrieve("when do I get my money back")
    assert (found.node.ref_doc_id, found.text) == ("a", "Refunds arrive within five days.")
    index.delete_ref_doc("a")
    assert [one.ref_doc_id for one in store.get_nodes()] == ["b"]


def test_own_vectors(client: Client) -> None:
    """Nodes and queries have the vectors that LlamaIndex gives them."""
    store = NearlineVectorStore(next(NAMES), client=client, own_vectors=True)
    for at, name in enumerate(("x", "y")):
        store.add([TextNode(id_=name, text=name, embedding=[float(at == place) for place in range(384)])])
    query = VectorStoreQuery(query_embedding=[0.0, 1.0] + [0.0] * 382, similarity_top_k=1)
    assert store.query(query).ids == ["y"]


def test_the_retriever_returns_passages(store: NearlineVectorStore, client: Client) -> None:
    """With their place in the document, its metadata, and how good they are, which no prompt shows."""
    retriever = NearlineRetriever(store.collection, url=client.url, k=1)
    (found,) = retriever.retrieve("lost parcel")
    assert (found.node.node_id, found.node.ref_doc_id) == ("parcels:0", "parcels")
    assert isinstance(found.node, TextNode)
    assert NODES[1].text[found.node.start_char_idx : found.node.end_char_idx] == found.text
    assert found.metadata["topic"] == "mail"
    assert 0 <= found.metadata["nearline"]["relevance"] <= 1
    assert not {key for key in found.metadata if key.startswith("_node")}
    assert "relevance" not in found.node.get_content("llm")
    (same,) = asyncio.run(retriever.aretrieve("lost parcel"))
    assert same == found


def test_the_retriever_has_the_options_of_a_search(store: NearlineVectorStore, client: Client) -> None:
    """And filters of LlamaIndex."""
    late = MetadataFilters(filters=[MetadataFilter(key="year", value=2025, operator=FilterOperator.LT)])
    retriever = NearlineRetriever(store.collection, client=client, filters=late, mode="hybrid", rerank=True)
    assert [one.node.ref_doc_id for one in retriever.retrieve("lost parcel")] == ["socks"]
    strict = NearlineRetriever(store.collection, client=client, min_relevance=0.5)
    assert strict.retrieve("quantum chromodynamics") == []
