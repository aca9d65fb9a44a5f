"""The data that engines search: real one-line texts, queries, and the vectors of both, made once and kept.

FOLDER/texts.json   queries.json      if there are too few real texts, the rest are halves of two texts joined
FOLDER/vectors.npy  queries.npy       float32 [rows, dimensions], unit length; a joined text gets a mixture of vectors
"""

from __future__ import annotations

import hashlib
import os
import random
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path

import faiss
import msgspec
import numpy as np

from indexes.base.durable import publish_folder
from indexes.base.errors import InvalidInput
from indexes.base.model import Floats
from jobs.benchmark.report import Say
from jobs.sources import SourceDocument, read_documents
from jobs.sources.docstrings import docstrings
from jobs.sources.judgments import read_queries
from retrieval.base.config import load_config
from retrieval.embedding.encoder import Encoder, available_threads
from retrieval.embedding.models import Kind, load_model

WORDS_MIN, WORDS_MAX = 5, 60  # per text
QUERY_WORDS = 8
QUERIES = 8000
CHUNK = 4096  # texts per embedding call
OTHER_HALF = 0.6  # weight of the second text in the vector of a mixture
TIE = 3e-4  # scores this close are ties: float16 storage moves a score by as much


class Material:
    """A folder of texts, with vectors if it was made with them. Vectors are memory-mapped."""

    vectors: Floats
    query_vectors: Floats

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = folder / "texts.json", folder / "queries.json"
        self.texts, self.queries = (msgspec.json.decode(file.read_bytes(), type=list[str]) for file in files)
        if (folder / "vectors.npy").is_file():
            self.vectors, self.query_vectors = (
                map_array(folder / "vectors.npy"),
                map_array(folder / "queries.npy"),
            )


def map_array(file: Path) -> Floats:
    # A plain view of the map: indexing a numpy.memmap costs several times as much.
    return np.asarray(np.load(file, mmap_mode="r"))


def gather(
    corpora: Sequence[Path], count: int, reports: Path, say: Say, *, vectors: bool, questions: int = QUERIES
) -> Material:
    """Gather `count` texts from `corpora`, by default the docstrings of this Python and its packages, and `questions`
    queries. They are cached under `reports` for the next run."""
    encoder = Encoder(load_model(model_folder()), threads=1) if vectors else None
    libraries = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    sources = [str(path.resolve()) for path in corpora or libraries]
    facts = [*sources, str(count), str(questions), encoder.fingerprint if encoder else "no vectors"]
    folder = reports / "texts" / f"{count}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return Material(folder)
    say(f"gathering {count:,} texts ...")
    documents = read_documents(corpora) if corpora else chain.from_iterable(map(docstrings, libraries))
    real = list(islice(lines_of(documents), count))
    if len(real) < 2:
        raise InvalidInput("there are no texts in the corpus", param="corpus")
    pairs = np.random.default_rng(0).integers(len(real), size=(count - len(real), 2))
    say(f"{len(pairs):,} of them are made of halves of others")
    texts = real + [half_and_half(real[first], real[second]) for first, second in pairs]
    queries = queries_for(corpora, texts, questions)
    draft = folder.with_name(f".{folder.name}")
    draft.mkdir(parents=True, exist_ok=True)
    (draft / "texts.json").write_bytes(msgspec.json.encode(texts))
    (draft / "queries.json").write_bytes(msgspec.json.encode(queries))
    if encoder:
        embedded = embed(real, encoder, "document", say)
        mixed = embedded[pairs[:, 0]] + np.float32(OTHER_HALF) * embedded[pairs[:, 1]]
        mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
        np.save(draft / "vectors.npy", np.concatenate([embedded, mixed]))
        np.save(draft / "queries.npy", embed(queries, encoder, "query", say))
    publish_folder(draft, folder)
    return Material(folder)


def lines_of(documents: Iterable[SourceDocument]) -> Iterator[str]:
    """The distinct paragraphs of `documents`, each on one line, except those with a NUL, which no service accepts."""
    seen: set[str] = set()
    for document in documents:
        for paragraph in document.text.split("\n\n"):
            words = paragraph.split()
            line = " ".join(words)
            if WORDS_MIN <= len(words) <= WORDS_MAX and line not in seen and "\0" not in line:
                seen.add(line)
                yield line


def half_and_half(one: str, other: str) -> str:
    first, second = one.split(), other.split()
    return " ".join(first[: (len(first) + 1) // 2] + second[len(second) // 2 :])


def queries_for(corpora: Sequence[Path], texts: Sequence[str], count: int) -> list[str]:
    """At most `count` distinct queries: those next to the corpora, then eight consecutive words of random texts."""
    rng = random.Random(0)
    beside = (path.with_name(name) for path in corpora for name in ("queries.jsonl.gz", "queries.jsonl"))
    found = (query.text for path in beside if path.is_file() for query in read_queries(path))
    asked = list(dict.fromkeys(found))
    made = dict.fromkeys(rng.sample(asked, min(len(asked), count)))
    for text in rng.sample(texts, len(texts)):
        words = text.split()
        start = rng.randrange(max(len(words) - QUERY_WORDS, 0) + 1)
        if len(made) < count:
            made.setdefault(" ".join(words[start : start + QUERY_WORDS]))
    return rng.sample(list(made), len(made))


def embed(texts: Sequence[str], encoder: Encoder, kind: Kind, say: Say) -> Floats:
    """Vectors of all texts, computed with a thread per core."""
    parts = [texts[rows.start : rows.stop] for rows in batches(len(texts), CHUNK)]
    found = []
    with ThreadPoolExecutor(available_threads()) as pool:
        for part in pool.map(lambda part: encoder.encode(part, kind), parts):
            found.append(part)
            say(f"embedding, {kind}: {len(found)} of {len(parts)}")
    return np.concatenate(found)


def batches(count: int, size: int) -> list[range]:
    """The rows of each batch."""
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]


def model_folder() -> Path:
    models = load_config(None, os.environ).models
    return (Path(models.folder) / models.default).resolve()


def model_settings(folder: Path) -> dict[str, str]:
    """The environment of a service that embeds with this model."""
    return {"NEARLINE_MODELS_FOLDER": str(folder.parent), "NEARLINE_MODELS_DEFAULT": folder.name}


def best_scores(vectors: Floats, queries: Floats, k: int) -> Floats:
    """Exact inner products of each query's true `k` nearest rows, best first [queries, k]."""
    scores: Floats = faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)[0]
    return scores


def recall(found: Sequence[Sequence[int]], vectors: Floats, queries: Floats, best: Floats) -> float:
    """Mean share of the true nearest rows that were found. Rows are rescored here; the index's scores are ignored.

    A row that ties with the last true one counts; duplicates count once.
    """
    shares = []
    for rows, query, true in zip(found, queries, best, strict=True):
        scores = vectors[np.unique(np.asarray(rows, np.int64))] @ query
        shares.append(min(np.count_nonzero(scores >= true[-1] - TIE) / len(true), 1))
    return round(float(np.mean(shares)), 4)


def overlap(found: Sequence[Sequence[int]], true: Sequence[Sequence[int]]) -> float:
    """Mean share of the true rows that were found; a query without any counts as 1."""
    shares = [len(set(mine) & set(best)) / len(best) if best else 1.0 for mine, best in zip(found, true)]
    return round(float(np.mean(shares)), 5)
