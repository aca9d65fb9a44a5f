"""Our BM25 beside other engines, on the same passages and queries, in one process: why it is the one that serves.

The others get the same terms (our analysis), so that only the engines differ. Needs the `bench` extra.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from indexes.lexical.analysis import terms
from indexes.lexical.bm25 import Statistics, best_of, weigh
from indexes.lexical.postings import GrowingLexical, SealedLexical
from indexes.log.reader import LogReader
from indexes.model import Bm25
from jobs.benchmark.service import percentiles

K = 100
SLOW_QUERIES = 20  # for the engine that takes a second each
GROWN = 4096

Search = Callable[[str], Any]


def measure(log_path: Path, queries: Sequence[str]) -> dict[str, Any]:
    """Build time and latency of the top 100, for each engine that is installed."""
    log = LogReader(log_path)
    texts = [text for block in log.texts(0, log.position().last_passage) for _, text in block]
    log.close()
    engines: dict[str, Callable[[list[str], Path], Search]] = {
        "nearline (sealed)": nearline_sealed,
        "nearline (sealed, and a delta beside it)": nearline_with_delta,
        "tantivy": tantivy_engine,
        "bm25s": bm25s_engine,
        "rank-bm25": rank_bm25_engine,
    }
    results: dict[str, Any] = {}
    for name, build in engines.items():
        asked = queries[:SLOW_QUERIES] if name == "rank-bm25" else queries
        with tempfile.TemporaryDirectory(prefix="nearline-lexical-") as folder:
            results[name] = measure_one(build, texts, asked, Path(folder))
        gc.collect()
    return results


def measure_one(
    build: Callable[[list[str], Path], Search], texts: list[str], queries: Sequence[str], folder: Path
) -> dict[str, Any]:
    begun = time.perf_counter()
    try:
        search = build(texts, folder)
    except ImportError as error:
        return {"skipped": f"{error}; pip install 'nearline[bench]'"}
    built_s = time.perf_counter() - begun
    for query in queries[:20]:
        search(query)
    taken = []
    for query in queries:
        begun = time.perf_counter()
        search(query)
        taken.append((time.perf_counter() - begun) * 1000)
    return {"build_s": round(built_s, 1), **percentiles(taken)}


def nearline_sealed(texts: list[str], folder: Path) -> Search:
    sealed = seal(texts, folder)
    statistics = Statistics(sealed.size, sealed.length)

    def search(query: str) -> Any:
        return best_of(sealed, weigh(query, [sealed], statistics, Bm25()), K)

    return search


def nearline_with_delta(texts: list[str], folder: Path) -> Search:
    sealed = seal(texts[:-GROWN], folder)
    growing = GrowingLexical()
    for text in texts[-GROWN:]:
        growing.add(text)
    view = growing.view(len(texts[-GROWN:]))
    statistics = Statistics(sealed.size + view.size, sealed.length + view.length)

    def search(query: str) -> Any:
        weighed = weigh(query, [sealed, view], statistics, Bm25())
        return [best_of(part, weighed, K) for part in (sealed, view)]

    return search


def seal(texts: list[str], folder: Path) -> SealedLexical:
    growing = GrowingLexical()
    for text in texts:
        growing.add(text)
    growing.seal(len(texts)).save(folder)
    return SealedLexical.load(folder)


def tantivy_engine(texts: list[str], folder: Path) -> Search:
    import tantivy

    schema = tantivy.SchemaBuilder().add_text_field("body", stored=False, tokenizer_name="whitespace").build()
    index = tantivy.Index(schema, path=str(folder))
    writer = index.writer(heap_size=256_000_000, num_threads=1)
    for text in texts:
        writer.add_document(tantivy.Document(body=" ".join(terms(text))))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def search(query: str) -> Any:
        parts = [
            (tantivy.Occur.Should, tantivy.Query.term_query(schema, "body", term)) for term in terms(query)
        ]
        return searcher.search(tantivy.Query.boolean_query(parts), K)

    return search


def bm25s_engine(texts: list[str], folder: Path) -> Search:
    import bm25s

    retriever = bm25s.BM25(k1=Bm25().k1, b=Bm25().b)
    retriever.index([terms(text) for text in texts], show_progress=False)
    return lambda query: retriever.retrieve([terms(query)], k=K, show_progress=False, n_threads=1)


def rank_bm25_engine(texts: list[str], folder: Path) -> Search:
    from rank_bm25 import BM25Okapi

    index = BM25Okapi([terms(text) for text in texts], k1=Bm25().k1, b=Bm25().b)
    return lambda query: np.argsort(-index.get_scores(terms(query)))[:K]
