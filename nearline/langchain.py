"""LangChain's vector store and retriever on a Nearline service. Needs the extra `langchain`."""

from __future__ import annotations

from retrieval.clients.langchain import NearlineRetriever, NearlineVectorStore

__all__ = ["NearlineRetriever", "NearlineVectorStore"]
