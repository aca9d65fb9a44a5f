"""LlamaIndex's vector store and retriever on a Nearline service. Needs the extra `llama-index`."""

from __future__ import annotations

from retrieval.clients.llamaindex import NearlineRetriever, NearlineVectorStore

__all__ = ["NearlineRetriever", "NearlineVectorStore"]
