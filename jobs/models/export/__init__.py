"""How does an encoder become a folder that can be served?

Its source is found, its graph built in several precisions and measured, and the fastest accurate one published. Start
reading at `exporting`. Not here: loading and running the result (`retrieval/embedding`).
"""

from __future__ import annotations

import os

# Before the first import of onnxruntime: from 1.32 on it reports its use to its makers. `=0` allows that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
