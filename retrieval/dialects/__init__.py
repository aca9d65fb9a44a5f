"""How do clients written for other servers speak to this one? In the dialects of OpenAI, Ollama, Text Embeddings
Inference and Cohere, each a thin translation of one shared way to embed (`embedding`); `rerank` adds Jina's."""

from __future__ import annotations
