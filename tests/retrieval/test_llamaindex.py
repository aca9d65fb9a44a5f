"""LlamaIndex's vector store and retriever on a real service. LlamaIndex has no standard suite in its core: these tests
have the shape of those that its integrations use. Skipped without llama-index-core (the extra `frameworks`)."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("llama_index.core", reason="llama-index-core weighs 100 MB; see the extra frameworks")

from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.schema import (
    BaseNode,
    Document,
    ImageNode,
    IndexNode,
    MediaResource,
    Node,
    NodeRelationship,
    ObjectType,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from jobs.serving.process import ServerProcess
from nearline import Client, RefusedDocument, ServiceError
from nearline.llamaindex import NearlineRetriever, NearlineVectorStore
from retrieval.clients.llamaindex_queries import condition_of
from retrieval.clients.transport import ServiceConnection

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


@pytest.fixture(scope="module")
def odd(service: ServerProcess) -> Iterator[NearlineVectorStore]:
    """For nodes of all kinds, each with an id of its own."""
    with Client(service.url) as opened:
        yield NearlineVectorStore(next(NAMES), client=opened)


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


def as_found(store: NearlineVectorStore, node_id: str) -> Any:
    query = VectorStoreQuery(query_str="anything", similarity_top_k=1, node_ids=[node_id])
    (found,) = store.query(query).nodes or []
    return found


@pytest.mark.parametrize(
    "added",
    [
        TextNode(id_="spaces", text=" \n Wool socks.\n", start_char_idx=3, end_char_idx=20),
        TextNode(
            id_="values", text="a", metadata={"none": None, "list": [1, None], "empty": [], "no": False}
        ),
        TextNode(
            id_="nested", text="a", metadata={"a": {"b": {"c": 1}, "d": None}, "a.e": 2, "z": 1, "b": {}}
        ),
        TextNode(
            id_="objects", text="a", metadata={"orders": [{"sku": 1}, {"sku": 2}], "deep": {"a": [[1]]}}
        ),
        TextNode(id_="names", text="a", metadata={"ref_doc_id": "mine", "node_id": 7, "doc_id": "x"}),
        TextNode(
            id_="templates",
            text="a",
            metadata={"z": 1, "a": 2},
            text_template="{content}",
            excluded_llm_metadata_keys=["z"],
        ),
        TextNode(
            id_="relations",
            text="a",
            metadata={"file": "f", "page": 2},
            relationships={
                NodeRelationship.SOURCE: RelatedNodeInfo(
                    node_id="s", metadata={"file": "f", "note": "n" * 300}, hash="h"
                ),
                NodeRelationship.NEXT: RelatedNodeInfo(node_id="n", metadata={"file": "f", "page": 3}),
                NodeRelationship.CHILD: [
                    RelatedNodeInfo(
                        node_id="c1", metadata={"file": "f", "page": 2}, node_type=ObjectType.TEXT
                    ),
                    RelatedNodeInfo(node_id="c2"),
                ],
            },
        ),
        IndexNode(id_="index", text="a", index_id="other", metadata={"k": 1}),
        IndexNode(id_="object", text="a", index_id="other", obj=TextNode(id_="inner", text="inner")),
        ImageNode(id_="image", text="a", image_url="http://127.0.0.1/a.png"),
        Node(id_="node", text_resource=MediaResource(text="a ", mimetype="text/x"), metadata={"k": 1}),
    ],
    ids=lambda added: added.node_id,
)
def test_a_node_comes_back_whatever_it_holds(odd: NearlineVectorStore, added: BaseNode) -> None:
    """The same by its id and by a search, down to the order of its metadata, which its hash is made of."""
    odd.add([added])
    for found in (*odd.get_nodes([added.node_id]), as_found(odd, added.node_id)):
        assert found == added
        assert type(found) is type(added)
        assert found.hash == added.hash
        assert list(found.metadata) == list(added.metadata)


def test_a_document_comes_back_as_a_node_of_text(odd: NearlineVectorStore) -> None:
    """For postprocessors and `NodeWithScore.text` know no other."""
    odd.add([Document(id_="document", text="a ", metadata={"k": 1})])
    node = TextNode(id_="document", text="a ", metadata={"k": 1})
    assert [*odd.get_nodes(["document"]), as_found(odd, "document")] == [node, node]


def test_metadata_is_stored_once(store: NearlineVectorStore, client: Client) -> None:
    """So nearly all of the 16 KB are its own, also where the source and the neighbors repeat it."""
    metadata = {"summary": "Wool shrinks in hot water. " * 550, "file": "care.md"}
    related = RelatedNodeInfo(node_id="care", metadata=metadata)
    kinds = NodeRelationship.SOURCE, NodeRelationship.PREVIOUS, NodeRelationship.NEXT
    added = TextNode(
        id_="large", text="Wool.", metadata=metadata, relationships=dict.fromkeys(kinds, related)
    )
    store.add([added])
    assert as_found(store, "large") == added
    held = client.document(store.collection, "large")["metadata"]
    assert len(json.dumps(held)) < len(json.dumps(metadata)) + 700
    with pytest.raises(RefusedDocument, match=r"'larger': metadata has .* bytes"):
        store.add([TextNode(id_="larger", text="Wool.", metadata={"summary": "x" * 17_000})])


def test_one_request_finds_nodes(store: NearlineVectorStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many; one that is longer than a search shows is read by itself, and comes back whole."""
    asked: list[str] = []
    content = ServiceConnection.content

    async def counted(self: ServiceConnection, method: str, path: str, *args: Any, **options: Any) -> bytes:
        asked.append(f"{method} {path.rsplit('/', 1)[-1]}")
        return await content(self, method, path, *args, **options)

    monkeypatch.setattr(ServiceConnection, "content", counted)
    query = VectorStoreQuery(query_str="lost parcel", similarity_top_k=3)
    assert len(store.query(query).nodes or []) == 3
    assert asked == ["POST search"]
    text = "Paris has a river, and the river has bridges.\n\n" * 1500
    store.add([TextNode(id_="long", text=text, metadata={"topic": "city"})])
    asked.clear()
    query.similarity_top_k = 4
    assert {one.node_id: len(one.get_content()) for one in store.query(query).nodes or []} == {
        "long": len(text),
        **{one.node_id: len(one.text) for one in NODES},
    }
    assert asked == ["POST search", "GET long"]


def test_blank_nodes_are_left_out_and_named(store: NearlineVectorStore) -> None:
    """The ids that come back are those of all nodes, in order."""
    nodes = [
        TextNode(id_="a", text="One."),
        TextNode(id_="socks", text=" "),
        TextNode(id_="c", text="Three."),
    ]
    with pytest.warns(UserWarning, match=r"1 of 3 texts are blank.*number 1 \('socks'\)"):
        assert store.add(nodes) == ["a", "socks", "c"]
    assert {one.node_id for one in store.get_nodes()} == {"refunds", "parcels", "a", "c"}


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
    for key, value, operator, reason in (
        ("tpoic", "money", "==", "tpoic"),
        ("topic", None, "==", "is null"),
        ("topic", "money", "in", "must be a list"),
        ("tags", ["a"], "==", "must be one value"),
        ("tags", [], "all", "at least one"),
        ("year", "2025", ">", "holds numbers"),
    ):
        with pytest.raises(ServiceError, match=reason):
            ids_of(store, MetadataFilter(key=key, value=value, operator=FilterOperator(operator)))


def test_every_operator_is_translated_or_refused() -> None:
    """Those of a newer LlamaIndex too."""
    refused = {FilterOperator.TEXT_MATCH, FilterOperator.TEXT_MATCH_INSENSITIVE}
    for operator in FilterOperator:
        wanted = MetadataFilters(filters=[MetadataFilter(key="k", value=["v"], operator=operator)])
        if operator in refused:
            with pytest.raises(ValueError, match=f"operator {operator.value} is not supported"):
                condition_of(wanted)
        else:
            assert condition_of(wanted)


def test_a_query_has_filters_documents_and_nodes(store: NearlineVectorStore) -> None:
    """Which all must hold."""
    query = VectorStoreQuery(query_str="lost parcel", similarity_top_k=3, doc_ids=["help"])
    assert set(store.query(query).ids or []) == {"refunds", "parcels"}
    query.node_ids = ["refunds", "socks"]
    assert store.query(query).ids == ["refunds"]
    query.node_ids = ["absent"]
    assert store.query(query).ids == []
    query.doc_ids, query.node_ids = ["absent"], None
    assert store.query(query).ids == []


def test_a_store_reaches_what_its_fields_say_now(store: NearlineVectorStore, client: Client) -> None:
    """Another collection, however it is set, is never answered from the one before."""
    query, mine, other = VectorStoreQuery(query_str="lost parcel"), store.collection, next(NAMES)
    NearlineVectorStore(other, client=client).add([TextNode(id_="theirs", text="Another tenant's parcel.")])
    assert store.query(query).ids == ["parcels"]
    copied = store.model_copy(update={"collection": other})
    assert copied.query(query).ids == asyncio.run(copied.aquery(query)).ids == ["theirs"]
    assert store.query(query).ids == ["parcels"]
    store.collection = other
    assert store.query(query).ids == ["theirs"]
    store.collection, store.url = mine, client.url.replace("127.0.0.1", "localhost")
    assert store.query(query).ids == ["parcels"]
    assert store.client.url == store.url
    with pytest.raises(ValueError, match="frozen"):
        store.own_vectors = True


def test_no_filter_replaces_another(store: NearlineVectorStore, client: Client) -> None:
    """One in the service's grammar holds beside LlamaIndex's, so it widens nothing."""
    help_only = MetadataFilters(filters=[MetadataFilter(key="ref_doc_id", value="help")])
    late = {"type": "lte", "key": "year", "value": 2025}
    query = VectorStoreQuery(query_str="lost parcel", similarity_top_k=3, filters=help_only)
    assert store.query(query, filter=late).ids == ["parcels"]
    retriever = NearlineRetriever(store.collection, client=client, filters=help_only, filter=late, k=3)
    assert [one.node.ref_doc_id for one in retriever.retrieve("lost parcel")] == ["parcels"]


@pytest.mark.parametrize("mode", list(VectorStoreQueryMode))
def test_each_mode_of_a_query(store: NearlineVectorStore, mode: VectorStoreQueryMode) -> None:
    """Finds, or says that it does not."""
    query = VectorStoreQuery(query_str="lost parcel", similarity_top_k=1, mode=mode)
    if mode in {"svm", "logistic_regression", "linear_regression"}:
        with pytest.raises(ValueError, match=f"mode: {mode.value} is not supported"):
            store.query(query)
    else:
        assert store.query(query).ids == ["parcels"]
    with pytest.raises(ValueError, match=r"query_str|mode"):
        store.query(VectorStoreQuery(query_embedding=[0.0], mode=mode))


def test_hits_that_differ(store: NearlineVectorStore) -> None:
    """The mode mmr lets a copy wait, the more the smaller its threshold, wherever that is given."""
    store.add([node("copy", NODES[0].text, "help")])
    copies = {"refunds", "copy"}
    query = VectorStoreQuery(
        query_str="when do refunds arrive", similarity_top_k=2, mode=VectorStoreQueryMode.MMR
    )
    assert set(store.query(query, mmr_threshold=1.0, collapse=False).ids or []) == copies
    query.mmr_threshold = 0.1
    assert len(copies & set(store.query(query).ids or [])) == 1
    assert set(asyncio.run(store.aquery(query, mmr_threshold=1.0, collapse=False)).ids or []) == copies


def test_a_store_elsewhere(store: NearlineVectorStore, client: Client) -> None:
    """Pickled, copied, or as a dictionary and back: the same collection of the same service, and no key."""
    again = [
        pickle.loads(pickle.dumps(store)),
        copy.deepcopy(store),
        NearlineVectorStore.from_dict(store.to_dict()),
        NearlineVectorStore.from_json(store.to_json(), client=client),
    ]
    for one in again:
        assert one.to_dict() == store.to_dict()
        assert one.query(VectorStoreQuery(query_str="lost parcel")).ids == ["parcels"]
    own = NearlineVectorStore("docs", client=Client(client.url, key="sesame"), own_vectors=True)
    assert NearlineVectorStore.from_dict(own.to_dict()).is_embedding_query
    assert b"sesame" not in pickle.dumps(own)
    assert "sesame" not in own.to_json()
    with pytest.raises(TypeError, match="ulr"):
        NearlineVectorStore("docs", ulr="http://127.0.0.1:1")
    with pytest.raises(TypeError, match="ulr"):
        NearlineRetriever("docs", ulr="http://127.0.0.1:1")


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


def test_ids_are_names_even_if_they_look_like_dates(store: NearlineVectorStore) -> None:
    """Deleting and finding what a year's document has leaves alone what its days' documents have."""
    dated = {node_id: TextNode(id_=node_id, text="A note.") for node_id in ("2026", "2026-05-01", "20260501")}
    for node_id, node in dated.items():
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=node_id)
    store.add([*dated.values()])
    assert store.query(VectorStoreQuery(query_str="note", doc_ids=["2026"])).ids == ["2026"]
    assert store.query(VectorStoreQuery(query_str="note", node_ids=["2026"])).ids == ["2026"]
    store.delete("2026")
    assert {one.node_id for one in store.get_nodes()} >= {"2026-05-01", "20260501"}
    assert store.get_nodes(["2026"]) == []


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
    query.query_str, query.mode = "x", VectorStoreQueryMode.TEXT_SEARCH  # which compares no vectors
    assert store.query(query).ids == ["x"]


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
