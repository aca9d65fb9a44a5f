"""How near a candidate comes to fp32, how fast it is here, and which one is kept.

Accuracy: cosines between its vectors and fp32's, and between a text's vector alone and in a mixed batch.
Speed: one short query, and a batch of passages, on one thread, with the session options of the service.

The fastest candidate within the floors is kept. Times closer than `NOISE` count as equal, and the more accurate
one is taken, so that an export that is repeated chooses the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jobs.export import texts
from jobs.export.running import Feed, cosines, file_bytes, session, vectors
from jobs.export.tokens import BATCH_TEXTS, Texts, padded
from retrieval.embedding.sessions import OUTPUT, open_session

if TYPE_CHECKING:
    import onnxruntime

# A candidate below these is refused. `cosine_mean` is taken over passages, `cosine_min` over hard texts too. On the
# 22,447 questions of squad-sent a mean of .993 cost .0020 of nDCG@10, one of .995 cost .0006.
FLOORS = {"alone_vs_batch_min": 0.9999, "cosine_min": 0.95, "cosine_mean": 0.994}
# For small devices a mean of .988 cost .0040 (of .7283): the size of a third is worth that. With 4 bits everywhere it
# was .974 and .0114, for 2 MB less: not worth it.
SMALL_FLOORS = {"alone_vs_batch_min": 0.9999, "cosine_min": 0.95, "cosine_mean": 0.985}

NOISE = 0.05  # relative difference of two times that says nothing
QUERY_TOKENS, BULK_TEXTS, BULK_TOKENS = 10, 8, 60
ROUNDS, QUERIES_A_ROUND = 8, 8  # candidates take turns, so that what disturbs the machine disturbs all
OPEN_BYTES_MAX = (
    2_000_000_000  # of graphs held open at once; larger ones are measured one after the other, once
)


@dataclass(frozen=True)
class Accuracy:
    """Cosines to fp32, and of each text alone to the same in a mixed batch; NaN where a vector is not finite."""

    cosine_min: float
    cosine_mean: float
    hard_cosine_mean: float
    alone_vs_batch_min: float
    texts: int

    def figures(self) -> dict[str, float]:
        return {what: float(value) for what, value in asdict(self).items()}

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
    """The shortest of many times, for each graph by name.

    Times are the processor's, not the clock's: what else runs on the machine lengthens them little.
    """
    query = _random(vocabulary, 1, QUERY_TOKENS)
    bulk = _random(vocabulary, BULK_TEXTS, BULK_TOKENS)
    together = sum(map(file_bytes, graphs.values())) <= OPEN_BYTES_MAX
    opened = {name: open_session(path, threads=1) for name, path in graphs.items()} if together else {}
    query_s = dict.fromkeys(graphs, math.inf)
    bulk_s = dict.fromkeys(graphs, math.inf)
    for _ in range(ROUNDS if together else 1):
        for name, path in graphs.items():
            running = opened.get(name) or open_session(path, threads=1)
            query_s[name] = min(query_s[name], *(_taken_s(running, query) for _ in range(QUERIES_A_ROUND)))
            bulk_s[name] = min(bulk_s[name], *(_taken_s(running, bulk) for _ in range(1 if together else 2)))
    tokens = BULK_TEXTS * BULK_TOKENS
    return {name: Speed(query_s[name] * 1e3, tokens / bulk_s[name]) for name in graphs}


def _taken_s(running: onnxruntime.InferenceSession, feed: Feed) -> float:
    """Of this thread, which is the only one of a session with one thread."""
    started = time.thread_time()
    running.run([OUTPUT], feed)
    return time.thread_time() - started


def _random(vocabulary: Sequence[int], rows: int, length: int) -> Feed:
    chance = np.random.default_rng(texts.SEED)
    return padded(chance.choice(np.asarray(vocabulary), (rows, length)).tolist(), 0)


def fastest(costs: Mapping[str, float], accuracies: Mapping[str, Accuracy]) -> str:
    """The name with the least cost; among those within `NOISE` of it the one with the highest mean cosine."""
    bound = min(costs.values()) * (1 + NOISE)
    return max(
        (name for name in costs if costs[name] <= bound), key=lambda name: accuracies[name].cosine_mean
    )
