"""Haystack's document store and retriever on a real service, also by Haystack's own suites."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("haystack", reason="haystack-ai is not installed; the extra haystack has it")

from haystack import Document, Pipeline
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy
from haystack.errors import FilterError
from haystack.telemetry import _telemetry
from haystack.testing.document_store import (
    CountDocumentsByFilterTest,
    CountUniqueMetadataByFilterTest,
    DocumentStoreBaseExtendedTests,
    GetMetadataFieldMinMaxTest,
    GetMetadataFieldsInfoTest,
    GetMetadataFieldUniqueValuesTest,
)

from jobs.serving.process import ServerProcess
from nearline import RefusedDocument
from nearline.haystack import NearlineDocumentStore, NearlineEmbeddingRetriever, NearlineRetriever

CARE = [
    Document(id="refunds", content="Refunds arrive within five days.", meta={"topic": "money", "year": 2026}),
    Document(
        id="parcels", content="A lost parcel is replaced at no charge.", meta={"topic": "mail", "year": 2025}
    ),
    Document(id="socks", content="Wash woollen socks by hand.", meta={"topic": "care"}),
]


@pytest.fixture
def empty(service: ServerProcess) -> Iterator[NearlineDocumentStore]:
    store = NearlineDocumentStore(f"haystack-{uuid4()}", url=service.url)
    yield store
    store._store.client.close()


@pytest.fixture
def filled(empty: NearlineDocumentStore) -> NearlineDocumentStore:
    assert empty.write_documents(CARE) == 3
    return empty


class TestDocumentStore(
    DocumentStoreBaseExtendedTests,
    CountDocumentsByFilterTest,
    CountUniqueMetadataByFilterTest,
    GetMetadataFieldMinMaxTest,
    GetMetadataFieldUniqueValuesTest,
    GetMetadataFieldsInfoTest,
):
    """All of Haystack's suites for document stores."""

    @pytest.fixture
    def document_store(self, empty: NearlineDocumentStore) -> NearlineDocumentStore:
        return empty

    def assert_documents_are_equal(self, received: list[Document], expected: list[Document]) -> None:
        """But for embeddings, which the service makes itself and the store does not keep."""
        assert received == [replace(one, embedding=None) for one in expected]

    def test_write_documents(self, document_store: NearlineDocumentStore) -> None:
        """Without a policy a known id is overwritten. Haystack leaves this to each store."""
        for text in ("one", "two"):
            assert document_store.write_documents([Document(id="1", content=text)]) == 1
        assert [one.content for one in document_store.filter_documents()] == ["two"]


def test_the_tests_send_no_statistics() -> None:
    """Haystack would, to its makers."""
    assert _telemetry.telemetry is None


# -- document store


def test_nothing_is_no_error(empty: NearlineDocumentStore) -> None:
    """No documents, no ids, and a collection that is not there: it is made."""
    assert NearlineRetriever(empty).run("anything") == {"documents": []}
    for policy in DuplicatePolicy:
        assert empty.write_documents([], policy=policy) == 0
    empty.delete_documents([])


def test_policies(filled: NearlineDocumentStore) -> None:
    """FAIL writes nothing if any id is known or comes twice; SKIP keeps what is there, and the first of equal ids."""
    new, other = Document(id="new", content="one"), Document(id="new", content="two")
    for documents, known in (
        ([new, CARE[0]], "is a document"),
        ([new, other], "2 of the documents have the id"),
    ):
        with pytest.raises(DuplicateDocumentError, match=f"{known}.*nothing was written"):
            filled.write_documents(documents, policy=DuplicatePolicy.FAIL)
    assert filled.count_documents() == 3
    assert filled.write_documents([new, other, CARE[0]], policy=DuplicatePolicy.SKIP) == 1
    assert filled.filter_documents()[-1].content == "one"


def test_what_cannot_be_kept_is_refused(filled: NearlineDocumentStore) -> None:
    """A document without text, and a number that no filter could compare."""
    with pytest.raises(ValueError, match=r"documents\[1\]: expected text"):
        filled.write_documents([CARE[0], Document(id="blob")])
    with pytest.raises(RefusedDocument):
        filled.write_documents([Document(content="a", meta={"key": [{"deep": 2**63}]})])
    with pytest.raises(TypeError, match="found the string 'refunds'"):
        filled.delete_documents("refunds")  # type: ignore[arg-type]


def test_filters_that_are_wrong(filled: NearlineDocumentStore) -> None:
    """Raise FilterError: an unknown operator or key, and none where all would be deleted."""
    for wrong in (
        {"field": "meta.topic", "operator": "like", "value": "m"},
        {"operator": "XOR", "conditions": []},
        {"field": "meta.tpoic", "operator": "==", "value": "money"},
    ):
        with pytest.raises(FilterError):
            filled.filter_documents(wrong)
    for change in (filled.delete_by_filter, lambda filters: filled.update_by_filter(filters, {"a": 1})):
        with pytest.raises(FilterError, match="found none"):
            change({})


def test_the_async_methods(service: ServerProcess) -> None:
    """Do the same on an event loop."""
    mail = {"field": "meta.topic", "operator": "==", "value": "mail"}

    async def story() -> None:
        store = NearlineDocumentStore(f"haystack-{uuid4()}", url=service.url)
        assert await store.write_documents_async(CARE, policy=DuplicatePolicy.FAIL) == 3
        assert await store.count_documents_async() == 3
        assert await store.filter_documents_async(mail) == [CARE[1]]
        assert await store.update_by_filter_async(mail, {"seen": True}) == 1
        found = (await NearlineRetriever(store, top_k=1).run_async("lost parcel"))["documents"]
        assert [(one.id, one.meta["seen"]) for one in found] == [("parcels:0", True)]
        assert await store.delete_by_filter_async(mail) == 1
        await store.delete_documents_async(["socks", "absent"])
        assert await store.count_documents_async() == 1
        await store.delete_all_documents_async()
        assert await store.count_documents_async() == 0
        store._store.client.close()

    asyncio.run(story())


def test_a_key_is_kept_out_of_saved_pipelines(
    monkeypatch: pytest.MonkeyPatch, service: ServerProcess
) -> None:
    """What is saved names the variable that holds it."""
    monkeypatch.setenv("NEARLINE_KEY", "nl_secret")
    store = NearlineDocumentStore("help", url=service.url)
    saved = store.to_dict()
    assert "nl_secret" not in str(saved)
    read = NearlineDocumentStore.from_dict(saved)
    assert (read.collection, read.url, read.key) == ("help", service.url, store.key)


def test_metadata_of_several_types(empty: NearlineDocumentStore) -> None:
    """A list counts as its elements, as in filters. Numbers of both kinds are floats, other mixtures keywords, and what
    cannot be compared has no extremes."""
    empty.write_documents(
        [
            Document(content="one", meta={"tags": ["b", "a"], "size": 1, "mixed": 1, "deep": {"seen": True}}),
            Document(content="two", meta={"tags": ["b", "c"], "size": 2.5, "mixed": "x"}),
        ]
    )
    assert empty.get_metadata_fields_info() == {
        "tags": {"type": "keyword"},
        "size": {"type": "float"},
        "mixed": {"type": "keyword"},
        "deep.seen": {"type": "boolean"},
    }
    assert empty.get_metadata_field_unique_values("meta.tags", from_=1, size=5) == (["b", "c"], 3)
    assert empty.count_unique_metadata_by_filter({}, ["meta.tags", "absent"]) == {"meta.tags": 3, "absent": 0}
    assert empty.get_metadata_field_min_max("size") == {"min": 1, "max": 2.5}
    assert empty.get_metadata_field_min_max("mixed") == {"min": None, "max": None}


def test_metadata_of_more_than_a_page(monkeypatch: pytest.MonkeyPatch, empty: NearlineDocumentStore) -> None:
    """All pages count."""
    monkeypatch.setattr("retrieval.clients.haystack_operations.PAGE", 2)
    empty.write_documents([Document(content=str(at), meta={"at": at}) for at in range(5)])
    assert empty.get_metadata_field_min_max("at") == {"min": 0, "max": 4}


@pytest.mark.parametrize("copied", [deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies(filled: NearlineDocumentStore, copied: Callable[[Any], Any]) -> None:
    """A store and the retrievers on it can be copied and pickled, as Haystack does with pipelines; a copy works after
    its original is closed."""
    retriever, by_vector = copied((NearlineRetriever(filled, top_k=1), NearlineEmbeddingRetriever(filled)))
    filled._store.client.close()
    assert retriever.run("lost parcel")["documents"][0].id == "parcels:0"
    assert by_vector.document_store.count_documents() == 3
    for one in (retriever, by_vector):
        one.document_store._store.client.close()


# -- retrievers


def test_the_retriever_by_vector(filled: NearlineDocumentStore) -> None:
    """Finds by a vector of the collection's model, takes filters, and can be saved in a pipeline."""
    vector = filled._store.client.embed(["parcel that never came"], kind="query")["vectors"][0]
    pipeline = Pipeline()
    pipeline.add_component("retriever", NearlineEmbeddingRetriever(filled, top_k=1))
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["nearline.haystack"])
    (found,) = again.run({"retriever": {"query_embedding": vector}})["retriever"]["documents"]
    assert found.id == "parcels:0"
    money = {"field": "meta.topic", "operator": "==", "value": "money"}
    retriever = NearlineEmbeddingRetriever(filled, filters=money)
    assert [one.id for one in retriever.run(vector)["documents"]] == ["refunds:0"]
    assert [one.id for one in asyncio.run(retriever.run_async(vector))["documents"]] == ["refunds:0"]


def test_the_retriever_in_a_pipeline_that_was_saved(filled: NearlineDocumentStore) -> None:
    """Reading it must allow our module. It finds passages, and says where they are from and how good they are."""
    pipeline = Pipeline()
    pipeline.add_component(
        "retriever", NearlineRetriever(filled, top_k=1, search={"mode": "hybrid", "rerank": True})
    )
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["nearline.haystack"])
    (found,) = again.run({"retriever": {"query": "lost parcel"}})["retriever"]["documents"]
    assert (found.id, found.meta["topic"]) == ("parcels:0", "mail")
    passage = found.meta["nearline"]
    assert passage["document_id"] == "parcels"
    assert (CARE[1].content or "")[passage["start"] : passage["end"]] == found.content
    assert 0 <= passage["relevance"] <= 1


def test_filters_of_the_retriever_and_of_a_run(filled: NearlineDocumentStore) -> None:
    """Those of a run replace the retriever's, or are merged with them."""
    late = {"field": "meta.year", "operator": ">", "value": 2025}
    mail = {"field": "meta.topic", "operator": "==", "value": "mail"}
    retriever = NearlineRetriever(filled, filters=late)
    assert [one.id for one in retriever.run("anything")["documents"]] == ["refunds:0"]
    assert [one.id for one in retriever.run("anything", filters=mail)["documents"]] == ["parcels:0"]
    merging = NearlineRetriever(filled, filters=late, filter_policy=FilterPolicy.MERGE)
    assert merging.run("anything", filters=mail)["documents"] == []
    assert len(NearlineRetriever(filled).run("lost parcel", top_k=2)["documents"]) == 2
