"""Haystack's document store and retrievers on a Nearline service. Needs the extra `haystack`."""

from __future__ import annotations

from retrieval.clients.haystack import (
    NearlineDocumentStore,
    NearlineEmbeddingRetriever,
    NearlineRetriever,
)

__all__ = ["NearlineDocumentStore", "NearlineEmbeddingRetriever", "NearlineRetriever"]
