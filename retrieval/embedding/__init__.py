"""Text to vectors: find and verify a model, tokenise, run it in shared batches."""

from __future__ import annotations

import os

# Before the first import of onnxruntime: from 1.32 on it reports its use to its makers. `=0` allows that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
