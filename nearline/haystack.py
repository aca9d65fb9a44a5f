"""Haystack's document store and retriever on a Nearline service. Needs the extra `haystack`."""

from __future__ import annotations

from retrieval.clients.haystack import NearlineDocumentStore, NearlineRetriever

__all__ = ["NearlineDocumentStore", "NearlineRetriever"]
