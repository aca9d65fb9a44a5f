"""How does a text become a vector?

Finding and verifying a model, tokenizing, and running texts in shared batches; also the pairs that a cross-encoder
reads. Not here: keeping vectors of queries (`cache`), or exporting models (`jobs/models`).
"""

from __future__ import annotations

import os

# Before the first import of onnxruntime: from 1.32 on it reports its use to its makers. `=0` allows that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
