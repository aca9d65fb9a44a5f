"""LangChain's vector store and retriever on a real service, also by LangChain's own suites."""

from __future__ import annotations

import asyncio
import copy
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.runnables import ConfigurableField
from pydantic import ValidationError

from indexes.directory.marker import prepare
from jobs.serving.process import ServerProcess, serving
from nearline import Client, RefusedDocument, ServiceError
from nearline.langchain import NearlineRetriever, NearlineVectorStore
from retrieval.access.auth import Keys
from retrieval.access.key_file import Key, Scope

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


@pytest.fixture(scope="module")
def priced(service: ServerProcess) -> Iterator[NearlineVectorStore]:
    """What the filters are tried on; no test changes it."""
    added: list[dict[str, Any]] = [{"price": 1}, {"price": 3}, {"source": {"page": 3}, "type": "note"}]
    with Client(service.url) as client:
        store = NearlineVectorStore(next(NAMES), client=client)
        store.add_documents(
            [
                Document(one.page_content, id=one.id, metadata={**one.metadata, **more})
                for one, more in zip(CARE, added)
            ]
        )
        yield store


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


def test_nested_metadata_comes_back_as_it_was(filled: NearlineVectorStore) -> None:
    """Filters reach into it by dotted paths."""
    metadata = {"source": {"page": 3}, "none": None, "cited": [{"by": "Ada"}]}
    filled.add_texts(["Chess"], [metadata], ids=["chess"])
    assert filled.get_by_ids(["chess"])[0].metadata == metadata
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
    assert {one.id for one in filled.similarity_search(question, k=2, collapse=False)} == {
        "refunds",
        "copy",
    }
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
    """For documents and for queries. What LangChain calls the relevance of their hits is cosine similarity."""
    store = NearlineVectorStore.from_texts(
        ["listen", "banana"], Letters(), ids=["1", "2"], collection=next(NAMES), client=client, mode="dense"
    )
    assert isinstance(store.embeddings, Letters)
    ((found, score),) = store.similarity_search_with_score("silent", k=1)
    assert found.id == "1"
    assert score == pytest.approx(1.0, abs=1e-3)
    ((_, relevance),) = store.similarity_search_with_relevance_scores("silent", score_threshold=0.9)
    assert relevance == pytest.approx(1.0, abs=1e-3)
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
    with pytest.raises(TypeError, match="expected a list of strings, found the string 'socks'"):
        filled.delete("socks")  # not of s, o, c and k
    assert filled.delete(["socks", "absent"])
    assert len(filled.get_by_ids([one.id or "" for one in CARE])) == 2
    with pytest.raises(ValueError, match="both"):
        filled.delete(["refunds"], filter={"type": "eq", "key": "topic", "value": "mail"})
    assert filled.delete(filter={"type": "eq", "key": "topic", "value": "mail"})
    assert [one.id for one in filled.get_by_ids(["parcels", "refunds"])] == ["refunds"]
    with pytest.raises(ValueError, match="empty"):
        filled.delete(filter={})
    assert filled.delete(filter={"topic": {"$in": ["money", "care"]}})
    assert filled.similarity_search("refunds") == []
    filled.add_documents(CARE)
    assert filled.delete()
    assert filled.similarity_search("refunds") == []


def test_bad_input_says_what_is_wrong(store: NearlineVectorStore) -> None:
    """Numbers that differ, and documents that the service refuses."""
    with pytest.raises(ValueError, match="metadatas: expected as many as texts, 2, found 1"):
        store.add_texts(["a", "b"], [{}])
    with pytest.raises(ValueError, match="ids"):
        store.add_texts(["a"], ids=[])
    for one_string in (store.add_texts, store.get_by_ids):
        with pytest.raises(TypeError, match="found the string 'ab'"):
            one_string("ab")
    with pytest.raises(TypeError, match="ulr"):
        NearlineVectorStore("docs", ulr="http://127.0.0.1:1")


def test_a_refused_document_is_named_and_keeps_no_other_out(store: NearlineVectorStore) -> None:
    """By its place among all, also behind blank ones; the others are stored."""
    with pytest.warns(UserWarning, match="number 0"):
        with pytest.raises(
            RefusedDocument, match=r"'bad'.*number 2 of 4, from 0; the rest is stored"
        ) as failure:
            store.add_texts(["", "a", "b\0b", "c"], ids=["blank", "a", "bad", "c"])
    assert (failure.value.refused.position, failure.value.refused.id) == (2, "bad")
    assert [one.id for one in store.get_by_ids(["a", "bad", "c"])] == ["a", "c"]


def test_blank_texts_are_left_out_and_named(filled: NearlineVectorStore) -> None:
    """The ids that come back are those of all texts, in order, and no blank one keeps an old text alive."""
    pages = ["First page.", " \n", "Third page.", ""]
    with pytest.warns(
        UserWarning, match=r"2 of 4 texts are blank.*number 1 \('refunds'\), number 3 \('p4'\)"
    ):
        assert filled.add_texts(pages, ids=["p1", "refunds", "p3", "p4"]) == ["p1", "refunds", "p3", "p4"]
    assert [one.id for one in filled.get_by_ids(["p1", "refunds", "p3", "p4"])] == ["p1", "p3"]
    with pytest.warns(UserWarning, match="1 of 3 texts"):
        ids = asyncio.run(filled.aadd_documents([Document(text) for text in ("one", "", "three")]))
    assert [one.page_content for one in filled.get_by_ids(ids)] == ["one", "three"]
    with pytest.warns(UserWarning, match="blank"):
        filled.add_texts(["now a text", ""], ids=["p3", "p3"])
    assert filled.get_by_ids(["p3"]) == []


def test_blank_texts_are_not_embedded(client: Client) -> None:
    """Some models refuse them."""

    class Strict(Letters):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            assert all(text.strip() for text in texts)
            return super().embed_documents(texts)

    store = NearlineVectorStore(next(NAMES), client=client, embedding=Strict())
    with pytest.warns(UserWarning, match="blank"):
        store.add_texts(["listen", " "], ids=["1", "2"])
    assert [one.id for one in store.get_by_ids(["1", "2"])] == ["1"]


def test_the_collection_is_made_for_the_embedding(client: Client) -> None:
    """The first vector that is sent, for a text or for a query, sets the dimensions of a new collection."""

    class Long(Letters):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [[*vector, *([0.0] * 1200)] for vector in super().embed_documents(texts)]

        def embed_query(self, text: str) -> list[float]:
            return self.embed_documents([text])[0]

    store = NearlineVectorStore(name := next(NAMES), client=client, embedding=Long())
    store.add_texts(["listen", "look"], ids=["1", "2"])
    found = client.collection(name)
    assert (found["model"], found["dimensions"]) == (None, len(Long().embed_query("listen")))
    assert [one.id for one in store.similarity_search("silent", k=1)] == ["1"]
    again = copy.copy(pickle.loads(pickle.dumps(store._store)))
    assert again._own_vectors
    asked_first = NearlineVectorStore(name := next(NAMES), client=client, embedding=Long())
    assert asked_first.similarity_search("silent") == []
    assert client.collection(name)["dimensions"] == found["dimensions"]


def test_a_search_by_words_embeds_nothing(client: Client) -> None:
    """The service refuses a vector there, and an embedding may cost money."""

    class Silent(Letters):
        def embed_query(self, text: str) -> list[float]:
            raise AssertionError(text)

    store = NearlineVectorStore(next(NAMES), client=client, embedding=Silent())
    store.add_texts(["listen", "look"], ids=["1", "2"])
    assert [one.id for one in store.similarity_search("listen", mode="lexical")] == ["1"]
    found = asyncio.run(store.asimilarity_search("look", mode="lexical"))
    assert [one.id for one in found] == ["2"]


@pytest.mark.parametrize("cleanup", ["incremental", "full", "scoped_full"])
def test_langchains_indexing(store: NearlineVectorStore, cleanup: Any) -> None:
    """`index` and `aindex` write what is new, skip what they know, and delete what is gone."""

    def pages(*texts: str) -> list[Document]:
        return [Document(text, metadata={"source": text[0]}) for text in texts]

    options: dict[str, Any] = {"cleanup": cleanup, "source_id_key": "source", "key_encoder": "sha256"}
    records = InMemoryRecordManager("test")
    records.create_schema()
    first = index(pages("a one", "b two"), records, store, **options)
    assert (first["num_added"], first["num_deleted"]) == (2, 0)
    second = asyncio.run(aindex(pages("a one", "b three"), records, store, **options))
    assert [second[name] for name in ("num_added", "num_skipped", "num_deleted")] == [1, 1, 1]
    assert {one.page_content for one in store.similarity_search("one two three")} == {"a one", "b three"}


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({"topic": "money"}, {"refunds"}),
        ({"topic": ["money", "mail"]}, {"refunds", "parcels"}),
        ({"topic": {"$in": ("money", "mail")}, "price": {"$lt": 3}}, {"refunds"}),
        ({"topic": {"$nin": ["money"]}}, {"parcels", "socks"}),
        ({"topic": {"$ne": "money"}}, {"parcels", "socks"}),
        ({"topic": {"$prefix": "ma"}}, {"parcels"}),
        ({"price": {"$gt": 1, "$lte": 3}}, {"parcels"}),
        ({"price": {"$between": [1, 2]}}, {"refunds"}),
        ({"price": {"$exists": False}}, {"socks"}),
        ({"price": None}, {"socks"}),
        ({"price": {"$ne": None}}, {"refunds", "parcels"}),
        ({"price": {"$not": {"$gte": 3}}}, {"refunds", "socks"}),
        ({"$and": [{"tags": "b"}, {"price": {"$gte": 1}}]}, {"refunds"}),
        ({"$or": [{"topic": "care"}, {"price": 1}]}, {"refunds", "socks"}),
        ({"$nor": [{"topic": "care"}, {"price": 1}]}, {"parcels"}),
        ({"$not": {"topic": "money"}}, {"parcels", "socks"}),
        ({"source": {"page": 3}}, {"socks"}),
        ({"source.page": {"$eq": 3}}, {"socks"}),
        ({"$or": [{"type": "eq", "key": "topic", "value": "mail"}, {"topic": "care"}]}, {"parcels", "socks"}),
        ({"type": {"$eq": "note"}}, {"socks"}),
        ({"type": "note"}, {"socks"}),
        ({}, {"refunds", "parcels", "socks"}),
    ],
)
def test_plain_filters(priced: NearlineVectorStore, given: dict[str, Any], ids: set[str]) -> None:
    """Each selects the same for a search, a retriever, and a search by vector."""
    assert {one.id for one in priced.similarity_search("parcel", filter=given)} == ids
    assert {one.id for one in priced.similarity_search_by_vector([0.1] * 384, filter=given)} == ids
    retriever = NearlineRetriever(
        collection=priced._store.collection, client=priced._store.client, filter=given
    )
    assert {one.id for one in retriever.invoke("parcel")} == ids


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (lambda document: True, TypeError, "expected a dictionary, found function"),
        ({"price": {"$like": "a"}}, ValueError, r"filter on price: unknown operator \$like; there are \$eq"),
        ({"$xor": []}, ValueError, r"unknown operator \$xor"),
        ({"$or": []}, ValueError, "needs a list of conditions"),
        ({"$and": [{}]}, ValueError, "with a condition"),
        ({"price": {}}, ValueError, "filter on price"),
        ({"price": {"$lt": 3, "page": 1}}, ValueError, "either operators or keys"),
        ({"price": {"$between": 3}}, ValueError, r"unknown operator \$between"),
        ({"tpoic": "money"}, ServiceError, "tpoic"),
        ({"type": "equals", "key": "topic", "value": "money"}, ServiceError, "equals"),
        ({"price": "3"}, ServiceError, "holds numbers"),
    ],
)
def test_filters_that_are_none_are_refused(
    priced: NearlineVectorStore, given: Any, kind: type[Exception], message: str
) -> None:
    """Never taken for no filter, or for another."""
    with pytest.raises(kind, match=message):
        priced.similarity_search("parcel", filter=given)
    with pytest.raises(kind, match=message):
        priced.delete(filter=given)


def test_searches_by_vector(filled: NearlineVectorStore) -> None:
    """With scores, with LangChain's relevance, with hits that differ: on an event loop and without one."""
    filled.add_texts([CARE[0].page_content], ids=["copy"])
    vector = filled._store.client.embed([CARE[0].page_content])["vectors"][0]
    scored = filled.similarity_search_with_score_by_vector(vector, k=4)
    relevant = filled.similarity_search_by_vector_with_relevance_scores(vector, k=4)
    assert [one.id for one, _ in scored] == [one.id for one, _ in relevant]
    assert scored[0][1] == pytest.approx(1.0, abs=1e-2)
    assert all(0 <= score <= 1 for _, score in relevant)
    differ = filled.max_marginal_relevance_search_by_vector(vector, k=2, lambda_mult=0.1)
    assert len({one.id for one in differ} & {"refunds", "copy"}) == 1

    async def same() -> None:
        assert await filled.asimilarity_search_with_score_by_vector(vector, k=4) == scored
        assert await filled.asimilarity_search_by_vector_with_relevance_scores(vector, k=4) == relevant
        assert await filled.amax_marginal_relevance_search_by_vector(vector, k=2, lambda_mult=0.1) == differ
        assert await filled.asimilarity_search_by_vector(vector, k=4) == [one for one, _ in scored]

    asyncio.run(same())


def test_copies_of_a_store(filled: NearlineVectorStore) -> None:
    """A copy shares the client; a pickled store finds the service again, and holds no key."""
    assert copy.deepcopy(filled)._store.client is filled._store.client
    again = pickle.loads(pickle.dumps(filled))
    assert again.similarity_search("lost parcel", k=1) == [CARE[1]]
    retriever = NearlineRetriever(collection=filled._store.collection, url=filled._store.client.url, k=1)
    for other in (retriever, copy.deepcopy(retriever), pickle.loads(pickle.dumps(retriever))):
        assert [one.id for one in other.invoke("lost parcel")] == ["parcels"]
    assert pickle.loads(pickle.dumps(retriever)).invoke("lost parcel")
    keyed = NearlineVectorStore("docs", client=Client(filled._store.client.url, key="sesame"))
    assert b"sesame" not in pickle.dumps(keyed)
    mine = NearlineRetriever(collection="docs", client=Client("http://127.0.0.1:1", key="sesame", retry_s=3))
    assert b"sesame" not in pickle.dumps(mine)
    again = pickle.loads(pickle.dumps(mine))
    assert (again.client.url, again.client._options) == ("http://127.0.0.1:1", {"retry_s": 3})
    assert copy.deepcopy(mine).client is copy.copy(mine.client) is mine.client


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


def test_a_retriever_searches_what_its_fields_say_now(filled: NearlineVectorStore, client: Client) -> None:
    """Another collection, however it is set, is never answered from the one before; a wrong name is refused."""
    mine, other = filled._store.collection, next(NAMES)
    NearlineVectorStore(other, client=client).add_texts(["Another tenant's parcel."], ids=["theirs"])
    retriever = NearlineRetriever(collection=mine, url=client.url, k=1)
    assert [one.id for one in retriever.invoke("parcel")] == ["parcels"]
    changed = retriever.model_copy(update={"collection": other})
    configurable = retriever.configurable_fields(collection=ConfigurableField(id="tenant"))
    tenant = {"configurable": {"tenant": other}}
    for found in (
        changed.invoke("parcel"),
        asyncio.run(changed.ainvoke("parcel")),
        configurable.invoke("parcel", tenant),
        asyncio.run(configurable.ainvoke("parcel", tenant)),
        retriever.invoke("parcel", collection=other),
        asyncio.run(retriever.ainvoke("parcel", collection=other)),
    ):
        assert [one.id for one in found] == ["theirs"]
    assert [one.id for one in retriever.invoke("parcel")] == ["parcels"]
    retriever.collection = other
    assert [one.id for one in retriever.invoke("parcel")] == ["theirs"]
    retriever.url = client.url.replace("127.0.0.1", "localhost")
    assert [one.id for one in retriever.invoke("parcel")] == ["theirs"]
    assert {one.client.url for one in retriever._stores.values()} == {client.url, retriever.url}
    with pytest.raises(ValidationError, match="collecton"):
        NearlineRetriever(collection=mine, client=client, collecton=other)
    with pytest.raises(ValueError, match="collecton"):
        retriever.collecton = other
    with pytest.raises(ServiceError, match="collecton"):
        retriever.invoke("parcel", collecton=other)


def test_the_store_is_a_retriever_too(filled: NearlineVectorStore) -> None:
    """With LangChain's own kinds of search."""
    options: dict[str, Any] = {"score_threshold": 0.1, "k": 3}
    retriever = filled.as_retriever(search_type="similarity_score_threshold", search_kwargs=options)
    assert [one.id for one in retriever.invoke("lost parcel")] == ["parcels"]
