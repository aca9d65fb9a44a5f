"""From text to vectors: find and verify a model, tokenize, run texts in shared batches."""

from __future__ import annotations

import os

# Set before the first import of onnxruntime, which sends telemetry from 1.32 on. `=0` allows it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
