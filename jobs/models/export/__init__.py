"""Exports an encoder from any source to a folder that can be served. Start reading at `exporting`."""

from __future__ import annotations

import os

# Before the first import of onnxruntime: from 1.32 on it reports its use to its makers. `=0` allows that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
