"""LangChain's vector store and retriever on a real service, also by LangChain's own suites."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from indexes.catalog import prepare
from jobs.server_process import ServerProcess, serving
from nearline import Client, RefusedDocument, ServiceError
from nearline.langchain import NearlineRetriever, NearlineVectorStore
from retrieval.auth import Key, Keys, Scope

NAMES = (f"langchain-{number}" for number in itertools.count())
CARE = [
    Document(
        "Refunds arrive within five days.", metadata={"topic": "money", "tags": ["a", "b"]}, id="refunds"
    ),
    Document("A lost parcel is replaced at no charge.", metadata={"topic": "mail"}, id="parcels"),
    Document("Wash woollen socks by hand.", metadata={"topic": "care"}, id="socks"),
]


@pytest.fixture
def client(service: ServerProcess) -> Iterator[Client]:
    with Client(service.url) as opened:
        yield opened


@pytest.fixture
def store(client: Client) -> NearlineVectorStore:
    return NearlineVectorStore(next(NAMES), client=client)


@pytest.fixture
def filled(store: NearlineVectorStore) -> NearlineVectorStore:
    store.add_documents(CARE)
    return store


# -- vector store


def test_what_is_added_is_found_and_read(filled: NearlineVectorStore) -> None:
    """A search returns passages with id and metadata, get_by_ids documents in the order asked for."""
    assert filled.similarity_search("when do I get my money back", k=1) == [CARE[0]]
    assert filled.get_by_ids(["socks", "absent", "refunds"]) == [CARE[2], CARE[0]]


def test_nothing_is_no_error(store: NearlineVectorStore) -> None:
    """No texts, no ids, and a collection that is not there: it is made."""
    assert store.add_texts([]) == []
    assert store.get_by_ids([]) == []
    assert store.delete([])
    assert store.similarity_search("anything") == []


def test_a_key_for_searching_is_enough_to_search(tmp_path: Path, model_folder: Path) -> None:
    """The store asks for nothing else; of a collection that is absent, and that it may not make, it says so."""
    prepare(tmp_path / "data")
    keys = Keys(tmp_path / "data")
    scopes: tuple[Scope, ...] = ("admin", "search")
    made = [keys.create(Key(id="", sha256="", scopes=[scope], created_ms=0))[1] for scope in scopes]
    with serving(tmp_path / "data", {"NEARLINE_MODELS_FOLDER": str(model_folder.parent)}) as server:
        with Client(server.url, key=made[0]) as admin, Client(server.url, key=made[1]) as reader:
            NearlineVectorStore("help", client=admin).add_documents(CARE)
            assert NearlineVectorStore("help", client=reader).similarity_search("lost parcel", k=1) == [
                CARE[1]
            ]
            with pytest.raises(ServiceError, match="no collection 'absent'"):
                NearlineVectorStore("absent", client=reader).similarity_search("lost parcel")


def test_a_long_document_is_found_by_its_passages(filled: NearlineVectorStore) -> None:
    """They have its id, by which the whole is read."""
    text = "\n\n".join(
        f"Paragraph {number} tells of the city of Paris and its river. " * 8 for number in range(9)
    )
    filled.add_texts([text], ids=["paris"])
    found = filled.similarity_search("Paris river", k=3)
    assert {one.id for one in found} == {"paris"}
    assert all(len(one.page_content) < len(text) and one.page_content in text for one in found)
    assert [one.page_content for one in filled.get_by_ids(["paris"])] == [text]
    assert len(filled.similarity_search("Paris river", k=3, group_by_document=True)) == 3


def test_nested_metadata_becomes_keys_with_dots(filled: NearlineVectorStore) -> None:
    """So the service stores and filters it; a None is no value."""
    filled.add_texts(["Chess"], [{"source": {"page": 3}, "none": None}], ids=["chess"])
    assert filled.get_by_ids(["chess"])[0].metadata == {"source.page": 3}
    third = {"type": "eq", "key": "source.page", "value": 3}
    assert [one.id for one in filled.similarity_search("money", k=3, filter=third)] == ["chess"]


def test_options_hold_for_all_searches_or_one(client: Client, filled: NearlineVectorStore) -> None:
    """A search's own option wins over the store's; an option that the service does not know is refused."""
    words = NearlineVectorStore(filled._store.collection, client=client, mode="lexical")
    assert words.similarity_search("reimbursement") == []
    assert len(words.similarity_search("reimbursement", mode="dense")) == 3
    with pytest.raises(ServiceError, match="depth"):
        words.similarity_search("socks", depth=3)


def test_hits_that_differ(filled: NearlineVectorStore) -> None:
    """A copy of what is found already waits for what is new, also through a retriever."""
    filled.add_texts([CARE[0].page_content], ids=["copy"])
    question = "when do I get my money back"
    assert {one.id for one in filled.similarity_search(question, k=2)} == {"refunds", "copy"}
    by_mmr = filled.as_retriever(search_type="mmr", search_kwargs={"k": 2, "lambda_mult": 0.1})
    for found in (
        filled.max_marginal_relevance_search(question, k=2, lambda_mult=0.1),
        by_mmr.invoke(question),
        asyncio.run(by_mmr.ainvoke(question)),
    ):
        assert len({one.id for one in found} & {"refunds", "copy"}) == 1


def test_scores(filled: NearlineVectorStore) -> None:
    """Scores order; relevance is from 0 to 1 and can have a threshold; documents by vector come by meaning."""
    scored = filled.similarity_search_with_score("lost parcel", k=3)
    assert scored[0][0].id == "parcels"
    assert [score for _, score in scored] == sorted((score for _, score in scored), reverse=True)
    relevant = filled.similarity_search_with_relevance_scores("lost parcel", k=3, score_threshold=0.1)
    assert [(one.id, 0 <= score <= 1) for one, score in relevant] == [("parcels", True)]
    vector = filled._store.client.embed(["lost parcel"], kind="query")["vectors"][0]
    assert filled.similarity_search_by_vector(vector, k=1)[0].id == "parcels"


class Letters(Embeddings):
    """Counts letters: vectors that the service would not make."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [
            [*np.bincount([ord(one) % 384 for one in text], minlength=384).astype(float)] for text in texts
        ]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def test_own_embeddings_are_used(client: Client) -> None:
    """For documents and for queries. The relevance of their hits is unknown, which is said, not made up."""
    store = NearlineVectorStore.from_texts(
        ["listen", "banana"], Letters(), ids=["1", "2"], collection=next(NAMES), client=client, mode="dense"
    )
    assert isinstance(store.embeddings, Letters)
    ((found, score),) = store.similarity_search_with_score("silent", k=1)
    assert found.id == "1"
    assert score == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(ValueError, match="no relevance"):
        store.similarity_search_with_relevance_scores("silent")
    made = asyncio.run(
        NearlineVectorStore.afrom_texts(
            ["listen", "banana"],
            Letters(),
            ids=["1", "2"],
            collection=next(NAMES),
            client=client,
            mode="dense",
        )
    )
    assert made.similarity_search("silent", k=1)[0].id == "1"


def test_deletion(filled: NearlineVectorStore) -> None:
    """By ids, by a filter, or of everything; both at once is an error."""
    assert filled.delete(["socks", "absent"])
    assert len(filled.get_by_ids([one.id or "" for one in CARE])) == 2
    with pytest.raises(ValueError, match="both"):
        filled.delete(["refunds"], filter={"type": "eq", "key": "topic", "value": "mail"})
    assert filled.delete(filter={"type": "eq", "key": "topic", "value": "mail"})
    assert [one.id for one in filled.get_by_ids(["parcels", "refunds"])] == ["refunds"]
    assert filled.delete()
    assert filled.similarity_search("refunds") == []


def test_bad_input_says_what_is_wrong(store: NearlineVectorStore) -> None:
    """Numbers that differ, and documents that the service refuses."""
    with pytest.raises(ValueError, match="metadatas: expected as many as texts, 2, found 1"):
        store.add_texts(["a", "b"], [{}])
    with pytest.raises(ValueError, match="ids"):
        store.add_texts(["a"], ids=[])
    with pytest.raises(RefusedDocument):
        store.add_texts(["a"], [{"key": [{"deep": 1}]}])


def test_one_store_serves_several_event_loops(filled: NearlineVectorStore) -> None:
    """The async methods work on whatever loop they are called, many at a time."""

    async def search() -> list[str | None]:
        found = await asyncio.gather(*(filled.asimilarity_search("parcel", k=1) for _ in range(20)))
        return [one.id for (one,) in found]

    assert asyncio.run(search()) == ["parcels"] * 20
    assert asyncio.run(search()) == ["parcels"] * 20


# -- retriever


def test_the_retriever_says_where_a_passage_is_from(filled: NearlineVectorStore, client: Client) -> None:
    """And how good it is, beside the metadata of its document."""
    retriever = NearlineRetriever(collection=filled._store.collection, url=client.url, k=1)
    (found,) = retriever.invoke("lost parcel")
    assert (found.id, found.metadata["topic"]) == ("parcels", "mail")
    passage = found.metadata["nearline"]
    assert CARE[1].page_content[passage["start"] : passage["end"]] == found.page_content
    assert passage["document_id"] == "parcels"
    assert 0 <= passage["relevance"] <= 1


def test_the_retriever_has_the_options_of_a_search(filled: NearlineVectorStore, client: Client) -> None:
    """As fields, for one call, or as any other option of the service."""
    retriever = NearlineRetriever(
        collection=filled._store.collection,
        client=client,
        mode="hybrid",
        rerank=True,
        filter={"type": "ne", "key": "topic", "value": "mail"},
        options={"deadline_ms": 60_000},
    )
    assert {one.id for one in retriever.invoke("lost parcel")} == {"refunds", "socks"}
    assert len(retriever.invoke("lost parcel", k=1)) == 1
    assert retriever.invoke("quantum chromodynamics", min_relevance=0.5) == []
    assert len(asyncio.run(retriever.ainvoke("lost parcel", k=1))) == 1
    with pytest.raises(ServiceError, match="absent"):
        NearlineRetriever(collection="absent", client=client).invoke("anything")


def test_the_store_is_a_retriever_too(filled: NearlineVectorStore) -> None:
    """With LangChain's own kinds of search."""
    options: dict[str, Any] = {"score_threshold": 0.1, "k": 3}
    retriever = filled.as_retriever(search_type="similarity_score_threshold", search_kwargs=options)
    assert [one.id for one in retriever.invoke("lost parcel")] == ["parcels"]
