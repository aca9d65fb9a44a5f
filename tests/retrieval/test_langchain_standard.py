"""LangChain's standard suites on a real service. Skipped without langchain-tests (the extra `frameworks`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip(
    "langchain_tests", reason="langchain-tests brings eight plugins of pytest; see the extra frameworks"
)

from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from langchain_ollama import OllamaEmbeddings
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)

from jobs.serving.process import ServerProcess
from nearline import Client
from nearline.langchain import NearlineRetriever, NearlineVectorStore

# The mark is for the coroutines among the suites' tests.
pytestmark = [pytest.mark.asyncio, pytest.mark.filterwarnings("ignore:.*is not an async function")]


class TestVectorStore(VectorStoreIntegrationTests):
    """With the service's own embeddings: nothing of the suite is left out."""

    @pytest.fixture
    def vectorstore(self, service: ServerProcess) -> Iterator[VectorStore]:
        with Client(service.url) as client:
            yield NearlineVectorStore(f"langchain-{uuid4()}", client=client)


class TestVectorStoreWithEmbeddings(VectorStoreIntegrationTests):
    """With embeddings of LangChain's: those of the service, asked for by LangChain."""

    @pytest.fixture
    def vectorstore(self, service: ServerProcess) -> Iterator[VectorStore]:
        with Client(service.url) as client:
            embedding = OllamaEmbeddings(model="all-minilm", base_url=service.url)
            yield NearlineVectorStore(f"langchain-{uuid4()}", client=client, embedding=embedding)


class TestRetriever(RetrieversIntegrationTests):
    """Nothing of the suite is left out."""

    _collection = ""
    _url = ""

    @pytest.fixture(autouse=True)
    def _filled(self, service: ServerProcess) -> None:
        type(self)._collection, type(self)._url = f"langchain-{uuid4()}", service.url
        store = NearlineVectorStore(self._collection, url=service.url)
        store.add_texts([f"A refund of {number} euros." for number in range(6)])

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return NearlineRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"collection": self._collection, "url": self._url}

    @property
    def retriever_query_example(self) -> str:
        return "refund"


class TestEmbeddings(EmbeddingsIntegrationTests):
    """Of the service, through LangChain's own client of Ollama."""

    _url = ""

    @pytest.fixture(autouse=True)
    def _served(self, service: ServerProcess) -> None:
        type(self)._url = service.url

    @property
    def embeddings_class(self) -> type[Embeddings]:
        return OllamaEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": "all-minilm", "base_url": self._url}
