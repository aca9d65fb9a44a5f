"""How do clients written for other servers use this one?

The APIs of OpenAI (embeddings, vector stores and files), Ollama, Text Embeddings Inference, Cohere and Jina, each a
thin translation. Not here: Nearline's own API (`handlers`).
"""

from __future__ import annotations
