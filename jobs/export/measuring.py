"""How near a candidate comes to fp32, how fast it is here, and which one is kept.

Accuracy: cosines between its vectors and fp32's, and between a text's vector alone and in a mixed batch.
Speed: one short query, and a batch of passages, on one thread, with the session options of the service.

The candidate within the floors that is fastest with a query is kept: a search waits for it, while passages are embedded
in the background. Times closer than `NOISE` count as equal, and the more accurate one is taken, so that an export that
is repeated chooses the same.
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
from jobs.export.running import Feed, cosines, session, vectors
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
QUERIES_A_ROUND = 25
ROUNDS, ROUNDS_MORE = 2, 10  # candidates take turns, so that what disturbs the machine disturbs all
CONTENDER = 1.5  # times the fastest: up to there a candidate may win, and gets the further rounds


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

    def best(self, other: Speed) -> Speed:
        return Speed(min(self.query_ms, other.query_ms), max(self.bulk_tokens_per_s, other.bulk_tokens_per_s))


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


def speeds(graphs: Mapping[str, Path], vocabulary: Sequence[int], rounds: int) -> dict[str, Speed]:
    """The shortest of many times, for each graph by name.

    Times are the processor's, not the clock's, which other processes would lengthen. Each round opens each graph anew:
    where its weights come to lie in memory makes a tenth of the time.
    """
    query = _random(vocabulary, 1, QUERY_TOKENS)
    bulk = _random(vocabulary, BULK_TEXTS, BULK_TOKENS)
    query_s = dict.fromkeys(graphs, math.inf)
    bulk_s = dict.fromkeys(graphs, math.inf)
    for _ in range(rounds):
        for name, path in graphs.items():
            running = open_session(path, threads=1)
            bulk_s[name] = min(bulk_s[name], _taken_s(running, bulk))
            query_s[name] = min(query_s[name], *(_taken_s(running, query) for _ in range(QUERIES_A_ROUND)))
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


def contenders(timed: Mapping[str, Speed]) -> list[str]:
    """Names of those that more rounds could show to be the fastest; none where there is no doubt."""
    bound = min(speed.query_ms for speed in timed.values()) * CONTENDER
    found = [name for name, speed in timed.items() if speed.query_ms <= bound]
    return found if len(found) > 1 else []


def fastest(timed: Mapping[str, Speed], accuracies: Mapping[str, Accuracy]) -> str:
    """The name with the fastest query; among those within `NOISE` of it the one with the highest mean cosine."""
    bound = min(speed.query_ms for speed in timed.values()) * (1 + NOISE)
    near = [name for name, speed in timed.items() if speed.query_ms <= bound]
    return max(near, key=lambda name: accuracies[name].cosine_mean)
