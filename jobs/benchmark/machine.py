"""Where a figure was measured: machine, versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = (
    "nearline", "aiohttp", "apsw", "faiss-cpu", "hnswlib", "msgspec", "numpy", "onnxruntime", "tokenizers",
    "sentence-transformers", "torch", "lancedb", "qdrant-edge-py", "usearch",
)  # fmt: skip


def machine() -> dict[str, object]:
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "instructions": instructions(),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def instructions() -> list[str]:
    """The vector instructions that decide how fast int8 and SIMD code runs."""
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = set(line.split())
            return [one for one in wanted if one in flags]
    return []
