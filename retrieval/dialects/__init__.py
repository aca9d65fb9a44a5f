"""How do clients written for other embedding servers speak to this one? OpenAI's dialect, Ollama's, and that of
Text Embeddings Inference: each a thin translation of one shared way to embed (`embedding`)."""

from __future__ import annotations
