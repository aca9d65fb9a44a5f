"""How near a candidate comes to fp32, how fast it is here, and which one is kept.

Accuracy: cosines between its vectors and fp32's, and between a text's vector alone and in a mixed batch.
Speed: one short query, and a batch of passages, on one thread, with the session options of the service.

The fastest candidate within the floors is kept. Times closer than `NOISE` count as equal, and the more accurate
one is taken, so that an export that is repeated chooses the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jobs.export import texts
from jobs.export.running import Feed, Floats, cosines, session, vectors
from jobs.export.tokens import BATCH_TEXTS, Texts, padded
from retrieval.embedding.sessions import OUTPUT, open_session

if TYPE_CHECKING:
    import onnxruntime

# A candidate below these is refused. `cosine_mean` is taken over passages, `cosine_min` over hard texts too. On the
# 22,447 questions of squad-sent a mean of .993 cost .0020 of nDCG@10, one of .995 cost .0006.
FLOORS = {"alone_vs_batch_min": 0.9999, "cosine_min": 0.95, "cosine_mean": 0.994}

NOISE = 0.05  # relative difference of two times that says nothing
QUERY_TOKENS, BULK_TEXTS, BULK_TOKENS = 10, 8, 60
ROUNDS, QUERIES_A_ROUND = 4, 12  # candidates take turns, so that what disturbs the machine disturbs all
OPEN_BYTES_MAX = 2_000_000_000  # of graphs held open at once; larger ones are measured one after the other, once


@dataclass(frozen=True)
class Accuracy:
    """Cosines to fp32, and of each text alone to the same in a mixed batch; NaN where a vector is not finite."""

    cosine_min: float
    cosine_mean: float
    hard_cosine_mean: float
    alone_vs_batch_min: float
    texts: int

    def below(self, floors: Mapping[str, float]) -> str | None:
        """The first figure below its floor, as a reason; None if there is none."""
        for what, floor in floors.items():
            if not (found := getattr(self, what)) >= floor:  # written so that NaN fails too
                return f"{what} is {found:.4f}, below {floor}"
        return None


@dataclass(frozen=True)
class Speed:
    query_ms: float
    bulk_tokens_per_s: float

    @property
    def cost(self) -> float:
        """What is compared: the geometric mean of both times, as a service spends time on queries and on passages."""
        return float(np.sqrt(self.query_ms / self.bulk_tokens_per_s))


class Yardstick:
    """fp32's vectors of the check texts, which candidates are held against."""

    def __init__(self, plain: Path, material: Texts) -> None:
        self._hard = material.feeds(sorted(texts.hard_texts(), key=len))
        self._passages = material.feeds(sorted(material.passages(), key=len))
        mixed = [*texts.hard_texts(), *material.passages()]
        mixed = mixed[:: max(1, len(mixed) // BATCH_TEXTS)][:BATCH_TEXTS]
        self._alone, self._together = material.feeds(mixed, 1), material.feeds(mixed, len(mixed))
        running = session(plain)
        self._hard_vectors = vectors(running, self._hard)
        self._passage_vectors = vectors(running, self._passages)

    def accuracy(self, graph: Path) -> Accuracy:
        running = session(graph)
        hard = cosines(vectors(running, self._hard), self._hard_vectors)
        passages = cosines(vectors(running, self._passages), self._passage_vectors)
        alone = cosines(vectors(running, self._alone), vectors(running, self._together))
        return Accuracy(
            cosine_min=float(np.min([hard.min(), passages.min()])),
            cosine_mean=float(passages.mean()),
            hard_cosine_mean=float(hard.mean()),
            alone_vs_batch_min=float(alone.min()),
            texts=len(hard) + len(passages),
        )


def speeds(graphs: Mapping[str, Path], vocabulary: Sequence[int]) -> dict[str, Speed]:
    """The best of several rounds, for each graph by name."""
    query = _random(vocabulary, 1, QUERY_TOKENS)
    bulk = _random(vocabulary, BULK_TEXTS, BULK_TOKENS)
    together = sum(path.stat().st_size for path in graphs.values()) <= OPEN_BYTES_MAX
    opened = {name: open_session(path, threads=1) for name, path in graphs.items()} if together else {}
    query_s: dict[str, list[float]] = {name: [] for name in graphs}
    bulk_s: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS if together else 1):
        for name, path in graphs.items():
            running = opened.get(name) or open_session(path, threads=1)
            query_s[name].append(_median_s(running, query, QUERIES_A_ROUND))
            bulk_s[name].append(_median_s(running, bulk, 1))
    tokens = BULK_TEXTS * BULK_TOKENS
    return {name: Speed(min(query_s[name]) * 1e3, tokens / min(bulk_s[name])) for name in graphs}


def _median_s(running: onnxruntime.InferenceSession, feed: Feed, times: int) -> float:
    running.run([OUTPUT], feed)
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        running.run([OUTPUT], feed)
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))


def _random(vocabulary: Sequence[int], rows: int, length: int) -> Feed:
    chance = np.random.default_rng(texts.SEED)
    return padded(chance.choice(np.asarray(vocabulary), (rows, length)).tolist(), 0)


def fastest(costs: Mapping[str, float], accuracies: Mapping[str, Accuracy]) -> str:
    """The name with the least cost; among those within `NOISE` of it the one with the highest mean cosine."""
    bound = min(costs.values()) * (1 + NOISE)
    return max((name for name in costs if costs[name] <= bound), key=lambda name: accuracies[name].cosine_mean)


Measure = Callable[[Mapping[str, Path], Sequence[int]], dict[str, Speed]]
