"""Haystack's suites for the async methods of document stores, on a real service. Skipped without pytest-asyncio, which
comes with the extra `frameworks`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import pytest

pytest.importorskip("haystack", reason="haystack-ai is not installed; the extra haystack has it")
pytest.importorskip("pytest_asyncio", reason="pytest-asyncio comes with the extra frameworks")

import pytest_asyncio
from haystack import Document
from haystack.testing.document_store_async import (
    CountDocumentsAsyncTest,
    CountDocumentsByFilterAsyncTest,
    CountUniqueMetadataByFilterAsyncTest,
    DeleteAllAsyncTest,
    DeleteByFilterAsyncTest,
    DeleteDocumentsAsyncTest,
    FilterDocumentsAsyncTest,
    GetMetadataFieldMinMaxAsyncTest,
    GetMetadataFieldsInfoAsyncTest,
    GetMetadataFieldUniqueValuesAsyncTest,
    UpdateByFilterAsyncTest,
    WriteDocumentsAsyncTest,
)

from jobs.serving.process import ServerProcess
from nearline.haystack import NearlineDocumentStore


class TestDocumentStore(
    CountDocumentsAsyncTest,
    CountDocumentsByFilterAsyncTest,
    CountUniqueMetadataByFilterAsyncTest,
    DeleteAllAsyncTest,
    DeleteByFilterAsyncTest,
    DeleteDocumentsAsyncTest,
    FilterDocumentsAsyncTest,
    GetMetadataFieldMinMaxAsyncTest,
    GetMetadataFieldsInfoAsyncTest,
    GetMetadataFieldUniqueValuesAsyncTest,
    UpdateByFilterAsyncTest,
    WriteDocumentsAsyncTest,
):
    """All of Haystack's suites for the async methods of document stores."""

    @pytest_asyncio.fixture
    async def document_store(self, service: ServerProcess) -> AsyncIterator[NearlineDocumentStore]:
        store = NearlineDocumentStore(f"haystack-{uuid4()}", url=service.url)
        yield store
        store._store.client.close()

    def assert_documents_are_equal(self, received: list[Document], expected: list[Document]) -> None:
        """But for embeddings, which the service makes itself and the store does not keep."""
        assert received == [replace(one, embedding=None) for one in expected]

    @pytest.mark.asyncio
    async def test_write_documents_async(self, document_store: NearlineDocumentStore) -> None:
        """Without a policy a known id is overwritten. Haystack leaves this to each store."""
        for text in ("one", "two"):
            assert await document_store.write_documents_async([Document(id="1", content=text)]) == 1
        assert [one.content for one in await document_store.filter_documents_async()] == ["two"]
