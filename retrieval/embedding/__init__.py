"""Text to vectors: find and verify a model, tokenise, run it in shared batches."""

from __future__ import annotations
