"""Rerank: a cross-encoder reads the query next to each of the first candidates, and its scores change their order.

The searchers compare vectors or words that were computed separately. A cross-encoder sees both texts at once, which is
better where many passages are about the same thing, and costs a model run for each pair. So only the first candidates
are read, best first, until the budget is spent; the receipt says how many were.

    score = (1 - weight) * fused score, from 0 for the last candidate to 1 for the first
            + weight * sigmoid(score of the cross-encoder)

For a candidate that was not read the second term is 0, as if it did not answer the query.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from indexes.base.errors import InvalidInput
from indexes.base.model import Floats
from indexes.base.work import OnStep, do_nothing
from indexes.log.reader import searchable_text
from retrieval.embedding.costs import CostModel
from retrieval.embedding.encoder import Encoder
from retrieval.embedding.models import ModelManifest, load_model
from retrieval.embedding.results import TooLong
from retrieval.embedding.sessions import CPU, ExecutionProvider
from retrieval.search.plan import Plan
from retrieval.search.ranking import Fused, round_scores
from retrieval.search.rounds import Rounds
from retrieval.search.shard import Searchable, What
from retrieval.wire.options import Reranked

PAIRS_A_RUN = 4  # the budget is checked between runs
FETCHED = 16  # texts in memory at once
WARM_UP_QUERY, WARM_UP_TOKENS = "warm up", (8, 32, 120)

Doubles = npt.NDArray[np.float64]


class PairsRead(NamedTuple):
    """Scores in the order of the texts, float32 [read], where 0 is even odds; and the `tokens` of all pairs, counting
    the query in each."""

    scores: Floats
    tokens: int


class Reranker:
    """A cross-encoder ready to run. Every method may be called from any thread."""

    def __init__(self, folder: Path, *, threads: int, provider: ExecutionProvider = CPU) -> None:
        """Load and warm up the model. Raises NotFound, Damaged, or InvalidInput for a model that makes vectors."""
        model = load_model(folder)
        if model.manifest.makes != "scores":
            raise InvalidInput(f"{folder.name} is an embedding model, not a reranker", param="rerank.model")
        self.manifest: ModelManifest = model.manifest
        self.encoder = Encoder(model, threads=threads, provider=provider)
        self._costs, self._learning = CostModel(), threading.Lock()
        for tokens in WARM_UP_TOKENS:
            for _ in range(2):
                self.scores(WARM_UP_QUERY, ["a " * tokens] * PAIRS_A_RUN)

    def scores(self, query: str, texts: Sequence[str], until: float = math.inf) -> Floats:
        """Score as many texts as can be read before `until` (monotonic), in order, float32 [read]; 0 is even odds."""
        return self.read(self.encoder.read_query(query), texts, until).scores

    def read(
        self,
        query: Encoding,
        texts: Sequence[str],
        until: float = math.inf,
        *,
        refuse: bool = False,
        on_step: OnStep = do_nothing,
    ) -> PairsRead:
        """Read as many texts as can be read before `until` (monotonic). `on_step` is called before each run.

        `query` comes from `encoder.read_query`, so that a request tokenizes it once. With `refuse`, raises TooLong for
        a text that would be cut.
        """
        found, read = [np.empty(0, np.float32)], 0
        for at in range(0, len(texts), PAIRS_A_RUN):
            on_step()
            batch = self.encoder.pairs(query, texts[at : at + PAIRS_A_RUN])
            if refuse and any(tokens.truncated for tokens in batch):
                raise TooLong("a text and the query are longer together", self.encoder.tokens_max)
            longest = max(map(len, batch))
            begun = time.monotonic()
            if begun + self._costs.seconds(len(batch), longest) > until:
                break
            found.append(self.encoder.run(batch)[:, 0])
            read += sum(map(len, batch))
            with self._learning:
                self._costs.learn(len(batch), longest, time.monotonic() - begun)
        return PairsRead(np.concatenate(found), read)


async def rerank(
    plan: Plan,
    fused: Fused,
    shard: Searchable,
    reranker: Reranker,
    rounds: Rounds,
    deadline: float | None = None,
) -> tuple[Fused, Reranked]:
    """Return the candidates in their new order, and how many of how many were read.

    Stays within the plan's budget for all rounds of the search, and before its `deadline` (monotonic), because it holds
    one of few threads.
    """
    wanted, query, known = plan.rerank, plan.request.query, rounds.rerank_scores
    assert wanted is not None
    assert query
    if rounds.rerank_until is None:
        rounds.rerank_until = min(time.monotonic() + wanted.budget_ms / 1000, deadline or math.inf)
    ids, first = fused.candidates.ids, fused.order[: wanted.candidates]
    firsts = ids[first].tolist()
    unread, gone = [one for one in firsts if one not in known], 0
    asked = reranker.encoder.read_query(query)
    for at in range(0, len(unread), FETCHED):
        stored = (await shard.fetch(unread[at : at + FETCHED], What(passages=True))).passages
        gone += len(unread[at : at + FETCHED]) - len(stored)
        live = [stored[one] for one in unread[at : at + FETCHED] if one in stored]
        texts = [searchable_text(passage.title, passage.text) for passage in live]
        scores = reranker.read(asked, texts, rounds.rerank_until, on_step=rounds.on_step).scores.tolist()
        known.update(zip((passage.id for passage in live), scores))
        if len(scores) < len(live):
            break
    found: Doubles = np.full(len(ids), np.nan)
    found[first] = [known.get(one, math.nan) for one in firsts]
    combined = round_scores(blend_scores(fused.ranked, found, wanted.weight, fused.levels))
    fused = replace(fused, ranked=combined, reranked=round_scores(found), score_max=1.0)
    answer = replace(fused, order=fused.ordered_by(combined))
    read = sum(one in known for one in firsts)
    return answer, Reranked(reranker.manifest.name, read, len(first) - gone)


def blend_scores(
    fused: Doubles, scores: Doubles, weight: float, levels: npt.NDArray[np.int64] | None = None
) -> Doubles:
    """Blend fused scores with those of the cross-encoder, which are NaN where it did not read, into one that is from 0
    to 1 for candidates of the first level."""
    first = fused if levels is None else fused[levels == 0]
    least, span = first.min(initial=np.inf), np.ptp(first) if len(first) else 0.0
    scaled = (fused - least) / span if span > 0 else np.ones(len(fused))
    return (1 - weight) * scaled + weight * np.nan_to_num(sigmoid(scores))


def sigmoid(scores: npt.NDArray[np.floating[Any]]) -> Doubles:
    """Turn a score into roughly the probability that the passage answers the query; NaN stays NaN."""
    return np.asarray(1 / (1 + np.exp(-scores.astype(np.float64))))
