"""What users of LlamaIndex build on a vector store, on a real service: indexes, pipelines, retrievers, query engines,
node parsers and postprocessors. Skipped without llama-index-core (the extra `frameworks`)."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("llama_index.core", reason="llama-index-core weighs 100 MB; see the extra frameworks")

from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import (
    HierarchicalNodeParser,
    SentenceSplitter,
    SentenceWindowNodeParser,
    get_leaf_nodes,
)
from llama_index.core.postprocessor import MetadataReplacementPostProcessor
from llama_index.core.retrievers import AutoMergingRetriever
from llama_index.core.schema import Document, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters, SimpleVectorStore
from pydantic import PrivateAttr

from jobs.serving.process import ServerProcess
from nearline import Client
from nearline.llamaindex import NearlineVectorStore
from retrieval.clients.llamaindex import EmbedInService

NAMES = (f"llamaindex-patterns-{number}" for number in itertools.count())
TEXTS = {
    "refunds": "Refunds arrive within five days.",
    "parcels": "A lost parcel is replaced at no charge.",
    "socks": "Wash woollen socks by hand.",
}


def documents(**changed: str) -> list[Document]:
    texts = {**TEXTS, **changed}
    return [Document(id_=name, text=text, metadata={"name": name}) for name, text in texts.items()]


@pytest.fixture(scope="module")
def client(service: ServerProcess) -> Iterator[Client]:
    with Client(service.url) as opened:
        yield opened


@pytest.fixture
def store(client: Client) -> NearlineVectorStore:
    return NearlineVectorStore(next(NAMES), client=client)


@pytest.fixture
def index(store: NearlineVectorStore) -> VectorStoreIndex:
    made = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(embed_dim=1))
    for document in documents():
        made.insert(document)
    return made


class ServiceEmbedding(BaseEmbedding):
    """The service's model as LlamaIndex's own."""

    _client: Client = PrivateAttr()

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def _get_text_embedding(self, text: str) -> list[float]:
        return [float(one) for one in self._client.embed([text])["vectors"][0]]

    def _get_query_embedding(self, query: str) -> list[float]:
        return [float(one) for one in self._client.embed([query], kind="query")["vectors"][0]]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)


def texts_in(store: NearlineVectorStore) -> dict[str, str]:
    """By source."""
    return {str(one.ref_doc_id or one.node_id): one.get_content() for one in store.get_nodes()}


# -- VectorStoreIndex


def test_an_index_is_kept_up_to_date(index: VectorStoreIndex, store: NearlineVectorStore) -> None:
    """By insert, insert_nodes, update, refresh and deletion, of a document or of nodes."""
    assert texts_in(store) == TEXTS
    index.insert_nodes([TextNode(id_="hats", text="Hats are not refunded.")])
    assert texts_in(store)["hats"] == "Hats are not refunded."
    index.delete_nodes(["hats"])
    assert index.refresh_ref_docs(documents(refunds="Refunds arrive within six days.")) == [
        True,
        False,
        False,
    ]
    assert texts_in(store) == {**TEXTS, "refunds": "Refunds arrive within six days."}
    index.update_ref_doc(documents(socks="Never wash socks.")[2])
    assert texts_in(store)["socks"] == "Never wash socks."
    index.delete_ref_doc("socks", delete_from_docstore=True)
    assert texts_in(store).keys() == {"refunds", "parcels"}


def test_the_same_on_an_event_loop(store: NearlineVectorStore) -> None:
    """With the async methods of the index."""

    async def story() -> None:
        index = VectorStoreIndex.from_vector_store(
            store, embed_model=MockEmbedding(embed_dim=1), use_async=True
        )
        for document in documents():
            await index.ainsert(document)
        await index.ainsert_nodes([TextNode(id_="hats", text="Hats are not refunded.")])
        await index.adelete_nodes(["hats"])
        changed = documents(refunds="Refunds arrive within six days.")
        assert await index.arefresh_ref_docs(changed) == [True, False, False]
        await index.adelete_ref_doc("socks", delete_from_docstore=True)
        (found,) = await index.as_retriever(similarity_top_k=1).aretrieve("when do I get my money back")
        assert found.node.ref_doc_id == "refunds"
        answer = await index.as_query_engine(llm=MockLLM(), similarity_top_k=1).aquery("six days")
        assert "six days" in str(answer)

    asyncio.run(story())
    left = {"refunds": "Refunds arrive within six days.", "parcels": TEXTS["parcels"]}
    assert texts_in(store) == left


def test_an_index_made_of_documents(store: NearlineVectorStore) -> None:
    """In one go, with a storage context."""
    context = StorageContext.from_defaults(vector_store=store)
    VectorStoreIndex.from_documents(
        documents(), storage_context=context, embed_model=MockEmbedding(embed_dim=1)
    )
    assert texts_in(store) == TEXTS


@pytest.mark.parametrize("mode", ["default", "hybrid", "semantic_hybrid", "text_search", "sparse", "mmr"])
def test_retrievers_of_an_index(index: VectorStoreIndex, mode: str) -> None:
    """In each mode, on an event loop and without, also with filters and with documents to choose from."""
    retriever = index.as_retriever(
        similarity_top_k=1, vector_store_query_mode=mode, vector_store_kwargs={"cache": False}
    )
    (found,) = retriever.retrieve("lost parcel")
    assert (found.node.ref_doc_id, found.text) == ("parcels", TEXTS["parcels"])
    assert asyncio.run(retriever.aretrieve("lost parcel"))[0].node == found.node
    others = MetadataFilters(filters=[MetadataFilter(key="name", value="parcels", operator="!=")])
    for narrowed in ({"filters": others}, {"doc_ids": ["refunds", "socks"]}):
        retriever = index.as_retriever(similarity_top_k=3, vector_store_query_mode=mode, **narrowed)
        found_in = {one.node.ref_doc_id for one in retriever.retrieve("refunds for a lost parcel")}
        assert found_in
        assert found_in <= {"refunds", "socks"}


def test_a_query_engine(index: VectorStoreIndex) -> None:
    """Its answer cites what the store found."""
    answer = index.as_query_engine(llm=MockLLM(), similarity_top_k=1).query("lost parcel")
    assert [one.node.ref_doc_id for one in answer.source_nodes] == ["parcels"]
    assert TEXTS["parcels"] in str(answer)


# -- pipelines


def pipeline(store: Any, *steps: Any, **options: Any) -> IngestionPipeline:
    return IngestionPipeline(transformations=[*steps], vector_store=store, **options)


@pytest.mark.parametrize(
    "steps", [[SentenceSplitter()], [], [SentenceSplitter(), MockEmbedding(embed_dim=1)]]
)
@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_pipeline_needs_no_embedding(store: NearlineVectorStore, steps: list[Any], on_a_loop: bool) -> None:
    """The service embeds what comes without; the documents that went in stay as they were."""
    went_in, running = documents(), pipeline(store, *steps)
    nodes = asyncio.run(running.arun(documents=went_in)) if on_a_loop else running.run(documents=went_in)
    assert len(nodes) == 3
    assert texts_in(store) == TEXTS
    assert went_in == documents()
    index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(embed_dim=1))
    (found,) = index.as_retriever(similarity_top_k=1).retrieve("when do I get my money back")
    assert found.text == TEXTS["refunds"]


def test_a_pipeline_with_vectors_of_its_own(client: Client) -> None:
    """Uses them, and says so where there are none, in place of storing nothing."""
    store = NearlineVectorStore(next(NAMES), client=client, own_vectors=True)
    with pytest.raises(ValueError, match="3 of 3 nodes have no embedding"):
        pipeline(store, SentenceSplitter()).run(documents=documents())
    with pytest.raises(ValueError, match="have no embedding"):
        asyncio.run(pipeline(store).arun(documents=documents()))
    embedding = ServiceEmbedding(client)
    pipeline(store, SentenceSplitter(), embedding).run(documents=documents())
    index = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    for retriever in (
        index.as_retriever(similarity_top_k=1),
        index.as_retriever(similarity_top_k=1, vector_store_query_mode="mmr"),
        index.as_retriever(similarity_top_k=1, vector_store_query_mode="hybrid", alpha=0.5),
    ):
        assert [one.text for one in retriever.retrieve("lost parcel")] == [TEXTS["parcels"]]
        assert [one.text for one in asyncio.run(retriever.aretrieve("lost parcel"))] == [TEXTS["parcels"]]


def test_a_pipeline_into_another_store_is_left_alone(store: NearlineVectorStore) -> None:
    """Also one whose store was ours before; what is added can go to worker processes."""
    splitter, other = SentenceSplitter(), SimpleVectorStore()
    running = pipeline(other, splitter)
    steps = running.transformations
    running.run(documents=documents())
    assert running.transformations is steps
    running.vector_store = store
    running.run(documents=documents())
    assert [type(one) for one in running.transformations] == [SentenceSplitter, EmbedInService]
    assert pickle.loads(pickle.dumps(running.transformations[1])) == EmbedInService(own_vectors=False)
    running.vector_store = other
    running.run(documents=documents())
    assert running.transformations == [splitter]
    assert other.data.embedding_dict == {}


@pytest.mark.parametrize("steps", [[SentenceSplitter()], []])
@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_pipeline_with_a_docstore(store: NearlineVectorStore, steps: list[Any], on_a_loop: bool) -> None:
    """Writes what changed and, if it should, deletes what is gone, whether documents are split or are nodes."""
    running = pipeline(
        store,
        *steps,
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS_AND_DELETE,
    )

    def run(given: list[Document]) -> int:
        return len(asyncio.run(running.arun(documents=given)) if on_a_loop else running.run(documents=given))

    assert run(documents()) == 3
    assert run(documents()) == 0
    assert run(documents(refunds="Refunds arrive within six days.")) == 1
    assert texts_in(store) == {**TEXTS, "refunds": "Refunds arrive within six days."}
    assert run(documents()[:2]) == 1
    assert texts_in(store) == {name: TEXTS[name] for name in ("refunds", "parcels")}


# -- node parsers and what reads their nodes


def test_sentences_with_windows(store: NearlineVectorStore) -> None:
    """Windows may be long; each sentence comes back as it was made, and its window takes its place."""
    sentences = [f"Sentence {number} is about the {'very ' * 60}rare topic{number}. " for number in range(12)]
    text, metadata = "".join(sentences), {"summary": "long " * 200}
    nodes = SentenceWindowNodeParser.from_defaults(window_size=5).get_nodes_from_documents(
        [Document(id_="d", text=text, metadata=metadata)]
    )
    assert max(len(one.metadata["window"]) for one in nodes) > 3000
    index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(embed_dim=1))
    index.insert_nodes(nodes)
    (found,) = index.as_retriever(similarity_top_k=1, vector_store_query_mode="text_search").retrieve(
        "topic6"
    )
    (made,) = (one for one in nodes if one.node_id == found.node.node_id)
    assert "topic6" in found.text
    assert (found.text, found.metadata, found.node.hash) == (made.get_content(), made.metadata, made.hash)
    assert found.node.next_node.node_id == made.next_node.node_id
    replaced = MetadataReplacementPostProcessor(target_metadata_key="window").postprocess_nodes([found])
    assert replaced[0].text == made.metadata["window"]


def test_parts_merge_into_their_parent(store: NearlineVectorStore) -> None:
    """Leaves are searched, and where enough of them are found the parent takes their place."""
    text = "\n\n".join(f"Chapter {at}. " + TEXTS["parcels"] * 6 for at in range(4))
    nodes = HierarchicalNodeParser.from_defaults(
        chunk_sizes=[256, 64], chunk_overlap=0
    ).get_nodes_from_documents([Document(id_="book", text=text, metadata={"title": "Mail"})])
    context = StorageContext.from_defaults(vector_store=store)
    context.docstore.add_documents(nodes)
    leaves = get_leaf_nodes(nodes)
    index = VectorStoreIndex(leaves, storage_context=context, embed_model=MockEmbedding(embed_dim=1))
    assert store.get_nodes([leaves[0].node_id]) == [leaves[0]]
    retriever = AutoMergingRetriever(index.as_retriever(similarity_top_k=len(leaves)), context)
    merged = retriever.retrieve("lost parcel")
    assert len(merged) < len(leaves)
    assert all(one.node.child_nodes for one in merged)
    assert asyncio.run(retriever.aretrieve("lost parcel"))


def test_a_chat_engine(index: VectorStoreIndex) -> None:
    """Of an index on the store."""
    engine = index.as_chat_engine(chat_mode="context", llm=MockLLM(), similarity_top_k=1)
    assert [one.node.ref_doc_id for one in engine.chat("lost parcel").source_nodes] == ["parcels"]
